"""Passes over the log for queues that take what was published before: how far they are, and what is over.

A queue is offered each message once: as it is published, or by a pass.  So a later pass leaves out what an earlier one
has been over (`reviewed`), whatever became of it; what the queue has settled stays settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from penstock.records.dataclass import dataclass

Spans: TypeAlias = "tuple[tuple[int, int], ...]"
"""Disjoint, ascending LSN spans [a, b)."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A pass under way: it goes from `start` to before `until`, and is over what lies before `at`."""

    start: int
    until: int
    at: int
    time: int = 0  # microseconds: what was published earlier is left out


def begin(
    reviewed: Spans, passing: Passing | None, header: dict[str, object], until: int
) -> tuple[Spans, Passing | None]:
    """What a RECOVER record at LSN `until` begins, with what it ends."""
    start, time = cast(int, header["from"]), cast(int, header.get("time") or 0)
    if passing is not None:
        reviewed = joined(reviewed, passing.start, passing.at)
    return reviewed, (Passing(start, until, start, time) if start < until else None)


def go_on(reviewed: Spans, passing: Passing | None, upto: int) -> tuple[Spans, Passing | None]:
    """The pass is over what lies before `upto`."""
    if passing is None:
        return reviewed, None
    if upto < passing.until:
        return reviewed, Passing(passing.start, passing.until, upto, passing.time)
    return joined(reviewed, passing.start, passing.until), None


def joined(spans: Spans, low: int, high: int) -> Spans:
    """The spans and one more."""
    if low >= high:
        return spans
    out = list[tuple[int, int]]()
    for a, b in sorted((*spans, (low, high))):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return tuple(out)


def dump(reviewed: Spans, passing: Passing | None) -> dict[str, object]:
    """For the JSON part of an encoded state; empty for a queue that never had a pass."""
    out: dict[str, object] = {}
    if reviewed:
        out["reviewed"] = [list(span) for span in reviewed]
    if passing is not None:
        out["passing"] = [passing.start, passing.until, passing.at, passing.time]
    return out


def read(table: dict[str, object]) -> tuple[Spans, Passing | None]:
    spans = cast("Sequence[tuple[int, int]]", table.get("reviewed", ()))
    numbers = cast("Sequence[int] | None", table.get("passing"))
    return tuple((a, b) for a, b in spans), (Passing(*numbers) if numbers is not None else None)
