"""docs/pipelines.md: its settings are read as one file, and each of its pipelines runs over a few messages."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from choices import EFFORT
from page_lab import blocks, page
from penstock.cli.main import command
from penstock.config.load import load_text
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.pipelines.running import Figures
from penstock.spark.remote import Where
from spark_lab import Lab

PAGE = page("pipelines.md")

PLANNED = {"mostly-clean", "nightly", "quotients", "revenue", "totals"}
"""What a usual run has Spark understand alone: `test_counted`, `test_pipelines` and `test_backfill` run the like."""

DEPARTURES = [
    {"id": 1, "tailnum": "N1", "origin": "JFK", "at": "2013-01-01T10:05:00Z"},
    {"id": 1, "tailnum": "N1", "origin": "JFK", "at": "2013-01-01T10:05:00Z"},
    {"id": 2, "tailnum": None, "origin": "LGA", "at": "2013-01-01T10:30:00Z"},
    {"id": -3, "tailnum": "N2", "origin": "EWR", "at": "2013-01-01T12:30:00Z"},
]
WEATHER = [
    {"origin": "JFK", "hour": "2013-01-01T10:00:00Z", "temp": 1.5},
    {"origin": "EWR", "hour": "2013-01-01T10:00:00Z", "temp": 9.0},
]


def bodies(lab: Lab, topic: str) -> list[Any]:
    return sorted((json.loads(message.body) for message in lab.client.replay(topic, "EPOCH")), key=str)


def test_the_examples_run(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for code in blocks(PAGE, "python"):
        name, _, _ = code.removeprefix("# ").partition("\n")
        (tmp_path / name).write_text(code)
    (tmp_path / "planes.csv").write_text("tailnum,manufacturer,seats\nN1,BOEING,178\n")
    settings = load_text("\n".join(blocks(PAGE, "toml")))
    for queue in settings.queue:
        lab.declare(queue.name)
    engine = lab.house.engine
    lab.house.run(
        lambda: [engine.core.declare_topic(engine.now(), "/", "", one.name, one.declared()) for one in settings.topics]
    )
    lab.client.publish("flights", {"id": 1, "carrier": "UA", "delay": 11.0})
    lab.client.publish("flights", {"id": 2, "carrier": "UA", "delay": 13.0})
    lab.client.publish("jobs", {"id": 1, "total": 10.0, "parts": 4})
    for name, rows in (("departures", DEPARTURES), ("weather", WEATHER)):
        for row in rows:
            lab.client.publish(name, row)

    place = Place(Where(lab.house.url), tmp_path / "spark")
    ran: dict[str, tuple[Definition, Any]] = {}
    for one in settings.pipeline:
        pipeline = Pipeline(Definition.of(one.model_dump(mode="json", by_alias=True)), place)
        if EFFORT == 1 and one.name in PLANNED:
            assert pipeline.plan(lab.spark, {}).frame.isStreaming
            continue
        query = pipeline.start(lab.spark, once=True)
        query.awaitTermination()
        assert query.exception() is None
        ran[one.name] = pipeline.definition, query

    [united] = lab.client.sow("delays-by-carrier")
    assert json.loads(united.body) == {"carrier": "UA", "flights": 2, "delay": 12.0}
    planes: Any = pyarrow.dataset.dataset("out/by-plane", format="parquet", partitioning="hive").to_table()
    assert [(row["manufacturer"], row["seats"]) for row in planes.to_pylist() if row["id"] == 1] == [
        ("BOEING", 178)
    ] * 2
    assert [row["seats"] for row in planes.to_pylist() if row["id"] != 1] == [None] * 2
    assert bodies(lab, "departures-per-hour") == [
        {"hour": "2013-01-01T10:00:00Z", "origin": "JFK", "departures": 1},
        {"hour": "2013-01-01T10:00:00Z", "origin": "LGA", "departures": 1},
    ]
    assert "with-weather" not in ran or {"id": 1, "origin": "JFK", "temp": 1.5} in bodies(
        lab, "departures-with-weather"
    )
    assert [row["id"] for row in bodies(lab, "clean-departures")] == [1, 1, 2]
    assert [row["id"] for row in bodies(lab, "not-plausible")] == [-3]
    counted = next(one["observedMetrics"] for one in ran["clean"][1].recentProgress if one["numInputRows"])
    assert list(counted["penstock expect input"]) == [4, 1, 1, 0]  # rows, then the rules, what drops last
    assert [row["origin"] for row in bodies(lab, "busy-departures")] == ["ewr", "jfk", "jfk"]
    assert "quotients" not in ran or bodies(lab, "quotients") == [{"id": 1, "each": 2.5}]
    if "nightly" in ran:
        nightly: Any = pyarrow.dataset.dataset("out/nightly", format="parquet").to_table()
        assert sorted((row["origin"], row["n"]) for row in nightly.to_pylist()) == [("EWR", 1), ("JFK", 2), ("LGA", 1)]

    # What Python remembers is told, and there after a restart.
    assert bodies(lab, "gaps-between-departures") == [{"tailnum": "N1", "at": "2013-01-01T10:05:00Z", "hours": 0.0}]
    remembering, query = ran["gaps"]
    figures = Figures(remembering)
    assert figures.note(query, 0.0, 0.0)
    assert figures.state_rows == 2
    assert figures.state_bytes > 0
    if EFFORT > 1:  # `test_stateful_python_goes_on_but_not_with_other_code` has a restart
        lab.client.publish("departures", {"id": 7, "tailnum": "N1", "origin": "EWR", "at": "2013-01-01T13:35:00Z"})
        query = Pipeline(remembering, place).start(lab.spark, once=True)
        query.awaitTermination()
        assert {"tailnum": "N1", "at": "2013-01-01T13:35:00Z", "hours": 3.5} in bodies(lab, "gaps-between-departures")
        assert figures.note(query, 0.0, 0.0)
        assert figures.state_rows == 2
    for name in ("busy", "gaps"):
        sys.modules.pop(name, None)


def test_the_commands_are_there() -> None:
    lines = re.findall(
        r"penstock [a-z][^`\n|]*", "\n".join([*blocks(PAGE, "sh"), *re.findall(r"\| `(penstock [^`]*)`", PAGE)])
    )
    assert len(lines) > 5
    for line in lines:
        inner: dict[str, Any] = command(None).commands
        for word in line.split()[1:]:
            if not inner:
                break
            assert word in inner, line
            inner = getattr(inner[word], "commands", {})
