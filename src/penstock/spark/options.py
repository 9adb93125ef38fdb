"""The options of `format("penstock")`: names, types, and which exclude each other.

Every error names the option as the documentation writes it; `taker` has what takes one.  A read's options are the rows
of `_READ`, and what of them cannot be together those of `_APART`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.errors import ExpressionError, InvalidArgument, told_as
from penstock.records.dataclass import dataclass
from penstock.records.ddl import for_spark
from penstock.records.message_types import FIELDLESS, MESSAGE_TYPES, SCHEMA_TYPES, MessageType, wrong_type
from penstock.records.regular_expressions import topic_pattern
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where
from penstock.spark.taker import COMMON, SHOWN, Taker, whole
from penstock.units import parse_duration
from penstock.wire.flight.bookmarks import Point, parse_span
from penstock.wire.flight.tickets import BATCH_ROWS_MOST, RANGES_MOST, STATES

# -- reads

PATTERN_LETTERS = frozenset("^$*+?()[]{}|\\")
"""A topic with one of these is a pattern; a dot alone makes none."""

MILLISECONDS = 12
"""Digits from which on a number as a timestamp counts milliseconds since 1970, as Kafka's source has it."""

DIRECT = ("auto", "true", "false")
"""Whether tasks read the log's own files: where they can, always, never."""

REGISTERED = "registered"
"""What option schema is where the topic's declared schema is meant."""


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
    min_rows: int | None = None  # of a batch, unless `max_delay_s` have passed since the one before
    max_delay_s: float = 900.0
    min_partitions: int | None = None
    ddl: str | None = None  # of the body's columns
    parse: MessageType | None = None  # what its reader says that the bodies are
    bad_records_topic: str | None = None
    rescued: str | None = None  # the column of what no other column has
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
    read_from: str = "leader"  # of a cluster of servers, or from its followers, as far as those have it
    schema_version: int | None = None  # which one of them; None: the newest
    keep_schema: bool = False  # what was found is registered with the topic
    registered: bool = False  # the topic's declared schema is asked for

    @property
    def is_pattern(self) -> bool:
        """Whether `topic` stands for several topics."""
        return self.topic is not None and not PATTERN_LETTERS.isdisjoint(self.topic)

    def takes(self, topic: str) -> bool:
        """Whether what is published to this topic of the default exchange is read, as far as options tell."""
        if self.topic is None or self.exchange:
            return topic in (self.queue, self.view)
        return topic_pattern(self.topic)(topic)

    def replay(self) -> dict[str, object]:
        """Fields of a replay that choose the messages."""
        name = "pattern" if self.is_pattern else "topic"
        return {name: self.topic, "exchange": self.exchange, "filter": self.filter}

    def named(self, field: str) -> str:
        """The option that gave this field, of those that may."""
        return next(one.name for one in _READ if one.field == field and one.name in self.given)

    @property
    def what(self) -> str:
        """What is read, for a person."""
        for kind, name in (("queue", self.queue), ("view", self.view), ("topic", self.topic)):
            if name is not None:
                return f"{kind} {name!r}"
        return "the log"

    def what_and_where(self, vhost: str) -> str:
        """The same so that nothing else is called so, as a checkpoint has it."""
        of = f" of exchange {self.exchange!r}" if self.exchange else ""
        return f"{self.what}{of} in vhost {vhost!r}"


def _topic(take: Taker, name: str) -> str | None:
    """A topic's name, or a pattern, which may be longer."""
    text = str(take.text(name))
    if PATTERN_LETTERS.isdisjoint(text):
        return take.name(name)
    with told_as(InvalidArgument, f"option {name if name != 'path' else 'topic'}: "):
        topic_pattern(text)
    return text


def _states(take: Taker, name: str) -> tuple[str, ...]:
    states = tuple(one.strip() for one in str(take.text(name)).split(","))
    for state in states:
        if state not in STATES:
            raise InvalidArgument(f"option {name} has {state[:SHOWN]!r}; there are {', '.join(STATES)}")
    return states


