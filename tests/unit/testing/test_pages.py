"""The examples of docs/actions.md, docs/entitlements.md and docs/sow.md do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.config.action_section import ActionDo
from penstock.errors import AccessRefused
from penstock.records.event_actions import ALWAYS, VARIABLES
from penstock.testing import Broker
from waiting import eventually

DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.subscribe(queue, max_backlog=None).take()]


def test_the_dead_letter_example() -> None:
    with Broker(examples("actions.md")[0]) as broker:
        broker.publish("to-ship", '{"id": 1}')
        worker = broker.subscribe("to-ship")
        for _ in range(3):
            worker.take()[0].cancel()
        assert bodies(broker, "graveyard") == [b'{"why": "max_deliveries", "message": {"id": 1}}']


def test_the_example_of_several_steps() -> None:
    with Broker(examples("actions.md")[1]) as broker:
        broker.publish("stock", '{"left": 9}')
        broker.publish("orders", '{"item": "a", "total": 101}')
        broker.publish("orders", '{"item": "b", "total": 99}')
        broker.publish("orders", '{"item": "c", "total": 500}')
        first, second, third = broker.subscribe("orders", max_backlog=3).take()
        first.ack()
        second.ack()
        broker.publish("stock", '{"left": 1}')
        third.expire()
        assert bodies(broker, "audit") == [
            b'{"number": 1, "item": "a", "low": null}',
            b'{"number": 2, "item": "c", "low": {"left": 1}}',
        ]


def test_the_page_names_every_step_and_variable() -> None:
    page = (DOCS / "actions.md").read_text()
    missing = [name for name in ActionDo.model_fields if f"`{name} = " not in page]
    variables = {name for names in VARIABLES.values() for name in names} | {*ALWAYS}
    missing += [name for name in variables if f"`{name}`" not in page]
    assert not missing


def test_the_example_of_entitlements() -> None:
    [example] = examples("entitlements.md")
    with Broker(example) as broker:
        url = broker.flight_url.rpartition("@")[2]
        with penstock.connect(f"penstock://shop:s@{url}") as shop:
            for region in ("n", "s", "n"):
                shop.publish("orders", {"region": region, "total": 1})
            with pytest.raises(AccessRefused):
                shop.publish("orders", {"region": "n", "total": 0})
            with pytest.raises(AccessRefused):
                list(shop.peek("to-ship"))
        with penstock.connect(f"penstock://north:n@{url}") as north:
            assert [message.json()["region"] for message in north.peek("to-ship")] == ["n", "n"]
            with pytest.raises(AccessRefused):
                north.publish("orders", b"{}")
        with penstock.connect(f"penstock://operator:o@{url}") as operator:
            assert len(list(operator.peek("to-ship"))) == 3


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sow.md").read_text()
(_, SETTINGS), (_, EXAMPLE), (_, RESTART) = re.findall(r"```(toml|python)\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(SETTINGS) as broker:
        exec(EXAMPLE.replace("penstock://localhost", broker.flight_url), {})
        assert [record.json()["id"] for record in broker.sow("orders")] == [1]
        assert len(broker.sow("to-ship")) == 5
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("{'id': 1, 'total': 9.5, 'ship': {'to': 'Oslo', 'by': 'sea'}}")
    assert printed[1:] == [
        "{'id': 1, 'total': 9.5, 'ship': {'to': 'Oslo', 'by': 'sea'}}",
        "{'id': 3, 'total': 20}",
        "oof match",
    ]


def test_a_copy_of_the_records_is_kept() -> None:
    with Broker(SETTINGS) as broker, penstock.connect(broker.flight_url) as client:
        client.publish("orders", {"id": 1, "total": 9.5})
        names: dict[str, Any] = {"penstock": penstock}
        program = RESTART.replace("penstock://localhost", broker.flight_url).replace('timeout="5s"', 'timeout="100ms"')

        def copied() -> bool:
            """It ends when nothing comes for a moment, in which on a busy machine nothing may have come yet."""
            exec(program, names)
            return bool(names["copy"])

        eventually(copied)
        assert names["copy"] == {1: {"id": 1, "total": 9.5}}
