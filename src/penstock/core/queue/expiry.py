"""When messages expire.

A deadline is wall time in microseconds, worked out once, when the message arrives.  The queue's own expiration needs no
entry a message: one step (deadline, last LSN) an arrival, in order.  Messages whose deadline differs from their
neighbours' stand in a timetable.  Steps and times stay known while a message they speak of lives, for one that is
leased when its time comes expires when its lease ends, unless the ack is faster.

A step is a range of LSNs with one deadline (`Steps`), as two neighbours of the queue's own expiration have it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move, heap
from penstock.core.queue.order.runs import NEVER, PIECE, gaps, packed, view
from penstock.core.queue.timetable import Timetable
from penstock.records.chunks import Chunk, Longs
from penstock.records.queue_settings import QueueSettings


class _Block:
    """Some steps that follow one another; columns."""

    __slots__ = ("ends", "firsts", "lasts")

    def __init__(self, ends: Longs, firsts: Longs, lasts: Longs) -> None:
        self.ends = ends  # deadlines, ascending
        self.firsts = firsts  # the LSNs that each speaks of, ascending
        self.lasts = lasts


def _end(block: _Block) -> int:
    return block.ends[-1]


def _last(block: _Block) -> int:
    return block.lasts[-1]


class Steps:
    """All steps of one expiry."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: list[_Block] = []  # none empty

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(first LSN, last LSN, deadline) of each."""
        for block in self.blocks:
            yield from zip(block.firsts, block.lasts, block.ends, strict=True)

    @property
    def end(self) -> int:
        """The last deadline; only when there is one."""
        return self.blocks[-1].ends[-1]

    def add(self, first: int, last: int, end: int) -> None:
        """A step behind all others."""
        if not self.blocks or len(self.blocks[-1].ends) >= PIECE:
            self.blocks.append(_Block(array("q"), array("q"), array("q")))
        for column, value in zip(self._growing(), (end, first, last), strict=True):
            column.append(value)

    @property
    def last(self) -> int:
        """The LSN up to which the last step reaches; there is one."""
        return self.blocks[-1].lasts[-1]

    def stretch(self, last: int) -> None:
        """The last step goes on to this message."""
        self._growing()[2][-1] = last

    def _growing(self) -> tuple[array[int], array[int], array[int]]:
        """The columns of the last block, on the heap."""
        block = self.blocks[-1]
        ends, firsts, lasts = block.ends, block.firsts, block.lasts
        if isinstance(ends, array) and isinstance(firsts, array) and isinstance(lasts, array):
            return ends, firsts, lasts
        block.ends, block.firsts, block.lasts = columns = heap(ends), heap(firsts), heap(lasts)
        return columns

    def between(self, past: int, wall: int) -> Iterator[tuple[int, int]]:
        """(first LSN, last LSN) of those with `past < deadline <= wall`."""
        for block in self.blocks[bisect_right(self.blocks, past, key=_end) :]:
            low, high = bisect_right(block.ends, past), bisect_right(block.ends, wall)
            yield from zip(block.firsts[low:high], block.lasts[low:high], strict=True)
            if high < len(block.ends):
                return

    def after(self, moment: int) -> int:
        """The first deadline later than `moment`; `NEVER` without one."""
        at = bisect_right(self.blocks, moment, key=_end)
        if at == len(self.blocks):
            return NEVER
        ends = self.blocks[at].ends
        return ends[bisect_right(ends, moment)]

    def passed(self, moment: int) -> int:
        """How many deadlines are not later than `moment`."""
        at = bisect_right(self.blocks, moment, key=_end)
        whole = sum(len(block.ends) for block in self.blocks[:at])
        return whole + (bisect_right(self.blocks[at].ends, moment) if at < len(self.blocks) else 0)

    def of(self, lsn: int) -> int:
        """The deadline of one message; 0: no step speaks of it."""
        at = bisect_left(self.blocks, lsn, key=_last)
        if at == len(self.blocks):
            return 0
        block = self.blocks[at]
        step = bisect_left(block.lasts, lsn)
        return block.ends[step] if block.firsts[step] <= lsn else 0

    def of_each(self, lsns: Ints) -> Ints:
        """The same of ascending messages."""
        out = np.zeros(len(lsns), dtype=np.int64)
        if not len(lsns):
            return out
        for block in self.blocks[bisect_left(self.blocks, int(lsns[0]), key=_last) :]:
            if block.firsts[0] > lsns[-1]:
                break
            low, high = np.searchsorted(lsns, (block.firsts[0], block.lasts[-1] + 1)).tolist()
            mine = lsns[low:high]
            at = np.searchsorted(view(block.lasts), mine)
            out[low:high] = np.where(view(block.firsts)[at] <= mine, view(block.ends)[at], 0)
        return out

    def load(self, firsts: Ints, lasts: Ints, ends: Ints) -> None:
        """Many steps in order; the object is new."""
        for start in range(0, len(ends), PIECE):
            columns = [column[start : start + PIECE] for column in (ends, firsts, lasts)]
            self.blocks.append(_Block(*(array("q", column.tobytes()) for column in columns)))

    def trim(self, floor: int) -> None:
        """Forget those that only speak of messages below `floor`."""
        del self.blocks[: bisect_left(self.blocks, floor, key=_last)]
        if self.blocks and (count := bisect_left(self.blocks[0].lasts, floor)):
            block = self.blocks[0]
            self.blocks[0] = _Block(block.ends[count:], block.firsts[count:], block.lasts[count:])

    def copy(self) -> Steps:
        """As they are now, to be asked and not changed; blocks that do not change are shared."""
        out = Steps()
        out.blocks = self.blocks[:-1]
        out.blocks += (_Block(block.ends[:], block.firsts[:], block.lasts[:]) for block in self.blocks[-1:])
        return out

    def page(self, move: Move) -> None:
        """Move what may go to an arena: all but the last block, which may be stretched."""
        for block in self.blocks[:-1]:
            if move.old(block.lasts):
                block.ends, block.firsts = move.longs(block.ends), move.longs(block.firsts)
                block.lasts = move.longs(block.lasts)


Ints = npt.NDArray[np.int64]


def queue_deadline(settings: QueueSettings, time: int) -> int:
    """The deadline of a message that names none itself; 0: never.  `time` is the log's time of the message."""
    times = [span for span in (settings.expiration, settings.message_ttl) if span is not None]
    return time + min(times) if times else 0


