"""Messages in no order: put in by the piece, brought to portions by their LSNs a step at a time, taken oldest first.

For when very many change their order at once.  Portions are those of what knows all these messages already, so none is
larger than a block there.  Nothing that was put in is changed in place.  It knows no rank, consumer or log.

And what a pass over the log has found for a queue, which waits for the end of the pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move
from penstock.core.queue.order.runs import Run, sift, view
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk

Ints: TypeAlias = npt.NDArray[np.int64]
Piece: TypeAlias = "range | Ints"

STEP = 65_536
"""Messages that one step puts in order: a few milliseconds."""

_NONE = np.zeros(0, dtype=np.int64)


class Pool:
    """LSNs, each once.  What asks for the oldest may be called once all are in order."""

    __slots__ = ("_bounds", "_first", "_merged", "_parts", "_raw", "count")

    def __init__(self, firsts: Sequence[int]) -> None:
        """firsts: where portions begin, ascending; older messages belong to the first."""
        self._bounds = np.array(firsts[1:], dtype=np.int64)
        self._parts: list[list[Ints]] = [[] for _ in range(max(len(firsts), 1))]  # each part ascends
        self._raw: list[Piece] = []  # in no portion yet
        self._first = len(self._parts)  # portions before this one are empty
        self._merged = 0  # portions before this one are one part each
        self.count = 0

    # -- in

    def put(self, piece: Chunk) -> None:
        """Add messages; the piece is kept, and not to be changed any more."""
        self.count += len(piece)
        whole: Piece = piece if isinstance(piece, range) else view(piece)
        self._raw += [whole[start : start + STEP] for start in range(0, len(whole), STEP)]

    def sort_some(self) -> bool:
        """One step; whether there is more to do."""
        if not self._raw:
            return self._merge_some()
        some, n = list[Ints](), 0
        while self._raw and n < STEP:
            some.append(_array(self._raw.pop()))
            n += len(some[-1])
        lsns = np.sort(np.concatenate(some))
        edges = [0, *np.searchsorted(lsns, self._bounds).tolist(), len(lsns)]
        for index in np.flatnonzero(np.diff(edges)).tolist():
            self._parts[index].append(lsns[edges[index] : edges[index + 1]])
            self._first = min(self._first, index)
        self._merged = 0
        return bool(self._raw) or self._merge_some()

    def _merge_some(self) -> bool:
        n = 0
        while self._merged < len(self._parts) and n < STEP:
            n += len(self.portion(self._merged))
            self._merged += 1
        return self._merged < len(self._parts)

    def portion(self, index: int) -> Ints:
        """The LSNs of one portion, ascending."""
        parts = self._parts[index]
        if len(parts) > 1:
            parts[:] = [np.sort(np.concatenate(parts))]
        return parts[0] if parts else _NONE

    # -- the oldest

    def first(self, count: int) -> Ints:
        """Up to `count` of the oldest, ascending; they stay."""
        out: list[Ints] = []
        for index in range(self._first, len(self._parts)):
            part = self.portion(index)[:count]
            out.append(part)
            count -= len(part)
            if count <= 0:
                break
        return np.concatenate(out) if out else _NONE

    def take_upto(self, last: int) -> Ints:
        """Take all up to this LSN, ascending."""
        out: list[Ints] = []
        while self._first < len(self._parts):
            part = self.portion(self._first)
            end = int(np.searchsorted(part, last, side="right"))
            out.append(part[:end])
            if end < len(part):
                self._parts[self._first] = [part[end:]]
                break
            self._parts[self._first] = []
            self._first += 1
        taken = np.concatenate(out) if out else _NONE
        self.count -= len(taken)
        return taken

    def all(self) -> Iterator[Ints]:
        """All, ascending, a portion at a time; they stay."""
        return (self.portion(index) for index in range(self._first, len(self._parts)))

    # -- wherever they are

    def has(self, lsn: int) -> bool:
        """Whether this message is here."""
        if any(lsn in piece if isinstance(piece, range) else bool((piece == lsn).any()) for piece in self._raw):
            return True
        index = int(np.searchsorted(self._bounds, lsn, side="right"))
        places = ((part, int(np.searchsorted(part, lsn))) for part in self._parts[index])
        return any(at < len(part) and int(part[at]) == lsn for part, at in places)

    def between(self, first: int, stop: int) -> Ints:
        """All with LSNs in [first, stop), in any order; they stay."""
        out = [_within(piece, first, stop) for piece in self._raw]
        for index in self._touched(first, stop):
            for part in self._parts[index]:
                low, high = np.searchsorted(part, (first, stop)).tolist()
                out.append(part[low:high])
        return np.concatenate(out) if out else _NONE

    def extract(self, wanted: Chunk) -> Ints:
        """Take those of the wanted, ascending, that are here; ascending."""
        first, stop = wanted[0], wanted[-1] + 1
        asked = None if isinstance(wanted, range) else view(wanted)
        out: list[Ints] = []
        for index, piece in enumerate(self._raw):
            if len(_within(piece, first, stop)):
                lsns = _array(piece)
                mask = _among(lsns, first, stop, asked)
                out.append(lsns[mask])
                self._raw[index] = lsns[~mask]
        for index in self._touched(first, stop):
            for at, part in enumerate(self._parts[index]):
                low, high = np.searchsorted(part, (first, stop)).tolist()
                if low < high:
                    mask = _among(part[low:high], first, stop, asked)
                    out.append(part[low:high][mask])
                    self._parts[index][at] = np.concatenate((part[:low], part[low:high][~mask], part[high:]))
        found = np.sort(np.concatenate(out)) if out else _NONE
        self.count -= len(found)
        return found

    def _touched(self, first: int, stop: int) -> range:
        low, high = np.searchsorted(self._bounds, (first, stop - 1), side="right").tolist()
        return range(max(low, self._first), high + 1)

    def pieces(self) -> Iterator[Ints]:
        """All, in no order; what is yielded never changes."""
        yield from (_array(piece) for piece in self._raw)
        for parts in self._parts:
            yield from parts

    def chunks(self) -> Iterator[Chunk]:
        """All, as ascending chunks in no order."""
        return (to_array(np.sort(piece)) for piece in self.pieces() if len(piece))


def _array(piece: Piece) -> Ints:
    return np.arange(piece.start, piece.stop, dtype=np.int64) if isinstance(piece, range) else piece


def _within(piece: Piece, first: int, stop: int) -> Ints:
    if isinstance(piece, range):
        return np.arange(max(piece.start, first), max(min(piece.stop, stop), piece.start, first), dtype=np.int64)
    return piece[(piece >= first) & (piece < stop)]


def _among(lsns: Ints, first: int, stop: int, asked: Ints | None) -> npt.NDArray[np.bool_]:
    """Which of them lie in [first, stop) and are among the asked."""
    inside = (lsns >= first) & (lsns < stop)
    return inside if asked is None else inside & np.isin(lsns, asked)


class Older:
    """What was found and waits for the end of the pass."""

    __slots__ = ("barriers", "chunks", "count")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []  # in order, disjoint
        self.barriers: set[int] = set()  # those of them that are barriers
        self.count = 0

    def add(self, chunk: Chunk, barriers: Sequence[int]) -> None:
        """A step of the pass found more of them."""
        self.chunks.append(chunk)
        self.barriers.update(barriers)
        self.count += len(chunk)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        out: list[Run] = []
        kept: list[Chunk] = []
        for chunk in self.chunks:
            inside, outside, _ = sift(chunk, wanted)
            if inside is not None:
                out.append(Run(inside, False))
                self.count -= len(inside)
                self.barriers.difference_update(inside)
            kept += outside
        if out:
            self.chunks = kept
        return out

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self.chunks = [move.chunk(chunk) for chunk in self.chunks]

    def clear(self) -> None:
        """All that was found is gone."""
        self.chunks, self.count = [], 0
        self.barriers.clear()
