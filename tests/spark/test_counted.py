"""What a pipeline counts and says of itself: each rule of `expect`, late rows, the cause of a failure in Python."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from choices import EFFORT
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.pipelines.running import Running
from penstock.spark.remote import Where
from pipeline_lab import define
from spark_lab import Lab

HOURS = "SELECT window.start AS hour, count(*) AS n FROM input GROUP BY window(at, '1 hour')"
RULES = {"warned": ("id <> 1", "keep"), "noise": ("id <> 2", "drop"), "odd": ("id <> 3", "dead-letter")}


def running(lab: Lab, folder: Path, **given: Any) -> Running:
    return Running(Pipeline(define(**given), Place(Where(lab.house.url), folder)))


def rows(one: Running) -> dict[str, int]:
    return {rule["rule"]: rule["rows"] for rule in one.status()["expect"]["rules"]}


def send(lab: Lab, topic: str, *ids: int, at: str = "2026-01-01T10:00:00Z") -> None:
    """All at once, for one batch."""
    lab.client.publish_table(topic, pa.table({"body": [json.dumps({"id": n, "at": at}).encode() for n in ids]}))


def test_rules_and_late_rows_are_counted_once_each(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails before and after its commit, and comes again, counts once; so does one before a stop."""
    lab.client.declare_topic("counted")
    expect = [
        {"name": name, "that": that, "otherwise": then, **({"topic": "counted-odd"} if then == "dead-letter" else {})}
        for name, (that, then) in RULES.items()
    ]
    source = {"topic": "counted", "columns": "id BIGINT, at TIMESTAMP", "watermark": {"column": "at", "delay": "0s"}}
    expect.append({"name": "strict", "that": "id <> 4", "otherwise": "fail"})
    one = running(lab, tmp_path, name="counted", **{"from": source}, sql=HOURS, to=[{"topic": "hours"}], expect=expect)
    real, failures = Outputs.commit, ["before", "after"]

    def commit(self: Outputs, query: str, batch: int, stages: Sequence[str]) -> None:
        how = failures.pop(0) if failures else None
        if how != "before":
            real(self, query, batch, stages)
        if how is not None:
            raise ValueError(f"it dies {how} the commit")

    monkeypatch.setattr(Outputs, "commit", commit)

    def until(what: Any) -> None:
        lab.until(lambda: one.look(lab.spark, time.monotonic()) or what(), 60)

    send(lab, "counted", 1, 1, 2, 3, 5)
    until(lambda: one.figures.rows)
    assert one.failures_total == 2
    assert (rows(one), one.figures.checked) == ({"warned": 2, "noise": 1, "odd": 1, "strict": 0}, 5)
    send(lab, "counted", 6, at="2026-01-01T15:00:00Z")
    until(lambda: (one.figures.watermark or "") > "2026-01-01T15")
    send(lab, "counted", 1, 7, 8)  # by five hours too late; a rule counts them before
    until(lambda: one.figures.checked == 9)
    assert one.status()["late_rows"] == 1, "an hour's late rows are summed before Spark looks at the time"
    send(lab, "counted", 2, at="2026-01-01T15:00:00Z")
    seen, query = one.figures.seen, one.query
    lab.until(lambda: any(one["numInputRows"] == 1 and one["batchId"] > seen for one in query.recentProgress))
    one.replace(one.pipeline)
    one.look(lab.spark, time.monotonic())
    assert (query.isActive, rows(one)) == (False, {"warned": 3, "noise": 2, "odd": 1, "strict": 0})
    send(lab, "counted", 4, at="2026-01-01T15:00:00Z")
    tries = 1 if EFFORT == 1 else 2
    until(lambda: rows(one)["strict"] == tries)  # each of them counts
    assert one.error == "pipeline counted: a row fails the check strict"
    assert rows(one) == {"warned": 3, "noise": 2, "odd": 1, "strict": tries}
    one.stop()


def test_a_batch_with_too_many_rows_that_fail_a_rule_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    lab.declare("mostly", "mostly-out")
    lab.client.declare_topic("mostly-odd")
    expect = [
        {"name": "odd", "that": "id % 2 = 0", "otherwise": "dead-letter", "topic": "mostly-odd"},
        {"name": "small", "that": "id < 100", "otherwise": "drop", "fail_above": "50 %"},
    ]
    one = running(
        lab, tmp_path, name="mostly", **{"from": {"queue": "mostly", "columns": "id BIGINT"}},
        sql="SELECT id FROM input", to=[{"table": str(tmp_path / "out")}, {"queue": "mostly-out"}], expect=expect,
    )  # fmt: skip
    send(lab, "mostly", 1, 2, 200)
    lab.until(lambda: one.look(lab.spark, time.monotonic()) or one.figures.rows == 3, 60)
    assert rows(one) == {"odd": 1, "small": 1}
    assert one.status()["phases"]["addBatch"] > 0
    send(lab, "mostly", 3, 4, 200, 202)
    lab.until(lambda: one.look(lab.spark, time.monotonic()) or one.failures > 0, 60)
    one.stop()
    assert one.error == (
        "pipeline mostly: 2 of the 3 rows in a batch (66.7 %) fail the check small, and its fail_above is 50 %"
    )
    assert (lab.ids("mostly-out"), rows(one)) == ([2], {"odd": 1, "small": 1})
    assert [path.parent.name[-9:] for path in (tmp_path / "out").rglob("*.parquet")] == ["000000000"]
    assert [json.loads(message.body)["id"] for message in lab.client.replay("mostly-odd")] == [1]


def test_the_cause_in_python_and_a_first_message_that_is_waited_for(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from pyspark.sql.functions import udf\n\ndef f(x):\n    raise KeyError(f'no rate for {x}')\n\n"
    text += "def rated(input):\n    return input.select(udf(f, 'bigint', useArrow=False)('id').alias('id'))\n"
    (tmp_path / "penstock_rates_x.py").write_text(text)
    lab.declare("unrated")
    one = running(
        lab, tmp_path / "spark", name="rates", **{"from": {"queue": "unrated"}}, python="penstock_rates_x:rated",
        to=[{"topic": "rated"}],
    )  # fmt: skip
    one.look(lab.spark, time.monotonic())
    told = one.status()
    assert (told["state"], told["failures"], told["error"]) == ("waiting", 0, None)
    assert told["waits_for"].startswith("queue unrated has no message yet whose JSON could tell its columns; it starts")
    lab.publish("unrated", [7])
    lab.until(lambda: one.look(lab.spark, time.monotonic()) or one.failures > 0, 60)
    assert (one.error, one.status()["waits_for"]) == ("KeyError: 'no rate for 7'", None)
    one.stop()
    sys.modules.pop("penstock_rates_x")
