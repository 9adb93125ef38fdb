"""Frames between the server and its bulk child."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.server.bulk import requests


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_frame_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    head, pieces = requests.pack({"name": "q", "count": 3, "lsns": b"\1" * 16, "more": memoryview(b"abc")})
    requests.send(ours, {"job": "x", **head}, *pieces)
    requests.send(ours, None, b"batch")
    told, payload = requests.receive(theirs)
    assert told is not None
    assert told["job"] == "x"
    values = requests.unpack(told, payload)
    assert {name: bytes(v) if isinstance(v, memoryview) else v for name, v in values.items()} == {
        "name": "q", "count": 3, "lsns": b"\1" * 16, "more": b"abc",
    }  # fmt: skip
    empty, batch = requests.receive(theirs)
    assert (empty, bytes(batch)) == (None, b"batch")


def test_a_payload_larger_than_any_buffer_arrives_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    data = bytes(range(256)) * 40_000
    sender = threading.Thread(target=requests.send, args=(ours, {"end": 1}, data))
    sender.start()
    head, payload = requests.receive(theirs)
    sender.join()
    assert head == {"end": 1}
    assert payload == data


def test_the_end_of_the_other_side_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert not requests.gone(ours)
    theirs.close()
    assert requests.gone(ours)
    with pytest.raises(requests.Ended):
        requests.receive(ours)
    with pytest.raises(requests.Ended):
        requests.send(ours, {"a": 1})


def test_a_frame_cut_short_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(b"\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{")
    ours.close()
    with pytest.raises(requests.Ended):
        requests.receive(theirs)


def test_who_is_not_wanted_any_more_waits_no_longer(pair: tuple[socket.socket, socket.socket]) -> None:
    asked = iter([True, True, False])
    with pytest.raises(requests.Ended):
        requests.receive(pair[0], lambda: next(asked))


@pytest.mark.parametrize("prefix", [b"\xff" * 4 + bytes(12), bytes(8) + b"\xff" * 8])
def test_sizes_that_nobody_sends_are_not_believed(pair: tuple[socket.socket, socket.socket], prefix: bytes) -> None:
    pair[0].sendall(prefix)
    with pytest.raises(requests.Ended):
        requests.receive(pair[1])


def test_memory_is_used_again_when_nobody_has_it(pair: tuple[socket.socket, socket.socket]) -> None:
    spare = requests.Spare()
    size = 4 * requests.SMALL

    def came(letter: bytes) -> tuple[pa.Buffer, int]:
        sender = threading.Thread(target=requests.send, args=(pair[0], None, letter * size))
        sender.start()
        _, payload = requests.receive(pair[1], None, spare)
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