def place(text: str) -> str:
    """A bookmark; a number of milliseconds since 1970 is written as a time.  InvalidArgument for what is no place."""
    text = text.strip()
    if (number := whole(text)) is not None and len(text) >= MILLISECONDS:
        try:
            return datetime.fromtimestamp(number / 1000, UTC).isoformat()
        except (ValueError, OverflowError, OSError):  # as the C library says it
            raise InvalidArgument(f"{text!r} is no time: milliseconds since 1970 end with the year 9999") from None
    parse_span(text, lambda: Point("epoch"))  # what MOST_RECENT is, and whether it may be said, is the server's
    return text


def _place(take: Taker, name: str) -> str:
    with told_as(InvalidArgument, f"option {name}: ", instead=InvalidArgument):
        return place(str(take.text(name)))


def _filter(take: Taker, name: str) -> str:
    from penstock.expr import compile_filter

    return _compiled(take, name, compile_filter)


def _value(take: Taker, name: str) -> str:
    from penstock.expr import compile_value

    return _compiled(take, name, compile_value)


def _compiled(take: Taker, name: str, compile_one: Callable[[str], object]) -> str:
    """An expression, compiled here too: a mistake is told when it is made, and not by every task."""
    text = str(take.text(name))
    try:
        compile_one(text)
    except ExpressionError as error:
        where = f" at character {error.place + 1}" if error.text else ""
        raise ExpressionError(f"option {name}, {text!r}{where}: {error}", text=error.text, place=error.place) from None
    return text


def _schema(take: Taker, name: str) -> str:
    """Columns of bodies.  What is no schema is told before Spark sees it among the columns of messages."""
    ddl = str(take.text(name))
    if _is_registered(ddl):
        return ddl
    with told_as(InvalidArgument, f"option {name}: "):
        return for_spark(ddl)


def _is_registered(ddl: str | None) -> bool:
    return ddl is not None and ddl.strip().lower() == REGISTERED


WHATEVER = "whatever the bodies are"
"""Option `parse` where the columns are named and it is not."""


def _type(take: Taker, name: str) -> MessageType:
    kind = str(take.text(name))
    if (kind not in SCHEMA_TYPES and wrong_type(kind)) or kind in FIELDLESS:
        known = ", ".join(one for one in (*MESSAGE_TYPES, *SCHEMA_TYPES) if one not in FIELDLESS)
        raise InvalidArgument(f"option {name} is {kind[:SHOWN]!r}, and {known} is what can be parsed")
    return kind


def _direct(take: Taker, name: str) -> str:
    choice = str(take.text(name)).lower()
    if choice not in DIRECT:
        raise InvalidArgument(f"option {name} is {choice[:SHOWN]!r}; there are {', '.join(DIRECT)}")
    return choice


def _seconds(take: Taker, name: str) -> float:
    with told_as(InvalidArgument, f"option {name}: "):
        return parse_duration(str(take.text(name))) / 1e6


def _continuing(take: Taker, name: str) -> bool:
    return take.word(name, "fail", "continue") == "continue"


def _abandoning(take: Taker, name: str) -> str:
    """As the server takes it: a duration, `0s` for never."""
    text = str(take.text(name))
    if text.strip().lower() in ("off", "never"):
        return "0s"
    try:
        parse_duration(text)
    except ValueError as error:
        raise InvalidArgument(f"option {name}: {error}, or off") from None
    return text


TOPIC, QUEUE, VIEW, LOG = (f"a batch read of {what}" for what in ("a topic", "a queue", "a view", "the log"))
LOG_MODE, QUEUE_MODE, CHANGES_MODE = (f"a stream in mode {mode}" for mode in ("log", "queue", "changes"))
STREAMS = (LOG_MODE, QUEUE_MODE, CHANGES_MODE)
READS = (TOPIC, QUEUE, VIEW, LOG, *STREAMS)
"""What is read, and how, in the words that errors have for it."""


@dataclass(frozen=True, slots=True)
class _Option:
    """An option of a read: the field that takes it, what reads it where it is given, and in which reads it says
    something."""

    name: str
    field: str
    read: Callable[[Taker, str], Any] = Taker.text
    of: tuple[str, ...] = READS


