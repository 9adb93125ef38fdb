"""Priorities of a batch of publishes: what a queue's expression makes of each message, once, as it enters the queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.publishing.evaluating import evaluated
from penstock.core.publishing.judging import Question, costly
from penstock.core.queue.priority.levels import Levels, compile_ranking
from penstock.core.queue.priority.ranks import rank_of
from penstock.records.chunks import Chunk
from penstock.records.entries import Publishes

EVALUATION_US = 2
"""About what reading a body and evaluating an expression takes."""


def answer_name(expression: str) -> str:
    """Under what the ranks that an expression gave stand among the answers on a batch; no filter is spelled so."""
    return f"\0{expression}"


def unrated(batch: Publishes, expressions: Iterable[tuple[str, Sequence[int]]]) -> list[Question]:
    """What has to be evaluated off the loop: all rows of an expression where the batch would hold the loop up.

    expressions    each with the rows that its queue may take
    """
    out: list[Question] = []
    for text, rows in expressions:
        value = compile_ranking(text)
        if isinstance(value, Levels) or not value.needs.isdisjoint(("lsn", "time")):
            continue  # nothing to read, or something that nobody knows before the rows are written
        if left := costly(batch, answer_name(text), value, rows, EVALUATION_US):
            out.append(Question(value, left, "rank", answer_name(text)))
    return out


def ranks_of(expression: str, batch: Publishes, rows: Sequence[int], chunk: Chunk, time: int) -> list[int]:
    """The rank of each of these rows, which have the LSNs of the chunk."""
    known = None if batch.judged is None else batch.judged.get(answer_name(expression))
    if known is not None and all(row in known for row in rows):
        return [known[row] for row in rows]
    value = compile_ranking(expression)
    if isinstance(value, Levels):
        properties, whole = batch.properties, len(rows) == len(batch.bodies)
        some = properties if whole or isinstance(properties, bytes) else [properties[row] for row in rows]
        return value.ranks(some, len(rows), time)
    found = evaluated(value, batch, rows, chunk, time)
    return list(map(rank_of, found))
