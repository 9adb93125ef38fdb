"""Large uploads between two threads and a full gathering: what waits for room goes on by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.core.publishing.published import Published
from penstock.core.streams.sinks import Batch, Committed
from penstock.errors import DiskFull, InvalidArgument, LogBroken, LogDamaged
from penstock.log.simdisk import SimDisk
from penstock.records.queue_settings import QueueSettings
from penstock.server.engine import Engine
from penstock.server.flight import copier
from penstock.server.flight.copier import Copier
from penstock.server.flight.decided import Chunk, GroupLimits, chunks_of
from penstock.server.flight.gatekeeper import Gatekeeper
from penstock.server.flight.handover import Answer, Handover
from penstock.server.flight.publish import Publishing, Storing
from penstock.server.flight.sink_stages import Stages, parts_of
from penstock.server.flight.stage_files import StageInfo
from penstock.server.people.access import Who
from penstock.wire.flight.codec import read_upload
from penstock.wire.flight.commands import PUBLISH, Publish
from penstock.wire.flight.received import PUBLISHED, Bounds, receive
from sim.serverkit import Life, clock


class House:
    """A life with a copier, and rows decided, of which each is a chunk."""

    def __init__(self, rows: Sequence[bytes] = (b"1", b"2")) -> None:
        self.life = life = Life(SimDisk(), clock())
        life.declare("out")
        self.handover = Handover(life.engine, life.jobs.append)
        self.stages = Stages(life.disk, life.clock, Bounds())
        self.copier = Copier(self.handover, self.stages, life.disk, GroupLimits(chunk_rows=1, alike_rows=1))
        name = self.stages.keep(
            StageInfo("query", 0, 0, 0, "out", "", "/"),
            pa.schema([PUBLISH.field("body")]),
            [pa.record_batch({"body": list(rows)})],
        )
        life.core.sink_decide(life.engine.now(), Batch("query", 0), parts_of(self.stages.find("query", 0, [name])))
        life.run()

    def chunks(self) -> list[Chunk]:
        life = self.life
        return list(chunks_of(life.disk, "query", life.core.decided["query"], self.copier.limits))

    def room(self, monkeypatch: pytest.MonkeyPatch, there_is: bool) -> None:
        monkeypatch.setattr(Engine, "has_room", lambda engine: there_is)
        if there_is:
            engine = self.life.engine
            run, engine.on_room[:] = engine.on_room[:], []
            for hook in run:
                hook()


def test_a_chunk_waits_for_room_and_then_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    answer: Answer[Answer[Committed]] = Answer()
    house.room(monkeypatch, False)
    house.copier._decide("query", house.chunks()[0], [], answer)
    house.life.run()
    assert house.life.ready("out") == 0
    house.room(monkeypatch, True)
    house.life.run()
    assert answer.given
    assert answer.wait().wait().stored == 1
    assert house.life.contents("out") == [b"1"]


def test_two_chunks_are_under_way_and_a_third_waits_until_one_is_durable() -> None:
    """Reading goes on while chunks are written, in memory for two of them."""
    house = House([b"%d" % row for row in range(5)])
    life = house.life

    def taken() -> int:
        state = life.core.decided.get("query")
        return 5 if state is None else state.rows

    answer = house.copier.finish("query", 0)
    for expected in (2, 4, 5):
        while taken() < expected:
            life.turn()
        for _ in range(1000):
            life.turn()
        assert taken() == expected
        assert not answer.given
        life.commit()
    assert answer.wait().stored == 5
    assert life.contents("out") == [b"%d" % row for row in range(5)]


def test_a_stage_goes_when_its_rows_are_durable_and_not_before() -> None:
    """A batch needs its room on the disk once, and what the system has cached of the stage serves the log."""
    house = House([b"a", b"b"])
    life, query = house.life, StageInfo("two", 0, 0, 0, "out", "", "/")
    body = pa.schema([PUBLISH.field("body")])
    names = [house.stages.keep(query, body, [pa.record_batch({"body": rows})]) for rows in ([b"1", b"2"], [b"3", b"4"])]
    life.core.sink_decide(
        life.engine.now(),
        Batch("two", 0),
        [part for name in names for part in parts_of(house.stages.find("two", 0, [name]))],
    )
    life.run()

    def there() -> list[bool]:
        known = [one["stage"] for one in house.stages.listing()]
        return [name in known for name in names]

    answer = house.copier.finish("two", 0)
    for rows, left in ((2, [False, True]), (4, [False, False])):
        before = there()
        while (state := life.core.decided.get("two")) is not None and state.rows < rows:
            life.turn()
        for _ in range(1000):
            life.turn()
        assert there() == before
        life.commit()
        while there() != left:
            life.turn()
    assert answer.wait().stored == 4
    assert len(life.disk.list("stage")) == 1, "the other query's"


def test_chunks_keep_their_places_when_the_disk_is_full_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk after the one that is refused would find room, and is not handed over."""
    house = House([b"%d" % row for row in range(6)])
    refusals = iter([None, DiskFull("full"), DiskFull("full"), None, None, DiskFull("full")])
    monkeypatch.setattr(house.life.engine, "refusal", lambda: next(refusals, None))
    monkeypatch.setattr(copier, "SPACE_POLL_S", 0)
    answer = house.copier.finish("query", 0)
    while not answer.given:
        house.life.run()
    assert answer.wait().stored == 6
    assert next(refusals, None) is None
    assert house.life.contents("out") == [b"%d" % row for row in range(6)]


