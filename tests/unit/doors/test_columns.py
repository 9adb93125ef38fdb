"""Batches between a door and the server: what goes in comes out, and broken frames are told from batches."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument
from penstock.server.doors.columns import batch_down, batch_here, batch_there, batch_up, schema_there, schema_up
from penstock.server.doors.line import Broken, Ended, Frame, Kind, Line
from penstock.wire.flight.commands import HEADERS, ORDER
from penstock.wire.flight.received import (
    PUBLISHED,
    SETTLED,
    STAGED_IN_ORDER,
    Bounds,
    Layout,
    columns_of,
    receive,
)

ROWS = 3
PUBLISH = pa.record_batch(
    {
        "body": pa.array([b"a", b"bb", b""], pa.large_binary()),
        "headers": pa.array([[("a", "1"), ("b", None)], None, []], HEADERS),
        "priority": pa.array([1, None, 3], pa.int8()),
        "topic": ["x", None, "é"],
    }
)
SETTLE = pa.record_batch({"lsn": pa.array([5, 6, 7], pa.int64()), "verb": ["ack", "retry", "ack"]})
ORDERS = [pa.record_batch({"body": [b"x", b"y"], ORDER: values}) for values in ([1, 2], [b"a", b"b"])]


def test_whoever_reads_rows_may_ask_whether_the_other_side_is_gone(ends: tuple[Line, Line]) -> None:
    """A statement over several tables reads each in a thread of its own."""
    here, there = ends
    with ThreadPoolExecutor(4) as asking:
        said = list(asking.map(lambda _: [here.gone() for _ in range(2000)], range(4)))
    assert not any(any(some) for some in said)
    there.close()
    assert here.gone()


def test_the_longer_a_wait_lasts_the_less_often_it_looks_whether_it_is_wanted(ends: tuple[Line, Line]) -> None:
    """Each call that brought nothing for hours asked twenty times a second whether its client was still there."""
    here, there = ends
    pauses = list[int]()

    class Silent:
        def poll(self, pause: int) -> list[tuple[int, int]]:
            pauses.append(pause)
            return []

    here._poller = Silent()  # type: ignore[assignment]
    for _ in range(2):  # what comes makes it young again
        asked = iter([True] * 6 + [False])
        with pytest.raises(Ended):
            here.receive({Kind.CONTROL: 100}, partial(next, asked))
        assert pauses == [50, 100, 200, 400, 500, 500, 500]
        pauses.clear()
    there.send(Kind.CONTROL, 0, b"{}")
    assert here.receive({Kind.CONTROL: 100}).payload == b"{}"


def test_a_line_that_was_closed_here_is_gone_too() -> None:
    """Whoever winds a call up asks while the door's end closes all of its lines."""
    here, there = (Line(one) for one in socket.socketpair())
    assert not here.gone()
    here.close()
    assert here.gone()
    assert there.gone()
    there.close()


@pytest.fixture
def ends() -> Iterator[tuple[Line, Line]]:
    door, server = map(Line, socket.socketpair())
    yield door, server
    door.close()
    server.close()


def crossed(ends: tuple[Line, Line], batch: pa.RecordBatch, layout: Layout, words: bytes | None = None) -> Frame:
    door, server = ends
    received = receive(batch, layout, Bounds())
    door.send(Kind.BATCH, 1, *batch_up(received, words), rows=len(received))
    return server.receive({Kind.BATCH: 1 << 20})


@pytest.mark.parametrize("words", [None, b"", b"words beside"])
@pytest.mark.parametrize(
    ("batch", "layout"),
    [(PUBLISH, PUBLISHED), (PUBLISH.slice(1, 1), PUBLISHED), (SETTLE, SETTLED)]
    + [(one, STAGED_IN_ORDER) for one in ORDERS],
)
def test_what_a_client_sent_is_there(
    ends: tuple[Line, Line], batch: pa.RecordBatch, layout: Layout, words: bytes | None
) -> None:
    there, said = batch_there(crossed(ends, batch, layout, words))
    assert there is not None
    assert receive(there, layout, Bounds()).batch.to_pylist() == batch.to_pylist()
    assert said == words
    asked = {name: layout.schema.field(name).type for name in batch.schema.names if name != ORDER}
    assert {one.name: one.type for one in there.schema if one.name != ORDER} == asked
    assert schema_there(memoryview(schema_up(batch.schema))).names == batch.schema.names


def test_a_batch_without_rows_and_words_alone(ends: tuple[Line, Line]) -> None:
    assert batch_there(crossed(ends, PUBLISH.slice(0, 0), PUBLISHED, b"end")) == (None, b"end")


@pytest.mark.parametrize("words", [None, b"", b"beside"])
def test_what_the_server_sends_is_here(ends: tuple[Line, Line], words: bytes | None) -> None:
    door, server = ends
    pieces, flags = batch_down(PUBLISH, words)
    server.send(Kind.BATCH, 7, *pieces, flags=flags, rows=ROWS)
    assert batch_here(door.receive({Kind.BATCH: 1 << 20}), PUBLISH.schema) == (PUBLISH, words)


def test_broken_batches_are_told_and_touch_nothing(ends: tuple[Line, Line]) -> None:
    """A door that a stranger has taken may send any bytes: none of them ends or misleads the server."""
    good, rng, seen = bytes(crossed(ends, PUBLISH, PUBLISHED, b"hello").payload), Random(7), set[str]()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        rows = rng.choice([ROWS, ROWS, ROWS, 0, 2, 4, 1 << 20, 2**32 - 1])
        try:
            there, _ = batch_there(Frame(Kind.BATCH, 0, 1, rows, memoryview(bytes(data))))
            if there is not None:
                received = receive(there, PUBLISHED, Bounds())
                columns_of(received)
                received.batch.to_pylist()
            seen.add("taken")
        except (Broken, InvalidArgument) as error:
            seen.add(type(error).__name__)
    assert seen == {"taken", "Broken", "InvalidArgument"}
