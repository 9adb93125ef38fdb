"""The options of `format("penstock")`: names, types, and which exclude each other.

Spark hands options over as text under lower-case names.  Every error names the option as the documentation writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where
from penstock.units import parse_duration, parse_size

PATTERN_LETTERS = frozenset("^$*+?()[]{}|\\")
"""A topic with one of these is a pattern; a dot alone makes none."""

STATES = ("ready", "leased", "delayed")

COMMON = ("url", "user", "password", "vhost", "topic", "exchange", "queue", "path", "patience")
READ = (
    *COMMON, "states", "log", "startingLsn", "endingLsn", "mode", "stream", "startingBookmark", "endingBookmark",
    "startingOffsets", "endingOffsets", "startingTimestamp", "filter", "maxRowsPerTrigger", "maxBytesPerTrigger",
    "minPartitions", "schema", "parse", "badRecordsTopic", "failOnDataLoss",
)  # fmt: skip
WRITE = (*COMMON, "ordered", "settleStream")
FROM_SPARK = ("checkpointLocation", "queryName", "serialization.format", "__partition_columns", "outputMode")
"""What Spark puts among the options by itself."""

LATER = {
    "view": "views are not in this version",
    "orderby": "group keys are not in this version",
    "abandon_after": "planned batches wait without a limit in this version; action `stream_release` ends that",
}


class Taker:
    """Options by name.  Unknown ones are refused with the nearest known name."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        names = {name.lower(): name for name in (*known, *FROM_SPARK)}
        for name in self._given:
            if name in LATER and name not in names:
                raise InvalidArgument(f"option {name}: {LATER[name]}")
            if name not in names:
                near = get_close_matches(name, names, n=1, cutoff=0.6)
                hint = f"; did you mean {names[near[0]]}?" if near else f"; known: {', '.join(sorted(known))}"
                raise InvalidArgument(f"unknown option {name!r}{hint}")

    def text(self, name: str) -> str | None:
        """Its text, or None when absent or empty."""
        return self._given.get(name.lower()) or None

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgument(f"option {name} is {value!r}, not true or false")
        return value.lower() == "true"

    def count(self, name: str, low: int = 0) -> int | None:
        """A whole number of at least `low`."""
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or int(value) < low:
            raise InvalidArgument(f"option {name} is {value!r}, not a whole number of at least {low}")
        return int(value)

    def size(self, name: str) -> int | None:
        """Bytes: a number, or text with a unit."""
        value = self.text(name)
        if value is None or value.isdigit():
            return None if value is None else int(value)
        try:
            return parse_size(value)
        except ValueError as error:
            raise InvalidArgument(f"option {name}: {error}") from None

    def either(self, *names: str) -> str | None:
        """The one of several names that is given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidArgument(f"options {given[0]} and {given[1]} say the same thing: give one of them")
        return self.text(given[0]) if given else None

    def where(self, patience_s: float) -> Where:
        """The server; `patience_s` where the option does not say."""
        url = self.text("url") or os.environ.get("PENSTOCK_URL") or "penstock://localhost"
        vhost = self.text("vhost")
        if vhost is not None:
            raise InvalidArgument("option vhost: the vhost is part of the url, as in penstock://localhost/vhost")
        patience = self.text("patience")
        try:
            seconds = patience_s if patience is None else parse_duration(patience) / 1e6
        except ValueError as error:
            raise InvalidArgument(f"option patience: {error}") from None
        return Where(url, self.text("user"), self.text("password"), seconds)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how."""

    where: Where
    topic: str | None = None
    exchange: str = ""
    queue: str | None = None
    states: tuple[str, ...] = ("ready",)
    log: bool = False
    starting_lsn: int | None = None
    ending_lsn: int | None = None
    mode: str | None = None
    stream: str | None = None
    starting: str | None = None  # a bookmark, or None for the default of what is read
    ending: str | None = None
    filter: str | None = None
    max_rows: int = 100_000
    max_bytes: int | None = None
    min_partitions: int | None = None
    ddl: str | None = None  # of the body's columns
    parse: bool = False
    bad_records_topic: str | None = None
    fail_on_data_loss: bool = True
    given: tuple[str, ...] = ()  # names of those that were given

    @property
    def is_pattern(self) -> bool:
        """Whether `topic` stands for several topics."""
        return self.topic is not None and not PATTERN_LETTERS.isdisjoint(self.topic)

    def replay(self) -> dict[str, object]:
        """Fields of a replay that choose the messages."""
        name = "pattern" if self.is_pattern else "topic"
        return {name: self.topic, "exchange": self.exchange, "filter": self.filter}


