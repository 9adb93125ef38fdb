"""Streams in log mode over Flight: ranges by rows and bytes, the same again, and what holds the log for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.errors import Unavailable
from penstock.history.history import Limits
from penstock.server.bulk.process import Bulk
from penstock.server.flight.calls import Caller
from penstock.server.flight.streams import Question
from penstock.server.people.access import Who

pytestmark = pytest.mark.conformance

MIB = 1 << 20


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, segment=MIB) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        client.declare("t")
        client.declare("t2")
        client.declare("out")
        yield client


def fill(client: penstock.Client, sizes: list[int], topic: str = "t") -> None:
    bodies = [json.dumps({"n": n, "pad": "x" * size}).encode() for n, size in enumerate(sizes)]
    client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary())}))


class Reader:
    """A reader as Spark's source is one."""

    def __init__(self, client: penstock.Client, **asked: object) -> None:
        self.client = client
        self.stream = str(asked.pop("stream", "s"))
        mine = asked or {"topic": "t"}
        self.epoch = client.action("stream_open", stream=self.stream, **mine)["epoch"]

    def begin(self, bookmark: str = "EPOCH", **more: object) -> int:
        fields = {"stream": self.stream, "epoch": self.epoch, "bookmark": bookmark}
        return int(self.client.action("stream_begin", **fields, **more)["start"])

    def plan(self, start: int, **more: object) -> dict[str, Any]:
        return self.client.action("plan_range", stream=self.stream, epoch=self.epoch, start=start, **more)

    def rows(self, answer: dict[str, Any]) -> list[list[int]]:
        """The messages of a range, part by part."""
        found = list[list[int]]()
        for a, b in answer["parts"]:
            origin = answer["origin"]
            asked = {name: value for name, value in answer["asked"].items() if name != "vhost"}
            batches = self.client.replay_batches(bookmark=f"[{origin}|{a}|:{origin}|{b}|)", **asked)
            found.append([json.loads(body)["n"] for batch in batches for body in batch.column("body").to_pylist()])
        return found


def test_a_reader_that_leaves_hides_nothing_from_the_next_one(client: penstock.Client, house: FlightHouse) -> None:
    """Who has left reads no further: what it did not come to is not what there is not."""
    reader = Reader(client)
    at = reader.begin()
    fill(client, [10])
    for leaves_after in range(4):
        looks = iter([False] * leaves_after)
        left = Caller(Who("guest"), "", lambda looks=looks: next(looks, True))
        asked = Question("s", at, Limits(), 1 << 53, 0.0, True, lambda: reader.epoch)
        with suppress(Unavailable):
            house.door.ranges.planner.plan(left, asked)
        house.run(lambda: None)  # what was posted is done
        assert house.run(lambda: house.engine.walked.begin("s", at)) == at
    assert reader.rows(reader.plan(at)) == [[0]]


def test_a_range_ends_where_rows_or_bytes_say(client: penstock.Client) -> None:
    fill(client, [100] * 50)
    fill(client, [1], "t2")
    fill(client, [5000, 10, 20, 40, 80])
    reader = Reader(client)
    at = reader.begin()
    first = reader.plan(at, max_rows=20)
    assert (first["rows"], reader.rows(first)) == (20, [list(range(20))])
    again = reader.plan(at, max_rows=7)
    assert (again["end"], again["parts"], again["batch"]) == (first["end"], first["parts"], 1)
    second = reader.plan(first["end"], max_bytes=1000)  # 123 bytes each
    assert second["rows"] == 8
    assert second["bytes"] <= 1000
    third = reader.plan(second["end"], max_rows=22)
    assert reader.rows(third) == [list(range(28, 50))]
    large = reader.plan(third["end"], max_bytes=1000)
    assert (large["rows"], large["bytes"]) == (1, 5019), "a message larger than the limit goes alone"
    assert reader.rows(large) == [[0]]
    last = reader.plan(large["end"], max_bytes=1000, parts=3)
    assert [n for part in reader.rows(last) for n in part] == [1, 2, 3, 4]
    assert len(last["parts"]) == 3
    nothing = reader.plan(last["end"], wait="20ms")
    assert nothing["end"] == last["end"]
    fill(client, [1])
    assert reader.rows(reader.plan(last["end"], wait="10s")) == [[0]]


def test_filters_patterns_and_a_filter_that_changes(client: penstock.Client) -> None:
    fill(client, [10] * 10)
    fill(client, [10] * 4, "t2")
    both = Reader(client, stream="both", pattern="^t")
    assert reader_all(both) == [*range(10), *range(4)]
    reader = Reader(client, topic="t", filter="/n >= 4")
    at = reader.begin()
    first = reader.plan(at, max_rows=3)
    assert reader.rows(first) == [[4, 5, 6]]
    # The filter is another one now: what was planned keeps the old one, what comes has the new one.
    reader = Reader(client, topic="t", filter="/n IN (2, 5, 8)")
    again = reader.plan(at)
    assert (again["end"], reader.rows(again)) == (first["end"], [[4, 5, 6]])
    assert reader.rows(reader.plan(first["end"])) == [[8]]
    parts = client.action("range_parts", stream="s", start=at, end=first["end"])
    assert reader.rows(parts) == [[4, 5, 6]]
    with pytest.raises(penstock.PreconditionFailed, match="reads topic 't' .*, and is asked to read topic 't2'"):
        Reader(client, topic="t2")


def reader_all(reader: Reader) -> list[int]:
    at, found = reader.begin(), list[int]()
    while (answer := reader.plan(at, max_rows=6))["end"] > at:
        found += [n for part in reader.rows(answer) for n in part]
        at = answer["end"]
    return found