def test_a_chunk_that_waited_for_a_log_that_broke_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    answer: Answer[Answer[Committed]] = Answer()
    house.room(monkeypatch, False)
    house.copier._decide("query", house.chunks()[0], [], answer)
    house.life.engine.broken = "it broke"
    house.room(monkeypatch, True)
    with pytest.raises(LogBroken, match="it broke"):
        answer.wait()


def test_a_chunk_is_judged_off_the_loop_first() -> None:
    """A content filter of a queue does not hold the loop for thousands of rows at a time."""
    house = House()
    life = house.life
    life.core.declare_queue(
        life.engine.now(), "/", "some", QueueSettings(underlying_topic="out", filter="/n > 1"), durable=True
    )
    name = house.stages.keep(
        StageInfo("other", 0, 0, 0, "out", "", "/"),
        pa.schema([PUBLISH.field("body")]),
        [pa.record_batch({"body": [b'{"n": %d, "fill": "%s"}' % (n, b"x" * 300_000) for n in range(4)]})],
    )
    life.core.sink_decide(life.engine.now(), Batch("other", 0), parts_of(house.stages.find("other", 0, [name])))
    life.run()
    off: list[Callable[[], None]] = []
    life.engine.judges.off = lambda work, done: off.append(lambda: done(work()))
    [chunk] = chunks_of(life.disk, "other", life.core.decided["other"], GroupLimits())
    answer: Answer[Answer[Committed]] = Answer()
    house.copier._decide("other", chunk, [], answer)
    life.run()
    assert life.core.decided["other"].rows == 0
    [judge] = off
    judge()
    life.run()
    assert answer.wait().wait().stored == 4
    assert life.ready("some") == 2
    assert life.ready("out") == 4


