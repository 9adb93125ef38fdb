"""Planning for streams in log mode: where they begin, and how far the next range of messages reaches.

The log is read in Flight's thread or in the bulk child; where a range ends is decided on the loop and durable before it
is answered.  A range ends where the limits say, or at what is durable; one message larger than the limit goes alone.
Where nothing for the stream lies in a long piece of the log, an empty range brings it over, so that a quiet topic does
not hold what others fill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, TypeVar, cast

from penstock.core.streams.stream_table import Range
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.history.history import History, Limits, Measured
from penstock.records.chunks import LSN_LIMIT
from penstock.records.dataclass import dataclass
from penstock.records.remembered import Remembered
from penstock.server.bulk.relay import Relay, bytes_between
from penstock.wire.flight.bookmarks import Point, parse_span
from penstock.wire.flight.commands import Replay
from penstock.wire.flight.tickets import command as written
from penstock.wire.flight.tickets import parse_get

if TYPE_CHECKING:
    from penstock.core.state.streams import Asked, StreamState
    from penstock.server.engine import Engine
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.gatekeeper import Gatekeeper
    from penstock.server.flight.handover import Handover


SOON_S = 0.05
"""How long a wait lasts at least while something may have come for a sibling: ready messages that nobody may take now,
and records that it does not read, would else have a query ask without a pause."""

TURNS_MOST = 10_000
"""Streams whose last turns are remembered."""


class Siblings:
    """When each stream was asked, and when it had something.  `busy` and `turn` may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked = Remembered[str, float](TURNS_MOST)
        self._had = Remembered[str, float](TURNS_MOST)

    def turn(self, name: str, among: Sequence[str]) -> bool:
        """A stream is asked; whether one of the others has had something since it was asked before."""
        before = self._asked.get(name)
        self._asked.keep(name, time.monotonic())
        return before is not None and any(self._had.get(one, 0.0) > before for one in among)

    def had(self, name: str) -> None:
        """A stream was given a batch."""
        self._had.keep(name, time.monotonic())

    def may_have(self, among: Sequence[str]) -> bool:
        """Whether something may have come for one of these.  On the loop."""
        core, durable = self._engine.core, self._engine.log.durable
        for name in among:
            state = core.streams.states.get(name)
            if state is None:
                continue
            if state.mode == "log":
                at = state.position
                if at is not None and self._engine.walked.begin(name, at) <= durable:
                    return True
            elif (queue := core.queue_by_id(state.queue)) is not None and queue.ready:
                return True
        return False


T = TypeVar("T")

SHARE = 10
"""A look at messages that are too few yet is followed by a pause of so many times what it took."""

POLL_S = 0.005
"""How often a question that waits looks for new records: one comparison of numbers in its own thread, where a bell
would cost the loop something with each commit."""

SCAN_BYTES = 1 << 30
"""Bytes of the log that one range spans at most."""

EMPTY_BYTES = 64 << 20
"""Bytes of the log without a message of the stream after which an empty range is planned."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a reader wants to know: the range that begins at `start`."""

    stream: str
    start: int
    limits: Limits
    until: int  # no range ends after this LSN
    wait: float  # seconds to wait for a first message
    fail: bool  # refuse where retention has passed the start
    epoch: Callable[[], int]
    beside: tuple[str, ...] = ()  # other streams of the query, for which the wait may end
    least: int = 0  # messages of a range, unless it is as long as the limits allow


