"""The figures of one pipeline: rows, batches, rules that failed, and how long each phase took, from Spark's progress.

Each batch is counted once, however often it is looked at, and none is missed between two looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias, cast

from penstock.records.dataclass import dataclass
from penstock.spark.pipelines.definition import Check, Definition, Input
from penstock.spark.pipelines.expectations import OBSERVED, stopping

WINDOW_S = 10.0
"""Rows a second are those of so long."""


WHOLE_BATCH = "triggerExecution"
"""What Spark calls the time of a batch as a whole, beside those of its phases."""

Rule: TypeAlias = "tuple[str, str, str]"
"""Input, name, and what becomes of rows: a rule whose consequence changes counts anew."""


@dataclass
class Figures:
    """Of one pipeline, in this process."""

    definition: Definition
    batch: int | None = None  # the last one that is done
    rows: int = 0  # of input, all batches
    batches: int = 0
    batch_rows: int = 0
    batch_ms: int | None = None
    batch_time: float | None = None  # when it was done, seconds since the epoch
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None
    phases: dict[str, int] = field(default_factory=dict[str, int])  # of the last batch, milliseconds
    late_rows: int = 0  # left out by a watermark, as Spark's steps count them
    failed: dict[Rule, int] = field(default_factory=dict[Rule, int])  # rows
    checked: int = 0
    seen: int = -1  # the last batch of this run that is counted here
    recent: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def begin(self) -> None:
        """Another run begins: its progress has the batches that it runs, and no other."""
        self.seen = -1

    def note(self, query: Any, now: float, wall: float) -> bool:
        """Take in what has ended since the last look; whether a batch did."""
        last: Any = query.lastProgress
        if last is None:
            return False
        number = int(last["batchId"])
        fresh: list[Any] = []
        if number > self.seen:
            if number > self.seen + 1 and number:
                fresh = [one for one in query.recentProgress if self.seen < int(one["batchId"]) < number]
            fresh.append(last)
            self.seen = number if _is_done(last) else number - 1
        done = [one for one in fresh if _is_done(one)]
        for one in done:
            self._batch(one, now, wall)
        return bool(done)

    def _batch(self, progress: Any, now: float, wall: float) -> None:
        rows = int(progress["numInputRows"] or 0)
        self.batch = int(progress["batchId"])
        self.batches += 1
        self.rows += rows
        self.batch_rows = rows
        duration = progress["durationMs"].get(WHOLE_BATCH)
        self.batch_ms = None if duration is None else int(duration)
        self.batch_time = wall
        self.phases = {name: int(spent) for name, spent in progress["durationMs"].items() if name != WHOLE_BATCH}
        self.recent.append((now, rows))
        operators = cast("Sequence[Any]", _get(progress, "stateOperators") or ())
        self.state_rows = sum(int(_get(one, "numRowsTotal") or 0) for one in operators)
        self.state_bytes = sum(int(_get(one, "memoryUsedBytes") or 0) for one in operators)
        self.late_rows += sum(int(_get(one, "numRowsDroppedByWatermark") or 0) for one in operators)
        self.watermark = cast("Mapping[str, str]", _get(progress, "eventTime") or {}).get("watermark")
        self._rules(_get(progress, "observedMetrics") or {})

    def _rules(self, observed: Any) -> None:
        for one in self.definition.streams:
            counts = observed.get(f"{OBSERVED}{one.name}") if one.expect else None
            if counts is None:
                continue
            self.checked += int(counts[0] or 0)
            for place, check in enumerate(one.expect):
                self._failed(one, check, int(counts[place + 1] or 0))

    def _failed(self, one: Input, check: Check, rows: int) -> None:
        rule = one.name, check.name, check.otherwise
        self.failed[rule] = self.failed.get(rule, 0) + rows

    def stopped(self, sentence: str) -> None:
        """A run has ended with this error: count the row, if it was a rule that stopped it."""
        rules = [(one, check) for one in self.definition.streams for check in one.expect if check.otherwise == "fail"]
        said = {stopping(check, self.definition.name, one.name): (one, check) for one, check in rules}
        found = max((text for text in said if text in sentence), key=len, default=None)
        if found is not None:
            self._failed(*said[found], 1)

    def rate(self, now: float) -> float:
        """Rows a second, over the last seconds."""
        while self.recent and self.recent[0][0] < now - WINDOW_S:
            self.recent.popleft()
        return round(sum(rows for _, rows in self.recent) / WINDOW_S, 1)

    def told(self, now: float) -> dict[str, Any]:
        """As a status has them."""
        return {
            "batch": self.batch,
            "batches": self.batches,
            "rows": self.rows,
            "rows_per_second": self.rate(now),
            "batch_rows": self.batch_rows,
            "batch_ms": self.batch_ms,
            "batch_time": self.batch_time,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "watermark": self.watermark,
            "late_rows": self.late_rows,
            "phases": self.phases,
            "expect": {
                "rows": self.checked,
                "rules": [
                    {
                        "input": one.name, "rule": check.name, "otherwise": check.otherwise,
                        "rows": self.failed.get((one.name, check.name, check.otherwise), 0),
                    }
                    for one in self.definition.streams for check in one.expect
                ],
            },
        }  # fmt: skip


def _is_done(progress: Any) -> bool:
    """Idle triggers report too, with the number of the batch that would come next."""
    durations = progress["durationMs"]
    return bool(progress["numInputRows"]) or "addBatch" in durations


def _get(progress: Any, name: str) -> Any:
    if isinstance(progress, Mapping):
        return cast("Mapping[str, Any]", progress).get(name)
    return getattr(progress, name, None)
