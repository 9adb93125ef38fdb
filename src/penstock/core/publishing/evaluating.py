"""What an expression gives for rows of a batch of publishes, as they enter a queue: ranks, keys, last values."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.expr import Value
from penstock.expr.tree import Scalar
from penstock.records.bodies import listed
from penstock.records.chunks import Chunk
from penstock.records.entries import Publishes


def evaluated(
    value: Value, batch: Publishes, rows: Sequence[int], chunk: Chunk | None = None, time: int | None = None
) -> list[Scalar]:
    """The value for each of these rows.

    chunk, time    the rows' LSNs and the log's time; None where nothing asks for them, or nobody knows them yet
    """
    properties, topics = batch.properties, batch.topics
    whole = len(rows) == len(batch.bodies)
    if value.needs_body:
        batch.bodies = bodies = listed(batch.bodies)  # for good: the next queue asks again
        bodies = bodies if whole else [bodies[row] for row in rows]
    else:
        bodies = [b""] * len(rows)
    return value.values(
        bodies,
        properties if whole or isinstance(properties, bytes) else [properties[row] for row in rows],
        topics if whole or not isinstance(topics, list) else [topics[row] for row in rows],
        lsns=chunk,
        times=time,
    )
