"""Rows that compaction leaves out behind a reader that holds the log no more: told, and never passed over in silence.

One message that nobody takes keeps the log's beginning, so where the log begins says nothing of what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import penstock
from choices import spread
from conformance.test_log_streams import Reader
from flight_house import FlightHouse
from penstock.config.vhost_sections import EntitlementSection
from penstock.errors import Fenced, NotFound, PreconditionFailed, Unavailable
from penstock.server.bulk.process import Bulk
from penstock.server.flight import followed
from penstock.server.flight.calls import Caller
from penstock.server.people.access import Who
from penstock.spark.options import read_options
from penstock.spark.reading.columns import layout
from penstock.spark.reading.fetching import fetch
from penstock.spark.reading.parts import LogPart, PlanPart, ReplayPart
from penstock.spark.remote import Remote, Where, remote
from penstock.wire.flight.tickets import command
from waiting import eventually

MIB = 1 << 20
HOUR = 3_600_000_000
COLUMNS = StructType([StructField("lsn", LongType())])
BODY = b"x" * 250_000


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, segment=MIB) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        client.declare("t")
        client.declare("stuck")
        client.publish("stuck", b"still here")
        yield client


def fill(client: penstock.Client, count: int = 12) -> list[str]:
    """Messages that nobody needs; their bookmarks."""
    for _ in range(count):
        client.publish("t", BODY)
    marks = [message.bookmark for message in client.replay("t")][-count:]
    client.purge("t")
    return marks


def lapsed(house: FlightHouse, ahead: int = 2 * HOUR, reads: int = 0) -> int:
    """So much time passes, and compaction leaves out what nobody holds; rows that went.

    reads: so many go on.  Of others the end is told before their part of the log is let go.
    """
    eventually(lambda: house.door.calls.streams <= reads)
    house.clock.ahead += ahead
    house.run(house.engine.tick)
    return house.thin()


def lsns(house: FlightHouse, part: ReplayPart | LogPart | PlanPart, **options: str) -> list[int]:
    reads = {"topic": "t"} if isinstance(part, ReplayPart) else {"queue": "t"}
    reads |= {"stream": "s", "mode": "queue" if "queue" in reads else "log"} if not getattr(part, "held", "") else {}
    reads = {"log": "true"} if isinstance(part, LogPart) else reads
    given = read_options({"url": house.url, **reads, **options})
    rows = fetch(given, layout(given, COLUMNS, None), part)
    return [lsn for batch in rows for lsn in batch.column(0).to_pylist()]


def part_of(answer: dict[str, object]) -> ReplayPart:
    """As Spark's source makes it."""
    [(start, end)] = answer["parts"]
    asked = {name: value for name, value in answer["asked"].items() if name != "vhost"}
    return ReplayPart(answer["origin"], start, end, asked=asked)


