"""The example of docs/sow.md runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.testing import Broker
from waiting import eventually

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sow.md").read_text()
(_, SETTINGS), (_, EXAMPLE), (_, RESTART) = re.findall(r"```(toml|python)\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(SETTINGS) as broker:
        exec(EXAMPLE, {"url": broker.flight_url})
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
        names: dict[str, Any] = {"client": client}

        def copied() -> bool:
            """It ends when nothing comes for a moment, in which on a busy machine nothing may have come yet."""
            exec(RESTART.replace('timeout="5s"', 'timeout="100ms"'), names)
            return bool(names["copy"])

        eventually(copied)
        assert names["copy"] == {1: {"id": 1, "total": 9.5}}
