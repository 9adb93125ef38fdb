"""`df.write` with `txnAppId` and `txnVersion`: a write that comes again is skipped, whatever has crashed in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import penstock
from choices import EFFORT
from flight_house import FlightHouse
from page_lab import blocks, run, sections, served
from penstock.errors import InvalidArgument
from penstock.spark.sink import write_options
from penstock.spark.source import PenstockSource
from spark_lab import Lab, forget_last_commit, sentence

SECTION = sections("spark.md")["foreachBatch"]

DEATHS = (1,) if EFFORT == 1 else (1, 4)
"""The writes of a batch, of five, after which it dies."""


def save(lab: Lab, ids: Sequence[int], app: str, version: int, **options: object) -> None:
    frame = lab.spark.createDataFrame([(i, version) for i in ids], "id bigint, version bigint")
    once = {"url": lab.house.url, "txnAppId": app, "txnVersion": version, **options}
    frame.write.format("penstock").options(**once).mode("append").save()


def test_the_example_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(SECTION, spark, tmp_path, monkeypatch) as names:
        run(blocks(SECTION, "python"), names)
    assert capsys.readouterr().out == "True\n100 100 7\n"


def test_a_batch_that_comes_again_doubles_nothing_whatever_it_writes(lab: Lab, tmp_path: Path) -> None:
    """All kinds of writes in one function, which dies, and comes again with Spark's own commit lost.

    That all of its writes are done already, as where it dies after the last one, a hunt asks twice.
    """
    lab.declare("each", "each-queue", "each-even", "each-odd")
    lab.client.action("declare_topic", topic="each-keyed", settings={"key": ["/id"]})
    lab.client.declare_topic("each-topic")
    done = list[int]()

    def writes(frame: Any) -> list[tuple[Any, dict[str, object]]]:
        rows = frame.select("id")
        ways = "id", "if(id % 2 = 0, 'each-even', 'each-odd') AS topic"
        return [
            (rows, {"queue": "each-queue"}),
            (rows, {"topic": "each-topic", "ordered": "id"}),
            (rows.selectExpr(*ways), {}),
            (rows, {"topic": "each-keyed"}),
            (rows.selectExpr("id", "1 AS n"), {"topic": "each-keyed", "delta": "true", "txnAppId": "each-delta"}),
        ]

    def store(frame: Any, batch: int) -> None:
        for number, (rows, options) in enumerate(writes(frame)):
            once = {"url": lab.house.url, "txnAppId": "each", "txnVersion": batch, **options}
            rows.write.format("penstock").options(**once).mode("append").save()
            if number in DEATHS and number not in done:
                done.append(number)
                raise ValueError(f"dies after write {number}")

    def once_more() -> None:
        frame = lab.stream(queue="each", stream="each-1", schema="id bigint")
        writer = frame.writeStream.foreachBatch(store).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()

    lab.publish("each", range(40))
    for _ in DEATHS:
        with pytest.raises(StreamingQueryException, match="dies after write"):
            once_more()
    once_more()
    forget_last_commit(tmp_path)
    once_more()
    lab.publish("each", range(40, 50))
    once_more()
    assert lab.ids("each-queue") == list(range(50))
    assert [json.loads(one.body)["id"] for one in lab.client.replay("each-topic", "EPOCH")] == list(range(50))
    assert (lab.ids("each-even"), lab.ids("each-odd")) == (list(range(0, 50, 2)), list(range(1, 50, 2)))
    assert sum(1 for _ in lab.client.replay("each-keyed", "EPOCH")) == 100, "a record and a delta for each"
    assert lab.counts("each") == (0, 0, 50)


def test_versions_last_over_a_restart_and_retention(lab: Lab, tmp_path: Path) -> None:
    with FlightHouse(tmp_path / "data", segment=1 << 16) as house, penstock.connect(house.url) as client:
        mine = Lab(lab.spark, house, client)
        mine.declare("kept", "other")
        save(mine, range(5), "nightly", 1_763_800_000_000_000_000, queue="kept")  # nanoseconds
        client.action("purge", queue="kept")
        client.declare_topic("filler")
        for _ in range(40):
            client.publish("filler", b"x" * 10_000)
        first = house.retire(1 << 16)
        assert first > 1
    with FlightHouse(tmp_path / "data") as house, penstock.connect(house.url) as client:
        mine = Lab(lab.spark, house, client)
        for version in (1_763_800_000_000_000_000, 7):
            save(mine, range(5), "nightly", version, queue="kept")
        assert mine.ids("kept") == []
        save(mine, range(2), "nightly", 7, queue="other")
        save(mine, range(3), "nightly", 1_763_800_000_000_000_001, queue="kept")
        save(mine, range(3), "weekly", 7, queue="kept")
        assert (mine.ids("kept"), mine.ids("other")) == ([0, 0, 1, 1, 2, 2], [0, 1])
        assert client.action("stages")["stages"] == []
        named = {one["name"]: (one["batch"], one["once"]) for one in client.action("sinks")["sinks"]}
        assert named["weekly"] == (7, False)


def test_a_write_without_rows_counts(lab: Lab) -> None:
    lab.declare("empty")
    save(lab, [], "empty", 3, queue="empty")
    save(lab, [1], "empty", 3, queue="empty")
    assert lab.ids("empty") == []


@pytest.mark.parametrize("first", [4, 5])
def test_another_writer_is_first(lab: Lab, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver commits this version, or a higher one, while this one has staged its rows: its stages go."""
    name = f"race-{first}"
    lab.declare(name)
    actions = lab.house.door.actions
    found: Callable[..., Any] = actions.stages.find
    raced = list[int]()

    def find(query: str, batch: int, *given: Any) -> Any:
        if not raced:
            raced.append(batch)
            save(lab, [100], "race", first, queue=name)
        return found(query, batch, *given)

    monkeypatch.setattr(actions.stages, "find", find)
    save(lab, range(5), "race", 4, queue=name)
    assert raced == [4]
    assert lab.ids(name) == [100]
    assert lab.client.action("stages")["stages"] == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"txnAppId": "a"}, "option txnAppId goes with txnVersion"),
        ({"txnVersion": "1"}, "option txnVersion goes with txnAppId"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion is '-1', not a whole number of at least 0"),
        ({"txnAppId": "a", "txnVersion": str(2**63)}, "at most 9223372036854775807 is allowed"),
        ({"txnAppId": "ä" * 128, "txnVersion": "1"}, "option txnAppId has 256 bytes; at most 255 are allowed"),
    ],
)
def test_half_a_transaction_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        write_options({"topic": "t", **given})


def test_a_target_is_no_other_target() -> None:
    made = write_options({"topic": "t", "txnAppId": "a", "txnVersion": "1"}).transaction
    assert made is not None
    targets = [("/", "", "t"), ("v", "", "t"), ("/", "t", ""), ("/", "", None), ("/", "x", "t"), ("/", "", "t" * 255)]
    names = [made.query(*one) for one in targets]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 255


def test_a_stream_has_versions_of_its_own(lab: Lab) -> None:
    source = PenstockSource({"topic": "t", "url": lab.house.url, "txnAppId": "a", "txnVersion": "1"})
    with pytest.raises(InvalidArgument, match="are for df.write, as in foreachBatch") as caught:
        source.streamWriter(lab.spark.range(1).schema, False)
    assert "the query of its checkpoint" in sentence(caught.value)
