"""Rows of one channel on the way between door and core: what is read is what was written."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.server.amqp import way
from penstock.server.amqp.way import Frame
from penstock.server.doors.line import Broken


def frame_of(targets: list[int], headers: bytes | list[bytes], bodies: list[bytes]) -> Frame:
    [frame] = way.Cutter(way.up_most(1 << 17, 1 << 20)).feed(b"".join(way.run_pieces(7, 3, targets, headers, bodies)))
    return frame


@pytest.mark.parametrize(
    ("targets", "headers", "bodies"),
    [
        *product(
            ([5], [5, 6, 5]),
            (b"", b"head", [b"a", b"", b"ccc"]),
            ([b"one", b"two", b"six"], [b"", b"", b""], [b"", b"b", b"\0" * 300]),
        )
    ],
)
def test_a_run_comes_as_it_was_written(targets: list[int], headers: bytes | list[bytes], bodies: list[bytes]) -> None:
    heads = [headers] if isinstance(headers, bytes) else headers
    assert way.run_of(frame_of(targets, headers, bodies)) == (targets, heads, bodies)


@pytest.mark.parametrize("bodies", [[b"one", b"two", b"six"], [b"", b"", b""], [b"", b"b", b"\0" * 300]])
def test_a_run_whose_sizes_are_not_those_of_its_bytes_is_broken(bodies: list[bytes]) -> None:
    whole = frame_of([5], b"head", bodies)
    for size in range(len(whole.payload)):
        with pytest.raises(Broken):
            way.run_of(whole._replace(payload=whole.payload[:size]))
    for at in range(8, 24, 4):  # the sizes of the header and of three bodies
        for byte in (1, 255):
            lie = bytearray(whole.payload)
            lie[at] ^= byte
            with pytest.raises(Broken):
                way.run_of(whole._replace(payload=bytes(lie)))
    with pytest.raises(Broken):
        way.run_of(whole._replace(payload=whole.payload + b"\0"))
