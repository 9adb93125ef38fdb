"""Messages as the expressions of a view read them, and what each gives to it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.expr.fields import Table
from penstock.expr.values import Value
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY

if TYPE_CHECKING:
    from penstock.expr.gathering.definition import Plan

Values: TypeAlias = Sequence[Value]

Rank: TypeAlias = tuple[int, ...]
"""How new a combination of rows is: what is higher is newer.  It depends on the rows and on nothing else."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Messages as expressions read them, one element a message; `records` are the parsed bodies."""

    lsns: Sequence[int]
    records: Sequence[Table]
    bodies: Sequence[bytes] = ()  # where an expression asks for their size
    headers: Sequence[bytes] | bytes = EMPTY
    topics: list[Topic] | Topic | None = None
    times: Sequence[int] | int | None = None
    states: bytes = b""  # of each; empty: all are available
    ranks: Sequence[Rank] = ()  # of each, where positions do not say which is newer: in a join

    def arguments(self) -> tuple[object, ...]:
        """What comes first for a function of `compile_parsed`."""
        n = len(self.records)
        return (
            self.bodies or [b""] * n,
            self.records,
            repeat(self.headers) if isinstance(self.headers, bytes) else self.headers,
            self.topics if isinstance(self.topics, list) else repeat(self.topics),
            self.lsns,
            repeat(self.times) if self.times is None or isinstance(self.times, int) else self.times,
            None,
            None,
            None,
        )


@dataclass(frozen=True, slots=True)
class Given:
    """What messages give to a view: those that pass its filter, with the values of its inputs."""

    lsns: Sequence[int]
    values: Sequence[Values]
    states: bytes = b""
    ranks: Sequence[Rank] = ()


def given_by(plan: Plan, elements: Elements) -> Given:
    """What messages give to a view.  Any thread: nothing is changed."""
    lsns: Sequence[int] = elements.lsns
    states, ranks = elements.states, elements.ranks
    values: Sequence[Values] = [
        cast("Values", run(*elements.arguments()))  # type: ignore[arg-type]  # as documented
        for run in plan.inputs
    ]
    if plan.filter is not None:
        passed = plan.filter.matches_parsed(
            elements.bodies or [b""] * len(lsns),
            elements.records,
            elements.headers,
            elements.topics,
            lsns=lsns,
            times=elements.times,
        )
        if not all(passed):
            rows = [row for row, passes in enumerate(passed) if passes]
            lsns = [lsns[row] for row in rows]
            values = [[column[row] for row in rows] for column in values]
            states = bytes(states[row] for row in rows) if states else states
            ranks = [ranks[row] for row in rows] if ranks else ranks
    return Given(lsns, values, states, ranks)
