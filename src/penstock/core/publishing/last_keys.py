"""Keys of a batch of publishes: by which value of a queue's `last_value_key` each message replaces an older one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.publishing.evaluating import evaluated
from penstock.core.queue.keys import key_of
from penstock.expr import compile_value
from penstock.records.entries import Publishes


def last_keys_of(expression: str, batch: Publishes, rows: Sequence[int]) -> list[int]:
    """The key of each of these rows; 0: it has none."""
    return list(map(key_of, evaluated(compile_value(expression), batch, rows)))
