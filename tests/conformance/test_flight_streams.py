"""Durable streams, stages and sink commits over Flight: what the Spark source and sink rely on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.server.flight.door import FlightLimits

pytestmark = pytest.mark.conformance


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        client.declare("in")
        client.declare("out")
        yield client


def fill(client: penstock.Client, count: int) -> None:
    client.publish_table("in", pa.table({"body": [str(n) for n in range(count)]}))


def bodies(client: penstock.Client, batch: int, parts: int = 1) -> list[int]:
    return [
        int(body)
        for part in range(parts)
        for rows in client.plan_batches("s", batch, part, parts)
        for body in rows.column("body").to_pylist()
    ]


def rows_of(*values: str) -> list[pa.RecordBatch]:
    return [pa.record_batch({"body": [value.encode() for value in values]})]


def test_a_plan_is_the_same_when_asked_again(client: penstock.Client) -> None:
    fill(client, 25)
    opened = client.action("stream_open", stream="s", queue="in", instance="driver-1")
    assert (opened["epoch"], opened["floor"], opened["planned"]) == (1, 0, 0)
    first = client.action("plan", stream="s", epoch=1, start=0, max_rows=10)
    assert (first["batch"], first["rows"]) == (1, 10)
    again = client.action("plan", stream="s", epoch=1, start=0, max_rows=25)
    assert again == first
    assert bodies(client, 1) == list(range(10))
    assert bodies(client, 1, parts=3) == list(range(10))
    assert client.queue("in")["leased"] == 10
    second = client.action("plan", stream="s", epoch=1, start=1, max_rows=100)
    assert (second["batch"], second["rows"]) == (2, 15)
    assert client.queue("in")["leased"] == 15
    assert bodies(client, 1) == list(range(10)), "a settled batch is still there to read"
    third = client.action("plan", stream="s", epoch=1, start=2, max_rows=10, wait="50ms")
    assert (third["batch"], third["rows"]) == (2, 0)
    assert client.queue("in")["leased"] == client.queue("in")["ready"] == 0


def test_an_older_reader_is_fenced(client: penstock.Client) -> None:
    fill(client, 5)
    client.action("stream_open", stream="s", queue="in")
    client.action("plan", stream="s", epoch=1, start=0)
    assert client.action("stream_open", stream="s", queue="in")["epoch"] == 2
    with pytest.raises(penstock.Fenced, match="epoch 1 is over"):
        client.action("plan", stream="s", epoch=1, start=0)
    with pytest.raises(penstock.PreconditionFailed, match="planned 1"):
        client.action("plan", stream="s", epoch=2, start=7)
    assert client.action("stream_release", stream="s")["released"] == 5
    assert client.queue("in")["ready"] == 5
    [listed] = client.action("streams")["streams"]
    assert (listed["stream"], listed["queue"], listed["mode"]) == ("s", "in", "queue")


def test_log_mode_answers_the_same_range_again(client: penstock.Client) -> None:
    fill(client, 5)
    client.action("stream_open", stream="l", topic="in")
    position = client.action("position", bookmark="EPOCH")
    asked = {"stream": "l", "epoch": 1, "start": position["start"]}
    first = client.action("plan_range", **asked)
    assert first["end"] == position["durable"] + 1 or first["end"] > position["start"]
    fill(client, 5)
    assert client.action("plan_range", **asked)["parts"] == first["parts"]


def test_a_sink_commit_is_visible_once(client: penstock.Client, house: FlightHouse) -> None:
    fill(client, 4)
    client.action("stream_open", stream="s", queue="in")
    client.action("plan", stream="s", epoch=1, start=0)
    one = client.stage("query", 0, 0, 0, rows_of("a", "b"), topic="out")
    lost = client.stage("query", 0, 1, 0, rows_of("never"), topic="out")
    two = client.stage("query", 0, 1, 1, [pa.record_batch({"body": [b"c"], "topic": ["out"]})])
    assert one is not None
    assert two is not None
    assert lost is not None
    assert one[1] == 2
    assert client.stage("query", 0, 2, 0, [], topic="out") is None
    assert client.queue("out")["ready"] == 0
    assert len(client.action("stages")["stages"]) == 3
    settle = {"stream": "s", "epoch": 1, "batch": 1}
    commit = {"query": "query", "batch": 0, "stages": [two[0], one[0]], "settle": settle}
    done = client.action("sink_commit", **commit)
    assert (done["already"], done["stored"]) == (False, 3)
    assert [m.body for m in client.peek("out")] == [b"a", b"b", b"c"]
    assert client.queue("in")["leased"] == 0
    assert client.action("stages")["stages"] == []
    assert client.action("sink_commit", **commit)["already"] is True
    assert client.queue("out")["ready"] == 3
    assert client.action("sink", query="query")["batch"] == 0
    client.action("sink_commit", query="query", batch=3, stages=[])
    with pytest.raises(penstock.PreconditionFailed, match="committed batch 3; batch 2"):
        client.action("sink_commit", query="query", batch=2, stages=[])


def test_a_commit_names_its_own_stages(client: penstock.Client) -> None:
    stage = client.stage("query", 5, 0, 0, rows_of("x"), topic="out")
    assert stage is not None
    with pytest.raises(penstock.InvalidArgument, match="is of query 'query' batch 5"):
        client.action("sink_commit", query="query", batch=6, stages=[stage[0]])
    with pytest.raises(penstock.InvalidArgument, match="named twice"):
        client.action("sink_commit", query="query", batch=5, stages=[stage[0], stage[0]])
    with pytest.raises(penstock.NotFound, match="no stage"):
        client.action("sink_commit", query="query", batch=5, stages=["../../etc/passwd"])
    assert client.action("stage_drop", stages=[stage[0], "nothing"])["dropped"] == 1
    assert client.queue("out")["ready"] == 0


def test_a_refused_settle_commits_nothing(client: penstock.Client) -> None:
    stage = client.stage("query", 1, 0, 0, rows_of("x"), topic="out")
    assert stage is not None
    client.action("stream_open", stream="s", queue="in")
    with pytest.raises(penstock.Fenced):
        client.action(
            "sink_commit", query="query", batch=1, stages=[stage[0]], settle={"stream": "s", "epoch": 9, "batch": 1}
        )
    assert client.queue("out")["ready"] == 0
    assert client.action("sink_commit", query="query", batch=1, stages=[stage[0]])["stored"] == 1


def test_stages_outlive_a_restart_and_end_after_a_day(tmp_path: Path) -> None:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("out")
        stage = client.stage("query", 0, 0, 0, rows_of("kept"), topic="out")
        old = client.stage("query", 9, 0, 0, rows_of("old"), topic="out")
    assert stage is not None
    assert old is not None
    (tmp_path / "stage" / f"{'0' * 32}.part").write_bytes(b"half")
    (tmp_path / "stage" / f"{'1' * 32}.arrows").write_bytes(b"no arrow")
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        assert {one["stage"] for one in client.action("stages")["stages"]} == {stage[0], old[0]}
        assert client.action("sink_commit", query="query", batch=0, stages=[stage[0]])["stored"] == 1
        assert [m.body for m in client.peek("out")] == [b"kept"]
        house.clock.ahead = 25 * 3600 * 1_000_000
        assert house.door.stages.sweep() == 1
        # what is no whole stage is told and left alone: a name without `.part` was synced once
        assert [path.name for path in (tmp_path / "stage").iterdir()] == [f"{'1' * 32}.arrows"]


def test_stages_have_a_quota(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, FlightLimits(stage_quota=2000)) as house, penstock.connect(house.url) as client:
        client.declare("out")
        with pytest.raises(penstock.DiskFull, match="2000 are allowed"):
            client.stage("query", 0, 0, 0, rows_of("x" * 3000), topic="out")
        assert client.stage("query", 0, 0, 0, rows_of("x"), topic="out") is not None


def test_plans_and_commits_survive_a_restart(tmp_path: Path) -> None:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("in")
        client.declare("out")
        fill(client, 6)
        client.action("stream_open", stream="s", queue="in")
        client.action("plan", stream="s", epoch=1, start=0, max_rows=4)
        client.action("sink_commit", query="query", batch=7, stages=[])
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        assert client.action("sink_commit", query="query", batch=7, stages=[])["already"] is True
        opened = client.action("stream_open", stream="s", queue="in")
        assert (opened["epoch"], opened["floor"], opened["planned"]) == (2, 0, 1)
        again = client.action("plan", stream="s", epoch=2, start=0, max_rows=100)
        assert (again["batch"], again["rows"]) == (1, 4)
        assert bodies(client, 1) == [0, 1, 2, 3]
        assert client.queue("in")["ready"] == 2


def test_the_list_of_queries_has_a_bound(client: penstock.Client, house: FlightHouse) -> None:
    for query in ("old", "staged", "older", "b", "a"):
        client.action("sink_commit", query=query, batch=0, stages=[])
    client.stage("staged", 1, 0, 0, rows_of("1"), topic="t")
    client.stage("fresh", 0, 0, 0, rows_of("1", "2"), topic="t")
    told = client.action("sinks", limit=3)
    assert [one["query"] for one in told["sinks"]] == ["a", "fresh", "staged"]
    assert [(one["batch"], one["stages"], one["staged_rows"]) for one in told["sinks"]] == [
        (0, 0, 0), (None, 1, 2), (0, 1, 1),
    ]  # fmt: skip
    assert told["left_off"] == 3
    whole = client.action("sinks")
    assert [one["query"] for one in whole["sinks"]] == ["a", "b", "fresh", "old", "older", "staged"]
    assert whole["left_off"] == 0
    with pytest.raises(penstock.InvalidArgument, match="limit is 10001, not in 1..10000"):
        client.action("sinks", limit=10_001)
