"""Steps of an expiry: from one message to another all share a deadline, and later messages have later ones.

24 bytes a step, in blocks of which only the last changes.  Between two steps may lie messages of which none speaks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move, heap
from penstock.core.queue.order.runs import NEVER, PIECE, view
from penstock.records.chunks import Longs

Ints = npt.NDArray[np.int64]


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
