"""Publishes of one connection on their way from bytes to `PublishRun`: known targets, rows, and the check of headers.

Owns the caches of the fast path and the run that rows are added to.  Knows no channel states: the machine asks only for
channels that are open and between messages.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from penstock.errors import ProtocolError
from penstock.records.properties import REPLY_TO, HeaderClasses, peeked, plain_mode_of_all
from penstock.wire.amqp.events import Event, PublishRun, Target
from penstock.wire.amqp.frames import FRAME_END, NOT_IMPLEMENTED, OVERHEAD, Limits
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.walk import BODY_BEGINS, PLAN_HEAD, Plans, walk_publishes

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
        self._plans: Plans = {}
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
