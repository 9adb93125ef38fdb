"""What failures have taught about the batch of a stream that is planned and not settled, and whose the one before was.

It folds what the log says; who decides is `core.streams.poison`.
"""

from __future__ import annotations

from dataclasses import field
from typing import cast

from penstock.records.dataclass import dataclass


@dataclass(slots=True)
class Doubt:
    """What failures have taught about the batch of a stream: see `core.streams.poison`."""

    tries: int = 0  # of the present batch, that came to nothing
    revision: int = 0  # how often the present batch was narrowed
    levels: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Innermost last: rows of a batch at most, for so many rows more."""
    poisoned: int = 0  # rows that were put aside since a batch with rows was settled

    last: tuple[str, int] | None = None  # the query, and its batch, that the batch settled last was

    def copy(self) -> Doubt:
        """One that changes by itself."""
        return Doubt(self.tries, self.revision, list(self.levels), self.poisoned, self.last)

    @property
    def rows_max(self) -> int:
        """Rows of the next batch at most."""
        return next((min(level) for level in reversed(self.levels) if level[1] > 0), 1 << 62)

    def planned(self, rows: int) -> None:
        """A new batch of so many rows."""
        self.tries = self.revision = 0
        while self.levels and self.levels[-1][1] <= 0:  # what had the last of its rows is settled now
            self.levels.pop()
        if self.levels:
            most, left = self.levels[-1]
            self.levels[-1] = (most, left - rows)

    def narrowed(self, revision: int, level: tuple[int, int] | None, poison: int) -> None:
        """The present batch has lost rows: those of `level` come in smaller batches, or `poison` were put aside."""
        self.tries, self.revision = 0, revision
        self.poisoned += poison
        if level is not None and level[1] > 0:
            self.levels.append((level[0], level[1]))


def dump_doubt(doubt: Doubt) -> dict[str, object]:
    """For the codec: nothing when there is none."""
    if doubt == Doubt():
        return {}
    last = None if doubt.last is None else list(doubt.last)
    return {"doubt": [doubt.tries, doubt.revision, doubt.poisoned, [list(level) for level in doubt.levels], last]}


def load_doubt(dumped: object) -> Doubt:
    """The inverse."""
    if dumped is None:
        return Doubt()
    tries, revision, poisoned, levels, last = cast(
        "tuple[int, int, int, list[tuple[int, int]], tuple[str, int] | None]", dumped
    )
    last = None if last is None else (last[0], last[1])
    return Doubt(tries, revision, [(most, left) for most, left in levels], poisoned, last)