_READ = (
    _Option("topic", "topic", _topic),
    _Option("exchange", "exchange", Taker.name, (TOPIC, VIEW, LOG_MODE)),
    _Option("queue", "queue", Taker.name),
    _Option("view", "view", Taker.name),
    _Option("log", "log", Taker.flag),
    _Option("states", "states", _states, (QUEUE,)),
    _Option("startingLsn", "starting_lsn", Taker.count, (LOG,)),
    _Option("endingLsn", "ending_lsn", Taker.count, (LOG,)),
    _Option("mode", "mode", lambda take, name: take.word(name, "log", "queue", "changes"), STREAMS),
    _Option("stream", "stream", Taker.name, STREAMS),
    _Option("startingBookmark", "starting", _place, (TOPIC, LOG_MODE)),
    _Option("startingOffsets", "starting", _place, (TOPIC, LOG_MODE)),
    _Option("startingTimestamp", "starting", _place, (TOPIC, LOG_MODE)),
    _Option("endingBookmark", "ending", _place, (TOPIC,)),
    _Option("endingOffsets", "ending", _place, (TOPIC,)),
    _Option("backfillUntil", "backfill_until", Taker.count),
    _Option("backfillMaxRows", "backfill_rows", lambda take, name: take.count(name, 1)),
    _Option("backfillOnly", "backfill_only", Taker.flag),
    _Option("filter", "filter", _filter, (TOPIC, QUEUE, VIEW, LOG_MODE)),
    _Option("maxRowsPerTrigger", "max_rows", lambda take, name: take.count(name, 1), STREAMS),
    _Option("maxBytesPerTrigger", "max_bytes", Taker.size, STREAMS),
    _Option("minRowsPerTrigger", "min_rows", lambda take, name: take.count(name, 1), (LOG_MODE, QUEUE_MODE)),
    _Option("maxTriggerDelay", "max_delay_s", _seconds, (LOG_MODE, QUEUE_MODE)),
    _Option("minPartitions", "min_partitions", lambda take, name: take.count(name, 1, RANGES_MOST)),
    _Option("schema", "ddl", _schema),
    _Option("parse", "parse", _type),
    _Option("schemaVersion", "schema_version", lambda take, name: take.count(name, 1)),
    _Option("keepSchema", "keep_schema", Taker.flag),
    _Option("badRecordsTopic", "bad_records_topic", Taker.name),
    _Option("rescuedDataColumn", "rescued"),
    _Option("failOnDataLoss", "fail_on_data_loss", Taker.flag),
    _Option("abandon_after", "abandon_after", _abandoning, STREAMS),
    _Option("orderBy", "order_by", _value, (QUEUE_MODE,)),
    _Option("poisonAfter", "poison_after", Taker.count, (QUEUE_MODE,)),
    _Option("poisonBlame", "poison_blame", Taker.flag),
    _Option("onLostCheckpoint", "continue_lost", _continuing, (QUEUE_MODE,)),
    _Option("beside", "beside", lambda take, name: tuple(one for one in str(take.text(name)).split(",") if one)),
    _Option("pipeline", "pipeline"),
    _Option("direct", "direct", _direct),
    _Option("readFrom", "read_from", lambda take, name: take.word(name, "leader", "followers")),
)

READ = tuple(dict.fromkeys((*COMMON, *(option.name for option in _READ))))

_FIELDS = tuple(dict.fromkeys(option.field for option in _READ))


@dataclass(frozen=True, slots=True)
class _Apart:
    """What cannot be: in which reads, and why, with the options as `{one}`."""

    broken: Callable[[ReadOptions], object]
    why: str


