"""What one consumer holds, and until when.

Grants are runs in the order they were given.  While acks come in that order they only cut the front: nothing is kept
per message.  The first ack out of order lets the runs be found by LSN too (`Lanes`), until nothing is held.

All leases of a queue are as long, so deadlines leave in the order of the grants; `in_order=False` is for the time after
a change of the setting.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order.runs import NEVER, SMALL, Lanes, Lease, Run, sift, sift_runs, sorted_chunk, view
from penstock.records.chunks import Chunk

SLOT = -1
"""The place of what is no longer in the queue: delivered at most once, it only fills the consumer's backlog."""

DEAD_MOST = 64
"""Empty runs are swept away when there are more than this, and more than living ones."""

GATHERED_MOST = 2048
"""Messages that came in small grants are gathered in runs of up to so many."""


STEP_MOST = 65_536
"""Messages that leave their consumers in one step, about, when very many go back at once."""

GRAIN_US = 1_000_000
"""Small grants are gathered over so much time at most, where it matters when they were given."""

STEP_RUNS = 1024
"""Runs in such a step."""


class Leases:
    """The runs that one consumer holds."""

    __slots__ = ("_dead", "_gathering", "_lanes", "_runs", "count", "lone", "terms", "timed")

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self.lone = 0  # all that is held is this message, as `terms` says, and `_runs` is empty; 0: that is not so
        self.terms: Run | None = None  # what this message has in common with others; its chunk says nothing
        self.count = 0
        self.timed = False  # when each was granted matters, to a second
        self._gathering: array[int] | None = None  # the chunk of the last run, if it was made here
        self._lanes: Lanes | None = None  # the runs by LSN, all of them `Lease`s then; None if nothing is held
        self._dead = 0  # empty shells in `runs`

    @property
    def runs(self) -> deque[Run]:
        """In order of grant; shells of which nothing is left may stand among them."""
        if self.terms is not None:
            lsn, terms = self.lone, self.terms
            self.lone, self.terms = 0, None
            self._runs.append(terms.part(range(lsn, lsn + 1), True))
        return self._runs

    def add_lone(self, lsn: int, terms: Run) -> None:
        """A new grant of one message, which is counted already; `terms`: what it has in common with others."""
        if self.count == 1:
            self.lone, self.terms = lsn, terms
        else:
            self.count -= 1
            self.add(terms.part(range(lsn, lsn + 1), True))

    def add(self, run: Run) -> None:
        """A new grant, the newest.  It counts once it is here: a fault on the way leaves none that is counted alone."""
        size = len(run.chunk)
        runs = self.runs
        if self._lanes is not None:
            run = Lease(run)
            self._lanes.add(run)
        elif size < SMALL and runs and self._gather(runs[-1], run):
            self.count += size
            return
        runs.append(run)
        self._gathering = None
        self.count += size

    def _gather(self, last: Run, run: Run) -> bool:
        """Join small grants of one kind, so that a million of single messages are no million runs."""
        held, chunk = last.chunk, run.chunk
        if (
            last.deadline != run.deadline
            or last.tally != run.tally
            or last.place != run.place
            or held[-1] >= chunk[0]
            or len(held) >= GATHERED_MOST
        ):
            return False
        if self.timed:
            if last.granted // GRAIN_US != run.granted // GRAIN_US:
                return False
            last.granted = run.granted  # of some too late, of none too early
        if isinstance(held, range) and isinstance(chunk, range) and held.stop == chunk.start:
            last.chunk = range(held.start, chunk.stop)
            return True
        if self._gathering is None or self._gathering is not held:
            if len(held) >= SMALL:
                return False
            last.chunk = self._gathering = array("q", held)  # others may hold the array that it was
        self._gathering.extend(chunk)
        last.solid = False
        return True

    def take_leased(self, wanted: Chunk) -> list[Run]:
        """Remove those of the wanted that are leased; slots of what was delivered at most once stay."""
        held = [run.chunk for run in self.among(wanted) if run.place != SLOT]
        return self.take(sorted_chunk(held))[0] if held else []

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that are held here, as runs; they stay."""
        if self.terms is not None or not len(wanted):
            return sift_runs(self.held(), wanted)[0]
        first, last = wanted[0], wanted[-1]
        near = [run for run in self._runs if run.chunk[0] <= last and first <= run.chunk[-1]]
        return sift_runs(self._living(near), wanted)[0]

    def take(self, chunk: Chunk) -> tuple[list[Run], list[Chunk]]:
        """Remove those of the chunk (ascending) that are held here; (the runs they were, the chunks not held)."""
        out: list[Run] = []
        rest = self._take_front(chunk, out)
        if rest is None:
            if self._lanes is not None:
                self._sweep()
            return out, []
        if self._lanes is None:
            if not self._touches(rest):
                return out, [rest]
            self._scatter()
        lanes = self._lanes
        assert lanes is not None
        before = len(out)
        missing = lanes.take(rest, out)
        self.count -= sum([len(run.chunk) for run in out[before:]])
        if len(out) > before or not self.count:
            self._sweep()
        return out, missing

    def take_first(self, chunk: Chunk) -> Run | None:
        """The run that was granted first, if it is just this chunk; it is removed then."""
        terms = self.terms
        if terms is not None:  # a message alone is no run yet
            lsn = self.lone
            if chunk[0] != lsn or len(chunk) != 1:
                return None
            self.count, self.lone, self.terms = 0, 0, None
            return terms.part(range(lsn, lsn + 1), True)
        runs = self._runs
        if self._lanes is not None or not runs or runs[0].chunk != chunk:
            return None
        self.count -= len(chunk)
        return runs.popleft()

    def _take_front(self, chunk: Chunk, out: list[Run]) -> Chunk | None:
        """Cut the chunk from the front of the runs as far as it is the same; returns what is left of it."""
        runs = self.runs
        scattered = self._lanes is not None
        while runs:
            front = runs[0]
            if scattered and isinstance(front, Lease) and not front.left:
                runs.popleft()  # a shell: what it names may be held again, behind it
                continue
            held = front.chunk
            n, m = len(chunk), len(held)
            if scattered and isinstance(front, Lease) and (front.gone is not None or n < m):
                break
            if n < m:
                if not _same(chunk, held[:n]):
                    break
                front.chunk = held[n:]
                out.append(front.part(chunk, True))
                self.count -= n
                return None
            if not _same(chunk[:m], held):
                break
            runs.popleft()
            self.count -= m
            out.append(self._ended_run(front) if scattered else front)
            if n == m:
                return None
            chunk = chunk[m:]
        return chunk

    def _ended_run(self, run: Run) -> Run:
        """A run that left `runs` as a whole; what stands in the lanes of it is a shell."""
        return run.end() if isinstance(run, Lease) else run

    def _touches(self, chunk: Chunk) -> bool:
        """Whether the chunk and some run overlap by their ends."""
        first, last = chunk[0], chunk[-1]
        return any(run.chunk[0] <= last and first <= run.chunk[-1] for run in self.runs)

    def _scatter(self) -> None:
        lanes, leases = Lanes(), [Lease(run) for run in self.runs]
        for lease in leases:
            lanes.add(lease)
        self._runs, self._lanes, self._gathering = deque[Run](leases), lanes, None  # or nothing, where a fault comes

    def _sweep(self) -> None:
        """Let go of shells: at the front at once, elsewhere when they are many."""
        if not self.count:
            self.runs.clear()
            self._lanes = None
            return
        runs = self.runs
        while isinstance(front := runs[0], Lease) and not front.left:
            runs.popleft()
        self._dead += 1
        if self._dead > max(DEAD_MOST, len(runs) // 2) and self._lanes is not None:
            self._dead = 0
            if any(isinstance(run, Lease) and not run.left for run in runs):
                self._runs = deque([run for run in runs if not isinstance(run, Lease) or run.left])
            self._lanes.sweep()

    def extend(self, chunk: Chunk, deadline: int) -> int:
        """Let what is held of the chunk (ascending) end at `deadline` at the earliest, if it ends by time at all.

        Returns how many messages that are.  They stay in the order of their grants.
        """
        count = 0
        kept: deque[Run] = deque()
        wanted = view(chunk)
        for run in list(self.held()):
            lsns = view(run.chunk)
            inside = np.isin(lsns, wanted, assume_unique=True)
            if run.place == SLOT or not inside.any():
                kept.append(run)
                continue
            cuts = [0, *(np.flatnonzero(inside[1:] != inside[:-1]) + 1).tolist(), len(lsns)]
            for start, stop in pairwise(cuts):
                part = run.part(run.chunk[start:stop], True)
                if inside[start]:
                    count += stop - start
                    part.deadline = max(part.deadline, deadline) if part.deadline else 0
                kept.append(part)
        if count:
            self._runs, self.lone, self.terms = kept, 0, None
            self._lanes, self._gathering, self._dead = None, None, 0
        return count

    def holding(self, chunk: Chunk, *, attempt: int = -1, sends: int = -1) -> Chunk:
        """Those of the chunk that are held here since this delivery, named as users see it or by its number of all."""
        first, last, size = chunk[0], chunk[-1], len(chunk)
        some: list[Run] = []
        for run in self.runs:
            if (run.tally.deliveries == sends or run.tally.attempt == attempt) and (
                run.chunk[0] <= last and first <= run.chunk[-1]
            ):
                start = bisect_left(run.chunk, first)
                if run.chunk[start : start + size] == chunk and not (
                    isinstance(run, Lease) and run.lacks(start, start + size)
                ):  # nothing happened meanwhile: the usual case
                    return chunk
                some.append(run)
        there = (run.holding(chunk) if isinstance(run, Lease) else sift(chunk, run.chunk)[0] for run in some)
        return sorted_chunk([inside for inside in there if inside is not None])

    def oldest(self) -> Chunk:
        """The first unsettled delivery, alone; empty without one."""
        for run in self.runs:
            if not isinstance(run, Lease):
                return run.chunk[:1]
            if run.left:
                lsn = run.first()
                return range(lsn, lsn + 1)
        return range(0)

    def reach_before(self, lsn: int) -> bool:
        """Whether something older is held here, in the queue still or not."""
        return any(
            run.left > 0 and run.first() < lsn if isinstance(run, Lease) else run.chunk[0] < lsn for run in self.runs
        )

    def lowest(self) -> int:
        """No message of the queue that is held here is older."""
        if self.terms is not None:
            return self.lone
        if self._lanes is None and len(self._runs) == 1:  # as of most, and of very many of them each is asked
            [run] = self._runs
            return run.chunk[0] if run.place != SLOT else NEVER
        return min(
            (
                run.first() if isinstance(run, Lease) else run.chunk[0]
                for run in self._runs
                if run.place != SLOT and not (isinstance(run, Lease) and not run.left)
            ),
            default=NEVER,
        )

    def clear(self) -> list[Run]:
        """Remove everything; returns what was held."""
        out = list(self.held())
        self.runs.clear()
        self.count = 0
        self._lanes, self._gathering, self._dead = None, None, 0
        return out

    def ended(self, mono: int, in_order: bool = True, most: int = NEVER) -> list[Run]:
        """Remove what has a deadline up to `mono`, oldest grants first: about `most` messages, at least a run."""
        return self._oldest(lambda run: 0 < run.deadline <= mono, in_order, most)

    def oldest_grant(self) -> int:
        """When the oldest of what is held was granted, on the monotonic clock; 0: nothing is, or nobody knows."""
        for run in self.runs:
            if not isinstance(run, Lease) or run.left:
                return run.granted
        return 0

    def granted_until(self, mono: int) -> list[Run]:
        """Remove what was granted up to then, oldest first: about `STEP_MOST` messages, at least a run."""
        return self._oldest(lambda run: run.granted <= mono, True, STEP_MOST)

    def _oldest(self, over: Callable[[Run], bool], in_order: bool, most: int) -> list[Run]:
        """Remove what is over, oldest grants first.  in_order: nothing is behind a grant that is not."""
        out: list[Run] = []
        kept: deque[Run] = deque()
        runs = self.runs
        while runs and most > 0 and len(out) < STEP_RUNS:
            run = runs[0]
            if isinstance(run, Lease) and not run.left:
                runs.popleft()
            elif over(run):
                out.append(self._ended_run(runs.popleft()))
                most -= len(out[-1].chunk)
            elif in_order:
                break
            else:
                kept.append(runs.popleft())
        if kept:
            runs.extendleft(reversed(kept))
        self._removed(out)
        return out

    def oldest_grants(self, most: int) -> list[Run]:
        """Remove the oldest grants: about `most` messages, a run at least."""
        out: list[Run] = []
        runs = self.runs
        while runs and most > 0 and len(out) < STEP_RUNS:
            run = runs.popleft()
            if not isinstance(run, Lease) and len(run.chunk) > 2 * most:
                runs.appendleft(run.part(run.chunk[most:], True))
                out.append(run.part(run.chunk[:most], True))
            elif not isinstance(run, Lease) or run.left:
                out.append(self._ended_run(run))
            else:
                continue
            most -= len(out[-1].chunk)
        self._removed(out)
        return out

    def _removed(self, out: list[Run]) -> None:
        """These runs are in `runs` no more, but counted still."""
        if out:
            self._gathering = None
            self.count -= sum(len(run.chunk) for run in out)
            if self._lanes is not None:
                self._sweep()

    def next_deadline(self, in_order: bool = True) -> int:
        """The earliest deadline; 0 without one."""
        living = (run for run in self.runs if not isinstance(run, Lease) or run.left)
        if in_order:
            first = next(living, None)
            return first.deadline if first is not None else 0
        return min((run.deadline for run in living if run.deadline), default=0)

    def page(self, move: Move) -> None:
        """Move what may go to an arena; what is still gathered stays."""
        for run in self._runs:
            if not isinstance(run.chunk, range) and run.chunk is not self._gathering:
                run.chunk = move.chunk(run.chunk)
            if isinstance(run, Lease) and run.gone is not None:
                run.gone = move.marks(run.gone)

    def loosen(self) -> None:
        """Messages of the queue may lie between those of an array from now on."""
        for run in self._runs:
            run.solid = False

    def held(self) -> Iterator[Run]:
        """Everything held, oldest grant first.  The chunks will not change."""
        if self.terms is not None:
            yield self.terms.part(range(self.lone, self.lone + 1), True)
            return
        yield from self._living(self._runs)

    def pieces(self) -> Iterator[Chunk]:
        """The chunks of all that is held, but of what was delivered at most once: cheaper than runs."""
        if self.terms is not None:
            yield from (run.chunk for run in self.held() if run.place != SLOT)
            return
        for run in self._runs:
            if run.place == SLOT or (isinstance(run, Lease) and not run.left):
                continue
            if isinstance(run, Lease) and run.gone is not None:
                yield run.living().chunk
            else:
                yield run.chunk if run.chunk is not self._gathering else run.chunk[:]

    def _living(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Of these runs what is held still."""
        for run in runs:
            if not isinstance(run, Lease):
                yield run if run.chunk is not self._gathering else run.part(run.chunk[:], False)
            elif run.left:
                yield run.living()


def _same(some: Chunk, others: Chunk) -> bool:
    """Whether two chunks of one length have the same messages, be one of them a range and the other an array."""
    if isinstance(some, range) is isinstance(others, range):
        return some == others
    return some[0] == others[0] and some[-1] == others[-1]
