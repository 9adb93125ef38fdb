"""What drivers of pipelines have told about them, for whoever asks: `pipeline status`, `/api/pipelines`, `/metrics`.

Nothing of it is durable: a driver tells anew every second.  A driver that is silent counts as gone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import cast

from penstock.errors import InvalidArgument
from penstock.operations.server import PIPELINES_MOST
from penstock.ports import Clock
from penstock.records.dataclass import dataclass

SILENT_US = 10_000_000
"""After so long without a word a driver counts as gone."""

FORGOTTEN_US = 3_600_000_000
RULES_MOST = 1000
TEXT_MOST = 2000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")

NUMBERS = (
    "batch", "batches", "rows", "rows_per_second", "lag", "batch_rows", "batch_ms", "batch_time", "state_rows",
    "state_bytes", "late_rows", "failures", "failures_total", "starts",
)  # fmt: skip
TEXTS = ("state", "since", "next_try", "waits_for", "error", "query", "when", "watermark", "counted_since")
LISTS = ("reads", "writes")

GONE = "gone"
UNHEARD = "not running"


@dataclass(frozen=True, slots=True)
class Report:
    """The last word about one pipeline."""

    at: int  # microseconds of a clock that only grows
    driver: str
    host: str
    pid: int
    status: Mapping[str, object]


class PipelineReports:
    """The last word about each pipeline.  Told by threads of Flight, read by the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[str, Report] = {}
        self._gone: dict[str, int] = {}  # taken out of the settings then, and their drivers may not have heard
        self.declared: tuple[str, ...] = ()  # by the settings; they are listed without a word too

    def tell(self, driver: str, host: str, pid: int, state: str, pipelines: Mapping[str, object]) -> None:
        """Take a driver's word.  InvalidArgument for names that no pipeline can have, and for too many of them."""
        now = self._clock.mono()
        fresh: dict[str, Report] = {}
        for name, status in pipelines.items():
            if not NAME.fullmatch(name):
                raise InvalidArgument(f"{name[:60]!r} is no name of a pipeline")
            if not isinstance(status, dict):
                raise InvalidArgument(f"the status of pipeline {name} is no object")
            fresh[name] = Report(now, driver, host, pid, known(cast("dict[str, object]", status)))
        with self._lock:
            self._told = {name: one for name, one in self._told.items() if now - one.at < FORGOTTEN_US}
            fresh = {name: one for name, one in fresh.items() if now - self._gone.get(name, -SILENT_US) >= SILENT_US}
            if len(self._told.keys() | fresh.keys()) > PIPELINES_MOST:
                raise InvalidArgument(f"there are more than {PIPELINES_MOST} pipelines")
            self._told |= fresh

    def leave(self, names: Sequence[str]) -> None:
        """These have left the settings.  Their drivers may not have heard yet, and are not listened to for a while."""
        with self._lock:
            now = self._clock.mono()
            self._gone = {name: at for name, at in self._gone.items() if now - at < SILENT_US} | dict.fromkeys(
                names, now
            )
            self.declared = tuple(name for name in self.declared if name not in names)
            self._told = {name: one for name, one in self._told.items() if name not in names}

    def knows(self, name: str) -> bool:
        """Whether the settings have this pipeline, or a driver has told of it within the hour."""
        with self._lock:
            return name in self.declared or name in self._told

    def all(self) -> list[dict[str, object]]:
        """Every pipeline that the settings name or a driver has told about, by name."""
        with self._lock:
            told = dict(self._told)
        now = self._clock.mono()
        return [self._one(name, told.get(name), now) for name in sorted({*self.declared, *told})]

    def _one(self, name: str, told: Report | None, now: int) -> dict[str, object]:
        if told is None:
            return {"pipeline": name, "state": UNHEARD}
        status = {"pipeline": name, **told.status, "driver": told.driver, "host": told.host, "pid": told.pid}
        silent = now - told.at
        if silent > SILENT_US and status.get("state") not in ("stopped", "done", "failed"):
            status |= {"state": GONE, "rows_per_second": 0.0, "silent_seconds": silent // 1_000_000}
        return status


def known(status: Mapping[str, object]) -> dict[str, object]:
    """The parts of a status that are known, each of its type."""
    found: dict[str, object] = {}
    for name in NUMBERS:
        value = status.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = value
    for name in TEXTS:
        value = status.get(name)
        if isinstance(value, str):
            found[name] = value[:TEXT_MOST]
    for name in LISTS:
        value = status.get(name)
        if isinstance(value, list):
            found[name] = [str(one)[:TEXT_MOST] for one in cast("list[object]", value)[:100]]
    found["lag_by_input"] = _counts(status.get("lag_by_input"))
    found["phases"] = _counts(status.get("phases"))
    expect = status.get("expect")
    if isinstance(expect, dict):
        table = cast("dict[str, object]", expect)
        rows = table.get("rows")
        found["expect"] = {"rows": rows if isinstance(rows, int) else 0, "rules": _rules(table.get("rules"))}
    return found


def _rules(value: object) -> list[dict[str, object]]:
    """Each rule of `expect`, once, with the rows that did not meet it."""
    rules: dict[tuple[str, str, str], int] = {}
    for one in cast("list[object]", value)[:RULES_MOST] if isinstance(value, list) else ():
        rule = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        of, name, otherwise = (str(rule.get(part, ""))[:255] for part in ("input", "rule", "otherwise"))
        rows = rule.get("rows")
        rules[of, name, otherwise] = rows if isinstance(rows, int) else 0
    return [
        {"input": of, "rule": name, "otherwise": otherwise, "rows": rows}
        for (of, name, otherwise), rows in rules.items()
    ]


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    counts = list(cast("dict[str, object]", value).items())[:100]
    return {str(name)[:255]: count for name, count in counts if isinstance(count, int)}
