"""The section "Batch reads" of docs/spark.md: its examples run in order against a server with its settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock.spark
from live_server import LiveServer
from penstock.spark.reading.options import READ

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
SECTION = re.split(r"^## ", PAGE[PAGE.index("## Batch reads") + 3 :], flags=re.MULTILINE)[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


def test_the_examples_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "penstock.toml").write_text("\n".join(blocks("toml")))
    monkeypatch.setattr(penstock.spark, "session", lambda: spark)
    with LiveServer(tmp_path, [str(tmp_path / "penstock.toml")], flight=True) as server:
        names: dict[str, Any] = {"url": f"penstock://guest:guest@{server.ready['flight']}"}
        for block in blocks("python"):
            exec(compile(block, "docs/spark.md", "exec"), names)
        assert "1 2 2 1 True\n" in capsys.readouterr().out
        assert names["lines"].count() == 2
        with penstock.connect(names["url"]) as client:
            assert [message.body for message in client.replay("bad-orders", "EPOCH")] == [b"no json at all"]


def test_every_option_of_a_batch_read_is_named() -> None:
    options = {
        "topic", "exchange", "queue", "states", "view", "log", "startingLsn", "endingLsn", "startingBookmark",
        "endingBookmark", "startingTimestamp", "filter", "minPartitions", "schema", "parse", "badRecordsTopic",
        "failOnDataLoss", "direct",
    }  # fmt: skip
    assert options <= set(READ)
    assert {name for name in options if f"`{name}" not in SECTION and f'"{name}"' not in SECTION} == set()
