"""The past of a pipeline: before its live stream in one hand-over, and beside it under a key of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.driver import BackfillPipeline
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.lineage import read
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where, remote
from spark_lab import Lab


def section(name: str, **given: Any) -> dict[str, Any]:
    given["to"] = [{"vhost": "/", **one} for one in given["to"]]
    return {"name": name, "sql": "SELECT id FROM input", "trigger": 0, **given}


def finish(pipeline: Pipeline, lab: Lab) -> None:
    query = pipeline.start(lab.spark, once=True)
    query.awaitTermination()


@pytest.mark.bulk("spark/test_pipeline_crashes.py::test_the_hand_over_of_a_backfill")
def test_the_past_then_what_comes(lab: Lab, tmp_path: Path) -> None:
    lab.declare("history", "copies")
    place = Place(Where(lab.house.url), tmp_path)
    lab.publish("history", range(50))
    given = section(
        "catch-up",
        **{"from": {"topic": "history", "columns": "id int", "max_rows": 3}},
        to=[{"topic": "copies"}],
        backfill={"from": "earliest", "max_rows": 40},
    )
    pipeline = Pipeline(Definition.of(given), place)
    lab.publish("history", range(50, 55))
    finish(pipeline, lab)
    lab.publish("history", range(55, 62))
    finish(Pipeline(Definition.of(given), place), lab)
    assert lab.ids("copies") == list(range(62))
    sizes = [sum(out.rows for out in one.outputs) for one in read(remote(pipeline.where), "catch-up")]
    assert sizes == [40, 15, 3, 3, 1]  # the past ends where the log ended at the first start


def test_a_range_beside_the_live_stream(lab: Lab, tmp_path: Path) -> None:
    lab.declare("paid", "seen", underlying_topic=None)
    lab.client.declare("big", underlying_topic="orders", filter="/total >= 5")
    lab.client.declare("orders")
    place = Place(Where(lab.house.url), tmp_path)
    lab.publish("orders", range(20))  # total is id / 2
    given = section("big", **{"from": {"queue": "big", "columns": "id int"}}, to=[{"topic": "seen"}])
    live = Pipeline(Definition.of(given), place)
    finish(live, lab)
    assert lab.ids("seen") == list(range(10, 20))
    until = lab.client.publish("orders", {"id": 99, "total": 1}).bookmark
    lab.publish("orders", range(20, 24))

    what = {"id": "again", "from": "earliest", "to": until, "max_rows": 6}
    again = BackfillPipeline({**given, "range": what}, place)
    finish(again, lab)
    assert Counter(lab.ids("seen")) == Counter(dict.fromkeys(range(10, 20), 2))
    finish(BackfillPipeline({**given, "range": what}, place), lab)  # it is done
    assert len(lab.ids("seen")) == 20
    finish(live, lab)
    assert Counter(lab.ids("seen"))[23] == 1
    batches = [one for one in read(remote(again.where), "big") if one.backfill == "again"]
    assert [sum(out.rows for out in one.outputs) for one in batches] == [6, 4]

    elsewhere = {**what, "id": "else", "outputs": [{"table": str(tmp_path / "out"), "vhost": "/"}]}
    other = BackfillPipeline({**given, "range": elsewhere}, place)
    query = other.start(lab.spark)
    query.awaitTermination()
    # Killed before its last commit file, and once more without its checkpoint: nothing comes twice.
    assert len(list((tmp_path / "out").glob("penstock_batch=*"))) == 2


def test_the_dead_letters_of_a_range_come_with_its_batches(lab: Lab, tmp_path: Path) -> None:
    lab.declare("ruled", "kept", "aside")
    lab.publish("ruled", range(10))
    checks = [{"name": "below", "that": "id < 7", "otherwise": "dead-letter", "topic": "aside"}]
    source = {"topic": "ruled", "columns": "id int", "expect": checks}
    given = section("ruled-out", **{"from": source}, to=[{"topic": "kept"}])
    place = Place(Where(lab.house.url), tmp_path)
    finish(Pipeline(Definition.of(given), place), lab)
    for number, outputs in enumerate(([], [{"table": str(tmp_path / "out"), "vhost": "/"}]), 2):
        what = {"id": f"again{number}", "from": "earliest", "max_rows": 8, "outputs": outputs}
        for _ in range(number - 1):  # another one has nothing to do
            finish(BackfillPipeline({**given, "range": what}, place), lab)
        assert lab.ids("aside") == sorted([7, 8, 9] * number)
    assert lab.ids("kept") == sorted([*range(7)] * 2)


def test_what_a_backfill_cannot_be(lab: Lab, tmp_path: Path) -> None:
    lab.declare("plain")
    place = Place(Where(lab.house.url), tmp_path)
    given = section("plain", **{"from": {"queue": "plain", "columns": "id int"}}, to=[{"view": "v", "key": ["id"]}])
    with pytest.raises(PreconditionFailed, match="the past would replace its present rows; name another output"):
        BackfillPipeline({**given, "range": {"id": "x", "from": "earliest"}}, place)
    given["to"] = [{"topic": "t", "vhost": "/"}]
    with pytest.raises(InvalidArgument, match="backfill id 'a b' is not"):
        BackfillPipeline({**given, "range": {"id": "a b", "from": "earliest"}}, place)
    with pytest.raises(InvalidArgument, match="there is nothing between"):
        BackfillPipeline({**given, "range": {"id": "x", "from": "latest"}}, place)
