"""Priorities and keys of messages that wait already: after a start those that no checkpoint knows, after a change of
the expression all of them, and those of batches that were too large.  Bodies are read as for anybody else; the
expressions run off the loop.

It knows the reads of a server and expressions; what a priority or a key does is the core's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.core.asks import Key, Rate
from penstock.core.queue.priority.levels import Levels, Ranking
from penstock.core.queue.priority.ranks import LOWEST
from penstock.core.queue.shares.staging import Told
from penstock.expr import Value
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows
from penstock.server.filters.evaluating import Ask, made_of

if TYPE_CHECKING:
    from penstock.server.filters.judging import Judges
    from penstock.server.runtime import Off, Runtime

T = TypeVar("T")


class Backfills:
    """Has messages judged for their queues.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges) -> None:
        self.off: Off | None = None
        self._runtime = runtime
        self._judges = judges

    def rate(self, effect: Rate) -> None:
        """Read and evaluate priorities; the core is told, at once or later."""
        core, token = self._runtime.core, effect.token
        self._start(
            effect.chunk,
            partial(ranks_of, effect.value),
            lambda chunk, ranks: core.rated(self._runtime.now(), token, chunk, ranks),
        )

    def key(self, effect: Key) -> None:
        """The same with keys."""
        core, token = self._runtime.core, effect.token
        self._start(
            effect.chunk,
            partial(keys_of, effect.values),
            lambda chunk, keys: core.keyed(self._runtime.now(), token, chunk, keys),
        )

    def _start(
        self, chunk: Chunk, work: Callable[[Chunk, Rows, Ask | None], list[T]], tell: Callable[[Chunk, list[T]], None]
    ) -> None:
        def read(rows: Rows) -> None:
            last = rows.lsns[-1] if rows.lsns else chunk[-1]
            part = chunk if last >= chunk[-1] else chunk[: bisect_right(chunk, last)]  # it brings no more than it may

            def done(found: list[T]) -> None:
                tell(part, found)
                self._runtime.arm()

            if self.off is None:
                done(work(part, rows, self._judges.ask))
            else:
                self.off(partial(work, part, rows, self._judges.ask), done)

        self._runtime.read_rows(chunk, read)


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
    found = dict.fromkeys(chunk, LOWEST)
    if isinstance(value, Levels):
        found.update(zip(rows.lsns, value.ranks(rows.properties, len(rows), rows.times), strict=True))
        return [found[lsn] for lsn in chunk]
    ranks = made_of(value, "rank", rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times, ask=ask)
    found.update(zip(rows.lsns, ranks, strict=True))
    return [found[lsn] for lsn in chunk]
