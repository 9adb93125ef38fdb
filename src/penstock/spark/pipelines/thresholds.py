"""Rules of `expect` that stop a batch when too many of its rows do not meet them: `fail_above`.

The counts are those that Spark observes while it computes the batch, read between the last of its rows and the commit
that would make its outputs visible: a batch that has too many leaves nothing, and comes again when the pipeline is
started again.  The share is of the rows that came as far as the rule.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import PreconditionFailed
from penstock.records.dataclass import dataclass
from penstock.spark.pipelines.definition import ONLY, Check, Definition
from penstock.spark.pipelines.expectations import OBSERVED

START_S = 60.0
"""A batch may be there before the call that starts its query has come back."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many rows, or such a share of them."""

    most: float
    share: bool

    @classmethod
    def of(cls, text: str) -> Limit:
        """As the settings have it, `1 %` or `100`."""
        number = text.strip().removesuffix("%")
        return cls(float(number), number != text.strip())

    def passed(self, rows: int, seen: int) -> bool:
        """Whether so many of the rows that were seen are too many."""
        return rows * 100 > self.most * seen if self.share else rows > self.most


class Thresholds:
    """Of one start of a pipeline."""

    def __init__(self, definition: Definition) -> None:
        self._name = definition.name
        self._inputs = [one for one in definition.streams if any(check.fail_above for check in one.expect)]
        self._query: Any = None
        self._started = threading.Event()

    @property
    def wanted(self) -> bool:
        """Whether any input has a rule that may fail a batch."""
        return bool(self._inputs)

    def started(self, query: Any) -> None:
        """Say of which query the batches are that follow."""
        self._query = query
        self._started.set()

    def refuse(self) -> None:
        """On the driver, when the rows of a batch are computed.  PreconditionFailed: it has too many."""
        if not self._started.wait(START_S):
            raise PreconditionFailed(f"pipeline {self._name}: a batch came before its query was known")
        observed = self._query._jsq.streamingQuery().lastExecution().observedMetrics()
        for one in self._inputs:
            name = f"{OBSERVED}{one.name}"
            if not observed.contains(name):
                continue
            row = observed.apply(name)
            counts = [int(row.getLong(place)) for place in range(len(one.expect) + 1)]
            for why in beyond(one.expect, counts, "rows" if one.name == ONLY else f"rows of {one.name}"):
                raise PreconditionFailed(f"pipeline {self._name}: {why}")


def beyond(checks: Sequence[Check], counts: Sequence[int], what: str = "rows") -> Iterator[str]:
    """What is too much; counts: the rows, then for each rule those that did not meet it."""
    seen = counts[0]
    for check, rows in zip(checks, counts[1:], strict=True):
        if check.fail_above and Limit.of(check.fail_above).passed(rows, seen):
            share = f"{100 * rows / max(seen, 1):.3g} %"
            yield (
                f"{rows} of the {seen} {what} in a batch ({share}) fail the check {check.name}, and its fail_above is "
                f"{check.fail_above}"
            )
        if check.otherwise != "keep":
            seen -= rows
