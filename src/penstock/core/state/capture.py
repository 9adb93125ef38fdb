"""The durable state taken from a living core without holding it up, and which rows of the log a state still needs.

A capture of a queue is made at one moment, between two commands, and costs a reference a chunk.  With many queues they
are taken a few at a time, so each says the LSN it knows of (`since`); the fold passes over what came before.  What a
capture refers to never changes, so `Snapshot.encode` may run in another thread.

Needed is what waits in a queue, what is the present record of a key, and what a stream may be asked for again.  Nothing
is ever put into a queue at an old LSN, so what a state does not need no later state will.  That answers for the bodies
alone: what the fold needs is another question, and a base answers it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from penstock.core.queue.columns import Contained
from penstock.core.queue.dedup import Window
from penstock.core.queue.parts import Declared
from penstock.core.sizes import Sizes
from penstock.core.sow.holding import SowState
from penstock.core.state.durable import DurableState, encode
from penstock.core.state.lsns import Ints, flat, ints, merged, runs_of, to_array, within
from penstock.core.state.pending import Passing, Spans
from penstock.core.state.queue_state import QueueState
from penstock.records.chunks import LSN_LIMIT, Chunk
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import QueueSettings, Ruling

BREATH = 16
"""Queues between two breaths: about half a millisecond of work in Python."""


class Marked:
    """Spans of messages with a property, and which of them some queue still needs."""

    __slots__ = ("name", "pairs", "used")

    def __init__(self, name: str, pairs: array[int]) -> None:
        """pairs: flat, ascending, as of the last capture; not to be changed any more."""
        self.name = name
        self.pairs = ints(pairs)
        self.used: npt.NDArray[np.bool_] = np.zeros(len(pairs) // 2, dtype=bool)

    def column(self, lsns: Ints) -> array[int]:
        """The runs of what has the property among these LSNs; their spans are in use."""
        place = np.searchsorted(self.pairs, lsns, side="right")
        inside = (place & 1).astype(bool)
        if not inside.any():
            return array("q")
        self.used[place[inside] >> 1] = True
        return runs_of(lsns, inside.astype(np.int64))


@dataclass(slots=True)
class Captured:
    """One queue: what was declared, and what it held.  Small while it held nothing: there may be very many."""

    id: int
    name: str
    declared: Declared
    settings: QueueSettings
    since: int
    reviewed: Spans
    passing: Passing | None
    ruling: Ruling | None
    paused: int
    contained: Contained | None  # None: nothing
    window: Window | None = None  # keys that it took of late

    def state(self, marks: list[Marked]) -> QueueState:
        declared, contained = self.declared, self.contained
        out = QueueState(
            self.id, declared.vhost, self.name, self.settings, declared.durable, declared.exclusive_to is not None,
            declared.auto_delete, declared.arguments, since=self.since, reviewed=self.reviewed, passing=self.passing,
            ruling=self.ruling, paused=self.paused,
        )  # fmt: skip
        if self.window is not None:
            out.taken = self.window.dump(self.settings.dedup_window)
        if contained is None:
            return out
        out.waiting, out.columns = contained.waiting(), contained.columns()
        if any(len(mark.pairs) for mark in marks):
            lsns = flat(out.waiting)
            for mark in marks:
                if len(mark.pairs) and (runs := mark.column(lsns)):
                    out.columns[mark.name] = runs
        return out


class Snapshot:
    """A durable state on its way: everything but the queues as of the cut, and the queues captured so far."""

    def __init__(self, state: DurableState, sows: Callable[[], Mapping[int, SowState]] = dict) -> None:
        """state: as of the cut, without queues and SOW topics.  sows: those as of the cut; any thread may ask."""
        self.cut = state.last_lsn
        self.captured: list[Captured] = []  # by id
        self.marks: list[Marked] = []
        self.sizes: Sizes | None = None  # what is left of them, once they were cut down
        self._state = state
        self._sows = sows

    def queues(self, breathe: Callable[[], object] = bool) -> Iterator[QueueState]:
        """One after the other, so that no two need the room to unfold at once.  To be asked once.

        breathe: called after every `BREATH` of them, in a thread that others wait for.
        """
        for number, one in enumerate(self.captured, 1):
            yield one.state(self.marks)
            if number % BREATH == 0:
                breathe()

    def state(self, breathe: Callable[[], object] = bool) -> DurableState:
        """The whole state at once, with all its queues unfolded."""
        self._state.queues = {queue.id: queue for queue in self.queues(breathe)}
        self._state.sows = dict(self._sows())
        return self._state

    def encode(self, breathe: Callable[[], object] = bool) -> bytes:
        """As bytes, one queue unfolded at a time; breathe: as for `queues`."""
        self._fit_sizes()
        self._state.sows = dict(self._sows())
        return encode(self._state, self.queues(breathe))

    def _fit_sizes(self) -> None:
        """Leave out sizes that nobody needs, if there are many."""
        held = [one.contained for one in self.captured if one.contained is not None]
        count = sum(len(chunk) for one in held for chunk in one.waiting())
        if self._state.sizes.wasteful(count):
            pairs = merged([within(chunk) for one in held for chunk in one.waiting() if len(chunk)])
            self.sizes = self._state.sizes = self._state.sizes.only(pairs)


def needed_pairs(state: DurableState, first: int, last: int, underway: Iterable[Chunk] = ()) -> Ints:
    """The LSNs in [first, last] whose rows are needed, as ascending disjoint pairs [a, b), shape (n, 2).

    underway: needed as well, whatever the state knows of them.
    """
    pieces = (*_pieces(state, first, last + 1), *_parts(underway, first, last + 1))
    return merged([piece for piece in pieces if len(piece)])


def held_from(state: DurableState) -> int:
    """The first LSN that a reader in log mode, or an action, may come back to: nothing from there on may go.

    LSN_LIMIT: none may.
    """
    lows = [low for one in state.streams.values() if one.mode == "log" and (low := one.holds_from) is not None]
    if state.acted:
        lows.append(state.acted.floor + 1)  # what set actions off that may not be done
    return min(lows, default=LSN_LIMIT)


def _parts(chunks: Iterable[Chunk], a: int, b: int) -> Iterator[Ints]:
    for chunk in chunks:
        if len(chunk) and chunk[0] < b and chunk[-1] >= a:
            yield within(chunk, a, b)


def _pieces(state: DurableState, a: int, b: int) -> Iterator[Ints]:
    for queue in state.queues.values():
        yield from _parts(queue.waiting, a, b)
    for sow in state.sows.values():
        lsns = ints(sow.lsns)
        lsns = np.sort(lsns[(lsns >= a) & (lsns < b)])
        if len(lsns):
            yield within(to_array(lsns), a, b)
    for stream in state.streams.values():
        if stream.released:
            continue
        for plan in (*stream.plans.values(), stream.counted):
            pairs = ints(plan).reshape(-1, 2)
            touching = pairs[(pairs[:, 0] < b) & (pairs[:, 1] > a)]
            if len(touching):
                yield touching.clip(a, b)
