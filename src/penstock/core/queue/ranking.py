"""Ranks that are not known yet: of messages that the log brought after the last checkpoint, or after a change of the
expression.  Their bodies are read and judged in steps, off the loop, and nothing is delivered before the last of them.

Until then such a message has the lowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Purpose, Rate, Sink, Token
from penstock.core.queue.main_order import Main
from penstock.core.queue.priority_order import PriorityOrder
from penstock.core.queue.ranks import LOWEST, UNKNOWN, Ints, Ranks, priority_of
from penstock.core.queue.runs import Run, packed, tidy
from penstock.core.state.durable import flat
from penstock.expr import compile_value
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents

STEP = 512
"""Messages that are judged at once."""


class Ranking:
    """Messages whose rank is to be worked out, and how far that is."""

    __slots__ = ("asked", "done", "expression", "lsns", "serial")

    def __init__(self, expression: str, lsns: Ints) -> None:
        self.expression = expression
        self.lsns = lsns  # ascending; some may be gone
        self.done = 0  # so many of them are over
        self.asked: Chunk = range(0)  # what the world is asked about
        self.serial = 0

    @property
    def left(self) -> Ints:
        """Those whose rank is not known."""
        return self.lsns[self.done :]


_serials = iter(range(1, 1 << 62))
"""Numbers of questions: an answer to a ranking that was given up means nothing."""


def begin_ranks(queue: Contents) -> None:
    """The queue, new and empty, serves by priority from now on."""
    queue.ranks = Ranks()
    queue.main = PriorityOrder(queue.ranks)


def load_ranks(queue: Contents, lsns: Ints, ranks: Ints) -> None:
    """What a saved state says of the messages that a new queue will hold, ascending; those it does not know wait."""
    assert queue.ranks is not None
    assert isinstance(queue.main, PriorityOrder)
    if queue.ranks.count:  # it was put in order again: they are known, or waited for
        if queue.ranking is not None:
            queue.main.use_rows(anyhow=True)
        return
    unknown = ranks == UNKNOWN
    queue.ranks.load(lsns, np.where(unknown, LOWEST, ranks))
    if unknown.any():
        _wait_for(queue, queue.main, lsns[unknown])


def take_unranked(queue: Contents, lsns: Ints) -> None:
    """Messages whose rank is not known, ascending, are about to come; some may be older than others here."""
    assert queue.ranks is not None
    assert isinstance(queue.main, PriorityOrder)
    queue.ranks.mix(lsns, LOWEST)
    if queue.ranking is not None:
        lsns = np.union1d(queue.ranking.left, lsns)
    _wait_for(queue, queue.main, lsns)


def change_ranks(queue: Contents, sink: Sink) -> None:
    """The expression has changed, or came, or went."""
    expression = queue.settings.priority_expression
    everything = queue.capture()
    living = flat(everything.waiting()) if everything is not None else np.zeros(0, dtype=np.int64)
    fresh = list(queue.main.chunks())
    back = [Run(run.chunk, run.solid, run.tally, run.place) for run in queue.returned.runs()]
    queue.clear_returned()
    if expression is None:
        queue.ranks = queue.ranking = None
        queue.main = Main()
        for chunk, _ in tidy(flat(fresh)):
            queue.main.append(chunk, solid=False)
        if len(living):
            queue.main.seal(int(living[-1]))
    else:
        ranks = queue.ranks = Ranks()
        ranks.load(living, np.full(len(living), LOWEST, dtype=np.int64))
        order = PriorityOrder(ranks)
        if len(living):
            _wait_for(queue, order, living)
        queue.main = order
        order.append(packed(flat(fresh)))
    for run in back:
        queue.coming_back().push(run)
    queue.renew_targets()
    ask(queue, sink)


def _wait_for(queue: Contents, order: PriorityOrder, lsns: Ints) -> None:
    expression = queue.settings.priority_expression
    assert expression is not None
    queue.ranking = Ranking(expression, lsns)
    order.use_rows(anyhow=True)


def ask(queue: Contents, sink: Sink) -> None:
    """Have the world judge the next messages, if it is not at it."""
    ranking = queue.ranking
    if ranking is None or len(ranking.asked):
        return
    while ranking.done < len(ranking.lsns):
        chunk = _living(queue, packed(ranking.lsns[ranking.done : ranking.done + STEP]))
        if len(chunk):
            ranking.asked = chunk
            ranking.serial = next(_serials)
            sink.effect(Rate(Token(queue.id, ranking.serial, Purpose.RANK), compile_value(ranking.expression), chunk))
            return
        ranking.done += STEP
    queue.ranking = None
    order = queue.main
    assert isinstance(order, PriorityOrder)
    order.anyhow = False
    queue.renew_targets()


def _living(queue: Contents, chunk: Chunk) -> Chunk:
    assert queue.ranks is not None
    return queue.ranks.among(chunk)


def rated(queue: Contents, token: Token, chunk: Chunk, ranks: Sequence[int], sink: Sink) -> None:
    """The answer to a `Rate`: the ranks of the messages of the chunk, which is the first part of what was asked.

    Of a chunk that is empty nothing can be read: what was asked keeps the rank it has.
    """
    ranking = queue.ranking
    if ranking is None or token.serial != ranking.serial or not len(ranking.asked):
        return
    last = chunk[-1] if len(chunk) else ranking.asked[-1]
    ranking.asked = range(0)
    ranking.done = int(np.searchsorted(ranking.lsns, last, side="right"))
    known = queue.ranks
    assert known is not None
    if len(chunk):
        order = queue.main
        assert isinstance(order, PriorityOrder)
        taken = order.take_unranked(chunk[0], chunk[-1])
        back = queue.returned.extract(chunk)
        known.replace(chunk, ranks)
        order.put_again(taken)
        for run in back:
            queue.coming_back().push(run)
    ask(queue, sink)


PRIORITIES_MOST = 10
"""Priorities that are told of a queue."""


def priorities(queue: Contents) -> dict[str, object]:
    """For those who ask about a queue with priorities: the highest of what was never delivered, and how many of each.

    `unranked` are messages whose priority is still worked out; nothing is delivered meanwhile.
    """
    if not isinstance(queue.main, PriorityOrder):
        return {}
    told = queue.main.priorities(PRIORITIES_MOST) if queue.main.count else []
    return {
        "priorities": {str(priority_of(rank)) if rank != LOWEST else "lowest": count for rank, count in told},
        "unranked": len(queue.ranking.left) if queue.ranking is not None else 0,
    }
