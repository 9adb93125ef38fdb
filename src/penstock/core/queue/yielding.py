"""Who gives way first in a queue whose ready messages stand in several orders: in lines, with tenants, and so on.

To look at all that is ready takes time that grows with it, and one message gives way for each that comes to a full
queue.  So all are looked at once for a part of them: the first stand here in their order, beside them whoever became
ready since and comes before the last of those.  Who left meanwhile is found out when its turn comes.  Nothing is kept
before somebody asks, and little in comparison with what is looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from penstock.core.queue.order.ranks import Ints, Ranks
from penstock.core.queue.order.runs import Run, packed, view
from penstock.core.state.lsns import FEW, ints

Yield = tuple[int, int, int]
"""Whoever has the lowest gives way first: what is served last, of those what stands first by place, and by LSN."""

PORTION = 1024
"""Messages that are kept of a look at least, and so many that may have come back since."""

PART = 16
"""Of so many messages that were looked at one is kept."""


class Yielding:
    """The first that give way; they are only told, and taken from their places by whoever asks."""

    __slots__ = ("_at", "_back", "_first", "_last", "_late")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """What was looked at holds no more."""
        self._first = np.zeros((3, 0), dtype=np.int64)  # of the last look: three rows, in order of their keys
        self._at = 0  # how many of them were told
        self._last: Yield | None = None  # all that are ready and come before this or are it are here; None: unknown
        self._late: list[Yield] = []  # a heap of those that became ready since
        self._back: dict[int, int] = {}  # of who came back since, the place

    def entered(self, run: Run, ranks: Ranks | None) -> None:
        """These became ready since the look, if there was one."""
        last = self._last
        if last is None or (ranks is None and not run.place and run.chunk[0] > last[1]):
            return
        for key in zip(*keys_of([run], ranks).tolist(), strict=True):
            if key <= last:
                heappush(self._late, key)
        self._bound()

    def came_back(self, run: Run, ranks: Ranks | None) -> None:
        """The same of those that were ready before, wherever they stood then."""
        if self._last is not None:
            self._back.update((lsn, run.where if run.place else lsn) for lsn in run.chunk)
            self._bound()
            self.entered(run, ranks)

    def _bound(self) -> None:
        """Who had so much come since may as well look again."""
        if len(self._late) + len(self._back) > PORTION + self._first.shape[1]:
            self.forget()

    def look(self, runs: Iterable[Run], ranks: Ranks | None, count: int = 0) -> None:
        """These are all that are ready, in no order; of them `count` are wanted at once."""
        self.forget()
        keys = keys_of(runs, ranks)
        if keys.shape[1]:
            order = np.lexsort(keys[::-1])[: max(PORTION, keys.shape[1] // PART, count)]
            self._first = keys[:, order]
            turn, place, lsn = self._first[:, -1].tolist()
            self._last = turn, place, lsn

    def next(self, count: int) -> list[int]:
        """LSNs of up to so many, in order; some may have left.  Without any, all must be looked at."""
        if not self._late and not self._back:
            told: list[int] = self._first[2, self._at : self._at + count].tolist()
            self._at += len(told)
            return told
        out = list[int]()
        while len(out) < count and (key := self._pop()) is not None:
            _, place, lsn = key
            if self._back.get(lsn, place) == place:
                out.append(lsn)
        return out

    def _pop(self) -> Yield | None:
        late = self._late
        if self._at >= self._first.shape[1]:
            return heappop(late) if late else None
        turn, place, lsn = self._first[:, self._at].tolist()
        if late and late[0] < (turn, place, lsn):
            return heappop(late)
        self._at += 1
        return turn, place, lsn

    def check(self, runs: Iterable[Run], ranks: Ranks | None) -> None:
        """Whether all that are ready and come before the last are here; AssertionError names who is not."""
        if self._last is None:
            return
        told = {*zip(*self._first[:, self._at :].tolist(), strict=True), *self._late}
        told = {key for key in told if self._back.get(key[2], key[1]) == key[1]}
        ready = {key for key in zip(*keys_of(runs, ranks).tolist(), strict=True) if key <= self._last}
        assert ready <= told, f"{sorted(ready - told)} give way before others, and nobody knows"


def keys_of(runs: Iterable[Run], ranks: Ranks | None) -> Ints:
    """When these give way: three rows, a column for each message."""
    few, few_places = array("q"), array("q")
    lsns, places = list[Ints](), list[Ints]()
    for run in runs:
        chunk = run.chunk
        if len(chunk) < FEW:
            few.extend(chunk)
            few_places.extend([run.where] * len(chunk) if run.place else chunk)
        else:
            lsns.append(view(chunk))
            places.append(np.full(len(chunk), run.where) if run.place else lsns[-1])
    if few:
        lsns.append(ints(few))
        places.append(ints(few_places))
    if not lsns:
        return np.zeros((3, 0), dtype=np.int64)
    every, where = np.concatenate(lsns), np.concatenate(places)
    turn = np.zeros(len(every), dtype=np.int64)
    if ranks is not None:
        ascending = np.argsort(every)
        turn[ascending] = ~ranks.each(packed(every[ascending]))  # what is served last first; minus may overflow
    return np.stack([turn, where, every])