def deadlines(settings: QueueSettings, time: int | Ints, own: Ints) -> Ints:
    """The deadline of each message; 0: never.  `own`: what the messages say themselves, 0 for nothing.

    `expiration_model` joins the queue's `expiration` with the message's own; `message_ttl` is then an upper bound.
    """
    model = settings.expiration_model
    if settings.expiration is None:
        out = own.copy() if model in ("default", "earliest") else np.zeros_like(own)
    else:
        of_queue = np.zeros_like(own) + time + settings.expiration
        if model == "default":
            out = np.where(own > 0, own, of_queue)
        elif model == "queue":
            out = of_queue
        elif model == "latest":
            out = np.maximum(own, of_queue)
        else:
            out = np.where(own > 0, np.minimum(own, of_queue), of_queue)
    if settings.message_ttl is not None:
        ttl = np.zeros_like(own) + time + settings.message_ttl
        out = np.where(out > 0, np.minimum(out, ttl), ttl)
    return out


SPAN_MOST = 1 << 20
"""LSNs of ranges that come due in one step.  So many that are missing, as behind a start, are in no range."""

BLOCKS_MOST = 16
"""Blocks of messages with a time of their own that are looked through in one step."""


class _Look:
    """A look at what is due that takes several steps."""

    __slots__ = ("blocks", "next", "past", "spans", "wall")

    def __init__(self, past: int, wall: int, spans: list[range], blocks: int) -> None:
        self.past = past
        self.wall = wall
        self.spans = spans  # still to be told, the oldest last
        self.blocks = blocks  # of the timetable, as many as there were: those that came since are not due
        self.next = 0  # the first of them not yet looked through


