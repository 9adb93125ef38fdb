"""The section "Batch reads" of docs/spark.md: its examples run in order against a server with its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from page_lab import blocks, run, sections, served
from penstock.spark.options import READ

SECTION = sections("spark.md")["Batch reads"]


def test_the_examples_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(SECTION, spark, tmp_path, monkeypatch) as names:
        run(blocks(SECTION, "python"), names)
        told = capsys.readouterr().out
        assert "1 2 2 1 True\n" in told
        assert "True\n{'1': '`id` bigint', '2': 'id bigint, reason string'}\nTrue False\n" in told
        assert names["lines"].count() == 2
        assert names["rescued"].collect() == [(3, None, '{"total":"ten","coupon":"X1"}')]
        with penstock.connect(names["url"]) as client:
            assert [message.body for message in client.replay("bad-orders", "EPOCH")] == [b"no json at all"]


def test_every_option_of_a_batch_read_is_named() -> None:
    options = {
        "topic", "exchange", "queue", "states", "view", "log", "startingLsn", "endingLsn", "startingBookmark",
        "endingBookmark", "startingTimestamp", "filter", "minPartitions", "schema", "parse", "badRecordsTopic",
        "rescuedDataColumn", "schemaVersion", "keepSchema", "failOnDataLoss", "direct",
    }  # fmt: skip
    assert options <= set(READ)
    assert {name for name in options if f"`{name}" not in SECTION and f'"{name}"' not in SECTION} == set()
