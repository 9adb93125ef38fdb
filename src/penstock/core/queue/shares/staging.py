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
from typing import TYPE_CHECKING

from penstock.core.arena import Move
from penstock.core.asks import Key as KeyEffect
from penstock.core.asks import Purpose, Token
from penstock.core.effects import Sink
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned
from penstock.core.queue.order.runs import END, NEVER, Key, Run, sift
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.shares.groups import overtakes
from penstock.core.queue.shares.keys import ascending_chunk
from penstock.expr import compile_value
from penstock.records.chunks import Chunk, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.shares.shares import Shares


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
            self.next = self._take(STEP)
        return as_chunk(array("q", sorted([lsn for run in self.next for lsn in run.chunk if lsn not in self.answers])))

    def _take(self, count: int) -> list[Run]:
        main, returned = self.main, self.returned
        out = list[Run]()
        while count > 0 and (main.count or returned.count):
            first = main.key() if main.count else END
            if returned.count and returned.head() < first:
                part = returned.take(count, first)
            else:
                part = main.take(count, returned.head()[0] if returned.count else NEVER)
            count -= sum(len(run.chunk) for run in part)
            out += part
        return out

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
        """The others."""
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
        """None is older."""
        floor = self.main.lowest() if self.main.count else NEVER
        if self.returned.count:
            floor = min(floor, self.returned.lowest())
        return min([floor, *(run.chunk[0] for run in self.next)])


WINDOW = 10_000
"""While so many messages are offered, no more keys are worked out."""

_serials = iter(range(1, 1 << 62))


def ask(shares: Shares, queue: Contents, sink: Sink) -> None:
    """Have the world tell the next keys, if it is not at it.  A command asks so before it dispatches."""
    staging = shares.staging
    if shares.tenants is not None:
        shares.tenants.prune()
    if queue.ranking is not None:
        return  # their places are not known yet
    while not len(staging.asked) and staging:
        chunk = staging.question(queue.offered >= WINDOW and not shares.ranked)
        if len(chunk):
            staging.asked = chunk
            staging.serial = next(_serials)
            values = tuple([compile_value(text) for text in shares.expressions])
            sink.effect(KeyEffect(Token(queue.id, staging.serial, Purpose.KEY), values, chunk))
        elif not _let_in(shares, queue):
            return


def keyed(shares: Shares, queue: Contents, token: Token, chunk: Chunk, keys: Sequence[Told], sink: Sink) -> None:
    """The answer: the keys of the messages of the chunk, the first part of what was asked.

    Of a chunk that is empty nothing can be read: those that were asked about have no key.
    """
    staging = shares.staging
    if token.serial != staging.serial or not len(staging.asked):
        return
    asked, staging.asked = staging.asked, range(0)
    if not len(chunk):
        chunk, keys = asked, [(None,) * len(shares.expressions)] * len(asked)
    waiting = {lsn for run in staging.next for lsn in run.chunk}
    for lsn, told in zip(chunk, keys, strict=True):
        if lsn in staging.out:
            leased = staging.out.pop(lsn)
            numbers, _ = shares.note(range(lsn, lsn + 1), [told])
            if shares.groups is not None:
                shares.groups.hold(lsn, numbers[0])
            if shares.tenants is not None and leased:
                shares.tenants.hold(lsn)
        elif lsn in waiting:
            staging.answers[lsn] = told
    if not staging.out and queue.ranking is None:
        _let_in(shares, queue)
    ask(shares, queue, sink)


def _let_in(shares: Shares, queue: Contents) -> bool:
    """Let in whoever is next and told its keys; whether there were any."""
    groups = shares.groups
    fresh = list[int]()
    some = False
    for run, lsn, told in shares.staging.told():
        some = True
        own = run.tally == FRESH and not run.place
        if not shares.keys.knows(lsn):
            shares.note(range(lsn, lsn + 1), [told])
        if own:
            if groups is None or groups.enter(lsn, shares.keys.of(lsn)):
                fresh.append(lsn)
        elif groups is None or _enters(shares, queue, run, lsn):
            queue.offer(run.part(range(lsn, lsn + 1), True))
    if fresh:
        queue.offer(Run(ascending_chunk(fresh), False))
    return some


def _enters(shares: Shares, queue: Contents, run: Run, lsn: int) -> bool:
    """A message that was delivered, or that became due, takes its own place; whether it may be offered."""
    groups = shares.groups
    assert groups is not None
    return groups.come_back(run, lsn, shares.keys.of(lsn)) > 0 or overtakes(shares, queue, run, lsn)
