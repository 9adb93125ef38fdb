"""The sections of docs/spark.md about streams in log mode and what streams hold: their examples run in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.spark
from live_server import LiveServer
from page_lab import blocks, run, sections
from penstock.spark.options import READ

SECTIONS = sections("spark.md")
LOG, HELD = SECTIONS["Streams, log mode"], SECTIONS["Streams and what they hold"]


def test_the_examples_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(penstock.spark, "session", lambda: spark)
    with LiveServer(tmp_path, flight=True) as server:
        url = f"penstock://guest:guest@{server.ready['flight']}"
        names: dict[str, Any] = {"url": url}
        run(blocks(LOG, "python"), names)
        assert "[40, 40, 20]\n" in capsys.readouterr().out
        for line in "".join(blocks(HELD, "sh")).splitlines():
            command = line.replace('"$url"', url).split()
            assert "long-trips" in subprocess.run(
                [sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, check=True
            ).stdout  # fmt: skip
        run(blocks(HELD, "python"), names)
        assert "trips held " in capsys.readouterr().out
        with penstock.connect(url) as client:
            assert client.streams() == []
            assert sum(1 for _ in client.replay("long-trips", "EPOCH")) == 30


def test_every_option_of_a_log_stream_is_named() -> None:
    other = {"user", "password", "vhost", "path", "patience", "states", "log", "startingLsn", "endingLsn", "view"}
    other |= {"ca", "cert", "key", "verify", "token"}  # of every read and write
    other |= {"mode", "queue", "endingOffsets", "orderBy", "onLostCheckpoint", "poisonAfter"}  # of mode queue
    other |= {
        "backfillUntil",
        "backfillOnly",
        "backfillMaxRows",
        "beside",
        "pipeline",
        "poisonBlame",
    }  # of pipelines alone
    assert {name for name in READ if f"`{name}" not in LOG and f'"{name}"' not in LOG} - other <= {"url"}
