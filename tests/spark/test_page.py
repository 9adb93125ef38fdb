"""docs/spark.md but for pipelines: a section's examples run in order, against a server with its settings; and the
program of the README that asks for Spark.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.spark
from live_server import LiveServer
from page_lab import DOCS, blocks, page, run, sections, served
from penstock.spark.options import READ, WRITE
from penstock.spark.sink_rows import BESIDE
from spark_lab import Lab

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
SECTIONS = sections("spark.md")
BEGIN, BATCH, WRITING = SECTIONS["Begin"], SECTIONS["Batch reads"], SECTIONS["Writing"]
LOG, QUEUE, HELD = (SECTIONS[f"Streams{name}"] for name in (", log mode", ", queue mode", " and what they hold"))


def test_the_first_program_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [_settings], [program] = blocks(BEGIN, "toml"), blocks(BEGIN, "python")
    with served(BEGIN, spark, tmp_path, monkeypatch) as names:
        assert program.count('url = "penstock://localhost"\n') == 1, "it runs as it stands"
        run([program.replace('"penstock://localhost"', repr(names["url"]))], {})
    assert capsys.readouterr().out == "0 99\n"


def test_the_program_of_the_readme_runs(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = [code for code in blocks(README, "python") if "penstock.spark" in code]
    for written, here in (("options(", f"options(url={lab.house.url!r}, "), ('"./billing"', repr(str(tmp_path)))):
        assert written in program
        program = program.replace(written, here)
    monkeypatch.setattr(penstock.spark, "session", lambda: lab.spark)
    lab.declare("to-ship", underlying_topic="orders")
    lab.declare("invoices")
    lab.publish("orders", [3, 4])
    run([program], {}, "../README.md")
    [query] = lab.spark.streams.active
    query.processAllAvailable()
    query.stop()
    found = sorted((one.json() for one in lab.client.peek("invoices", count=9)), key=str)
    assert found == [{"id": 3, "gross": 1.79}, {"id": 4, "gross": 2.38}]


def test_every_section_is_named_at_the_top() -> None:
    text = page("spark.md")
    named = set(re.findall(r"\[([^]]*)\]\(#", text[: text.index("## Begin")]))
    assert set(SECTIONS) - {"Streams and what they hold"} == named


def test_the_examples_of_batch_reads_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(BATCH, spark, tmp_path, monkeypatch) as names:
        run(blocks(BATCH, "python"), names)
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
    assert {name for name in options if f"`{name}" not in BATCH and f'"{name}"' not in BATCH} == set()


def test_the_examples_of_log_mode_run(
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


def test_the_examples_of_queue_mode_run(lab: Lab) -> None:
    [settings] = blocks(QUEUE, "toml")
    for one in tomllib.loads(settings)["queue"]:
        lab.declare(one.pop("name"), **one)
    names: dict[str, Any] = {"url": lab.house.url}
    programs = blocks(QUEUE, "python")
    assert len(programs) == 3
    run(programs, names)
    lab.spark.streams.removeListener(names["listener"])
    assert lab.ids("results") == [*range(100), *(n for n in range(100, 130) if n != 110)]
    assert lab.ids("failed-jobs") == [110]
    assert lab.counts("jobs") == (0, 0, 129)


def test_the_examples_of_writing_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(WRITING, spark, tmp_path, monkeypatch) as names:
        run(blocks(WRITING, "python"), names)
    assert capsys.readouterr().out == "['EU', 'US']\n11 9 20\nTrue\n"


def test_every_option_and_column_of_a_write_is_named() -> None:
    other = {"url", "user", "password", "token", "vhost", "path", "ca", "cert", "key", "verify"}  # of all
    assert {name for name in WRITE if f"`{name}`" not in WRITING} == other
    assert [name for name in BESIDE if f"`{name}`" not in WRITING] == []