def test_where_a_stream_begins(client: penstock.Client, house: FlightHouse) -> None:
    fill(client, [1] * 3)
    middle = client.action("position")["durable"]
    time = next(client.replay_batches("t", limit=1, columns=["time"])).column("time")[0].as_py()
    fill(client, [1] * 3)
    origin = house.log.origin
    found = {
        text: Reader(client, stream=f"from {text}", topic="t").begin(text)
        for text in ("EPOCH", "NOW", f"{origin}|{middle}|", f"NOW,{origin}|{middle}|", time.isoformat())
    }
    durable = house.log.durable
    assert found["EPOCH"] == house.log.first_lsn
    assert middle + 6 < found["NOW"] <= durable + 1
    assert found[f"{origin}|{middle}|"] == found[f"NOW,{origin}|{middle}|"] == middle + 1
    assert house.log.first_lsn < found[time.isoformat()] <= middle - 2
    reader = Reader(client, stream="from NOW", topic="t")
    fill(client, [1] * 3)
    assert reader.begin("NOW") == found["NOW"], "found once and kept"
    assert reader.begin("MOST_RECENT") == found["NOW"]
    first = reader.plan(found["NOW"], max_rows=2)
    reader.plan(first["end"])
    assert reader.begin("MOST_RECENT") == first["end"], "the last range, which may not be done"
    with pytest.raises(penstock.InvalidArgument, match="has an end, and a stream has none"):
        reader.begin(f"[EPOCH:{origin}|{middle}|)")
    with pytest.raises(penstock.InvalidArgument, match="comes from another log"):
        reader.begin("123|4|")
    with pytest.raises(penstock.NotFound, match="was not found: the last one is"):
        reader.begin(f"{origin}|99999999|")
    with pytest.raises(penstock.PreconditionFailed, match="the log ends at LSN"):
        reader.plan(10_000_000)


def test_a_stream_holds_the_log_until_it_is_dropped(client: penstock.Client, house: FlightHouse) -> None:
    for _ in range(6):
        fill(client, [MIB // 2] * 3)
        client.purge("t")
    reader = Reader(client)
    at = reader.begin()
    first = reader.plan(at, max_rows=2)
    assert house.retire(MIB) == 1
    [listed] = client.streams()
    assert (listed["stream"], listed["topic"], listed["state"], listed["holds_from"]) == ("s", "t", "held", at)
    assert listed["held_bytes"] > 8 * MIB
    assert listed["lag"] > 10
    # Two ranges further on the first may go.
    second = reader.plan(first["end"], max_rows=4)
    reader.plan(second["end"], max_rows=4)
    assert 1 < house.retire(MIB) <= first["end"]
    with pytest.raises(penstock.PreconditionFailed, match=rf"is at LSN {at}, and retention has removed .* before LSN"):
        reader.plan(at)
    passed = reader.plan(at, max_rows=1, fail_on_data_loss=False)
    assert reader.rows(passed) != []
    assert client.release_stream("s") == 0
    with pytest.raises(penstock.Fenced):
        reader.plan(second["end"])
    assert house.retire(MIB) > second["end"]
    assert client.streams()[0]["state"] == "released"
    client.release_stream("s", drop=True)
    assert client.streams() == []
    with pytest.raises(penstock.NotFound, match="no stream 's'"):
        reader.plan(second["end"])


def test_a_quiet_topic_does_not_hold_what_others_fill(
    client: penstock.Client, house: FlightHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.flight.streams.EMPTY_BYTES", 2 * MIB)
    fill(client, [1])
    reader = Reader(client)
    first = reader.plan(reader.begin())
    assert first["rows"] == 1
    at = first["end"]
    for _ in range(3):
        fill(client, [MIB // 2] * 6, "t2")
        client.purge("t2")
        empty = reader.plan(at)
        assert empty["end"] > at
        assert reader.rows(empty) == [[]]
        at = empty["end"]
    client.purge("t")
    assert house.retire(MIB) > first["end"]


def test_large_ranges_are_measured_in_the_child(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, bulk=Bulk(tmp_path)) as house, penstock.connect(house.url) as client:
        client.declare("t")
        for _ in range(3):
            fill(client, [600] * 10_000)
        reader = Reader(client)
        answer = reader.plan(reader.begin(), max_rows=25_000)
        assert house.door.reads.relay is not None
        assert house.door.reads.relay.relayed == 1
        assert (answer["rows"], len(answer["parts"])) == (25_000, 1)
        spread = reader.plan(answer["end"], max_bytes=1_500_000, parts=4)
        sizes = [len(part) for part in reader.rows(spread)]
        assert (sum(sizes), len(sizes)) == (spread["rows"], 4)
        assert max(sizes) - min(sizes) <= 2


def test_a_stream_that_nobody_reads_lets_go(
    client: penstock.Client, house: FlightHouse, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, [1] * 3)
    reader = Reader(client, topic="t", abandon_after="1h")
    first = reader.plan(reader.begin())
    for _ in range(3):
        house.clock.ahead += 3_000_000_000
        assert reader.plan(first["start"])["end"] == first["end"]
        assert client.streams()[0]["state"] == "held"
    house.clock.ahead += 3_700_000_000
    for _ in range(3):
        house.run(house.engine.tick)
        house.beat()
    [stream] = client.streams()
    assert (stream["state"], stream["holds_from"], stream["held_bytes"]) == ("abandoned", None, 0)
    assert stream["read_seconds"] == pytest.approx(3_700, abs=60)
    said = "stream 's' is abandoned: nobody has read it for 1h, and it holds nothing any more"
    assert caplog.text.count(said) == 1
    assert reader.plan(first["start"])["parts"] == first["parts"], "its reader comes back, and it holds again"
    assert client.streams()[0]["holds_from"] == first["start"]
