"""Messages that came back to a queue, in its order, as somebody keeps them in mind; what left since is passed over.

A filter's list keeps those that it wants, and it and all lists together those at which they have still to look.  They
are kept as they came, a run in one piece, so that a million of them cost what the runs cost.  That some are ready no
more is noted once for all of them (`Gone`): of very many filters one message is nobody's but one's, or of none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import islice

import numpy as np

from penstock.core.queue.order.runs import Key
from penstock.core.state.lsns import Ints, to_array
from penstock.records.chunks import Chunk

GONE_MOST = 4096
"""So many messages that are ready no more may still be in pieces, or, where these have more, a part of what they have.
"""

GONE_PART = 16
FEW = 64
"""A piece of fewer is gone through without arrays."""

SINGLE = 8
"""Up to so many are looked for in a piece one by one."""


class Piece:
    """Messages in the order of the queue."""

    __slots__ = ("after", "aside", "at", "by", "lsns", "made", "places")

    def __init__(self, lsns: Sequence[int], places: Sequence[int] | int, by: object = None, after: int = 0) -> None:
        self.lsns = lsns
        self.at = 0  # those before it are gone
        self.made = 0  # the how many-th message to leave was the last one before it: until then all of these were there
        self.places = places  # of all, or of each: numbers that sort; 0: their own LSNs
        self.by = by  # the list that has no need to look: it gave them out, and wants them
        self.after = after  # the first so many lists that there have been have no need to look either
        self.aside: tuple[object, ...] = ()  # lists that were full, and keep it to look at later

    def place(self, at: int) -> int:
        """That of one of them."""
        return self.places if isinstance(self.places, int) else self.places[at]

    def keep(self, some: Ints) -> None:
        """Those of these numbers, and no others."""
        self.lsns, self.at = to_array(np.array(self.lsns, dtype=np.int64)[some]), 0
        if not isinstance(self.places, int):
            self.places = to_array(np.array(self.places, dtype=np.int64)[some])


class Gone:
    """What of all that came back to a queue is ready no more, and may still be in a piece of somebody's."""

    __slots__ = ("_most", "keepers", "number", "when")

    def __init__(self) -> None:
        self.number = 0  # how often some have left
        self.when = dict[int, int]()  # by message: the how many-th time that was
        self.keepers: dict[Recalled, None] = {}  # those who have pieces
        self._most = 0  # so many may be noted, if they are more than `GONE_MOST`

    def left(self, chunk: Chunk) -> None:
        """These are ready no more; whether they were in a piece is not asked."""
        if not self.keepers:
            return
        self.number += 1
        when = self.when
        if len(chunk) == 1:
            when[chunk[0]] = self.number
        else:
            when.update(dict.fromkeys(chunk, self.number))

    def tidy(self) -> None:
        """When all have heard of it: forget what is gone, if that is much, and have the keepers forget it before."""
        when = self.when
        if len(when) > max(GONE_MOST, self._most):
            self._most = sum([one.count for one in self.keepers]) // GONE_PART
            if len(when) > self._most:
                told = self.told()
                for one in list(self.keepers):
                    one.sweep(told)
                when.clear()

    def told(self) -> tuple[Ints, Ints]:
        """All that is noted: messages, and when they left."""
        when, count = self.when, len(self.when)
        return np.fromiter(when, np.int64, count), np.fromiter(when.values(), np.int64, count)


