"""A pipeline as the driver gets it: plain values from the settings, and the digest that ties a checkpoint to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast
from urllib.parse import quote, urlsplit, urlunsplit

from penstock.records.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """Where a batch goes: messages of a topic or queue, or Parquet files in a folder."""

    topic: str | None
    table: str | None
    exchange: str = ""
    vhost: str = "/"

    @property
    def text(self) -> str:
        """For people."""
        return f"table {self.table}" if self.table is not None else f"topic {self.topic}"


@dataclass(frozen=True, slots=True)
class Check:
    """What each input row must satisfy, and what becomes of the others."""

    that: str
    otherwise: str  # dead-letter, drop, fail
    topic: str | None


@dataclass(frozen=True, slots=True)
class Definition:
    """One pipeline.  Its name is also that of its stream and of its checkpoint folder."""

    name: str
    queue: str | None
    topic: str | None
    exchange: str
    vhost: str
    mode: str  # queue, log
    filter: str | None
    columns: str  # `json`, or DDL
    max_rows: int
    sql: str | None
    python: str | None
    to: tuple[Output, ...]
    trigger_us: int
    output_mode: str | None
    expect: tuple[Check, ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Definition:
        """From the JSON form of a `[[pipeline]]` (durations in microseconds)."""
        source = cast("Mapping[str, Any]", given["from"])
        queue = source.get("queue")
        return cls(
            given["name"],
            queue,
            source.get("topic"),
            source.get("exchange") or "",
            source.get("vhost") or "/",
            source.get("mode") or ("queue" if queue is not None else "log"),
            source.get("filter"),
            source.get("columns") or "json",
            int(source.get("max_rows") or 100_000),
            given.get("sql"),
            given.get("python"),
            tuple(
                Output(one.get("topic") or one.get("queue"), one.get("table"), one.get("exchange") or "", one["vhost"])
                for one in given["to"]
            ),
            int(given["trigger"]),
            given.get("output_mode"),
            tuple(Check(one["that"], one["otherwise"], one.get("topic")) for one in given.get("expect") or ()),
        )

    def digest(self) -> str:
        """Changes when rows would come out otherwise; how often and how much at once is nothing to a checkpoint."""
        told = {name: value for name, value in asdict(self).items() if name not in ("max_rows", "trigger_us")}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def with_vhost(url: str, vhost: str) -> str:
    """The same server, another vhost."""
    return urlunsplit(urlsplit(url)._replace(path="/" + ("" if vhost == "/" else quote(vhost, safe=""))))
