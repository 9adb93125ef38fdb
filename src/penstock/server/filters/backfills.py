"""Priorities and keys of messages that wait already: after a start those that no checkpoint knows, after a change of
the expression all of them, and those of batches that were too large.  Bodies are read as for anybody else; the
expressions run off the loop.

It knows the reads of a server and expressions; what a priority or a key does is the core's.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.asks import Key, Keyed, Rate, Rated
from penstock.core.queue.order.ranks import LOWEST, Levels, Ranking
from penstock.core.queue.shares.staging import Told
from penstock.expr import Value
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows
from penstock.server.filters.evaluating import Ask, made_of

if TYPE_CHECKING:
    from penstock.server.filters.judging import Judges
    from penstock.server.runtime import Off, Runtime


class Backfills:
    """Has messages judged for their queues.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges) -> None:
        self.off: Off | None = None
        self._runtime = runtime
        self._judges = judges

    def start(self, ask: Rate | Key) -> None:
        """Read and evaluate; the core is told, at once or later."""
        self._runtime.read_rows(ask.chunk, partial(self._evaluate, ask))

    def _evaluate(self, ask: Rate | Key, rows: Rows) -> None:
        last = rows.lsns[-1] if rows.lsns else ask.chunk[-1]
        part = ask.chunk if last >= ask.chunk[-1] else ask.chunk[: bisect_right(ask.chunk, last)]  # as a read brings
        work = partial(answer_to, ask, part, rows, self._judges.ask)
        if self.off is None:
            self._runtime.answer(work())
        else:
            self.off(work, self._runtime.answer)


def answer_to(ask: Rate | Key, chunk: Chunk, rows: Rows, child: Ask | None) -> Rated | Keyed:
    """What the messages of a chunk have by the ask's expressions.  Any thread."""
    if isinstance(ask, Rate):
        return Rated(ask.token, chunk, ranks_of(ask.value, chunk, rows, child))
    return Keyed(ask.token, chunk, keys_of(ask.values, chunk, rows, child))


def keys_of(values: tuple[Value, ...], chunk: Chunk, rows: Rows, ask: Ask | None = None) -> list[Told]:
    """The keys of each message of a chunk; those without a row have none.  Any thread."""
    columns = [
        made_of(value, "text", rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times, ask=ask)
        for value in values
    ]
    found = dict(zip(rows.lsns, zip(*columns, strict=True), strict=True))
    nothing = (None,) * len(values)
    return [found.get(lsn, nothing) for lsn in chunk]


def ranks_of(value: Ranking, chunk: Chunk, rows: Rows, ask: Ask | None = None) -> list[int]:
    """The rank of each message of a chunk; those without a row have the lowest.  Any thread."""
    if isinstance(value, Levels):
        ranks = value.ranks(rows.properties, len(rows), rows.times)
    else:
        ranks = made_of(
            value, "rank", rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times, ask=ask
        )
    found = dict(zip(rows.lsns, ranks, strict=True))
    return [found.get(lsn, LOWEST) for lsn in chunk]
