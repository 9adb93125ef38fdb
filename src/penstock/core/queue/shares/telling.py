"""The world tells the keys of messages, a step at a time, and lets them in as it does: see `staging`.

Who waits for its keys is asked about in the order of the queue, what is out already before all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.asks import Key as KeyEffect
from penstock.core.asks import Purpose, Token
from penstock.core.effects import Sink
from penstock.core.queue.order.runs import Run
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.shares.groups import overtakes
from penstock.core.queue.shares.keys import ascending_chunk
from penstock.core.queue.shares.staging import Told
from penstock.expr import compile_value
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.shares.shares import Shares

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
