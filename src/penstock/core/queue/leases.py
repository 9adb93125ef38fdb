"""What one consumer holds, and until when.

Grants are runs in the order they were given.  While acks come in that order they only cut the front: nothing is kept
per message.  The first ack out of order turns what is held into a dict; later grants start a new row of runs, and the
dict is gone when its last message is.  Whatever is in the dict was granted before whatever is in the runs.

All leases of a queue are as long, so deadlines leave in the order of the grants; `in_order=False` is for the time after
a change of the setting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from penstock.core.queue.runs import Run, sift, sorted_chunk
from penstock.records.chunks import Chunk, as_chunk

SLOT = -1
"""The place of what is no longer in the queue: delivered at most once, it only fills the consumer's backlog."""

LOOSE_MOST = 65_536
"""More messages than this stay in runs even when acks come out of order, while the runs are few."""
RUNS_MOST = 256


class Leases:
    """The runs that one consumer holds."""

    __slots__ = ("count", "loose", "runs")

    def __init__(self) -> None:
        self.runs: deque[Run] = deque()  # in order of grant
        self.loose: dict[int, Run] = {}  # in order of grant; the run it was granted in (its chunk means nothing here)
        self.count = 0

    def add(self, run: Run) -> None:
        """A new grant."""
        self.runs.append(run)
        self.count += len(run.chunk)

    def take(self, chunk: Chunk) -> tuple[list[Run], list[Chunk]]:
        """Remove those of the chunk (ascending) that are held here; (the runs they were, the chunks not held)."""
        out = list[Run]()
        if self.loose:
            left = self._take_loose(chunk, out)
        else:
            rest = self._take_front(chunk, out)
            if rest is None:
                return out, []
            left = [rest]
        missing = list[Chunk]()
        for part in left:
            rest = self._take_front(part, out)
            if rest is None:
                continue
            if not self._touches(rest):
                missing.append(rest)
            elif self.count > LOOSE_MOST and len(self.runs) <= RUNS_MOST:
                missing += self._take_from_runs(rest, out)
            else:
                self._loosen()
                missing += self._take_loose(rest, out)
        return out, missing

    def _take_front(self, chunk: Chunk, out: list[Run]) -> Chunk | None:
        """Cut the chunk from the front of the runs as far as it is the same; returns what is left of it."""
        runs = self.runs
        while runs:
            front = runs[0]
            held = front.chunk
            n, m = len(chunk), len(held)
            if n < m:
                if chunk != held[:n]:
                    break
                front.chunk = held[n:]
                out.append(Run(chunk, front.solid, front.tally, front.place, front.deadline))
                self.count -= n
                return None
            if chunk[:m] != held:
                break
            runs.popleft()
            self.count -= m
            out.append(front)
            if n == m:
                return None
            chunk = chunk[m:]
        return chunk

    def _take_loose(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        """Take those of the chunk that are in the dict; returns the others."""
        loose = self.loose
        if len(chunk) > 2 * len(loose):
            wanted = chunk if isinstance(chunk, range) else set(chunk)
            found = sorted(lsn for lsn in loose if lsn in wanted)
        else:
            found = [lsn for lsn in chunk if lsn in loose]
        if not found:
            return [chunk]
        out += grouped([(lsn, loose.pop(lsn)) for lsn in found])
        self.count -= len(found)
        return [] if len(found) == len(chunk) else sift(chunk, as_chunk(found))[1]

    def _touches(self, chunk: Chunk) -> bool:
        """Whether the chunk and some run overlap by their ends."""
        first, last = chunk[0], chunk[-1]
        return any(run.chunk[0] <= last and first <= run.chunk[-1] for run in self.runs)

    def _take_from_runs(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        kept: deque[Run] = deque()
        found = list[Chunk]()
        for run in self.runs:
            inside, outside, slices = sift(run.chunk, chunk)
            if inside is None:
                kept.append(run)
                continue
            found.append(inside)
            out.append(run.part(inside, slices))
            self.count -= len(inside)
            kept.extend(run.part(part, slices) for part in outside)
        self.runs = kept
        return sift(chunk, sorted_chunk(found))[1] if found else [chunk]

    def _loosen(self) -> None:
        loose = self.loose
        for run in self.runs:
            for lsn in run.chunk:
                loose[lsn] = run
        self.runs.clear()

    def holding(self, chunk: Chunk, deliveries: int) -> Chunk:
        """Those of the chunk that are held here since the delivery with this number."""
        kept = [lsn for lsn in chunk if (run := self.loose.get(lsn)) is not None and run.tally.deliveries == deliveries]
        found: list[Chunk] = [as_chunk(kept)] if kept else []
        for run in self.runs:
            if run.tally.deliveries == deliveries:
                start = bisect_left(run.chunk, chunk[0])
                if run.chunk[start : start + len(chunk)] == chunk:  # nothing happened meanwhile: the usual case
                    return chunk
                inside = sift(run.chunk, chunk)[0]
                if inside is not None:
                    found.append(inside)
        return sorted_chunk(found)

    def oldest(self) -> Chunk:
        """The first unsettled delivery, alone; empty without one."""
        if self.loose:
            lsn = next(iter(self.loose))
            return range(lsn, lsn + 1)
        return self.runs[0].chunk[:1] if self.runs else range(0)

    def clear(self) -> list[Run]:
        """Remove everything."""
        out = grouped(sorted(self.loose.items(), key=_by_lsn)) if self.loose else []
        out += self.runs
        self.loose = {}
        self.runs.clear()
        self.count = 0
        return out

    def ended(self, mono: int, in_order: bool = True) -> list[Run]:
        """Remove what has a deadline at or before `mono`."""
        out = list[Run]()
        if self.loose:
            due = list[int]()
            for lsn, run in self.loose.items():
                if 0 < run.deadline <= mono:
                    due.append(lsn)
                elif in_order:
                    break
            out += grouped((lsn, self.loose.pop(lsn)) for lsn in sorted(due))
        if in_order:
            while self.runs and 0 < self.runs[0].deadline <= mono:
                out.append(self.runs.popleft())
        else:
            out += (run for run in self.runs if 0 < run.deadline <= mono)
            self.runs = deque(run for run in self.runs if not 0 < run.deadline <= mono)
        self.count -= sum(len(run.chunk) for run in out)
        return out

    def next_deadline(self, in_order: bool = True) -> int:
        """The earliest deadline; 0 without one."""
        if in_order:
            if self.loose:
                return next(iter(self.loose.values())).deadline
            return self.runs[0].deadline if self.runs else 0
        deadlines = [run.deadline for run in self.held() if run.deadline]
        return min(deadlines, default=0)

    def held(self) -> Iterator[Run]:
        """Everything held, oldest grant first; loose ones grouped."""
        yield from grouped(sorted(self.loose.items(), key=_by_lsn))
        yield from self.runs


def _by_lsn(item: tuple[int, Run]) -> int:
    return item[0]


def grouped(items: Iterator[tuple[int, Run]] | Sequence[tuple[int, Run]]) -> list[Run]:
    """Single messages, ascending, as runs: one for each tally, place and deadline."""
    groups: dict[tuple[object, int, int], list[int]] = {}
    first: dict[tuple[object, int, int], Run] = {}
    for lsn, run in items:
        key = (run.tally, run.place, run.deadline)
        if key in groups:
            groups[key].append(lsn)
        else:
            groups[key] = [lsn]
            first[key] = run
    return [
        Run(as_chunk(lsns), False, first[key].tally, first[key].place, first[key].deadline)
        for key, lsns in groups.items()
    ]
