"""Priorities of messages that wait already: after a start those that no checkpoint knows, after a change of the
expression all of them.  Bodies are read as for anybody else; the expression runs off the loop.

It knows the reads of an engine and expressions; what a priority does is the core's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core.effects import Rate
from penstock.core.queue.priority.levels import Levels, Ranking
from penstock.core.queue.priority.ranks import LOWEST
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows
from penstock.server.filters.evaluating import Ask, made_of
from penstock.server.filters.judging import Off

if TYPE_CHECKING:
    from penstock.server.engine import Engine


class Rates:
    """Has messages judged for their queues.  All methods belong to the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.off: Off | None = None

    def start(self, effect: Rate) -> None:
        """Read and evaluate; the core is told, at once or later."""
        self.engine.read_rows(effect.chunk, partial(self._evaluate, effect))

    def _evaluate(self, effect: Rate, rows: Rows) -> None:
        def tell(ranks: list[int]) -> None:
            self.engine.core.rated(self.engine.now(), effect.token, chunk, ranks)
            self.engine.arm()

        chunk = effect.chunk
        if rows.lsns and rows.lsns[-1] < chunk[-1]:  # a read brings no more than it may
            chunk = chunk[: sum(lsn <= rows.lsns[-1] for lsn in chunk)]
        work = partial(ranks_of, effect.value, chunk, rows, self.engine.judges.ask)
        if self.off is None:
            tell(work())
        else:
            self.off(work, tell)


def ranks_of(value: Ranking, chunk: Chunk, rows: Rows, ask: Ask | None = None) -> list[int]:
    """The rank of each message of a chunk; those without a row have the lowest.  Any thread."""
    found = dict.fromkeys(chunk, LOWEST)
    if isinstance(value, Levels):
        found.update(zip(rows.lsns, value.ranks(rows.properties, len(rows), rows.times), strict=True))
        return [found[lsn] for lsn in chunk]
    ranks = made_of(value, "rank", rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times, ask=ask)
    found.update(zip(rows.lsns, ranks, strict=True))
    return [found[lsn] for lsn in chunk]
