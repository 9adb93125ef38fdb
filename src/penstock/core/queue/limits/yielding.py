"""Who gives way first: the oldest, and in a queue with priorities the oldest of the lowest.

RabbitMQ's priority queues let the head of the *highest* level go, which nobody is promised and nobody wants: the most
urgent would be lost first.  Here what would be served last gives way, and of a level what is oldest; so what is left of
a batch is the same whether it is looked at as a whole or message by message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.order.runs import NEVER, Run, packed, view
from penstock.core.queue.priority.order import PriorityOrder
from penstock.core.queue.priority.ranks import Ints
from penstock.core.queue.priority.returned import PriorityReturned

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue

LOOK = 1024
"""Messages at the head whose sizes are looked at together."""


def take_yielding(queue: Queue, count: int) -> list[Run]:
    """Take up to `count` of those that give way first, in that order."""
    if queue.shares is not None:
        return _of_all(queue, count)
    main = queue.main
    if not isinstance(main, PriorityOrder):
        return queue.take_ready(count)
    out: list[Run] = []
    while count > 0 and queue.ready:
        runs = _of_the_lowest(queue, main, count)
        taken = sum([len(run.chunk) for run in runs])
        if queue.weight >= 0:
            queue.weight -= queue.weight_of(runs)
        count -= taken
        out += runs
    return out


def _of_the_lowest(queue: Queue, main: PriorityOrder, count: int) -> list[Run]:
    """Some of the lowest priority, the oldest first."""
    returned = queue.returned
    back: PriorityReturned | None = returned if isinstance(returned, PriorityReturned) and returned.count else None
    ranks = [main.last_rank()] if main.count else []
    if back is not None:
        ranks.append(back.last_rank())
    rank = max(ranks)
    first = None if back is None else back.first_of(rank)
    runs = main.take_of(rank, count, NEVER if first is None else first[0]) if main.count else []
    if runs:
        return runs
    assert back is not None
    assert first is not None
    one = range(first[1], first[1] + 1)
    queue.targets.left(one)
    return back.extract(one)


def _of_all(queue: Queue, count: int) -> list[Run]:
    """The same where some that are ready stand in lines behind others: of several at once all are looked at."""
    shares = queue.shares
    assert shares is not None
    if count == 1 and queue.ready and queue.ranks is None:
        lsn = shares.oldest(queue)[1]
        return queue.extract(range(lsn, lsn + 1))
    lsns, places = list[Ints](), list[Ints]()
    for _, run, _ in queue.standing("ready"):
        lsns.append(view(run.chunk))
        places.append(np.full(len(run.chunk), run.where) if run.place else lsns[-1])
    every, where = np.concatenate(lsns), np.concatenate(places)
    keys = [every, where]
    if queue.ranks is not None:
        ascending = np.argsort(every)
        every, where = every[ascending], where[ascending]
        keys = [every, where, ~queue.ranks.each(packed(every))]  # what is served last first; minus may overflow
    chosen = np.sort(every[np.lexsort(keys)[:count]])
    return queue.extract(packed(chosen)) if len(chosen) else []


def heavy(queue: Queue, excess: int, most: int) -> int:
    """How many of those that give way first have so many bytes together; some of them where that is not known."""
    main = queue.main
    if queue.shares is not None or queue.returned.count or not main.count or isinstance(main, PriorityOrder):
        return 1
    chunk = main.front(min(LOOK, most))
    return min(int(np.searchsorted(np.cumsum(queue.sizes.of(chunk)), excess)) + 1, len(chunk))
