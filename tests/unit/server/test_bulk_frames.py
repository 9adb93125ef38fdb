"""Frames between the server and its bulk child."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from penstock.server.bulk import requests
from penstock.server.doors.line import BUFFER, Ended, Kind, Line


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def sent(line: Line, kind: Kind, *pieces: object) -> threading.Thread:
    sender = threading.Thread(target=line.send, args=(kind, 0, *pieces))
    sender.start()
    return sender


@pytest.mark.parametrize("name", ["q", "qu", "queue"])
@pytest.mark.parametrize("size", [16, 4 * BUFFER])
def test_a_request_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket], size: int, name: str) -> None:
    ours, theirs = map(Line, pair)
    payload = requests.packed(
        {"job": "x"}, {"name": name, "count": 3, "lsns": b"\1" * size, "more": memoryview(b"abc")}
    )
    sender = sent(ours, Kind.CALL, *payload)
    told, values = requests.unpacked(theirs.receive(requests.ASKED).payload)
    sender.join()
    assert told == {"job": "x"}
    assert {one: bytes(v) if isinstance(v, memoryview) else v for one, v in values.items()} == {
        "name": name, "count": 3, "lsns": b"\1" * size, "more": b"abc",
    }  # fmt: skip
    assert np.frombuffer(values["lsns"], np.int64).flags.aligned


def test_a_request_for_which_there_is_no_memory_is_read_to_its_end(pair: tuple[socket.socket, socket.socket]) -> None:
    """Who sends it waits for nothing, and can be told; the next one comes."""

    def none(size: int) -> memoryview:
        raise MemoryError

    ours, theirs = Line(pair[0]), Line(pair[1], none)
    sender = sent(ours, Kind.CALL, bytes(50 * BUFFER))
    with pytest.raises(MemoryError):
        theirs.receive(requests.ASKED)
    sender.join()
    ours.send(Kind.CALL, 0, b"next")
    assert theirs.receive(requests.ASKED).payload == b"next"


def test_who_is_not_wanted_any_more_waits_no_longer(pair: tuple[socket.socket, socket.socket]) -> None:
    asked = iter([True, True, False])
    with pytest.raises(Ended):
        Line(pair[0]).receive(requests.ANSWERS, lambda: next(asked))


def test_memory_is_used_again_when_nobody_has_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Line(pair[0]), Line(pair[1], requests.Spare().take)
    size = 2 * BUFFER

    def came(letter: bytes) -> tuple[pa.Buffer, int]:
        sender = sent(ours, Kind.BATCH, letter * size)
        payload = theirs.receive(requests.ANSWERS).payload
        sender.join()
        kept = pa.py_buffer(payload)
        return kept, kept.address

    first, at = came(b"a")
    second, elsewhere = came(b"b")
    assert at != elsewhere
    assert first.to_pybytes() == b"a" * size
    part = first.slice(5, 10)
    del first
    third, again = came(b"c")
    assert again not in (at, elsewhere)
    assert part.to_pybytes() == b"a" * 10
    del part, third
    _, reused = came(b"d")
    assert reused in (at, again)
    assert second.to_pybytes() == b"b" * size
