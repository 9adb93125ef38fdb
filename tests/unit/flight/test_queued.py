"""What waits for Flight's clients that do not read: much for each of few, little for each of many."""

from __future__ import annotations

import io
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.errors import MemoryShort
from penstock.log.log import Log
from penstock.memory import Budget
from penstock.memory.slab import Piece
from penstock.server.engine import Engine
from penstock.server.flight.downstream import QUEUED_HIGH, Delivery, Downstream
from penstock.server.flight.handover import QUEUED_LEAST, QUEUED_MOST, Abandoned, Bell, Handover, Outlet
from penstock.server.people.access import THINGS, Shares
from waiting import eventually

MIB = 1 << 20


def handover(memory: int, shares: Shares) -> Handover:
    engine = SimpleNamespace(shares=shares, bodies=SimpleNamespace(budget=Budget(memory)), on_broken=[])
    return Handover(cast("Engine", engine), lambda job: job())


@pytest.mark.parametrize("memory", [64 * MIB, 128 * MIB, 1024 * MIB])
def test_all_streams_that_there_may_be_leave_memory_for_publishers(memory: int) -> None:
    shares = Shares()
    door = handover(memory, shares)
    most = THINGS["flight_streams"].whole + THINGS["flight_streams_still"].whole
    waits = 0
    for number in range(most):  # each fills what it may have when it comes, and reads nothing ever
        name = "flight_streams" if number < THINGS["flight_streams"].whole else "flight_streams_still"
        shares.of(name).taken += 1
        waits += door.queued_most(QUEUED_HIGH)
    assert waits < memory * 5 // 8


def test_of_few_as_much_waits_as_ever() -> None:
    shares = Shares()
    door = handover(1024 * MIB, shares)
    shares.of("flight_streams").taken = 8
    assert (door.queued_most(QUEUED_HIGH), door.queued_most()) == (QUEUED_HIGH, QUEUED_MOST)
    shares.of("flight_streams").taken = 10_000
    assert door.queued_most(QUEUED_HIGH) == QUEUED_LEAST


class Written:
    """A client's end of a stream."""

    def __init__(self) -> None:
        self.rows = 0

    def write_batch(self, batch: Any) -> None:
        self.rows += batch.num_rows


def delivery(size: int) -> Delivery:
    piece = SimpleNamespace(bodies=[bytes(size)], chunk=range(1, 2))
    return Delivery(cast("Piece", piece), 1, False, 0, time=1)


def test_who_was_told_that_it_is_full_is_told_when_a_quarter_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told, most = io.StringIO(), 100_000
    down = Downstream(
        cast("Log", None), "q", most=lambda: most, on_room=lambda: cast("None", told.write("room ")),
        on_gone=lambda: None, on_unreadable=lambda _: None,
    )  # fmt: skip
    monkeypatch.setattr("penstock.server.flight.downstream.AT_ONCE", 1)  # each delivery is a batch of its own
    written = Written()
    monkeypatch.setattr(down, "_batch", lambda some: SimpleNamespace(num_rows=len(some)))
    assert not down.deliver(delivery(60_000))
    assert down.deliver(delivery(60_000))
    assert down.full
    down._answers.append(b"")  # one batch, then what else there is to do
    down._write_deliveries(written)
    assert (down.full, told.getvalue()) == (True, "")
    down._write_deliveries(written)
    assert (down.full, told.getvalue(), written.rows) == (False, "room ", 2)


class Kept(list[bytes]):
    """Rows of which somebody asks whether they are still there."""