@pytest.mark.parametrize("direct", ["true", "false", "auto"])
def test_a_task_that_reads_after_its_stream_let_go(
    client: penstock.Client, house: FlightHouse, direct: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(client, topic="t", abandon_after="1h")
    at = reader.begin()
    fill(client)
    part = part_of(reader.plan(at))
    assert len(lsns(house, part, direct=direct)) == 12
    assert lapsed(house)
    for _ in range(2):
        with pytest.raises(PreconditionFailed, match="stream 's' .*nobody held for it"):
            lsns(house, part, direct=direct)
    assert client.streams()[0]["state"] == "held", "who reads a part of it is its reader, who has come back"
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert len(lsns(house, part, direct=direct, failOnDataLoss="false")) < 12
    assert "nobody held for it: it goes on with those that are left" in caplog.text
    told = reader.plan(at, fail_on_data_loss=False)
    assert part_of(told) == part
    assert "nobody held for it" in told["lost"]
    later = reader.plan(told["end"], fail_on_data_loss=False)
    assert "lost" not in later


def test_a_part_is_read_by_who_may_read_its_stream(tmp_path: Path) -> None:
    """Else anybody could have the log kept, by the names of others' streams."""
    entries = [{"user": "guest", "read": True, "write": True}, {"user": "reader", "topic": "t", "read": True}]
    sections = [EntitlementSection.model_validate(entry) for entry in entries]
    with FlightHouse(tmp_path, entitlements=sections) as house, penstock.connect(house.url) as client:
        client.declare("t")
        Reader(client, stream="mine", pattern="^t$").begin()
        asked = {"held_for": "mine", "topic": "t"}
        client.action("locate", **asked)
        other = Remote(Where(house.url.replace("guest:guest", "reader:reader")))
        for read in (partial(other.act, "locate"), lambda **fields: list(other.rows("replay", **fields))):
            read(topic="t")
            with pytest.raises(NotFound, match="no stream 'mine'"):
                read(**asked)
        other.close()


def test_tasks_that_read_are_the_streams_readers(client: penstock.Client, house: FlightHouse) -> None:
    """Nobody asks for a plan while a batch runs: as long as parts of it begin, the log is kept for the others."""
    reader = Reader(client, topic="t", abandon_after="1h")
    at = reader.begin()
    fill(client)
    part = part_of(reader.plan(at))
    for direct in ("true", "false") * 2:
        assert not lapsed(house, HOUR - 60_000_000)
        assert len(lsns(house, part, direct=direct)) == 12
    assert lapsed(house)


@pytest.mark.parametrize(
    ("kind", "failing"), spread(product(["topic", "log", "stream", "to fewer", "to more"], ["true", "false"]), 6)
)
def test_a_broken_answer_is_not_taken_up_by_count_where_rows_went(
    client: penstock.Client, house: FlightHouse, kind: str, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came is skipped by its number, which says nothing where others answer: the task is run again.

    Behind a takeover a leader may have what the one before it had left out: rows came twice.
    """
    reader = Reader(client, topic="t", abandon_after="1h")
    at = reader.begin()
    fill(client)
    planned = part_of(reader.plan(at))
    part = {
        "topic": ReplayPart(planned.origin, planned.start, planned.end, held="mine"),
        "log": LogPart(planned.start, planned.end, "mine"),
    }.get(kind, planned)
    stream = Remote._stream

    def broken(server: Remote, ticket: bytes, skip: int) -> Iterator[pa.RecordBatch]:
        """Of the first answer some rows come; meanwhile rows go, or another server has fewer."""
        monkeypatch.setattr(Remote, "_stream", stream)
        yield next(iter(stream(server, ticket, skip))).slice(0, 3)
        if kind.startswith("to "):
            monkeypatch.setattr(server, "close", lambda: setattr(server._line.link(), "address", "another"))
            monkeypatch.setattr(
                server, "act", lambda *_, **__: {"whole_from": planned.end if kind == "to fewer" else 0}
            )
        else:
            assert lapsed(house)
        raise Unavailable("it broke")

    monkeypatch.setattr(Remote, "_stream", broken)
    server = remote(read_options({"url": house.url, "topic": "t"}).where)
    if kind.startswith("to "):
        monkeypatch.setattr(server, "addresses", server.addresses * 2)
    if kind == "to more":
        monkeypatch.setattr(server, "act", lambda *_, **__: {"whole_from": planned.end})
    with pytest.raises(PreconditionFailed, match=r"read it again|nobody held for it"):
        lsns(house, part, direct="false", failOnDataLoss=failing)


def test_tasks_of_a_stream_of_a_queue(client: penstock.Client, house: FlightHouse) -> None:
    """They are its readers, too; of what went back to the queue they are told, and are not given nothing."""
    client.publish("t", BODY)
    opened = client.action("stream_open", stream="s", queue="t", abandon_after="1h")
    planned = client.action("plan", stream="s", epoch=opened["epoch"], start=0)
    part = PlanPart("s", planned["batch"], 0, 1, planned["revision"], epoch=opened["epoch"])
    for _ in range(3):
        assert len(lsns(house, part)) == 1
        lapsed(house, HOUR - 60_000_000)
    lapsed(house)
    with pytest.raises(Fenced, match="stream 's' is now read under epoch 2; epoch 1 is over"):
        lsns(house, part)
    assert client.queue("t")["ready"] == 1


@pytest.mark.parametrize("direct", ["true", "false"])
def test_a_stream_that_began_with_what_is_left_reads_it(
    client: penstock.Client, house: FlightHouse, direct: str
) -> None:
    fill(client)
    assert lapsed(house)
    reader = Reader(client, topic="t", abandon_after="1h")
    at = reader.begin()
    assert at < client.action("position")["whole_from"]
    part = part_of(reader.plan(at))
    assert 0 < len(lsns(house, part, direct=direct)) < 12


@pytest.mark.parametrize("follow", [False, True])
def test_a_bookmark_behind_which_rows_were_left_out(client: penstock.Client, house: FlightHouse, follow: bool) -> None:
    marks = fill(client)
    origin, whole = marks[0].split("|")[0], house.log.durable + 1
    later = fill(client, 3)[0]
    assert len(list(client.replay("t", marks[0], bookmark_not_found="fail"))) == 14
    assert lapsed(house)
    assert client.action("position")["whole_from"] <= int(later.split("|")[1])

    client.publish("t", b"the last")

    def read(bookmark: str, missing: str) -> int:
        with client.replay("t", bookmark, bookmark_not_found=missing, follow=follow) as replay:
            count, found = 0, replay.take(60)
            while found is not None and found.body != b"the last":
                count, found = count + 1, replay.take(60)
        return count

    for bookmark in (marks[0], f"[{marks[0]}:{marks[9]}]", f"{later},{marks[3]}", f"[{marks[2]}:NOW)"):
        with pytest.raises(NotFound, match=r"rows .* left out"):
            read(bookmark, "fail")
    for bookmark in ("EPOCH", "2020-01-01", "[EPOCH:NOW)", f"[{later}:NOW)", f"[{origin}|{whole}|:NOW)", later):
        read(bookmark, "fail")
    for missing in ("now", "epoch"):
        assert 0 < read(f"[{marks[0]}:NOW)", missing) < 14


def test_a_replay_that_was_paused_for_long(client: penstock.Client, house: FlightHouse) -> None:
    fill(client)
    with client.replay("t", "EPOCH", rate="1") as replay:
        next(replay)
        replay.pause()
        assert not house.thin()
        assert lapsed(house, reads=1)
        replay.resume("1000")
        with pytest.raises(NotFound, match=r"rows .* left out"):
            list(replay)


def test_a_replay_that_was_paused_for_long_where_nothing_went(client: penstock.Client, house: FlightHouse) -> None:
    """What it reads was left out of before it came, or lies behind it."""
    fill(client)
    assert lapsed(house)
    for _ in range(3):
        client.publish("t", b"waits")
    rows = len(list(client.replay("t")))
    with client.replay("t", "EPOCH", rate="1") as replay:
        next(replay)
        replay.pause()
        house.clock.ahead += 2 * HOUR
        house.thin()
        replay.resume("1000")
        assert len(list(replay)) == rows - 1


def test_a_replay_whose_client_stood_still_in_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place among the streams is another's then, and what it has not come to yet is held by nobody."""
    monkeypatch.setattr(followed, "PAST_LEAST", MIB)
    with FlightHouse(tmp_path, segment=MIB, bulk=Bulk(tmp_path)) as house, penstock.connect(house.url) as client:
        client.declare("t")
        client.declare("stuck")
        client.publish("stuck", b"still here")
        fill(client)
        ticket = command("replay", topic="t", follow=True)
        _, pieces = house.door.get(Caller(Who("guest"), "", lambda: False), ticket)
        assert sum(isinstance(next(pieces), pa.RecordBatch) for _ in range(2)) == 1  # it says where it begins
        fill(client)
        assert not house.thin()
        house.door.calls.abandon()
        assert house.thin()
        with pytest.raises(NotFound, match=r"rows .* left out"):
            all("completed" not in str(piece) for piece in pieces)
