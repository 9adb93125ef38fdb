"""Publishes and acks of one connection on their way from bytes to runs, straight off the bytes of a read.

`PublishReader` owns the caches of the fast path and the run that rows are added to, and checks headers.  It knows no
channel states: the machine asks only for channels that are open and between messages.

Two hot loops take whole publishes and single acks.  Both take only what is complete and perfectly regular, check every
border, and stop at the first byte of anything else: an unfinished message, a body of several frames, a new target, a
broken frame.  The machine's frame-by-frame path then reads that part and judges it.  So they decide nothing and raise
nothing.

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

from penstock.errors import ProtocolError
from penstock.records.properties import REPLY_TO, HeaderClasses, peeked, plain_mode_of_all
from penstock.records.remembered import Remembered
from penstock.wire.amqp import methods
from penstock.wire.amqp.events import Event, PublishRun, Target
from penstock.wire.amqp.frames import BODY, CONTENT_LEAST, FRAME_END, HEADER, NOT_IMPLEMENTED, OVERHEAD, Limits
from penstock.wire.amqp.methods import decode_method

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
Plans: TypeAlias = "Remembered[bytes, Plan]"
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
                    plans.keep(prefix, plan)
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


Lone: TypeAlias = "tuple[Target, bytes, bytes, int, int]"
"""A message alone: where it goes, its header, its body, its delivery mode, and where it ends."""

_SHORTEST = OVERHEAD + 4 + 2 + 1 + 1 + 1
_read_u32 = struct.Struct(">I").unpack_from


class PublishReader:
    """Gathers rows into the last event of `events`, which the machine replaces for every call of `receive`."""

    def __init__(self, limits: Limits) -> None:
        self.events: list[Event] = []
        self._limits = limits
        self._targets: dict[bytes, Target] = {}
        self._plans: Plans = Remembered(_PLANS_MOST)
        self._classes = HeaderClasses()
        self._run: PublishRun | None = None  # the run that rows are added to, while it is the last event
        self._rows: tuple[list[Target], list[bytes], list[bytes]] = ([], [], [])

    def begin(self, events: list[Event]) -> None:
        """Rows go to `events` from now on."""
        self.events, self._run = events, None

    def end(self) -> None:
        """Give every run one value instead of a list where all rows agree."""
        for event in self.events:
            if type(event) is PublishRun:
                _collapse(event)
        self.events, self._run = [], None

    def walk(self, data: bytes, pos: int, channel: int, payload_max: int) -> int:
        """Take the whole messages at `pos`; the position after them, `pos` when the walk declines the first.

        Errors: ProtocolError of the first message that must not pass; those before it are in the run.
        """
        whole = data[pos : pos + OVERHEAD + _read_u32(data, pos + 3)[0]]
        if whole not in self._targets and (whole[-1] != FRAME_END or not self.target(channel, whole)):
            return pos
        targets, properties, bodies = self.rows(channel)
        before = len(bodies)
        after = walk_publishes(
            data,
            pos,
            channel,
            self._targets,
            self._plans,
            payload_max,
            self._limits.max_message_size,
            targets,
            properties,
            bodies,
        )
        if before < len(bodies):
            self._check_headers(before)
        elif not before:
            self._drop_run()
        return after

    def lone(self, data: bytes, payload_max: int) -> Lone | None:
        """The message with which a read begins, if it is regular, begins as one before, and asks for nothing special.

        Nothing changes by this: a read of which it says None may be given to `walk`.
        """
        plan = self._plans.get(data[: PLAN_HEAD + data[6] + (data[5] << 8)])
        if plan is None:
            return None
        target, read, skip, start = plan
        try:
            length, header, mark, inside = read(data, skip)
            stop = start + length
            if data[stop] != FRAME_END or not 0 < length <= payload_max:
                return None
        except (struct.error, IndexError):
            return None
        if mark != BODY_BEGINS | target.channel or inside != length or length > self._limits.max_message_size:
            return None
        mode = self._classes.mode(header)
        return None if mode < 0 else (target, header, data[start:stop], mode, stop + 1)

    def target(self, channel: int, whole: bytes) -> Target | None:
        """The target of a whole basic.publish frame, remembered; None when the frame is cut short.

        Errors: ProtocolError as `decode_method`, and 540 for `immediate`.
        """
        known = self._targets.get(whole)
        if known is not None:
            return known
        if len(whole) != OVERHEAD + _read_u32(whole, 3)[0]:
            return None
        if len(whole) < _SHORTEST:
            raise _malformed(whole)
        # class, method, ticket | exchange | key | bits, in a frame; only what does not fit goes to the common decoder
        after = 14 + whole[13]
        end = after + 1 + whole[after] if after < len(whole) - 1 else 0
        bits = whole[-2]
        if end != len(whole) - 2:
            raise _malformed(whole)
        try:
            exchange, key = whole[14:after].decode(), whole[after + 1 : end].decode()
        except UnicodeDecodeError as error:
            raise _malformed(whole) from error
        if bits & 2:
            raise ProtocolError("immediate=true", reply_code=NOT_IMPLEMENTED)
        if len(self._targets) >= self._limits.target_cache:
            self.forget()  # both caches: a plan holds its target
        target = Target(whole, channel, exchange, key, bits & 1 != 0)
        self._targets[whole] = target
        return target

    def rows(self, channel: int) -> tuple[list[Target], list[bytes], list[bytes]]:
        """The columns that messages of a channel are added to: those of the last event if it fits, else a new run."""
        run = self._run
        if run is None or run.channel != channel or self.events[-1] is not run:
            self._rows = ([], [], [])
            self._run = PublishRun(channel, *self._rows)
            self.events.append(self._run)
        return self._rows

    def _drop_run(self) -> None:
        self.events.pop()
        self._run = None

    def _check_headers(self, first: int) -> None:
        """Let no malformed property list through: drop the rows from the first on and raise its ProtocolError."""
        targets, properties, bodies = self._rows
        new = properties[first:] if first else properties
        try:
            mode = self._mode_of_all(new)
            if mode >= 0:
                self._tell_mode(mode, first)
        except ProtocolError:
            for row in range(first, len(properties)):
                try:
                    peeked(properties[row])
                except ProtocolError:
                    del targets[row:], properties[row:], bodies[row:]
                    if not bodies:
                        self._drop_run()
                    raise

    def _mode_of_all(self, headers: list[bytes]) -> int:
        """The delivery mode of all these if none asks for anything else; else -1.  Raises what is wrong with one."""
        mode_of = self._classes.mode
        mode = mode_of(headers[0])
        if headers.count(headers[0]) == len(headers):
            if mode < 0:
                peeked(headers[0])
        elif (said := plain_mode_of_all(headers)) >= 0:
            return -1 if headers[0][0] & REPLY_TO else said  # all have the same flags
        else:
            for header in headers:
                if (one := mode_of(header)) < 0:
                    peeked(header)
                if one != mode:
                    mode = -1
        return mode

    def _tell_mode(self, mode: int, first: int) -> None:
        """The headers from this row on ask for nothing but this delivery mode."""
        run = self._run
        if run is not None and run.told == first and (not first or run.plain == mode):
            run.plain, run.told = mode, len(run.bodies)

    def forget(self) -> None:
        """Empty the caches."""
        self._targets.clear()
        self._plans.clear()


def _malformed(whole: bytes) -> ProtocolError:
    """What the common decoder says of a publish frame that cannot be read."""
    try:
        decode_method(whole[7:-1])
    except ProtocolError as error:
        return error
    raise AssertionError(f"two readers of basic.publish disagree about {whole!r}")


def _collapse(run: PublishRun) -> None:
    """One value instead of a list where all rows agree."""
    count = len(run.bodies)
    if run.told < count:
        run.plain = -1
    if isinstance(run.targets, list) and run.targets.count(run.targets[0]) == count:
        run.targets = run.targets[0]
    if isinstance(run.properties, list) and run.properties.count(run.properties[0]) == count:
        run.properties = run.properties[0]