class Planner:
    """Plans ranges of one server."""

    def __init__(self, handover: Handover, gate: Gatekeeper, relay: Relay | None, siblings: Siblings) -> None:
        self._handover = handover
        self._engine = handover.engine
        self._gate = gate
        self._relay = relay
        self._walked = handover.engine.walked
        self._siblings = siblings

    # -- the beginning

    def begin(self, caller: Caller, stream: str, epoch: Callable[[], int], text: str, fail: bool) -> int:
        """The LSN at which a reader without a checkpoint begins."""
        log, core = self._engine.past, self._engine.core

        def look() -> tuple[int | None, str, Point, bool, bool]:
            state = core.streams.fenced(stream, epoch(), "log")
            return state.start, state.said, recent(state, log.origin), state.position is not None, state.lapsed

        start, said, point, has_begun, lapsed = self._do(caller, look)
        if has_begun and text.strip().upper() == "MOST_RECENT":
            start = History(log, caller.gone).resolve(parse_span(text, lambda: point), None)[0]
        elif start is None or said != text:
            span = parse_span(text, lambda: point)
            if span.end is not None:
                raise InvalidArgument(
                    f"stream '{stream}': the range {text[:60]} has an end, and a stream has none; name where it begins"
                )
            found = History(log, caller.gone).resolve(span, "fail" if fail else "epoch")[0]

            def work() -> int:
                return core.streams.ranges.begin(self._engine.now(), stream, epoch(), text, found)

            start, lapsed = self._do(caller, work, durable=True), False
        if fail and (why := lost(self._engine, stream, start, held=not lapsed)):
            raise PreconditionFailed(why)
        return start

    # -- ranges

    def plan(self, caller: Caller, asked: Question) -> tuple[Range | None, Measured | None, str]:
        """The range from `start` on, as it was planned before or is now; None: there is nothing after `start`.

        The figures are known only of a range that is planned now.  Last comes `lost`, of its start.
        """
        log, core, name = self._engine.past, self._engine.core, asked.stream

        def look() -> tuple[Range | None, Asked, bool, int]:
            streams, now = core.streams, self._engine.now()
            known = streams.ranges.known(now, name, asked.epoch(), asked.start)
            state = streams.state(name)
            return known, state.asked, state.has_held(asked.start), self._walked.begin(name, asked.start)

        known, definition, held, at = self._do(caller, look, durable=True)
        if asked.start > log.durable + 1:
            raise PreconditionFailed(
                f"stream '{name}' is at LSN {asked.start}, and the log ends at LSN {log.durable}: the checkpoint "
                "belongs to another server, or to what this one was before it was restored; begin with a new checkpoint"
            )
        why = lost(self._engine, name, asked.start, held=held)
        if asked.fail and why:
            raise PreconditionFailed(why)
        idle = not self._siblings.turn(name, asked.beside)
        if known is not None:
            return known, None, why
        found = self._awaited(caller, self.command(caller, definition), asked, at, asked.wait if idle else 0.0)
        return (None, None, "") if found is None else (self._planned(caller, asked, found), found, why)

    def _awaited(self, caller: Caller, command: Replay, asked: Question, at: int, wait: float) -> Measured | None:
        """The range, looked for from `at` on for so many seconds, or until something may have come for a sibling."""
        began = time.monotonic()
        soon = began + SOON_S if asked.beside else inf
        level = False
        while True:
            now, looked = self._engine.clock.wall(), time.monotonic()
            found, upto = self._found(caller, command, asked, at)
            if caller.gone():
                return None  # reading ended where it left, and nobody knows what follows
            if found is not None:
                return found
            level, at = level and upto == at, upto
            if not level:
                level = True
                self._handover.post(partial(self._nothing, asked, at, now))
            if time.monotonic() >= began + wait or caller.gone():
                return None
            if time.monotonic() >= soon:
                if self._do(caller, partial(self._siblings.may_have, asked.beside)):
                    return None
                soon = time.monotonic() + SOON_S
            looking = time.monotonic() - looked if asked.least else 0.0
            time.sleep(max(POLL_S, min(looking * SHARE, began + wait - time.monotonic())))

    def _found(self, caller: Caller, command: Replay, asked: Question, at: int) -> tuple[Measured | None, int]:
        """The range, if there is one by now, looked for from `at` on; and how far was looked."""
        end = min(self._engine.past.durable + 1, asked.until)
        while at < end and not caller.gone():
            found = self.measured(caller, command, at, self._stretch(asked.start, at, end), asked.limits)
            empty = not found.rows
            if found.rows < asked.least and not empty and found.end >= end and found.bytes < asked.limits.bytes:
                break  # more may come
            if not empty or bytes_between(self._engine.log.segments(), asked.start, found.end) >= EMPTY_BYTES:
                return found, at
            at = found.end
        return None, at

    def parts(self, caller: Caller, stream: str, start: int, end: int, least: int) -> tuple[Range, str]:
        """The parts of a range that a checkpoint names, and what it is read with; and `lost`, of its start."""
        core = self._engine.core

        def look() -> tuple[Range | None, Asked, bool]:
            state = core.streams.state(stream)
            return core.streams.ranges.find(state, start), state.asked, state.has_held(start)

        known, asked, held = self._do(caller, look)
        why = lost(self._engine, stream, start, held=held)
        if known is not None and known.end == end:
            return known, why
        found = self.measured(caller, self.command(caller, asked), start, end, Limits(parts=least))
        return Range(0, _parts(start, end, found.cuts), asked), why

    def command(self, caller: Caller, asked: Asked) -> Replay:
        """What a stream reads, as far as the caller may."""
        if not asked:
            raise InvalidArgument("this stream was opened without saying what it reads: name a topic or a pattern")
        return cast("Replay", self._gate.get(caller, parse_get(written("replay", **asked))))

    def measured(self, caller: Caller, command: Replay, start: int, end: int, limits: Limits) -> Measured:
        """How far the limits reach."""
        if self._relay is not None:
            found = self._relay.measured(command, start, end, limits, caller.gone)
            if found is not None:
                return found
        return History(self._engine.past, caller.gone).measure(command, start, end, limits)

    def _planned(self, caller: Caller, asked: Question, found: Measured) -> Range:
        core, name = self._engine.core, asked.stream
        parts = _parts(asked.start, found.end, found.cuts)

        def work() -> Range:
            if found.time:
                self._walked.level(name, found.time)
            return core.streams.ranges.plan(self._engine.now(), name, asked.epoch(), parts)

        planned = self._do(caller, work, durable=True)
        self._siblings.had(name)
        return planned

    def _nothing(self, asked: Question, upto: int, now: int) -> None:
        self._walked.looked(asked.stream, asked.start, upto)
        if upto > self._engine.log.durable - 1:
            self._walked.level(asked.stream, now)

    def _stretch(self, start: int, at: int, end: int) -> int:
        """How far a range from `start` may reach that has been looked at up to `at`."""
        left, segments = SCAN_BYTES, self._engine.log.segments()
        for one in segments:
            low, high = max(start, one.first), min(end, one.last + 1)
            if low >= high:
                continue
            size = bytes_between([one], low, high)
            if size > left:
                return min(end, max(at + 1, low + (high - low) * left // size))
            left -= size
        return end

    def _do(self, caller: Caller, work: Callable[[], T], *, durable: bool = False) -> T:
        return self._handover.call(work, caller.gone, durable=durable)


def lost(engine: Engine, stream: str, start: int, end: int = LSN_LIMIT, *, held: bool) -> str:
    """What a reader of [start, end) is told whose place in the log is gone, or where rows were left out since.

    held: the log was kept for it from there on.  Empty: nothing is lost.
    """
    past = engine.past
    if start < (first := past.first_lsn):
        gone, where = f"what lies before LSN {first}", f"at LSN {first} without it"
    elif not held and not past.has_every(start, end):
        first = engine.log.whole_from
        gone, where = f"rows that lie before LSN {first}, which nobody held for it", "with those that are left"
    else:
        return ""
    return (
        f"stream '{stream}' is at LSN {start}, and retention has removed {gone}; set failOnDataLoss to false to go on "
        f"{where}"
    )


def refuse_lost(handover: Handover, caller: Caller, stream: str, start: int, end: int) -> None:
    """PreconditionFailed where rows of a part of a planned range have gone since it was planned.

    For who holds the log, or has listed it: what goes from now on is not missed.
    """
    engine = handover.engine

    def look() -> str:
        held = engine.core.streams.ranges.part(engine.now(), stream, start)
        return lost(engine, stream, start, end, held=held)

    if why := handover.call(look, caller.gone, durable=False):
        raise PreconditionFailed(why)


def recent(state: StreamState, origin: int) -> Point:
    """MOST_RECENT of a stream: the beginning of its last range, which its reader may not have finished."""
    pairs = state.plans.get(state.planned)
    low = pairs[0] if pairs else state.start
    return Point("epoch") if low is None else Point("lsn", origin=origin, lsn=low - 1)


def _parts(start: int, end: int, cuts: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    edges = (start, *cuts, end)
    return tuple(pairwise(edges))