def test_a_publisher_that_waited_for_room_waits_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch is decided when a commit has ended, and must not lie there until something else begins a turn."""
    house = House()
    life = house.life
    publishing = Publishing(house.handover, Bounds(), Gatekeeper(house.handover, ()))
    upload = read_upload(receive(pa.record_batch({"body": [b"x"]}), PUBLISHED, Bounds()), "out", Bounds())
    answer: Answer[Published] = Answer()
    house.room(monkeypatch, False)
    publishing._decide(Storing("guest", Publish("out"), upload, None, None), answer)
    life.run()
    assert not answer.given
    house.room(monkeypatch, True)
    life.turn()
    life.commit()
    assert answer.given
    assert life.contents("out") == [b"x"]


def test_stages_that_are_held_stay() -> None:
    house = House()
    [name] = [one["stage"] for one in house.stages.listing()]
    house.stages.hold([str(name)])
    assert house.stages.drop_batch("query", 0) == 0
    house.stages.release([str(name)])
    assert house.stages.drop_batch("query", 0) == 1
    assert house.life.disk.list("stage") == []
    assert house.stages.used == 0


def test_what_is_being_written_counts_against_the_quota() -> None:
    house = House()
    rows = pa.record_batch({"body": [b"x" * 1000]})
    stage = StageInfo("q", 0, 0, 0, "out", "", "/")
    house.stages._bytes.bound(house.stages.used + 2500)
    before = house.stages.used

    def beside() -> Iterator[pa.RecordBatch]:
        yield rows
        with pytest.raises(DiskFull, match="are allowed"):
            house.stages.keep(stage, rows.schema, [rows, rows])
        yield rows

    house.stages.keep(stage, rows.schema, beside())
    sizes = [len(house.life.disk.open(f"stage/{name}").pread(1 << 20, 0)) for name in house.life.disk.list("stage")]
    assert house.stages.used == sum(sizes) > before


def test_there_may_not_be_any_number_of_stages() -> None:
    house = House()
    house.stages._places.bound(2)
    stage, schema = StageInfo("q", 0, 0, 0, "out", "", "/"), pa.schema([PUBLISH.field("body")])
    house.stages.drop([str(one["stage"]) for one in house.stages.listing()])
    stage, ann = replace(stage, user="ann"), Who("ann")
    house.stages.keep(stage, schema, [], ann)
    with pytest.raises(DiskFull, match="1 stages of user 'ann' wait for their commit, and 1 are allowed"):
        house.stages.keep(stage, schema, [], ann)
    house.stages.keep(stage, schema, [], Who("bob"))
    with pytest.raises(DiskFull, match="2 stages wait for their commit, and 2 are allowed"):
        house.stages.keep(stage, schema, [], Who("cat"))


def test_a_batch_that_cannot_be_copied_is_told_to_the_log_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asked may have left."""
    house = House()
    [name] = house.life.disk.list("stage")
    house.life.disk.remove(f"stage/{name}")
    answer = house.copier.finish("query", 0)
    while not answer.given:
        house.life.run()
    with pytest.raises(LogDamaged, match="is missing"):
        answer.wait()
    assert "query query: batch 0 is decided and not copied to its end" in caplog.text


def test_an_upload_that_ends_in_an_error_leaves_nothing() -> None:
    house = House()
    before, used = house.life.disk.list("stage"), house.stages.used

    def broken() -> object:
        yield pa.record_batch({"body": [b"1"]})
        raise InvalidArgument("the rest is missing")

    with pytest.raises(InvalidArgument, match="the rest"):
        house.stages.keep(StageInfo("q", 0, 0, 0, "out", "", "/"), pa.schema([PUBLISH.field("body")]), broken())  # type: ignore[arg-type]
    assert house.life.disk.list("stage") == before
    assert house.stages.used == used


def test_a_large_batch_is_kept_in_small_pieces() -> None:
    house = House()
    rows = [b"%06d" % n + b"x" * 10_000 for n in range(2_000)]
    schema = pa.schema([PUBLISH.field("body")])
    name = house.stages.keep(StageInfo("q", 0, 0, 0, "out", "", "/"), schema, [pa.record_batch({"body": rows})])
    pieces = list(pa.ipc.open_stream(house.life.disk.files()[f"stage/{name}.arrows"]))
    assert max(piece.nbytes for piece in pieces) <= 4 << 20
    again = Stages(house.life.disk, house.life.clock, Bounds())
    [found] = again.find("q", 0, [name])
    assert found[1].rows == 2_000
    assert [body for _, upload in again.uploads([found]) for body in upload.bodies] == rows
