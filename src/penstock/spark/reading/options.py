"""The options of a read: what is read, from where to where, and how its bodies are parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.errors import ExpressionError, InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.ddl import parse_ddl
from penstock.spark.options import COMMON, Taker
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where
from penstock.units import parse_duration
from penstock.wire.flight.bookmarks import Point, parse_span
from penstock.wire.flight.tickets import STATES

PATTERN_LETTERS = frozenset("^$*+?()[]{}|\\")
"""A topic with one of these is a pattern; a dot alone makes none."""

MILLISECONDS = 12
"""Digits from which on a number as a timestamp counts milliseconds since 1970, as Kafka's source has it."""

DIRECT = ("auto", "true", "false")
"""Whether tasks read the log's own files: where they can, always, never."""

REGISTERED = "registered"
"""What option schema is where the topic's declared schema is meant."""

READ = (
    *COMMON, "states", "log", "startingLsn", "endingLsn", "mode", "stream", "startingBookmark", "endingBookmark",
    "startingOffsets", "endingOffsets", "startingTimestamp", "filter", "maxRowsPerTrigger", "maxBytesPerTrigger",
    "minPartitions", "backfillUntil", "backfillMaxRows", "backfillOnly", "schema", "parse", "badRecordsTopic",
    "failOnDataLoss", "view", "direct", "abandon_after",
    "orderBy", "poisonAfter", "poisonBlame", "onLostCheckpoint", "beside", "pipeline",
)  # fmt: skip


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
    backfill_until: int | None = None  # a stream takes `backfill_rows` at once before this LSN, and cuts a batch there
    backfill_rows: int = 1_000_000
    backfill_only: bool = False  # and ends there
    filter: str | None = None
    max_rows: int = 100_000
    max_bytes: int | None = None
    min_partitions: int | None = None
    ddl: str | None = None  # of the body's columns
    parse: bool = False
    bad_records_topic: str | None = None
    fail_on_data_loss: bool = True
    abandon_after: str | None = None  # a duration, or None: as the server has it
    order_by: str | None = None  # mode queue: rows of one value are in one partition, in order
    poison_after: int = 0  # mode queue: failures of a batch after which the row to blame is looked for; 0: never
    poison_blame: bool = True  # whether rows may be to blame for what ended the run before; pipelines know
    continue_lost: bool = False  # mode queue: a query without a checkpoint goes on where the stream stands
    given: tuple[str, ...] = ()  # names of those that were given
    view: str | None = None  # a view, a conflated topic, or a topic with a key
    beside: tuple[str, ...] = ()  # other streams of the same query, which do not wait while this one is idle
    pipeline: str | None = None  # whose stream it is
    direct: str = "auto"
    registered: bool = False  # the topic's declared schema is asked for

    @property
    def is_pattern(self) -> bool:
        """Whether `topic` stands for several topics."""
        return self.topic is not None and not PATTERN_LETTERS.isdisjoint(self.topic)

    def replay(self) -> dict[str, object]:
        """Fields of a replay that choose the messages."""
        name = "pattern" if self.is_pattern else "topic"
        return {name: self.topic, "exchange": self.exchange, "filter": self.filter}

    @property
    def what(self) -> str:
        """What is read, for a person."""
        for kind, name in (("queue", self.queue), ("view", self.view), ("topic", self.topic)):
            if name is not None:
                return f"{kind} {name!r}"
        return "the log"


def check_ddl(ddl: str) -> None:
    """InvalidArgument for what is no schema of a body, before Spark sees it among the columns of messages."""
    if re.search(r"\b(not\s+null|comment)\b", ddl, re.IGNORECASE):
        return  # Spark reads that too
    try:
        parse_ddl(ddl)
    except ValueError as error:
        raise InvalidArgument(f"option schema: {error}") from None


