"""Runs of messages, or of acks, that differ only where they must: taken by stride, without a step of Python for each.

The result is exactly what the walk gives for the same bytes, or nothing; a property test holds the two together.
`enabled = False` turns it off, for tests and benchmarks that want to see the walk alone.
"""

from __future__ import annotations

import struct

from penstock.wire.amqp.frames import FRAME_END

enabled = True

_RUN_MOST = 1 << 16
_ack = struct.Struct(">11sQH")


def same_messages(data: bytes, first: int, body: int, stop: int) -> list[bytes]:
    """Bodies of the messages from `stop` on that repeat the one at `first` in all bytes before the body and in length.

    `body` is where the first one's body begins, `stop` the byte after its end mark.  Empty when the next whole stretch,
    cut down by halves a few times, is not such a run.
    """
    if not enabled:
        return []
    stride = stop - first
    prefix = data[first:body]
    if not data.startswith(prefix, stop):
        return []
    count = (len(data) - stop) // stride
    while count > 1 and not data.startswith(prefix, stop + (count - 1) * stride):
        count >>= 1
    if count < 1:
        return []
    shape = struct.Struct(f"{len(prefix)}s{stride - len(prefix) - 1}sB")
    rows = shape.iter_unpack(memoryview(data)[stop : stop + count * stride])
    bodies: list[bytes] = [own for ahead, own, end in rows if end == FRAME_END and ahead == prefix]
    return bodies if len(bodies) == count else []


def same_acks(data: bytes, pos: int, prefix: bytes, expected: int) -> int:
    """How many whole single acks from `pos` on carry the tags `expected`, `expected + 1` and so on: all, or 0.

    "All" is the longest stretch, cut down by halves, whose last tag fits.
    """
    if not enabled:
        return 0
    size = _ack.size
    count = min((len(data) - pos) // size, _RUN_MOST)
    while count and _ack.unpack_from(data, pos + (count - 1) * size)[1] != expected + count - 1:
        count >>= 1
    if not count:
        return 0
    rows = _ack.iter_unpack(memoryview(data)[pos : pos + count * size])
    tags: list[int] = [tag for ahead, tag, end in rows if end == FRAME_END and ahead == prefix]
    return count if tags == list(range(expected, expected + count)) else 0
