"""Last values: of the messages with one key only the newest waits.

A newcomer removes the waiting older one of its key and stands at the end.  What is out for delivery stays out; when it
comes back while a newer one lives it is removed.  A scheduled message is a newcomer when it is due.  Keys are 64 bits
of a hash (two of a million keys share one with a probability of 3 in 100 million), given once, as the message enters,
and logged beside it, so nothing is evaluated at a start.

It knows no expression; messages without a key, 0 here, are none of its business.

Keys are 64 bits of a hash of what an expression or a header gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.runs import Run, packed, sift_runs, view
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.state.lsns import Ints, flat
from penstock.records.causes import REPLACED
from penstock.records.chunks import Chunk, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.whole import State, Whole

NO_KEY = 0
HELD: tuple[State, ...] = ("ready", "leased", "delayed")
"""What may be replaced, or replaces: all but what is held back and what is dying."""


def key_of(value: object) -> int:
    """The key of what an expression gave: equal texts and numbers are one key, 1 and 1.0 too; NULL is none."""
    if isinstance(value, list):
        value = next(iter(cast("list[object]", value)), None)
    if isinstance(value, bool):
        data = b"b%d" % value
    elif isinstance(value, int):
        data = b"n%d" % value
    elif isinstance(value, float):
        data = b"n%d" % int(value) if value.is_integer() else b"n" + repr(value).encode()
    elif isinstance(value, str) and value:
        data = b"t" + value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes) and value:
        data = b"t" + value
    else:
        return NO_KEY
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True) or 1


class LastValues:
    """The keys of one queue's messages."""

    __slots__ = ("_back", "_newest", "_replaced", "known", "loaded")

    def __init__(self) -> None:
        self.known = Ranks()  # the key of each message by LSN; of some that are gone, too
        self.loaded = False  # by a start: which message is the newest is not known yet
        self._newest: dict[int, int] = {}  # the LSN that came last of each key
        self._replaced: list[int] = []  # LSNs that gave way, if they wait
        self._back: list[Run] = []  # ready again, or for the first time, since somebody looked

    @property
    def waiting(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._replaced or self._back or self.loaded)

    def add(self, queue: Whole, chunk: Chunk, keys: Sequence[int], without: Sequence[Chunk]) -> None:
        """New messages.  without: those of them that are delayed, or dead already."""
        known = self.known
        known.forget_if_many(queue.total, queue.living_pieces)
        if known.forgetting and not known.forget_some():
            self.find_newest(queue)
        known.add(chunk, keys)
        outside = frozenset(lsn for part in without for lsn in part)
        for lsn, key in zip(chunk, keys, strict=True):
            if key and lsn not in outside:
                self._enter(lsn, key)

    def came_back(self, run: Run) -> None:
        """Nobody holds it any more, or it is due for the first time."""
        self._back.append(Run(run.chunk, False, run.tally, run.place))

    def moved(self, runs: Sequence[Run]) -> None:
        """They wait for a time now; what was never delivered enters anew then."""
        for run in runs:
            if run.tally == FRESH:
                for lsn, key in self._keyed(run.chunk):
                    if self._newest.get(key) == lsn:
                        del self._newest[key]

    def _keyed(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        """Those of a chunk that have a key, with it."""
        return (one for one in zip(chunk, self.known.each(chunk).tolist(), strict=True) if one[1] != NO_KEY)

    def _enter(self, lsn: int, key: int) -> None:
        old = self._newest.get(key)
        if old is not None and old != lsn:
            self._replaced.append(old)
        self._newest[key] = lsn

    def find_newest(self, queue: Whole) -> None:
        """Work out from what lives which is the newest of each key; what is older and waits gives way."""
        lsns, orders = _standing(queue)
        keys = self.known.each(packed(lsns)) if len(lsns) else lsns
        order = np.argsort(orders, kind="stable")
        order = order[keys[order] != NO_KEY]
        self._newest = dict(zip(keys[order].tolist(), lsns[order].tolist(), strict=True))
        newest = np.fromiter(self._newest.values(), dtype=np.int64, count=len(self._newest))
        mine = lsns[keys != NO_KEY]
        self._replaced += mine[~np.isin(mine, newest)].tolist()

    def settle(self, queue: Whole, sink: Sink) -> None:
        """Let go what a newer message replaced; nothing is replaced that is over, and not gone yet."""
        if queue.expiry.busy:
            return
        if self.loaded:
            self.loaded = False
            self._back.clear()  # they stand where they stand, and are looked at with all others
            self.find_newest(queue)
        back, self._back = self._back, []
        returned, entered = list[Run](), set[int]()
        for run in back:  # newcomers first: of these each replaces the one before it, also one that has expired since
            if run.tally != FRESH:
                returned.append(run)
                continue
            for lsn, key in self._keyed(run.chunk):
                self._enter(lsn, key)
                entered.add(key)
        for run in returned:
            for lsn, key in self._keyed(run.chunk):
                if (newest := self._newest.get(key)) != lsn:
                    if newest is None or (key not in entered and not queue.lives(newest, *HELD)):
                        self._renew(queue, key)
                    if self._newest.get(key) != lsn:
                        self._replaced.append(lsn)
        if self._replaced:
            gone = as_chunk(sorted(set(self._replaced)))
            self._replaced.clear()
            queue.evict(queue.extract(gone), REPLACED, sink)

    def come_due(self, queue: Whole, chunks: Sequence[Chunk], over: frozenset[int], ring: int, sink: Sink) -> set[int]:
        """Of scheduled messages that are due, in order of time, those that a ring of this size lets in.

        One by one, the last first: one whose key a later of them has is replaced by that; the waiting older one of its
        key goes, and makes room for it; who finds none does not come in, and replaces nothing.  over: those that have
        expired since, and need none.
        """
        self.settle(queue, sink)  # who returned in this moment waits, or is gone
        inside, seen, gone = set[int](), set[int](), list[Run]()
        for chunk in reversed(chunks):
            for lsn, key in zip(reversed(chunk), reversed(self.known.each(chunk).tolist()), strict=True):
                if key in seen:
                    continue
                if key:
                    seen.add(key)
                    if (old := self._newest.get(key)) is not None and old != lsn:
                        gone += queue.extract(range(old, old + 1))
                if lsn not in over and queue.ready + len(inside) < ring:
                    inside.add(lsn)
        queue.evict(gone, REPLACED, sink)
        return inside

    def outdated(self, queue: Whole, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Of what comes back, and is in no state now, what a newer one replaced that lives; and the others."""
        came: dict[int, list[tuple[int, int]]] = {}  # where each stands, and its LSN, by key
        for run in runs:
            for lsn, key in self._keyed(run.chunk):
                came.setdefault(key, []).append((run.place or lsn, lsn))
        old = set[int]()
        for key, some in came.items():
            newest = self._newest.get(key)
            if all(lsn != newest for _, lsn in some) and (newest is None or not queue.lives(newest, *HELD)):
                place, last = max(some)
                if place > self._renew(queue, key):
                    self._newest[key] = last
            old.update(lsn for _, lsn in some if lsn != self._newest[key])
        return sift_runs(runs, as_chunk(sorted(old)))

    def _renew(self, queue: Whole, key: int) -> int:
        """The newest of a key is gone: another one is.  Where that stands, 0 where there is none."""
        lsns, orders = _standing(queue)
        mine = self.known.each(packed(lsns)) == key if len(lsns) else np.zeros(0, dtype=bool)
        if mine.any():
            at = int(np.argmax(orders[mine]))
            self._newest[key] = int(lsns[mine][at])
            return int(orders[mine][at])
        self._newest.pop(key, None)  # what came back has left since
        return 0


def _standing(queue: Whole) -> tuple[Ints, Ints]:
    """All that live and are neither scheduled nor dying, ascending, and where each stands in order of arrival."""
    lsns: list[Ints] = [np.zeros(0, dtype=np.int64)]
    orders: list[Ints] = [lsns[0]]
    for place in queue.places(*HELD):
        if place.part == "scheduled":
            continue
        lsns.append(flat(place.lsns()))
        orders.append(lsns[-1])
        for run in place.back():
            if len(run.chunk):
                some = view(run.chunk)
                lsns.append(some)
                orders.append(np.full(len(some), run.place, dtype=np.int64) if run.place > 0 else some)
    every, places = np.concatenate(lsns), np.concatenate(orders)
    order = np.argsort(every, kind="stable")
    return every[order], places[order]