class Expiry:
    """The deadlines of one queue's messages."""

    __slots__ = ("_look", "_parted", "_steps", "due", "own", "past")

    def __init__(self) -> None:
        self._steps = Steps()
        self._parted = False  # a message without deadline came after the last step
        self.own = Timetable()  # messages for which no step speaks, although they may lie in one
        self._look: _Look | None = None  # what `come_due` is at
        self.past = 0  # what was due then has been dealt with
        self.due = NEVER  # nothing expires before this

    def add(self, chunk: Chunk, deadline: int) -> None:
        """New messages with one deadline (never 0)."""
        steps = self._steps
        if steps.blocks and deadline < steps.end:  # the setting was lowered
            self.own.add(chunk, [deadline] * len(chunk))
        elif steps.blocks and deadline == steps.end and not self._parted and chunk[0] - steps.last <= SPAN_MOST:
            steps.stretch(chunk[-1])
        else:
            steps.add(chunk[0], chunk[-1], deadline)
            self._parted = False
        self._expect(deadline)

    def add_each(self, lsns: Ints, times: Ints, common: int) -> None:
        """New messages with a deadline each (0: never), of which many may have the common one."""
        if common and not (self._steps.blocks and common < self._steps.end):
            usual = times == common
            if usual.any():
                self.add(packed(lsns[usual]), common)
            rest = ~usual
            lsns, times = lsns[rest], times[rest]
        timed = times > 0
        if timed.any():
            chosen = times[timed].tolist()
            self.own.add(packed(lsns[timed]), chosen)
            self._expect(min(chosen))
        if not timed.all():
            self._parted = True

    def add_older(self, lsns: Ints, times: Ints) -> None:
        """Messages, ascending, that may be older than those known, with a deadline each (0: never)."""
        self.own.add_older(lsns, times)
        timed = times[times > 0]
        if len(timed):
            self._expect(int(timed.min()))

    def _expect(self, deadline: int) -> None:
        self.due = min(self.due, deadline)
        self.past = min(self.past, deadline - 1)  # the clock may have stepped back

    def part(self) -> None:
        """Say that a message without deadline came."""
        self._parted = True

    @property
    def empty(self) -> bool:
        """Whether no message has a deadline."""
        return not self._steps.blocks and not self.own.count

    def come_due(self, wall: int) -> list[Chunk]:
        """What is due at `wall` and was not before, as chunks (LSNs of other queues may lie in a range).

        Of very much a part; while there is more the expiry is `busy`, and the next call goes on whatever it says.
        """
        if self._look is None:
            past, self.past = self.past, max(wall, self.past)
            self._look = _Look(past, self.past, self._spans_due(past, self.past), len(self.own.blocks))
        look = self._look
        out: list[Chunk] = []
        room = SPAN_MOST
        while look.spans and room > 0:
            span = look.spans.pop()
            if len(span) > room:
                look.spans.append(span[room:])
                span = span[:room]
            room -= len(span)
            out += self._without_own(span) if self.own.count else [span]
        if room > 0:
            start, look.next = look.next, min(look.next + BLOCKS_MOST, look.blocks)
            lsns = self.own.between(look.past, look.wall, start, look.next)[0]
            if len(lsns):
                out.append(packed(lsns))
        if look.spans or look.next < look.blocks:
            self.due = 0
            return out
        self._look = None
        self.due = self._steps.after(self.past)
        if self.own.count:
            self.due = min(self.due, self.own.next_after(self.past))
        return out

    @property
    def busy(self) -> bool:
        """Whether `come_due` has told a part of what is due: nobody may be given anything before the rest is gone."""
        return self._look is not None

    def _spans_due(self, past: int, wall: int) -> list[range]:
        """What the steps speak of, the oldest last."""
        out: list[range] = []
        for first, last in self._steps.between(past, wall):
            span = range(first, last + 1)
            if out and out[-1].stop == span.start:
                out[-1] = range(out[-1].start, span.stop)
            else:
                out.append(span)
        out.reverse()
        return out

    def _without_own(self, span: Chunk) -> list[Chunk]:
        holes = array("q")
        for block in self.own.blocks:
            holes.extend(block.lsns[bisect_left(block.lsns, span[0]) : bisect_right(block.lsns, span[-1])])
        if self.own.mixed:
            holes = array("q", sorted(holes))
        return list(gaps(span, holes)) if holes and isinstance(span, range) else [span]

    def overdue(self, chunk: Chunk, wall: int) -> Chunk | None:
        """Those of the chunk whose deadline is at or before `wall`; None if none is."""
        if self.empty:
            return None
        if len(chunk) == 1:
            own = self.own.time_of(chunk[0])
            return chunk if 0 < (self._steps.of(chunk[0]) if own < 0 else own) <= wall else None
        times = self.deadlines_of(chunk)
        late_ones = (times > 0) & (times <= wall)
        return packed(view(chunk)[late_ones]) if late_ones.any() else None

    def deadlines_of(self, chunk: Chunk) -> Ints:
        """The deadline of each message of the chunk; 0: never."""
        lsns = view(chunk)
        out = self._steps.of_each(lsns)
        if self.own.count:
            own = self.own.times_of(chunk)
            out = np.where(own >= 0, own, out)
        return out

    def load(self, lsns: Ints, times: Ints) -> None:
        """The deadlines of what waits after a start; the object is new."""
        which = np.flatnonzero(times > 0)
        if not len(which):
            return
        lsns, times = lsns[which], times[which]
        self.due = int(times.min())
        self._parted = True
        if bool((np.diff(times) < 0).any()):
            self.own.add(lsns.tolist(), times.tolist())
            return
        breaks = np.flatnonzero((np.diff(times) != 0) | (np.diff(which) != 1) | (np.diff(lsns) > SPAN_MOST)) + 1
        starts, ends = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(lsns)])) - 1
        self._steps.load(lsns[starts], lsns[ends], times[starts])

    def copy(self) -> Expiry:
        """The deadlines as they are now, to be asked and not changed; blocks that are full are shared."""
        out = Expiry()
        out._steps = self._steps.copy()
        out.own = self.own.copy()
        return out

    def bulky(self) -> bool:
        """Whether so much has passed that `trim` is worth its walk."""
        return self._steps.passed(self.past) > 1024 or len(self.own.blocks) > 8

    def trim(self, floor: int) -> None:
        """Forget what only speaks of messages below `floor`, none of which lives."""
        self._steps.trim(floor)
        kept = [block for block in self.own.blocks if block.lsns[-1] >= floor]
        if len(kept) != len(self.own.blocks):
            self.own.blocks = kept
            self.own.count = sum(len(block.lsns) for block in kept)

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """(first LSN, last LSN, deadline) of each step; what `own` says takes precedence."""
        return iter(self._steps)

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self._steps.page(move)
        self.own.page(move)
