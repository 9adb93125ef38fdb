"""The two hot loops of the door: whole publishes and single acks, straight off the bytes of a read.

Both take only what is complete and perfectly regular, check every border, and stop at the first byte of anything else:
an unfinished message, a body of several frames, a new target, a broken frame.  The machine's frame-by-frame path then
reads that part and judges it.  So these loops decide nothing and raise nothing.

    a message    method frame (known bytes) | header frame | body frame, absent when the body is empty
    read as      method frame, 02 channel size class weight | body size | flags, list | CE 03 channel | size | body CE

Parsing needs `bytes`: slices of a memoryview cost twice as much.

Runs of messages, or of acks, that differ only where they must are taken by stride, without a step of Python for each.
The result is exactly what the walk gives for the same bytes, or nothing; a property test holds the two together.
`enabled = False` turns it off, for tests and benchmarks that want to see the walk alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from penstock.wire.amqp import methods
from penstock.wire.amqp.events import Target
from penstock.wire.amqp.frames import BODY, CONTENT_LEAST, FRAME_END, HEADER, OVERHEAD

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


_ack_tail = struct.Struct(">QH").unpack_from  # tag; bits and end mark in one word

_HEAD = 11  # bytes of a header frame before the body size: kind, channel, size, class, weight
PLAN_HEAD = OVERHEAD + _HEAD
"""Bytes of a plan's key beyond the payload of the method frame."""

BODY_BEGINS = FRAME_END << 24 | BODY << 16
"""The end mark of a header frame and the kind of the body frame behind it; its channel is to be added."""

_BASIC_HEAD = b"\x00\x3c\x00\x00"
_PLANS_MOST = 1024
_no_shape: Callable[[bytes, int], tuple[int, bytes, int, int]] = struct.Struct(">QsII").unpack_from
_NO_TARGET = Target(b"", 0, "", "", False)

_RUN_LEAST = 4
"""Acks that must be left in a read before a run of them is worth a try."""

ACK_FRAME = 21

SMALL = 2048
"""Bytes of a read beyond which it is no small one: it may have many messages, or is worth its own way."""

PUBLISH, ACK = methods.BasicPublish.ID & 0xFF, methods.BasicAck.ID & 0xFF
"""What the byte at 10 of a method frame of class basic says."""
_ACK_PREFIX = 11
_ACK_BITS_END = FRAME_END  # bits 0: this tag alone
_ACK_MULTIPLE_END = 0x100 | FRAME_END


Plan: TypeAlias = "tuple[Target, Callable[[bytes, int], tuple[int, bytes, int, int]], int, int]"
Plans: TypeAlias = "dict[bytes, Plan]"
"""By method frame and header frame up to the body size: the target; a reader of body size, property bytes, end mark
with the next frame's kind and channel, and that frame's size; the length of the key; where the body begins."""


@lru_cache(256)
def _reader(size: int) -> Callable[[bytes, int], tuple[int, bytes, int, int]]:
    """A reader of what follows the head of a header frame with `size` bytes of properties."""
    return struct.Struct(f">Q{size}sII").unpack_from


def _plan(data: bytes, pos: int, channel: int, cache: Mapping[bytes, Target], payload_max: int) -> Plan | None:
    """Check a known method frame and the beginning of the header frame behind it; None when it is not regular."""
    at = pos + OVERHEAD + data[pos + 6] + (data[pos + 5] << 8)
    target = cache.get(data[pos:at])
    if target is None or target.channel != channel:
        return None
    size = int.from_bytes(data[at + 3 : at + 7], "big")
    if data[at : at + 3] != bytes((HEADER,)) + channel.to_bytes(2, "big") or data[at + 7 : at + _HEAD] != _BASIC_HEAD:
        return None
    if not CONTENT_LEAST <= size <= payload_max:
        return None
    known = at + _HEAD - pos
    return target, _reader(size - 12), known, known + size + 4


def walk_publishes(
    data: bytes,
    pos: int,
    channel: int,
    cache: Mapping[bytes, Target],
    plans: Plans,
    payload_max: int,
    body_max: int,
    targets: list[Target],
    properties: list[bytes],
    bodies: list[bytes],
) -> int:
    """Take whole messages of one channel with known targets from `pos` on; the position after the last.

    `payload_max` bounds a frame's payload, `body_max` a body that lies in one frame; `plans` belongs to the connection,
    as `cache` does.  Appends one element a message to the three lists.
    """
    to_body = BODY_BEGINS | channel
    limit = min(payload_max, body_max)
    prefix = b"?"  # what the last message began with; no frame begins like this
    skip = to_border = stride = 0
    try_runs = True
    target, read = _NO_TARGET, _no_shape
    try:
        while True:
            if not data.startswith(prefix, pos):
                prefix = data[pos : pos + PLAN_HEAD + data[pos + 6] + (data[pos + 5] << 8)]
                plan = plans.get(prefix)
                if plan is None:
                    plan = _plan(data, pos, channel, cache, payload_max)
                    if plan is None:
                        return pos
                    if len(plans) >= _PLANS_MOST:
                        plans.clear()
                    plans[prefix] = plan
                target, read, skip, to_border = plan
                if target.channel != channel:
                    return pos
            length, header, mark, inside = read(data, pos + skip)
            start = pos + to_border
            stop = start + length
            if mark != to_body or inside != length or not 0 < length <= limit or data[stop] != FRAME_END:
                if length or mark >> 24 != FRAME_END:
                    return pos
                stop = start - OVERHEAD  # an empty body has no frame: the header's end mark is the message's
                start = stop
            bodies.append(data[start:stop])
            properties.append(header)
            targets.append(target)
            first, pos = pos, stop + 1
            if stride == pos - first and try_runs and length:
                more = same_messages(data, first, start, pos)
                if more:
                    properties += [header] * len(more)
                    targets += [target] * len(more)
                    bodies += more
                    pos += stride * len(more)
                else:
                    try_runs = False
            stride = pos - first
    except (struct.error, IndexError):
        return pos  # the message goes on in the next read


def ack_prefix(channel: int) -> bytes:
    """The first 11 bytes of every basic.ack frame on a channel."""
    return b"\x01" + channel.to_bytes(2, "big") + b"\x00\x00\x00\x0d\x00\x3c\x00\x50"


def walk_acks(data: bytes, pos: int, prefix: bytes, spans: list[tuple[int, int]]) -> int:
    """Take whole basic.ack frames of one channel from `pos` on; the position after the last.

    Appends spans as `AckRun` defines them; single acks in sequence become one span.  Stops at tag 0 that is not
    multiple, which acknowledges nothing and is the machine's to refuse.
    """
    low, high = 0, -1  # an empty span: no tag follows -1 + 1 = 0
    room = len(data) - ACK_FRAME
    try_runs = True
    while pos <= room and data.startswith(prefix, pos):
        tag, end = _ack_tail(data, pos + _ACK_PREFIX)
        if end == _ACK_BITS_END and tag:
            if tag == high + 1:
                high = tag
            else:
                if high > 0:
                    spans.append((low, high))
                low = high = tag
            pos += ACK_FRAME
            if try_runs and room - pos >= ACK_FRAME * _RUN_LEAST:
                run = same_acks(data, pos, prefix, high + 1)
                if run:
                    high += run
                    pos += run * ACK_FRAME
                try_runs = run > 0
        elif end == _ACK_MULTIPLE_END:
            if high > 0:
                spans.append((low, high))
                high = -1
            spans.append((0, tag))
            pos += ACK_FRAME
        else:
            break
    if high > 0:
        spans.append((low, high))
    return pos