def read_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> ReadOptions:
    """Options of a read; `patience_s` where they do not say.  Raises InvalidArgument."""
    take = Taker(given, READ)
    topic, queue, path, log = take.text("topic"), take.text("queue"), take.text("path"), take.flag("log")
    mode, ddl, parse = take.text("mode"), take.text("schema"), take.text("parse")
    if path is not None and (topic or queue or log):
        raise InvalidArgument("load(name) is short for option topic or queue: give one of them")
    if path is not None:
        topic, queue = (None, path) if mode == "queue" else (path, None)
    named = [name for name, value in (("topic", topic), ("queue", queue), ("log", log)) if value]
    if len(named) != 1:
        what = " and ".join(named)
        raise InvalidArgument(
            f"options {what} exclude each other: read one of them"
            if named
            else "say what to read: option topic, queue, or log = true"
        )
    if mode not in (None, "log", "queue"):
        raise InvalidArgument(f"option mode is {mode!r}, not log or queue")
    if parse not in (None, "json"):
        raise InvalidArgument(f"option parse is {parse!r}, and json is what can be parsed")
    states = tuple(name.strip() for name in (take.text("states") or "ready").split(","))
    for state in states:
        if state not in STATES:
            raise InvalidArgument(f"option states has {state!r}; there are {', '.join(STATES)}")
    bad = take.text("badRecordsTopic")
    if bad is not None and ddl is None and parse is None:
        raise InvalidArgument("option badRecordsTopic needs a schema that bodies can fail to have: give option schema")
    starting = take.either("startingBookmark", "startingOffsets", "startingTimestamp")
    ending = take.either("endingBookmark", "endingOffsets")
    if not log and (take.count("startingLsn") is not None or take.count("endingLsn") is not None):
        raise InvalidArgument("options startingLsn and endingLsn go with log = true; use startingBookmark for a topic")
    return ReadOptions(
        take.where(patience_s),
        topic,
        take.text("exchange") or "",
        queue,
        states,
        log,
        take.count("startingLsn"),
        take.count("endingLsn"),
        mode,
        take.text("stream"),
        starting,
        ending,
        take.text("filter"),
        take.count("maxRowsPerTrigger", 1) or 100_000,
        take.size("maxBytesPerTrigger"),
        take.count("minPartitions", 1),
        ddl,
        ddl is not None or parse is not None,
        bad,
        take.flag("failOnDataLoss", True),
        tuple(name for name in READ if take.text(name) is not None),
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go."""

    where: Where
    topic: str | None  # for rows without one of their own
    exchange: str = ""
    settle_stream: str | None = None
    checkpoint: str | None = None
    name: str = ""  # of the query, for people


def write_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> WriteOptions:
    """Options of a write; `patience_s` where they do not say.  Raises InvalidArgument."""
    take = Taker(given, WRITE)
    topic, queue, path = take.text("topic"), take.text("queue"), take.text("path")
    if sum(value is not None for value in (topic, queue, path)) > 1:
        raise InvalidArgument("options topic, queue and save(name) exclude each other: give one of them")
    if queue is not None and take.text("exchange"):
        raise InvalidArgument("option exchange goes with topic; a queue is written through the default exchange")
    take.flag("ordered", True)  # rows keep the order of partitions and of rows within them, asked for or not
    return WriteOptions(
        take.where(patience_s),
        topic or queue or path,
        take.text("exchange") or "",
        take.text("settleStream"),
        take.text("checkpointLocation"),
        take.text("queryName") or "",
    )
