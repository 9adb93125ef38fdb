"""A time for each of many messages: columns of LSNs and times, in blocks by LSN.

Times are wall time in microseconds.  It knows no queue and no reason to wait.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move, heap
from penstock.core.queue.order.runs import NEVER, PIECE, all_within, view
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk, Longs

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NOBODY: Ints = np.zeros(0, dtype=np.int64)

SMALL = 1024
"""Messages in a block that is joined with others like it."""
FEW = 32
"""Blocks that may be small."""

SAMPLE = 16_384
"""Times that are looked at to find the earliest of very many."""


class Block:
    """Messages with a time each, ascending LSNs; 16 bytes a message."""

    __slots__ = ("_asked", "_due", "lsns", "shared", "times")

    def __init__(self, lsns: Longs, times: Longs) -> None:
        self.lsns = lsns
        self.times = times
        self.shared = False  # a copy of the timetable has it too: it grows no more
        self._asked = NEVER  # `_due` is the first time after this moment; NEVER: not known
        self._due = NEVER

    def extend(self, lsns: Sequence[int], times: Sequence[int]) -> None:
        """More messages, newer than those here."""
        self.lsns, self.times = heap(self.lsns), heap(self.times)
        self.lsns.extend(lsns)
        self.times.extend(times)
        if self._asked != NEVER:
            asked = self._asked
            self._due = min(self._due, min([time for time in times if time > asked], default=NEVER))

    def due_after(self, moment: int) -> int:
        """The earliest time later than `moment`, `NEVER` without one; looked for only when it has changed."""
        if not self._asked <= moment < self._due:
            times = self.columns()[1]
            later = times[times > moment]
            self._due = int(later.min()) if len(later) else NEVER
            self._asked = moment
        return self._due

    def columns(self) -> tuple[Ints, Ints]:
        """Views as numpy; drop them before the block grows."""
        return np.frombuffer(self.lsns, dtype=np.int64), np.frombuffer(self.times, dtype=np.int64)

    def moved(self, places: Ints, when: int) -> Block:
        """The block in which the messages at these places have another time: itself where nobody else has it."""
        times = self.times if isinstance(self.times, array) and not self.shared else array("q", self.times.tobytes())
        np.frombuffer(times, dtype=np.int64)[places] = when
        if times is not self.times:
            return Block(self.lsns[:] if self.shared else self.lsns, times)  # it may grow
        self._asked = NEVER
        return self


def block_of(lsns: Ints, times: Ints) -> Block:
    """Messages in any order, with their times, as one block."""
    order = np.argsort(lsns, kind="stable")
    return Block(to_array(lsns[order]), to_array(times[order]))


class Timetable:
    """A time for each of many messages, in blocks by LSN."""

    __slots__ = ("blocks", "count", "mixed")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.count: int = 0
        self.mixed = False  # blocks do not follow each other by LSN

    def add(self, lsns: Sequence[int], times: Sequence[int]) -> None:
        """New messages; all newer than those here."""
        self.count += len(lsns)
        last = self.blocks[-1] if self.blocks else None
        if last is not None and len(last.lsns) < PIECE and not last.shared:
            last.extend(lsns, times)
        else:
            self.blocks.append(Block(array("q", lsns), array("q", times)))

    def add_older(self, lsns: Ints, times: Ints) -> None:
        """Messages, ascending, that may be older than those here."""
        self.count += len(lsns)
        self.blocks.append(Block(to_array(lsns), to_array(times)))
        self.mixed = True
        if len(self.blocks) % FEW == 0:
            self._join()

    def _join(self) -> None:
        """One block of many small ones."""
        small = [block for block in self.blocks if len(block.lsns) < SMALL]
        if len(small) < FEW:
            return
        lsns, times = (np.concatenate(columns) for columns in zip(*(block.columns() for block in small), strict=True))
        self.blocks = [*(block for block in self.blocks if len(block.lsns) >= SMALL), block_of(lsns, times)]

    def move(self, wanted: Chunk, when: int) -> Ints:
        """Another time for those of the wanted that are here; their LSNs, in no order."""
        found = [NOBODY]
        for number, (block, chosen) in enumerate(zip(self.blocks, self._wanted(wanted), strict=True)):
            if chosen is not None and chosen.any():
                found.append(block.columns()[0][chosen])
                self.blocks[number] = block.moved(np.flatnonzero(chosen), when)
        return np.concatenate(found)

    def next_after(self, moment: int) -> int:
        """The earliest time later than `moment`; `NEVER` without one."""
        return min([block.due_after(moment) for block in self.blocks], default=NEVER)

    def between(self, past: int, now: int, start: int = 0, stop: int | None = None) -> tuple[Ints, Ints]:
        """Messages with `past < time <= now`, ascending, and their times, of these blocks; they stay."""
        lsns, moments = [NOBODY], [NOBODY]
        for block in self.blocks[start:stop]:
            if block.due_after(past) > now:
                continue
            held, times = block.columns()
            chosen = (times > past) & (times <= now)
            if chosen.any():
                lsns.append(held[chosen])
                moments.append(times[chosen])
        return self._in_order(np.concatenate(lsns), np.concatenate(moments))

    def _in_order(self, lsns: Ints, times: Ints) -> tuple[Ints, Ints]:
        if not self.mixed:
            return lsns, times
        order = np.argsort(lsns, kind="stable")
        return lsns[order], times[order]

    def take(self, wall: int, most: int, ties: int) -> tuple[Ints, Ints]:
        """Take what has a time at or before `wall`, by time and then LSN, and the times.

        Of more than `most` about so many of the earliest; of those that share the last time `ties` at most.
        """
        due = [block for block in self.blocks if block.due_after(0) <= wall]
        if not due:
            return NOBODY, NOBODY
        count = sum([int((block.columns()[1] <= wall).sum()) for block in due])
        if count > most:
            stride = max(1, count // SAMPLE)
            sample = np.sort(np.concatenate([block.columns()[1][::stride] for block in due]))
            sample = sample[sample <= wall]
            lowest = min(block.due_after(0) for block in due)
            wall = max(lowest, int(sample[len(sample) * most // count])) if len(sample) else lowest
        taken, when = self._extract(self._due(wall, self._last_of(wall, ties) if count > ties else None))
        order = np.lexsort((taken, when))
        return taken[order], when[order]

    def _due(self, wall: int, last: int | None) -> Iterator[Flags | None]:
        """Of each block those that `take` takes; last: of those with the last time the last one, None: all go."""
        for block in self.blocks:
            lsns, times = block.columns()
            if block.due_after(0) > wall:
                yield None
            elif last is None:
                yield times <= wall
            else:
                yield (times < wall) | ((times == wall) & (lsns <= last))

    def _last_of(self, moment: int, count: int) -> int | None:
        """Of more than so many with this time the last of the first ones by LSN; None: there are not more."""
        found, left = [NOBODY], count
        for lsns, times in (block.columns() for block in self.blocks if block.due_after(0) <= moment):
            found.append(lsns[times == moment])
            left -= len(found[-1])
            if left < 0 and not self.mixed:
                break  # what follows is newer
        return None if left >= 0 else int(np.partition(np.concatenate(found), count - 1)[count - 1])

    def _extract(self, chosen_of: Iterable[Flags | None]) -> tuple[Ints, Ints]:
        """Take the chosen messages of each block, None: of it none; their LSNs and times, block by block."""
        lsns, times, kept = [NOBODY], [NOBODY], list[Block]()
        for block, chosen in zip(self.blocks, chosen_of, strict=True):
            if chosen is None or not chosen.any():
                kept.append(block)
                continue
            held, at = block.columns()
            lsns.append(held[chosen])
            times.append(at[chosen])
            if not chosen.all():
                kept.append(Block(to_array(held[~chosen]), to_array(at[~chosen])))
        self.blocks = kept
        gone = np.concatenate(lsns)
        self.count -= len(gone)
        return gone, np.concatenate(times)

    def time_of(self, lsn: int) -> int:
        """The time of one message; -1: it is not here."""
        for block in self.blocks:
            lsns = block.lsns
            if lsns[0] <= lsn <= lsns[-1] and lsns[at := bisect_left(lsns, lsn)] == lsn:
                return block.times[at]
        return -1

    def times_of(self, wanted: Chunk) -> Ints:
        """The time of each wanted message; -1 for those not here."""
        lsns = view(wanted)
        out = np.full(len(lsns), -1, dtype=np.int64)
        for block in self.blocks:
            held, times = block.columns()
            if not len(lsns) or held[-1] < lsns[0] or held[0] > lsns[-1]:
                continue
            low, high = np.searchsorted(lsns, (held[0], held[-1] + 1)).tolist()
            at = np.searchsorted(held, lsns[low:high])
            found = held[at] == lsns[low:high]
            out[low:high][found] = times[at[found]]
        return out

    def remove(self, wanted: Chunk) -> tuple[Ints, Ints]:
        """Take those of the wanted that are here, ascending, and their times."""
        return self._in_order(*self._extract(self._wanted(wanted)))

    def _wanted(self, wanted: Chunk) -> Iterator[Flags | None]:
        """Of each block those that are among the wanted."""
        asked = NOBODY if isinstance(wanted, range) else view(wanted)
        for block in self.blocks:
            held = block.columns()[0]
            if held[-1] < wanted[0] or held[0] > wanted[-1]:
                yield None
            elif isinstance(wanted, range):
                yield (held >= wanted.start) & (held < wanted.stop)
            else:
                part = asked[slice(*np.searchsorted(asked, (held[0], held[-1] + 1)).tolist())]
                at = np.searchsorted(held, part)
                chosen = np.zeros(len(held), dtype=bool)
                chosen[at[held[at] == part]] = True
                yield chosen

    def page(self, move: Move) -> None:
        """Move what may go to an arena: all but the last block while that still grows."""
        last = self.blocks[-1:]
        for block in self.blocks:
            if move.old(block.lsns) and (block not in last or len(block.lsns) >= PIECE):
                block.lsns, block.times = move.longs(block.lsns), move.longs(block.times)

    def within(self, first: int, stop: int) -> Chunk:
        """All messages with LSNs in [first, stop), ascending; they stay."""
        return all_within((block.lsns for block in self.blocks), first, stop)

    def chunks(self) -> Iterator[Longs]:
        """LSNs, block by block; they will not change."""
        return (lsns for lsns, _ in self.items())

    def items(self) -> Iterator[tuple[Longs, Longs]]:
        """LSNs and times, block by block; they will not change."""
        return ((block.lsns, block.times) for block in self.copy().blocks)

    def copy(self) -> Timetable:
        """As it is now; all blocks but the last, which may grow, are shared."""
        out = Timetable()
        out.blocks, out.count, out.mixed = self.blocks[:-1], self.count, self.mixed
        for block in out.blocks:
            block.shared = True  # one may be the last again
        out.blocks += (Block(block.lsns[:], block.times[:]) for block in self.blocks[-1:])
        return out
