"""The index of a SOW topic: for each key's number the LSN of its present record, and when that expires.

Sorted arrays in leaves of at most `LEAF` keys, 16 bytes a key and 8 more where records expire; a lookup bisects twice.
A snapshot costs a reference a leaf: what it shares is copied before it is changed.  A leaf that nobody changes may lie
in an arena instead of the heap (`page`), and is copied the same way.  Bodies are not its business.

What the log says of it, as packed 64-bit integers:

    SOW_PUT    id, form, (first), numbers ..., (LSNs ...), (deadlines ...)
    SOW_DROP   id, numbers ...

id: the LSN of the topic's declare.  form: bit 0 the LSNs are listed, else they follow one another from `first` on;
bit 1 there are deadlines.  A put lies in one group with the rows that it names.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move, heap
from penstock.records.chunks import Longs
from penstock.records.dataclass import dataclass

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]

LEAF = 4096
"""Keys in a leaf at most."""

BATCHED = 48
"""From so many keys on, and six a leaf, they are put leaf by leaf instead of one by one."""

NEVER = 1 << 62


class Leaf:
    """Keys that follow one another.  `deadlines` is empty when none of its records expires."""

    __slots__ = ("deadlines", "due", "low", "lsns", "numbers", "shared")

    def __init__(self, numbers: array[int], lsns: array[int], deadlines: array[int], due: int) -> None:
        self.numbers = numbers  # array('Q'), ascending
        self.lsns = lsns  # array('q')
        self.deadlines = deadlines  # array('q'), microseconds, 0: never
        self.due = due  # no record of it expires before
        self.low = 0  # the lowest of `lsns`; 0: not known
        self.shared = False  # a snapshot looks at it, or it is about to leave the heap

    def own(self) -> Leaf:
        """A copy that nobody else looks at, on the heap."""
        leaf = Leaf(_copied(self.numbers), _copied(self.lsns), _copied(self.deadlines), self.due)
        leaf.low = self.low
        return leaf

    def elsewhere(self, move: Move) -> Leaf:
        """The same with what `move` takes in an arena: to be read, and copied before it is changed."""
        leaf = Leaf(
            cast("array[int]", move.longs(self.numbers)),  # a view does what an array does, as long as nothing changes
            cast("array[int]", move.longs(self.lsns)),
            cast("array[int]", move.longs(self.deadlines)),
            self.due,
        )
        leaf.low = self.low
        leaf.shared = True
        return leaf

    def lowest(self) -> int:
        """The lowest LSN of a record; `NEVER` when there is none.  A look at each only where the lowest has gone."""
        if not self.low:
            self.low = int(np.frombuffer(self.lsns, dtype=np.int64).min()) if self.lsns else NEVER
        return self.low


class Snapshot:
    """An index as it was at one moment."""

    __slots__ = ("leaves",)

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = leaves  # to be read.  Any thread

    def __len__(self) -> int:
        return sum(len(leaf.numbers) for leaf in self.leaves)

    def arrays(self) -> tuple[Numbers, Ints]:
        """Numbers, ascending, and the LSN of each.  Any thread."""
        return _joined(self.leaves)[:2]

    def packed(self) -> tuple[array[int], array[int], array[int]]:
        """Numbers ('Q'), LSNs and deadlines ('q'; empty when no record expires) as a durable state holds them."""
        numbers, lsns, deadlines = array("Q"), array("q"), array("q")
        expiring = any(any(leaf.deadlines) for leaf in self.leaves)
        for leaf in self.leaves:
            numbers.extend(heap(leaf.numbers))
            lsns.extend(heap(leaf.lsns))
            if expiring:
                deadlines.extend(heap(leaf.deadlines) or array("q", bytes(8 * len(leaf.lsns))))
        return numbers, lsns, deadlines


class Index:
    """The index that changes: leaves of sorted keys, copied before a change where a snapshot shares them."""

    __slots__ = ("_lows", "_oldest", "count", "due", "leaves")

    def __init__(self) -> None:
        self.leaves = [Leaf(array("Q"), array("q"), array("q"), NEVER)]
        self._lows: list[int] = [0]  # beside `leaves`: the lowest number that belongs there
        self._oldest = 0  # the lowest of the leaves that know theirs; 0: some do not
        self.count = 0
        self.due = NEVER  # no record expires before

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, on the heap and elsewhere."""
        return sum(len(leaf.numbers) * 16 + len(leaf.deadlines) * 8 + 400 for leaf in self.leaves)

    def get(self, number: int) -> int:
        """LSN of the present record; 0: there is none."""
        leaf = self.leaves[bisect_right(self._lows, number) - 1]
        at = bisect_left(leaf.numbers, number)
        return leaf.lsns[at] if at < len(leaf.numbers) and leaf.numbers[at] == number else 0

    def put(self, number: int, lsn: int, deadline: int = 0) -> None:
        """The record of a key is now this one.  deadline: when it expires, microseconds; 0: never."""
        place = bisect_right(self._lows, number) - 1
        leaf = self._writable(place)
        at = bisect_left(leaf.numbers, number)
        numbers, deadlines = leaf.numbers, leaf.deadlines
        if deadline and not deadlines:
            deadlines.frombytes(bytes(8 * len(numbers)))
        if at < len(numbers) and numbers[at] == number:
            if leaf.lsns[at] == leaf.low:
                leaf.low = self._oldest = 0
            leaf.lsns[at] = lsn
            if deadlines:
                deadlines[at] = deadline
        else:
            expiring = bool(deadline or deadlines)
            numbers.insert(at, number)
            leaf.lsns.insert(at, lsn)
            if expiring:
                deadlines.insert(at, deadline)
            self.count += 1
        if lsn < leaf.low:
            leaf.low = lsn
        if lsn < self._oldest:
            self._oldest = lsn
        if deadline:
            leaf.due = min(leaf.due, deadline)
            self.due = min(self.due, deadline)
        if len(numbers) > LEAF:
            self._split(place)

    def drop(self, number: int) -> int:
        """The key has no record any more; the LSN that it had, 0 if none."""
        place = bisect_right(self._lows, number) - 1
        leaf = self.leaves[place]
        at = bisect_left(leaf.numbers, number)
        if at >= len(leaf.numbers) or leaf.numbers[at] != number:
            return 0
        leaf = self._writable(place)
        lsn = leaf.lsns[at]
        if lsn == leaf.low:
            leaf.low = self._oldest = 0
        del leaf.numbers[at], leaf.lsns[at]
        if leaf.deadlines:
            del leaf.deadlines[at]
        self.count -= 1
        if not leaf.numbers and len(self.leaves) > 1:
            self._remove(place)
        return lsn

    def replace(self, leaves: Mapping[int, Leaf | None], fewer: int) -> None:
        """Shorter leaves, or None, in the places of some; by the identity of those.  fewer: keys that go with it."""
        rest = [(leaves.get(id(leaf), leaf), low) for leaf, low in zip(self.leaves, self._lows, strict=True)]
        left = [(leaf, low) for leaf, low in rest if leaf is not None]
        if not left:
            left.append((Leaf(array("Q"), array("q"), array("q"), NEVER), 0))
        self.leaves, self._lows = [leaf for leaf, _ in left], [low for _, low in left]
        self._lows[0] = self._oldest = 0
        self.count -= fewer

    def put_many(self, numbers: Numbers, lsns: Ints, deadlines: Ints | None = None) -> None:
        """Records in their order: of those with one key the last stays."""
        if len(numbers) < BATCHED or len(numbers) < BATCHED * len(self.leaves) // 8:
            times: Sequence[int] = [0] * len(numbers) if deadlines is None else deadlines.tolist()
            for number, lsn, time in zip(numbers.tolist(), lsns.tolist(), times, strict=True):
                self.put(number, lsn, time)
            return
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        last = np.empty(len(ordered), dtype=bool)
        last[-1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=last[:-1])
        chosen, mine = order[last], ordered[last]
        own = lsns[chosen]
        due = None if deadlines is None or not deadlines.any() else deadlines[chosen]
        cuts = np.searchsorted(mine, np.array(self._lows[1:], dtype=np.uint64)).tolist()
        for place in range(len(cuts), -1, -1):  # from behind: what is split does not move what is to come
            low = cuts[place - 1] if place else 0
            high = cuts[place] if place < len(cuts) else len(mine)
            if high > low:
                self._put_part(place, mine[low:high], own[low:high], None if due is None else due[low:high])

    def overdue(self, now: int, most: int) -> tuple[list[int], list[int]]:
        """Up to `most` records whose time has come: numbers and LSNs.  Nothing is changed."""
        gone: list[int] = []
        had: list[int] = []
        for leaf in self.leaves:
            if leaf.due <= now and len(gone) < most:
                times: Ints = np.frombuffer(leaf.deadlines, dtype=np.int64)
                over = np.flatnonzero((times > 0) & (times <= now))
                places: list[int] = over[: most - len(gone)].tolist()
                gone += [leaf.numbers[at] for at in places]
                had += [leaf.lsns[at] for at in places]
                del times
        return gone, had

    def expire(self, numbers: Sequence[int], now: int) -> None:
        """Take out what was `overdue` now."""
        for number in numbers:
            self.drop(number)
        for leaf in self.leaves:
            if leaf.due <= now:
                times: Ints = np.frombuffer(leaf.deadlines, dtype=np.int64)
                leaf.due = int(times[times > 0].min(initial=NEVER))
                del times
        self.due = min((leaf.due for leaf in self.leaves), default=NEVER)

    def oldest(self) -> int:
        """The lowest LSN of a present record; `NEVER` when there is none.

        It costs nothing as long as the oldest stays, else a look at each leaf, and into those whose own oldest went.
        """
        if not self._oldest:
            self._oldest = min(leaf.lowest() for leaf in self.leaves)
        return self._oldest

    def page(self, move: Move) -> None:
        """Move what may go to an arena: leaves that nobody has changed since the last call."""
        for place, leaf in enumerate(self.leaves):
            if leaf.shared and move.room >= 3 and move.takes(leaf.numbers):
                self.leaves[place] = leaf.elsewhere(move)
            leaf.shared = True

    def fork(self) -> Index:
        """Another index with the same records; from now on each goes its own way."""
        other = Index()
        for leaf in self.leaves:
            leaf.shared = True
        other.leaves, other._lows = list(self.leaves), list(self._lows)
        other.count, other.due, other._oldest = self.count, self.due, self._oldest
        return other

    def snapshot(self) -> Snapshot:
        for leaf in self.leaves:
            leaf.shared = True
        return Snapshot(tuple(self.leaves))

    @classmethod
    def load(cls, numbers: array[int], lsns: array[int], deadlines: array[int]) -> Index:
        index = cls()
        half = LEAF // 2
        for start in range(0, len(numbers), half):
            times = deadlines[start : start + half]
            due = min((time for time in times if time), default=NEVER)
            index.leaves.append(
                Leaf(numbers[start : start + half], lsns[start : start + half], times if due < NEVER else array("q"),
                     due)
            )  # fmt: skip
            index._lows.append(numbers[start] if start else 0)
            index.due = min(index.due, due)
        if len(index.leaves) > 1:
            del index.leaves[0], index._lows[0]
        index.count = len(numbers)
        return index

    def lost(self, lsns: range) -> list[int]:
        """Numbers of the keys whose present record is among these."""
        out: list[int] = []
        for leaf in self.leaves:
            mine = np.frombuffer(leaf.lsns, dtype=np.int64)
            hit = np.flatnonzero((mine >= lsns.start) & (mine < lsns.stop)).tolist()
            out += (leaf.numbers[at] for at in hit)
        return out

    # -- leaves

    def _writable(self, place: int) -> Leaf:
        leaf = self.leaves[place]
        if leaf.shared:
            leaf = self.leaves[place] = leaf.own()
        return leaf

    def _remove(self, place: int) -> None:
        del self.leaves[place], self._lows[place]
        self._lows[0] = 0

    def _split(self, place: int) -> None:
        """Halve a leaf that has too many, again and again."""
        leaf = self.leaves[place]
        self._oldest = 0
        parts: list[Leaf] = []
        total = len(leaf.numbers)
        step = -(-total // (-(-total * 2 // LEAF)))
        for start in range(0, total, step):
            stop = start + step
            parts.append(Leaf(leaf.numbers[start:stop], leaf.lsns[start:stop], leaf.deadlines[start:stop], leaf.due))
        self.leaves[place : place + 1] = parts
        self._lows[place : place + 1] = [self._lows[place], *(part.numbers[0] for part in parts[1:])]

    def _put_part(self, place: int, numbers: Numbers, lsns: Ints, deadlines: Ints | None) -> None:
        """Distinct ascending keys of one leaf."""
        leaf = self._writable(place)
        leaf.low = self._oldest = 0
        if deadlines is not None and not leaf.deadlines:
            leaf.deadlines.frombytes(bytes(8 * len(leaf.numbers)))
        there_numbers = np.frombuffer(leaf.numbers, dtype=np.uint64) if leaf.numbers else _NO_NUMBERS
        at = np.searchsorted(there_numbers, numbers)
        there = at < len(there_numbers)
        there[there] = there_numbers[at[there]] == numbers[there]
        if there.any():
            _overwrite(leaf, at[there], lsns[there], None if deadlines is None else deadlines[there])
        fresh = ~there
        if fresh.any():
            where = at[fresh]
            leaf.numbers = packed_array("Q", np.insert(there_numbers, where, numbers[fresh]))
            _insert(leaf, where, lsns[fresh], None if deadlines is None else deadlines[fresh])
            self.count += len(where)
        if deadlines is not None and deadlines.any():
            leaf.due = min(leaf.due, int(deadlines[deadlines > 0].min()))
            self.due = min(self.due, leaf.due)
        if len(leaf.numbers) > LEAF:
            del there_numbers
            self._split(place)


def _copied(values: Longs) -> array[int]:
    return values[:] if isinstance(values, array) else heap(values)


_NO_NUMBERS: Numbers = np.zeros(0, dtype=np.uint64)
_NO_LSNS: Ints = np.zeros(0, dtype=np.int64)


def packed_array(code: str, values: npt.NDArray[np.generic]) -> array[int]:
    """An array of these integers: `Q` or `q`."""
    out: array[int] = array(code)
    out.frombytes(np.ascontiguousarray(values).tobytes())
    return out


def _joined(leaves: Sequence[Leaf]) -> tuple[Numbers, Ints]:
    some = [leaf for leaf in leaves if leaf.numbers]
    if not some:
        return _NO_NUMBERS, _NO_LSNS
    numbers = np.concatenate([np.frombuffer(leaf.numbers, dtype=np.uint64) for leaf in some])
    return numbers, np.concatenate([np.frombuffer(leaf.lsns, dtype=np.int64) for leaf in some])


_LISTED, _EXPIRING = 1, 2


@dataclass(frozen=True, slots=True)
class Put:
    """Records in the order of the log."""

    id: int
    numbers: Numbers
    lsns: Ints
    deadlines: Ints | None


def pack_put(put: Put) -> bytes:
    """The body of a SOW_PUT."""
    n = len(put.lsns)
    first = int(put.lsns[0])
    dense = int(put.lsns[-1]) - first == n - 1
    form = (0 if dense else _LISTED) | (0 if put.deadlines is None else _EXPIRING)
    parts = [np.array([put.id, form, first], dtype="<i8"), put.numbers.view(np.int64)]
    if not dense:
        parts.append(put.lsns)
    if put.deadlines is not None:
        parts.append(put.deadlines)
    return np.concatenate(parts).astype("<i8", copy=False).tobytes()


_ONE = struct.Struct("<qqqQ")
_ONE_EXPIRING = struct.Struct("<qqqQq")


def pack_one(number: int, key: int, lsn: int, deadline: int) -> bytes:
    """The body of a SOW_PUT of one message."""
    if deadline:
        return _ONE_EXPIRING.pack(number, _EXPIRING, lsn, key, deadline)
    return _ONE.pack(number, 0, lsn, key)


def unpack_put(values: Ints) -> Put:
    """The inverse, from the packed integers.  ValueError when they are no whole record."""
    number, form, first = values[:3].tolist()
    columns = 1 + (form & 1) + (form >> 1 & 1)
    rest = values[3:]
    if form not in range(4) or not len(rest) or len(rest) % columns:
        raise ValueError(f"{len(values)} integers of form {form}")
    n = len(rest) // columns
    lsns = rest[n : 2 * n] if form & _LISTED else np.arange(first, first + n, dtype=np.int64)
    return Put(number, rest[:n].view(np.uint64), lsns, rest[-n:] if form & _EXPIRING else None)


def pack_drop(number: int, numbers: Sequence[int] | Numbers) -> bytes:
    """The body of a SOW_DROP."""
    return np.array([number], dtype="<i8").tobytes() + np.array(numbers, dtype="<u8").tobytes()


def _overwrite(leaf: Leaf, where: Ints, lsns: Ints, deadlines: Ints | None) -> None:
    """Other records, and their deadlines, for keys that stand at these places."""
    np.frombuffer(leaf.lsns, dtype=np.int64)[where] = lsns
    if leaf.deadlines:
        np.frombuffer(leaf.deadlines, dtype=np.int64)[where] = 0 if deadlines is None else deadlines


def _insert(leaf: Leaf, where: Ints, lsns: Ints, deadlines: Ints | None) -> None:
    """Records of keys that were inserted before these places, and their deadlines."""
    if leaf.deadlines or deadlines is not None:
        times = np.frombuffer(leaf.deadlines, dtype=np.int64) if leaf.deadlines else _NO_LSNS
        leaf.deadlines = packed_array("q", np.insert(times, where, 0 if deadlines is None else deadlines))
    own = np.frombuffer(leaf.lsns, dtype=np.int64) if leaf.lsns else _NO_LSNS
    leaf.lsns = packed_array("q", np.insert(own, where, lsns))
