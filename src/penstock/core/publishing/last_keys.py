"""Keys of a batch of publishes: by which value of a queue's `last_value_key` each message replaces an older one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.queue.keys import key_of
from penstock.expr import compile_value
from penstock.records.bodies import listed
from penstock.records.entries import Publishes


def last_keys_of(expression: str, batch: Publishes, rows: Sequence[int]) -> list[int]:
    """The key of each of these rows; 0: it has none."""
    value = compile_value(expression)
    properties, topics = batch.properties, batch.topics
    whole = len(rows) == len(batch.bodies)
    if value.needs_body:
        batch.bodies = bodies = listed(batch.bodies)  # for good: the next queue asks again
        bodies = bodies if whole else [bodies[row] for row in rows]
    else:
        bodies = [b""] * len(rows)
    found = value.values(
        bodies,
        properties if whole or isinstance(properties, bytes) else [properties[row] for row in rows],
        topics if whole or not isinstance(topics, list) else [topics[row] for row in rows],
    )
    return list(map(key_of, found))
