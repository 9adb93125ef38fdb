"""The example of docs/sow.md runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.testing import Broker

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sow.md").read_text()
BLOCKS = dict(re.findall(r"```(toml|python)\n(.*?)```", PAGE, re.DOTALL))


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(BLOCKS["toml"]) as broker:
        exec(BLOCKS["python"], {"url": broker.flight_url})
        assert [record.json()["id"] for record in broker.sow("orders")] == [1]
        assert len(broker.sow("to-ship")) == 5
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("{'id': 1, 'total': 9.5, 'ship': {'to': 'Oslo', 'by': 'sea'}}")
    assert printed[1:] == [
        "{'id': 1, 'total': 9.5, 'ship': {'to': 'Oslo', 'by': 'sea'}}",
        "{'id': 3, 'total': 20}",
        "oof match",
    ]