_APART = (
    _Apart(
        lambda one: one.log and one.parse,
        "options schema and parse are for bodies of messages; the log has columns of its own",
    ),
    _Apart(
        lambda one: one.bad_records_topic is not None and not one.parse,
        "option badRecordsTopic needs a schema that bodies can fail to have: give option schema",
    ),
    _Apart(
        lambda one: one.bad_records_topic is not None and one.takes(one.bad_records_topic),
        "option badRecordsTopic is {one.bad_records_topic!r}, which is read here: a bad body would come for ever",
    ),
    _Apart(
        lambda one: one.rescued is not None and not one.parse,
        "option rescuedDataColumn is for what has no place among the columns of bodies: give option schema or parse",
    ),
    _Apart(
        lambda one: one.schema_version is not None and not one.registered,
        "option schemaVersion says which of the registered schemas is meant: it goes with schema = registered",
    ),
    _Apart(
        lambda one: one.keep_schema and (not one.parse or one.registered or one.ddl is not None),
        "option keepSchema keeps what is found in messages: it goes with parse = json, and not with schema",
    ),
    _Apart(
        lambda one: one.ending_lsn is not None and (one.starting_lsn or 0) > one.ending_lsn,
        "option startingLsn is {one.starting_lsn}, and endingLsn {one.ending_lsn}: that ends before it begins",
    ),
    _Apart(
        lambda one: one.queue is not None and one.max_rows > BATCH_ROWS_MOST,
        f"option maxRowsPerTrigger is {{one.max_rows}}, and at most {BATCH_ROWS_MOST} of a queue are a batch",
    ),
    _Apart(
        lambda one: one.min_rows is not None and one.min_rows > one.max_rows,
        "option minRowsPerTrigger is {one.min_rows}, and a batch has {one.max_rows} messages at most: "
        "maxRowsPerTrigger says so",
    ),
    _Apart(
        lambda one: "maxTriggerDelay" in one.given and one.min_rows is None,
        "option maxTriggerDelay goes with minRowsPerTrigger, which says for what a batch waits",
    ),
    _Apart(
        lambda one: one.read_from == "followers" and "," not in one.where.url.partition("?")[0],
        "option readFrom is followers, and the url names one server: name all of the cluster, as in penstock://a,b,c",
    ),
)


def read_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> ReadOptions:
    """Options of a read; `patience_s` where they do not say.  Raises InvalidArgument."""
    take = Taker(given, READ)
    values: dict[str, Any] = {}
    for field in _FIELDS:
        rows = {option.name: option for option in _READ if option.field == field}
        name = take.either(*rows)
        if name is not None:
            values[field] = rows[name].read(take, name)
    values |= _source(take, values)
    if (ddl := values.get("ddl")) is not None:
        registered = _is_registered(ddl)
        values |= {"ddl": None if registered else ddl, "registered": registered, "parse": values.get("parse", WHATEVER)}
    options = ReadOptions(take.where(patience_s), given=tuple(one for one in READ if take.text(one)), **values)
    for row in _APART:
        if row.broken(options):
            raise InvalidArgument(row.why.format(one=options))
    return options


def refuse_idle(options: ReadOptions, read: str) -> None:
    """InvalidArgument for an option that says nothing in such a read, where who gave it believes that it does."""
    for option in _READ:
        if option.name in options.given and read not in option.of:
            *some, last = option.of
            places = f"{', '.join(some)} or {last}" if some else last
            raise InvalidArgument(f"option {option.name} has no effect in {read}: it is for {places}")


def _source(take: Taker, values: Mapping[str, Any]) -> dict[str, str]:
    """What `load(name)` stands for.  InvalidArgument unless exactly one thing is read."""
    named = [name for name in ("topic", "queue", "view", "log") if values.get(name)]
    if take.text("path") is not None:
        if named:
            raise InvalidArgument("load(name) is short for option topic or queue: give one of them")
        if values.get("mode") in ("queue", "changes"):
            return {"queue": str(take.name("path"))}
        return {"topic": str(_topic(take, "path"))}
    if len(named) != 1:
        raise InvalidArgument(
            f"options {' and '.join(named)} exclude each other: read one of them"
            if named
            else "say what to read: option topic, queue, view, or log = true"
        )
    return {}


# -- writes

WRITE = (*COMMON, "ordered", "delta", "settleStream", "unroutable", "txnAppId", "txnVersion")

NO_STREAM = "off"
"""`settleStream` that keeps the input out of the commit."""
