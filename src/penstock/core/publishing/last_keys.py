"""Keys of a batch of publishes: 64 bits for what a queue's `last_value_key` or `dedup_key` makes of each message.

They are worked out once a message and expression, however many queues and steps ask, and stay on the batch until it is
stored.  A door that must not hold the loop has them worked out elsewhere before (`unkeyed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.publishing.evaluating import evaluated
from penstock.core.publishing.judging import Question, costly
from penstock.core.queue.keys import key_of
from penstock.expr import compile_value
from penstock.records.entries import Publishes

KEY_US = 4
"""About what reading a body, evaluating an expression and using the key takes."""


def key_name(expression: str) -> str:
    """Under what the keys that an expression gave stand among the answers on a batch; no filter is spelled so."""
    return f"\1{expression}"


def unkeyed(batch: Publishes, expressions: Iterable[tuple[str, Sequence[int]]]) -> list[Question]:
    """What has to be evaluated off the loop: all rows of an expression where the batch would hold the loop up.

    expressions    each with the rows that its queue may take
    """
    out: list[Question] = []
    for text, rows in expressions:
        value = compile_value(text)
        if left := costly(batch, key_name(text), value, rows, KEY_US):
            out.append(Question(value, left, "key", key_name(text)))
    return out


def last_keys_of(expression: str, batch: Publishes, rows: Sequence[int]) -> list[int]:
    """The key of each of these rows; 0: it has none."""
    judged = batch.judged = {} if batch.judged is None else batch.judged
    known = judged.setdefault(key_name(expression), {})
    left = [row for row in rows if row not in known] if known else rows
    if left:
        keys = list(map(key_of, evaluated(compile_value(expression), batch, left)))
        known.update(zip(left, keys, strict=True))
        if len(left) == len(rows):
            return keys
    return [known[row] for row in rows]
