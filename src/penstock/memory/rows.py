"""Rows from two places as one answer.  Knows no cache and no log."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.records.entries import Rows


def merged(a: Rows, b: Rows) -> Rows:
    """The rows of both, ascending."""
    both = Rows(
        a.lsns + b.lsns,
        a.topics + b.topics,
        a.properties + b.properties,
        a.bodies + b.bodies,
        a.times + b.times,
        a.expires_at + b.expires_at,
        a.priority + b.priority,
    )
    return _select(both, sorted(range(len(both)), key=both.lsns.__getitem__))


def first_of(rows: Rows, count: int) -> Rows:
    """The first so many rows."""
    return rows if count >= len(rows) else _select(rows, range(count))


def _select(rows: Rows, places: Sequence[int]) -> Rows:
    """The rows at these places, in this order."""
    return Rows(
        [rows.lsns[i] for i in places],
        [rows.topics[i] for i in places],
        [rows.properties[i] for i in places],
        [rows.bodies[i] for i in places],
        [rows.times[i] for i in places],
        [rows.expires_at[i] for i in places],
        [rows.priority[i] for i in places],
    )
