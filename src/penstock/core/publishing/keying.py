"""Keys of a batch of publishes: what the expressions of a queue make of each message, as it enters the queue."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.publishing.evaluating import evaluated
from penstock.core.publishing.judging import LOOP_US
from penstock.core.publishing.rating import EVALUATION_US
from penstock.core.queue.shares.keys import key_text
from penstock.core.queue.shares.shares import expressions
from penstock.core.queue.shares.staging import Told
from penstock.expr import Value, compile_value
from penstock.expr.meter import LOOP_BODY, LOOP_BYTES
from penstock.records.chunks import Chunk
from penstock.records.entries import Publishes
from penstock.records.settings import QueueSettings


def keys_of(
    settings: QueueSettings, batch: Publishes, rows: Sequence[int], chunk: Chunk, time: int
) -> Sequence[Told] | None:
    """For each of these rows, which have the LSNs of the chunk, the key by each expression.

    None where that would hold the loop up: the queue has them worked out elsewhere, before it offers them to anybody.
    """
    values = [compile_value(text) for text in expressions(settings)]
    if any(value.needs_body for value in values):
        sizes = [len(batch.bodies[row]) for row in rows]
        if max(sizes) > LOOP_BODY or sum(sizes) > LOOP_BYTES or len(rows) * EVALUATION_US * len(values) > LOOP_US:
            return None
    columns = [_texts(value, batch, rows, chunk, time) for value in values]
    return list(zip(*columns, strict=True))


def _texts(value: Value, batch: Publishes, rows: Sequence[int], chunk: Chunk, time: int) -> list[str | None]:
    found = evaluated(value, batch, rows, chunk, time)
    return [one if type(one) is str and len(one) <= 200 else key_text(one) for one in found]


__all__ = ["keys_of"]