def test_while_a_batch_is_written_its_rows_are_in_memory_once_and_counted_also_after_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC holds the thread until the client reads on: what it holds beside the batch would stay as long."""
    down = Downstream(
        cast("Log", None), "q", most=lambda: MIB, on_room=lambda: None, on_gone=lambda: None,
        on_unreadable=lambda _: None,
    )  # fmt: skip
    monkeypatch.setattr(down, "_batch", lambda some: SimpleNamespace(num_rows=len(some)))
    rows, seen = Kept([bytes(1000)]), list[tuple[object, int]]()
    there, size = weakref.ref(rows), 0

    class Blocked:
        def write_batch(self, _: object) -> None:
            down.finish(None)  # it is cut off meanwhile
            seen.append((there(), down.queued))

    down.deliver(Delivery(cast("Piece", SimpleNamespace(bodies=rows, chunk=range(1, 2))), 1, False, 0, time=1))
    size = down.queued
    del rows
    monkeypatch.setattr("penstock.server.flight.downstream.AT_ONCE", 1)
    down.deliver(delivery(60_000))
    down._write_deliveries(Blocked())
    assert seen == [(None, size)]
    assert down.queued == 0


@pytest.mark.parametrize("how", ["answer", "say"])
def test_who_does_not_read_answers_is_not_heard_beyond_some(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing that it says asks for one, and what waits for it was in memory without a bound."""
    monkeypatch.setattr("penstock.server.flight.downstream.ANSWERS_MOST", 5)
    down = Downstream(
        cast("Log", None), "q", most=lambda: MIB, on_room=lambda: None, on_gone=lambda: None,
        on_unreadable=lambda _: None,
    )  # fmt: skip
    heard, reads = list[int](), threading.Semaphore(0)
    read = list[bytes]()

    class Client:
        def begin(self, _: object) -> None: ...

        def write_metadata(self, words: bytes) -> None:
            reads.acquire()
            read.append(words)

    def hear() -> None:
        for number in range(20):
            getattr(down, how)(b"%d" % number)
            down.await_reader()
            heard.append(number)

    serving = threading.Thread(target=down.beside, args=(Client(), None, "q", hear, down.finish))
    serving.start()
    eventually(lambda: len(heard) >= 5)
    for _ in range(20):
        assert len(heard) <= len(read) + 6  # one of them is being written
        reads.release()
        eventually(lambda: len(heard) == 20 or len(heard) >= len(read) + 4)
    reads.release(100)
    serving.join(20)
    assert not serving.is_alive()
    assert heard == list(range(20))
    assert read == [b"%d" % number for number in range(20)][: len(read)]  # what waits at the end is not said


class Portion(list[int]):
    pass


class Reader(Outlet[Portion]):
    def cost(self, portion: Portion) -> int:
        return 8 * len(portion)

    def batch(self, portions: list[Portion], schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"a": [one for some in portions for one in some]}, schema=schema)

    def completed(self, *, last: bool) -> bytes:
        return b"last" if last else b"level"


def test_portions_of_a_read_are_not_kept_beside_the_batch_that_is_sent() -> None:
    reader, portion = Reader(1, lambda: MIB), Portion([1, 2])
    there = weakref.ref(portion)
    reader.take(portion)
    del portion
    sent = reader.batches(pa.schema([("a", pa.int64())]), lambda: False, lambda: None)
    first = next(sent)
    assert isinstance(first, pa.RecordBatch)
    assert (there(), reader.queued) == (None, 16)
    reader._cut(MemoryShort("short"))
    assert (reader.queued, reader.held().bytes) == (16, 0)
    with pytest.raises(MemoryShort):
        list(sent)
    assert (reader.queued, reader.sent) == (0, 16)


def test_a_read_that_brings_nothing_asks_ever_less_often_whether_its_client_is_there() -> None:
    """Twenty that stood still were a twentieth of a core: each asked twenty times a second."""
    reader, pauses = Reader(1, lambda: MIB), list[float]()

    class Silent(Bell):
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            if len(pauses) == 7:
                reader.take(Portion([1]))
            return False

    reader._bell = Silent()
    asked = iter([False] * 9 + [True])
    sent, got = reader.batches(pa.schema([("a", pa.int64())]), partial(next, asked), lambda: None), list[object]()
    with pytest.raises(Abandoned):
        got.extend(sent)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.05, 0.1, 0.2]
    assert len(got) == 1
