"""Last values: of the messages with one key only the newest waits.

A newcomer removes the waiting older one of its key and stands at the end.  What is out for delivery stays out; when it
comes back while a newer one lives it is removed.  A scheduled message is a newcomer when it is due.  Keys are 64 bits
of a hash (two of a million keys share one with a probability of 3 in 100 million), given once, as the message enters,
and logged beside it, so nothing is evaluated at a start.

It knows no expression; messages without a key, 0 here, are none of its business.

Keys are 64 bits of a hash of what an expression or a header gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.limits.trimming import drop
from penstock.core.queue.order.runs import Run, packed, view
from penstock.core.queue.priority.ranks import Ranks
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.stages import Newcomers, Stage
from penstock.core.state.lsns import Ints, flat
from penstock.records.causes import REPLACED
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.view import Queue

__all__ = ["NO_KEY", "REPLACING", "LastValues", "key_of"]


NO_KEY = 0


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


DEAD_MOST = 65_536
"""More keys than this, and more than twice as many as messages live, are looked through for those that are gone."""


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
        """Whether `settle_keys` has something to do."""
        return bool(self._replaced or self._back or self.loaded)

    def add(self, queue: Contents, chunk: Chunk, keys: Sequence[int], without: Sequence[Chunk]) -> None:
        """New messages.  without: those of them that are delayed, or dead already."""
        known = self.known
        if known.count > 2 * (queue.ready + queue.leased + queue.delayed + queue.dying) + DEAD_MOST:
            lsns = flat(queue.living_pieces())
            living = Ranks()
            if len(lsns):
                living.load(lsns, known.each(packed(lsns)))
            self.known = known = living
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
                for lsn, key in zip(run.chunk, self.known.each(run.chunk).tolist(), strict=True):
                    if key and self._newest.get(key) == lsn:
                        del self._newest[key]

    def _enter(self, lsn: int, key: int) -> None:
        old = self._newest.get(key)
        if old is not None and old != lsn:
            self._replaced.append(old)
        self._newest[key] = lsn

    def find_newest(self, queue: Contents) -> None:
        """Work out from what lives which is the newest of each key; what is older and waits gives way."""
        lsns, orders = _standing(queue)
        keys = self.known.each(packed(lsns)) if len(lsns) else lsns
        order = np.argsort(orders, kind="stable")
        order = order[keys[order] != NO_KEY]
        self._newest = dict(zip(keys[order].tolist(), lsns[order].tolist(), strict=True))
        newest = np.fromiter(self._newest.values(), dtype=np.int64, count=len(self._newest))
        mine = lsns[keys != NO_KEY]
        self._replaced += mine[~np.isin(mine, newest)].tolist()

    def settle(self, queue: Queue, sink: Sink) -> None:
        """Let go what a newer message replaced."""
        if self.loaded:
            self.loaded = False
            self._back.clear()  # they stand where they stand, and are looked at with all others
            self.find_newest(queue)
        back, self._back = self._back, []
        returned = list[Run]()
        for run in back:  # newcomers first: of these each replaces the one before it
            if run.tally != FRESH:
                returned.append(run)
                continue
            for lsn, key in zip(run.chunk, self.known.each(run.chunk).tolist(), strict=True):
                if key:
                    self._enter(lsn, key)
        for run in returned:
            for lsn, key in zip(run.chunk, self.known.each(run.chunk).tolist(), strict=True):
                if key and (newest := self._newest.get(key)) != lsn:
                    if newest is None or not _lives(queue, newest):
                        self._renew(queue, key)
                    if self._newest.get(key) != lsn:
                        self._replaced.append(lsn)
        if self._replaced:
            gone = as_chunk(sorted(set(self._replaced)))
            self._replaced.clear()
            drop(queue, queue.extract(gone), REPLACED, sink)

    def come_due(self, queue: Queue, chunks: Sequence[Chunk], over: frozenset[int], ring: int, sink: Sink) -> set[int]:
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
        drop(queue, gone, REPLACED, sink)
        return inside

    def outdated(self, queue: Contents, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Of what comes back, and is in no state now, what a newer one replaced that lives; and the others."""
        came: dict[int, list[tuple[int, int]]] = {}  # where each stands, and its LSN, by key
        for run in runs:
            for lsn, key in zip(run.chunk, self.known.each(run.chunk).tolist(), strict=True):
                if key:
                    came.setdefault(key, []).append((run.place or lsn, lsn))
        old = set[int]()
        for key, some in came.items():
            newest = self._newest.get(key)
            if all(lsn != newest for _, lsn in some) and (newest is None or not _lives(queue, newest)):
                place, last = max(some)
                if place > self._renew(queue, key):
                    self._newest[key] = last
            old.update(lsn for _, lsn in some if lsn != self._newest[key])
        gone, kept = list[Run](), list[Run]()
        for run in runs:
            mine = old.intersection(run.chunk)
            if mine:
                gone.append(run.part(as_chunk(sorted(mine)), False))
                run = run.part(as_chunk([lsn for lsn in run.chunk if lsn not in mine]), False)
            if len(run.chunk):
                kept.append(run)
        return gone, kept

    def _renew(self, queue: Contents, key: int) -> int:
        """The newest of a key is gone: another one is.  Where that stands, 0 where there is none."""
        lsns, orders = _standing(queue)
        mine = self.known.each(packed(lsns)) == key if len(lsns) else np.zeros(0, dtype=bool)
        if mine.any():
            at = int(np.argmax(orders[mine]))
            self._newest[key] = int(lsns[mine][at])
            return int(orders[mine][at])
        self._newest.pop(key, None)  # what came back has left since
        return 0


class _Replacing(Stage):
    """Newcomers replace the older ones of their keys, once everybody was offered something.

    Where others are held back, or give way, each is over before the next comes: what it replaces lets the next in.
    """

    def present(self, queue: Queue) -> bool:
        return queue.last_values is not None

    def cut(self, queue: Queue, now: Now, new: Newcomers) -> int:
        return len(new) if queue.shares is None and queue.limits is None else 1

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.last_values is not None:
            keys = [0] * len(new) if new.last_keys is None else new.last_keys
            queue.last_values.add(queue, new.chunk, keys, new.gone)

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        if queue.last_values is not None:
            queue.last_values.came_back(run)
        return [run]

    def delayed(self, queue: Contents, run: Run) -> None:
        if queue.last_values is not None:
            queue.last_values.came_back(run)

    def prepare(self, queue: Queue, sink: Sink) -> None:
        if queue.last_values is not None and queue.last_values.waiting:
            queue.last_values.settle(queue, sink)

    def offered(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.last_values is not None:
            while queue.agenda & DISPATCH:  # who has room is given each before a later one of the batch replaces it
                dispatch(queue, now, sink)
            queue.last_values.settle(queue, sink)


REPLACING = _Replacing()


def _standing(queue: Contents) -> tuple[Ints, Ints]:
    """All that live and are neither scheduled nor dying, ascending, and where each stands in order of arrival."""
    lsns: list[Ints] = [np.zeros(0, dtype=np.int64)]
    orders: list[Ints] = [lsns[0]]
    for place in queue.places("ready", "leased", "delayed"):
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


def _lives(queue: Contents, lsn: int) -> bool:
    """Whether a message is in the queue, scheduled or not, and not dying."""
    if queue.main.has(lsn):
        return True
    others = (place for place in queue.places("ready", "leased", "delayed") if place.part != "main")
    some = (chunk for place in others for chunk in place.chunks())
    return any(len(chunk) and chunk[0] <= lsn <= chunk[-1] and lsn in chunk for chunk in some)
