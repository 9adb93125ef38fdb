"""Messages whose keys are not known yet: after a start, after a change of the expression, in batches too large to be
evaluated at once.

They wait in the order of the queue; the oldest are read and evaluated off the loop, a step at a time, and let in as
their keys are told.  Nothing that comes later is let in before them.  What was out already (leased, in back-off) is
asked about first, for its keys are in use.

The world is asked in the order of the queue, and about what is out already before all others.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from penstock.core.arena import Move
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned, take_oldest
from penstock.core.queue.order.runs import END, NEVER, Key, Run, sift
from penstock.records.chunks import Chunk, as_chunk

STEP = 512
"""Messages whose keys are worked out at once."""

Told = Sequence[str | None]
"""The keys of one message, by each of its queue's expressions."""


class Staging:
    """What waits for its keys."""

    __slots__ = ("answers", "asked", "main", "next", "out", "returned", "serial")

    def __init__(self) -> None:
        self.main = Main()
        self.returned = Returned()
        self.next: list[Run] = []  # the oldest, which the world is asked about, in the order of the queue
        self.answers: dict[int, Told] = {}  # what it told of those, where older ones are still open
        self.out: dict[int, bool] = {}  # messages that are leased (True) or in back-off
        self.asked: Chunk = range(0)  # the question under way
        self.serial = 0

    def __bool__(self) -> bool:
        return bool(self.count or self.out)

    @property
    def count(self) -> int:
        """Ready messages that wait here."""
        return self.main.count + self.returned.count + sum([len(run.chunk) for run in self.next])

    # -- questions

    def question(self, out_alone: bool) -> Chunk:
        """What is to be asked next; empty: nothing.  `out_alone`: only about what is out."""
        if self.out:
            some = array("q", sorted(self.out)[:STEP])
            return as_chunk(some)
        if out_alone:
            return range(0)
        if not self.next:
            self.next = take_oldest(self.main, self.returned, STEP)
        return as_chunk(array("q", sorted([lsn for run in self.next for lsn in run.chunk if lsn not in self.answers])))

    def told(self) -> Iterator[tuple[Run, int, Told]]:
        """The oldest whose keys were told, in order, one after the other; they are no longer here."""
        answers = self.answers
        while self.next:
            run = self.next[0]
            chunk = run.chunk
            n = 0
            while n < len(chunk) and chunk[n] in answers:
                n += 1
            if n == len(chunk):
                self.next.pop(0)
            elif n:
                run.chunk = chunk[n:]
            for lsn in chunk[:n]:
                yield run, lsn, answers.pop(lsn)
            if n < len(chunk):
                return

    # -- what leaves

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are ready and wait here."""
        out = self.main.extract(wanted) + self.returned.extract(wanted)
        kept = list[Run]()
        for run in self.next:
            inside, outside, slices = sift(run.chunk, wanted)
            if inside is None:
                kept.append(run)
                continue
            out.append(run.part(inside, slices))
            for lsn in inside:
                self.answers.pop(lsn, None)
            kept += [run.part(part, slices) for part in outside]
        self.next = kept
        for run in out:
            run.solid = False
        return out

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self.main.page(move)
        self.returned.page(move)

    # -- asked

    def chunks(self) -> Iterator[Chunk]:
        """What was never delivered and stands at its own place, as chunks that will not change."""
        yield from self.main.chunks()

    def runs(self) -> Iterator[Run]:
        """The others: returned, due, or asked about."""
        yield from self.returned.runs()
        yield from self.next

    def oldest(self) -> Key:
        """Where the first of all that wait here stands; `END` without one."""
        first = self.main.key() if self.main.count else END
        if self.returned.count:
            first = min(first, self.returned.head())
        for run in self.next:
            first = min(first, (run.where if run.place else run.chunk[0], run.chunk[0]))
        return first

    def floor(self) -> int:
        """None that waits here is older."""
        floor = self.main.lowest() if self.main.count else NEVER
        if self.returned.count:
            floor = min(floor, self.returned.lowest())
        return min([floor, *(run.chunk[0] for run in self.next)])