class Recalled:
    """Some of what came back; no message that is there is in it twice."""

    __slots__ = ("_gone", "_heap", "_serial", "count")

    def __init__(self, gone: Gone) -> None:
        """gone: what is ready no more; of all that share it."""
        self._heap: list[tuple[Key, int, Piece]] = []  # by where the first of each stood when it was looked at
        self._serial = 0  # keeps pieces from being compared
        self._gone = gone
        self.count = 0  # messages in pieces, some of them gone

    def __bool__(self) -> bool:
        return bool(self._heap)

    def key(self, lsn: int, place: int) -> Key:
        """Where a message stands in the order of the queue."""
        return place or lsn, lsn

    def cuts(self, chunk: Chunk, place: int) -> Iterator[Sequence[int]]:
        """An ascending chunk in pieces, each in the order of the queue."""
        yield chunk

    # -- what comes and goes

    def put_others(
        self, parts: Iterable[tuple[Sequence[int], Sequence[int] | int]], count: int, after: int = 0
    ) -> None:
        """So many are ready, among them all that are here: for lists that came after so many, put those that are not.

        parts: each in the order of the queue; the place of all or of each as `put` has it.
        """
        self.sweep(self._gone.told())
        if self.count == count:
            return
        here = [np.array(piece.lsns[piece.at :], dtype=np.int64) for _, _, piece in self._heap]
        known = np.concatenate(here) if here else np.zeros(0, dtype=np.int64)
        for lsns, places in parts:
            others = np.flatnonzero(~np.isin(np.array(lsns, dtype=np.int64), known))
            if len(others):
                piece = Piece(lsns, places, None, after)
                piece.keep(others)
                self._push(piece)

    def put_of(self, piece: Piece, lsns: Chunk) -> None:
        """Some of a piece of another, ascending."""
        if isinstance(piece.places, int):
            self.put(lsns, piece.places)
            return
        some = Piece(piece.lsns, piece.places)
        if len(lsns) <= SINGLE:
            numbers = np.array(sorted(map(piece.lsns.index, lsns)), dtype=np.int64)
        else:
            numbers = np.flatnonzero(np.isin(np.array(piece.lsns, dtype=np.int64)[piece.at :], lsns)) + piece.at
        some.keep(numbers)
        self._push(some)

    def put(self, chunk: Chunk, place: int, by: object = None, after: int = 0) -> None:
        """These came back, ascending.  place: `Run.where`, or 0.  by, after: who has no need to look, as in `Piece`."""
        for lsns in self.cuts(chunk, place):
            self._push(Piece(lsns, place, by, after))

    def _push(self, piece: Piece) -> None:
        """All of a piece are there."""
        piece.made = self._gone.number
        self._serial += 1
        self.count += len(piece.lsns)
        if not self._heap:
            self._gone.keepers[self] = None
        heappush(self._heap, (self.key(piece.lsns[0], piece.place(0)), self._serial, piece))

    def left(self, chunk: Chunk) -> bool:
        """These are gone: whether another one is the first."""
        if not self._heap:
            return False
        first, _, piece = self._heap[0]
        if piece.at < len(piece.lsns) and piece.lsns[piece.at] not in chunk:
            return False  # nearly always
        return self.head() != first

    def clear(self) -> None:
        """None is ready any more."""
        for _, _, piece in self._heap:
            piece.lsns, piece.at = (), 0
        self._heap.clear()
        self._gone.keepers.pop(self, None)
        self.count = 0

    def sweep(self, told: tuple[Ints, Ints]) -> None:
        """Take out of the pieces what is gone, by what is noted of that."""
        if not self._heap or not self._gone.when:
            return
        number, pieces = self._gone.number, [piece for _, _, piece in self._heap]
        self._heap, self.count = [], 0
        for piece in pieces:
            self._clean(piece, told)
            piece.made = number
            if piece.at < len(piece.lsns):
                self._serial += 1
                self.count += len(piece.lsns) - piece.at
                key = self.key(piece.lsns[piece.at], piece.place(piece.at))
                self._heap.append((key, self._serial, piece))
        heapify(self._heap)
        if not self._heap:
            self._gone.keepers.pop(self, None)

    def _clean(self, piece: Piece, told: tuple[Ints, Ints]) -> None:
        lsns, at, made = piece.lsns, piece.at, piece.made
        if len(lsns) - at < FEW:
            when = self._gone.when
            some = [one for one in range(at, len(lsns)) if when.get(lsns[one], 0) <= made]
            if len(some) < len(lsns) - at:
                piece.keep(np.array(some, dtype=np.int64))
            return
        messages, numbers = told
        gone = messages[numbers > made]
        here = (
            np.arange(lsns[at], lsns[-1] + 1, lsns.step)
            if isinstance(lsns, range)
            else np.array(lsns[at:], dtype=np.int64)
        )
        living = np.flatnonzero(~np.isin(here, gone))
        if len(living) < len(here):
            piece.keep(living + at)

    # -- what is there

    def head(self) -> Key | None:
        """Where the first stands; None without one."""
        heap, when = self._heap, self._gone.when
        if not heap:
            return None
        while heap:
            told, serial, piece = heap[0]
            lsns, at, made = piece.lsns, piece.at, piece.made
            while at < len(lsns) and when.get(lsns[at], 0) > made:
                at += 1
            self.count -= at - piece.at
            piece.at = at
            if at == len(lsns):
                heappop(heap)
                continue
            key = self.key(lsns[at], piece.place(at))
            if key == told:
                return key
            heapreplace(heap, (key, serial, piece))
        self._gone.keepers.pop(self, None)
        return None

    def living(self, piece: Piece) -> Iterator[int]:
        """Those of a piece that are there, in order."""
        when, made = self._gone.when, piece.made
        return (lsn for lsn in islice(piece.lsns, piece.at, None) if when.get(lsn, 0) <= made)

    def first(self, count: int) -> list[Key]:
        """Where the first so many stand, in order."""
        return list(islice(merge(*(self._keys(piece) for _, _, piece in self._heap)), count))

    def head_for(self, born: int) -> Key | None:
        """Where the first stands at which the so many-th list has to look."""
        first = self.head()
        if first is None or self._heap[0][2].after < born:
            return first
        others = (self._keys(piece) for _, _, piece in self._heap if piece.after < born)
        return next(merge(*others), None)

    def _keys(self, piece: Piece) -> Iterator[Key]:
        lsns, when, made = piece.lsns, self._gone.when, piece.made
        places = (at for at in range(piece.at, len(lsns)) if when.get(lsns[at], 0) <= made)
        return (self.key(lsns[at], piece.place(at)) for at in places)

    def has(self, lsn: int) -> bool:
        """Whether this one is there."""
        left = self._gone.when.get(lsn, 0)
        return any(left <= piece.made and lsn in piece.lsns[piece.at :] for _, _, piece in self._heap)

    # -- a few at a time

    def next(self, most: int) -> Piece | None:
        """The first few, as a piece of their own that stays until it is cut off."""
        if self.head() is None:
            return None
        piece = self._heap[0][2]
        if len(piece.lsns) - piece.at > most:
            end = piece.at + most
            all_of = piece.places
            rest = Piece(piece.lsns[end:], all_of if isinstance(all_of, int) else all_of[end:], piece.by, piece.after)
            rest.aside = piece.aside
            self.count -= len(rest.lsns)
            piece.lsns, made = piece.lsns[:end], piece.made
            self._push(rest)
            rest.made = made
        return piece

    def cut(self, piece: Piece, upto: int) -> None:
        """Those of a piece up to this LSN are none of its business any more."""
        before = len(piece.lsns) - piece.at
        done = [lsn for lsn in islice(piece.lsns, piece.at, None) if lsn <= upto]
        if len(done) == before:
            piece.lsns, piece.at = (), 0
        else:
            piece.keep(np.flatnonzero(np.array(piece.lsns[piece.at :], dtype=np.int64) > upto) + piece.at)
        self.count -= before - len(piece.lsns)

    def leave(self, piece: Piece, upto: int, after: int) -> None:
        """The same, but for the lists that came after so many, which have still to look at them."""
        seen = [lsn for lsn in self.living(piece) if lsn <= upto]
        left = Piece(piece.lsns, piece.places, None, after)
        left.keep(np.flatnonzero(np.isin(np.array(piece.lsns[piece.at :], dtype=np.int64), seen)) + piece.at)
        self.cut(piece, upto)
        if seen:
            self._push(left)
