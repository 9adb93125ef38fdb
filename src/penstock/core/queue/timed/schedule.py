"""A timetable of which the earliest are taken again and again, a few at a time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.queue.order.runs import NEVER, view
from penstock.core.queue.timed.timetable import NOBODY, SAMPLE, Block, Ints, Timetable
from penstock.core.state.durable import to_array
from penstock.records.chunks import Chunk

NEAR = 1024
"""Messages that stand apart because they are due next, about."""


class Schedule(Timetable):
    """Times of messages that become due one after the other.

    The messages that are due next stand in a small block of their own, the first one, so that taking some of them does
    not touch those of later times.  It is filled again when it is empty, and with what came since and is due earlier.
    """

    __slots__ = ("_far", "_horizon", "_near")

    def __init__(self) -> None:
        super().__init__()
        self._near: Block | None = None  # holds whatever is due up to the horizon, but for what came since
        self._horizon = 0
        self._far: int | None = None  # no time in the other blocks is earlier; None: not known

    def add(self, lsns: Sequence[int], times: Sequence[int]) -> None:
        """New messages; all newer than those here."""
        if self._near is not None and self.blocks[-1] is self._near:
            self.blocks.append(Block(array("q", lsns), array("q", times)))
            self.count += len(lsns)
        else:
            super().add(lsns, times)
        if self._far is not None:
            self._far = min(self._far, min(times))

    def add_older(self, lsns: Ints, times: Ints) -> None:
        """Messages, ascending, that may be older than those here."""
        near, self._near = self._near, None
        super().add_older(lsns, times)  # small blocks may be joined, the near one among them
        if near is not None and self.blocks[0] is near:
            self._near = near
        self._far = None

    def next_after(self, moment: int) -> int:
        """The earliest time later than `moment`; `NEVER` without one."""
        if moment:
            return super().next_after(moment)
        return min(self._far_due(), self._near.due_after(0) if self._near is not None else NEVER)

    def _far_due(self) -> int:
        if self._far is None:
            self._far = min([block.due_after(0) for block in self.blocks if block is not self._near], default=NEVER)
        return self._far

    def take(self, wall: int, most: int, ties: int) -> tuple[Ints, Ints]:
        """As a timetable does."""
        if not self._gathered(wall):
            self._near, self._far = None, None
            return super().take(wall, most, ties)
        near = self._near
        assert near is not None
        others, self.blocks = self.blocks[1:], [near]
        taken = super().take(wall, most, ties)
        self._near = self.blocks[0] if self.blocks else None
        self.blocks += others
        return taken

    def _gathered(self, wall: int) -> bool:
        """Whether all that is due stands in the near block, which is made or filled for that."""
        near = self._near
        if self._far_due() > wall:
            return near is not None
        if self.count < 4 * NEAR:
            return False
        if near is None or wall > self._horizon:
            stride = max(1, self.count // SAMPLE)
            sample = np.sort(np.concatenate([block.columns()[1][::stride] for block in self.blocks]))
            self._horizon = int(sample[min(len(sample) * NEAR // self.count, len(sample) - 1)])
            if self._horizon < wall:
                return False  # very many are due
        horizon = self._horizon
        lsns, times = [NOBODY], [NOBODY]
        chosen_of = dict[Block, npt.NDArray[np.bool_]]()
        for block in self.blocks:
            if block is not near and block.due_after(0) <= horizon:
                chosen_of[block] = block.columns()[1] <= horizon
        found = sum([int(chosen.sum()) for chosen in chosen_of.values()])
        if found + (len(near.lsns) if near is not None else 0) > 8 * NEAR:
            return False
        kept = list[Block]()
        for block in self.blocks:
            held, at = block.columns()
            if block is near:
                lsns.append(held)
                times.append(at)
                continue
            chosen = chosen_of.get(block)
            if chosen is None:
                kept.append(block)
                continue
            lsns.append(held[chosen])
            times.append(at[chosen])
            if not chosen.all():
                kept.append(Block(to_array(held[~chosen]), to_array(at[~chosen])))
        together, moments = np.concatenate(lsns), np.concatenate(times)
        order = np.argsort(together, kind="stable")
        self._near = Block(to_array(together[order]), to_array(moments[order]))
        self.blocks = [self._near, *kept]
        self.mixed = True
        self._far = None
        return True

    def move(self, wanted: Chunk, when: int) -> Ints:
        """Another time for those of the wanted that are here; their LSNs, in no order."""
        moved = super().move(wanted, when)
        if self._near is not None:
            self._near = self.blocks[0]
        self._far = None
        return moved

    def remove(self, wanted: Chunk) -> tuple[Ints, Ints]:
        """Take those of the wanted that are here, ascending, and their times."""
        near = self._near
        removed = super().remove(wanted)
        if near is not None and (not self.blocks or self.blocks[0] is not near):
            left = self.blocks[0] if self.blocks else None
            lsns = view(near.lsns)
            at = 0 if left is None else int(np.searchsorted(lsns, left.lsns[0]))
            self._near = left if left is not None and at < len(lsns) and int(lsns[at]) == left.lsns[0] else None
        self._far = None
        return removed
