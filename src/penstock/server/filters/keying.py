"""Keys of messages that wait already: after a start, after a change of the expression, of batches that were too large.
Bodies are read as for anybody else; the expressions run off the loop.

It knows the reads of an engine and expressions; what a key does is the core's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core.effects import Key
from penstock.core.queue.shares.staging import Told
from penstock.expr import Value
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows
from penstock.server.filters.evaluating import Ask, made_of
from penstock.server.filters.judging import Off

if TYPE_CHECKING:
    from penstock.server.engine import Engine


class Keyings:
    """Has keys worked out for their queues.  All methods belong to the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.off: Off | None = None

    def start(self, effect: Key) -> None:
        """Read and evaluate; the core is told, at once or later."""
        self.engine.read_rows(effect.chunk, partial(self._evaluate, effect))

    def _evaluate(self, effect: Key, rows: Rows) -> None:
        def tell(keys: list[Told]) -> None:
            self.engine.core.keyed(self.engine.now(), effect.token, chunk, keys)
            self.engine.arm()

        chunk = effect.chunk
        if rows.lsns and rows.lsns[-1] < chunk[-1]:  # a read brings no more than it may
            chunk = chunk[: sum(lsn <= rows.lsns[-1] for lsn in chunk)]
        work = partial(keys_of, effect.values, chunk, rows, self.engine.judges.ask)
        if self.off is None:
            tell(work())
        else:
            self.off(work, tell)


def keys_of(values: tuple[Value, ...], chunk: Chunk, rows: Rows, ask: Ask | None = None) -> list[Told]:
    """The keys of each message of a chunk; those without a row have none.  Any thread."""
    columns = [
        made_of(value, "text", rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times, ask=ask)
        for value in values
    ]
    found = dict(zip(rows.lsns, zip(*columns, strict=True), strict=True))
    nothing = (None,) * len(values)
    return [found.get(lsn, nothing) for lsn in chunk]