def read_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> ReadOptions:
    """Options of a read; `patience_s` where they do not say.  Raises InvalidArgument."""
    take = Taker(given, READ)
    topic, queue, path, log = take.text("topic"), take.text("queue"), take.text("path"), take.flag("log")
    mode, ddl, parse, view = take.text("mode"), take.text("schema"), take.text("parse"), take.text("view")
    if path is not None and (topic or queue or log or view):
        raise InvalidArgument("load(name) is short for option topic or queue: give one of them")
    if path is not None:
        topic, queue = (None, path) if mode in ("queue", "changes") else (path, None)
    named = [name for name, value in (("topic", topic), ("queue", queue), ("view", view), ("log", log)) if value]
    if len(named) != 1:
        what = " and ".join(named)
        raise InvalidArgument(
            f"options {what} exclude each other: read one of them"
            if named
            else "say what to read: option topic, queue, view, or log = true"
        )
    if mode not in (None, "log", "queue", "changes"):
        raise InvalidArgument(f"option mode is {mode!r}, not log, queue or changes")
    if parse not in (None, "json"):
        raise InvalidArgument(f"option parse is {parse!r}, and json is what can be parsed")
    direct = (take.text("direct") or "auto").lower()
    if direct not in DIRECT:
        raise InvalidArgument(f"option direct is {direct!r}; there are {', '.join(DIRECT)}")
    if log and (ddl is not None or parse is not None):
        raise InvalidArgument("options schema and parse are for bodies of messages; the log has columns of its own")
    registered = ddl is not None and ddl.strip().lower() == REGISTERED
    if registered:
        ddl = None
    if ddl is not None:
        check_ddl(ddl)
    states = tuple(name.strip() for name in (take.text("states") or "ready").split(","))
    for state in states:
        if state not in STATES:
            raise InvalidArgument(f"option states has {state!r}; there are {', '.join(STATES)}")
    bad = take.text("badRecordsTopic")
    if bad is not None and ddl is None and parse is None and not registered:
        raise InvalidArgument("option badRecordsTopic needs a schema that bodies can fail to have: give option schema")
    starting = _place(take, "startingBookmark", "startingOffsets", "startingTimestamp")
    ending = _place(take, "endingBookmark", "endingOffsets")
    chosen = take.text("filter")
    if chosen is not None:
        _check_filter(chosen)
    if view is not None and (starting is not None or ending is not None):
        raise InvalidArgument(f"view {view!r} has no past: startingBookmark and endingBookmark go with a topic")
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
        take.count("backfillUntil"),
        take.count("backfillMaxRows", 1) or 1_000_000,
        take.flag("backfillOnly", False),
        chosen,
        take.count("maxRowsPerTrigger", 1) or 100_000,
        take.size("maxBytesPerTrigger"),
        take.count("minPartitions", 1),
        ddl,
        ddl is not None or registered or parse is not None,
        bad,
        take.flag("failOnDataLoss", True),
        abandoning(take.text("abandon_after")),
        take.text("orderBy"),
        take.count("poisonAfter") or 0,
        take.flag("poisonBlame", True),
        _lost(take.text("onLostCheckpoint")),
        tuple(name for name in READ if take.text(name) is not None),
        view,
        tuple(name for name in (take.text("beside") or "").split(",") if name),
        take.text("pipeline"),
        direct,
        registered,
    )


def _place(take: Taker, *names: str) -> str | None:
    """The bookmark that one of these options gives; a number of milliseconds since 1970 is written as a time."""
    text = take.either(*names)
    if text is None:
        return None
    text = text.strip()
    if text.isdigit() and len(text) >= MILLISECONDS:
        return datetime.fromtimestamp(int(text) / 1000, UTC).isoformat()
    try:
        parse_span(text, lambda: Point("epoch"))  # what MOST_RECENT is, and whether it may be said, is the server's
    except InvalidArgument as error:
        raise InvalidArgument(f"option {next(name for name in names if take.text(name))}: {error}") from None
    return text


def _check_filter(text: str) -> None:
    """ExpressionError with the option's name: a mistake is told when it is made, and not by every task."""
    from penstock.expr import compile_filter

    try:
        compile_filter(text)
    except ExpressionError as error:
        where = f" at character {error.place + 1}" if error.text else ""
        raise ExpressionError(f"option filter, {text!r}{where}: {error}", text=error.text, place=error.place) from None


def abandoning(text: str | None) -> str | None:
    """`abandon_after` as the server takes it: a duration, `off` for never."""
    if text is None:
        return None
    if text.strip().lower() in ("off", "never"):
        return "0s"
    try:
        parse_duration(text)
    except ValueError as error:
        raise InvalidArgument(f"option abandon_after: {error}; write a duration as in 7d, or off") from None
    return text


def _lost(choice: str | None) -> bool:
    if choice not in (None, "fail", "continue"):
        raise InvalidArgument(f"option onLostCheckpoint is {choice!r}, not fail or continue")
    return choice == "continue"
