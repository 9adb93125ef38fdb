"""How the commands of DoPut, DoExchange and DoGet are written: one JSON object with one key that names the operation.

    DoPut       {"publish": {"topic", "exchange", "vhost", "publisher", "sequence", "delta"}}
                {"stage": {"query", "batch", "partition", "attempt", "topic", "exchange", "vhost", "delta", "ordered"}}
    DoExchange  {"consume": {"queue", "vhost", "filter", "backlog", "name", "no_ack", "heartbeat",
                    "max_backlog"}}     queue: a name, or a pattern of names
                {"link": {"name", "site", "origin", "group", "sync", "offers"}}     `wire.flight.linking` has the rest
    DoGet       {"queue": {"name", "vhost", "states", "limit", "filter", "columns"}}
                {"replay": {"topic", "exchange", "vhost", "pattern", "bookmark", "bookmark_not_found", "filter",
                            "limit", "columns", "follow", "rate", "rate_max_gap", "stream", "id", "select",
                            "fully_durable", "timestamp"}}
                {"sow": {"topic", "exchange", "vhost", "filter", "order_by", "top_n", "skip_n", "batch_size", "columns",
                         "projection", "grouping", "select", "stats"}}
                {"subscribe": {"topic", "exchange", "vhost", "filter", "sow", "delta", "no_empties", "oof", "order_by",
                               "top_n", "skip_n", "columns", "conflation", "conflation_key", "projection", "grouping",
                               "select", "fully_durable", "timestamp"}}
                {"log": {"from", "to", "columns", "kinds"}}
                {"plan": {"stream", "batch", "part", "parts", "columns", "revision", "query", "query_batch",
                          "epoch", "key"}}
                {"sql": "SELECT ..."}, or {"sql": {"statement", "vhost"}}

Owns names, types and ranges.  Refuses to know what a queue or a topic is.  Every error is an InvalidArgument that names
the operation, the field and what it may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast

from penstock.errors import InvalidArgument
from penstock.records.kinds import Kind
from penstock.wire.fields import LSN_MAX, NAME_LIMIT, NUMBER_MOST, Fields, nearest, read_json, shown, write_json
from penstock.wire.flight.commands import (
    BATCH_MOST,
    DEFAULT_VHOST,
    HEARTBEAT_US,
    Consume,
    Get,
    Link,
    LogRange,
    Plan,
    Publish,
    Put,
    QueueContent,
    Replay,
    Sow,
    Sql,
    Stage,
    Subscribe,
    Transact,
)

SITES_MOST = 1000


def origin_of(fields: Fields, name: str) -> int:
    """The number of a log, which is text in JSON."""
    return _origin(fields.where, fields.name(name))


def _origin(where: str, text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 21 and int(text) < 2**64):
        raise InvalidArgument(f"{where}: origin {shown(text)} is no number of a log")
    return int(text)


def sites_of(fields: Fields, name: str) -> tuple[tuple[str, int, str], ...]:
    """Sites that somebody has met."""
    found = fields.objects(name)
    if len(found) > SITES_MOST:
        raise InvalidArgument(f"{fields.where}: {len(found)} {name}; {SITES_MOST} are the most")
    return tuple(_site(fields.where, one) for one in found)


def _site(where: str, given: object) -> tuple[str, int, str]:
    text, values = shown(given), cast("list[object]", given) if isinstance(given, list) else []
    if len(values) != 3:
        raise InvalidArgument(f"{where}: {text} is no site: name, origin and group")
    name, origin, group = values
    if not isinstance(name, str) or not isinstance(group, str) or not 0 < len(name.encode()) <= NAME_LIMIT:
        raise InvalidArgument(f"{where}: {text} is no site: its name and its group are texts")
    return name, _origin(where, origin), group


def told_sites(sites: Iterable[tuple[str, int, str]]) -> list[list[str]]:
    """Sites as JSON has them: origins as text, which keeps all 64 bits."""
    return [[name, str(origin), group] for name, origin, group in sites]


TEXT_LIMIT = 64 * 1024
"""Bytes of a filter or a pattern; the expression compiler has a budget of its own."""

FIELDS_MOST = 1000
"""Parts of a projection or a grouping; together they have at most 64 KiB."""

STATES: tuple[Literal["ready", "held", "leased", "delayed", "dying", "foreign"], ...] = (
    "ready", "held", "leased", "delayed", "dying", "foreign",
)  # fmt: skip
"""States of the messages of a queue that may be asked for; what is inactive is not looked at."""

BACKLOG_MOST = 1_000_000
"""The largest backlog that a consumer may name."""


REPLAY_COLUMNS = (
    "lsn", "bookmark", "topic", "exchange", "time", "headers", "attempt", "priority", "properties", "body",
    "death_reason",
)  # fmt: skip
LOG_COLUMNS = (
    "lsn", "kind", "name", "via", "route", "time", "expires_at", "not_before", "priority", "properties", "body",
)  # fmt: skip
_CONTENT_COLUMNS = (*REPLAY_COLUMNS, "state")
_RECORDS_COLUMNS = ("sow_key", *REPLAY_COLUMNS)


def _publish(f: Fields) -> Publish:
    publisher, sequence = f.optional_text("publisher"), f.optional_count("sequence", low=1)
    if (publisher is None) != (sequence is None):
        raise InvalidArgument("publish: publisher and sequence belong together; one of them is missing")
    if publisher == "":
        raise InvalidArgument("publish: publisher is empty")
    return Publish(
        f.optional_text("topic"), f.text("exchange"), f.text("vhost", DEFAULT_VHOST), publisher, sequence,
        True if f.flag("delta") else None, f.flag("mandatory"),
    )  # fmt: skip


def _stage(f: Fields) -> Stage:
    found = Stage(
        f.name("query"),
        f.number("batch", high=NUMBER_MOST),
        f.number("partition"),
        f.count("attempt"),
        f.optional_text("topic"),
        f.text("exchange"),
        f.text("vhost", DEFAULT_VHOST),
        f.flag("delta"),
        f.flag("ordered"),
        f.flag("mandatory"),
    )
    if found.mandatory and found.topic is None:
        raise InvalidArgument("stage: mandatory goes with a topic for all rows, and there is none")
    return found


def _transact(f: Fields) -> Transact:
    return Transact(f.text("vhost", DEFAULT_VHOST))


def _consume(f: Fields) -> Consume:
    of_queue(f)
    return Consume(
        f.name("queue"),
        f.text("vhost", DEFAULT_VHOST),
        f.optional_text("filter", TEXT_LIMIT),
        f.optional_count("backlog", low=0, high=BACKLOG_MOST),
        f.text("name"),
        f.flag("no_ack"),
        f.count("priority", 0, -(2**31), 2**31 - 1),
        max(f.duration("heartbeat", HEARTBEAT_US), 1_000_000),
        f.optional_count("max_backlog", low=0, high=BACKLOG_MOST),
    )


def _link(f: Fields) -> Link:
    return Link(
        f.name("name"), f.name("site"), origin_of(f, "origin"), f.text("group"), f.flag("sync"), f.objects("offers"),
        sites_of(f, "sites"),
    )  # fmt: skip


def _queue_content(f: Fields) -> QueueContent:
    return QueueContent(
        f.name("name"),
        f.text("vhost", DEFAULT_VHOST),
        f.names("states", STATES) or ("ready",),
        f.optional_count("limit"),
        f.optional_text("filter", TEXT_LIMIT),
        f.names("columns", _CONTENT_COLUMNS),
    )


def _replay(f: Fields) -> Replay:
    topic, pattern = f.optional_text("topic"), f.optional_text("pattern", TEXT_LIMIT)
    if (topic is None) == (pattern is None):
        raise InvalidArgument("replay: name either a topic or a pattern of topics")
    gap = f.has("rate_max_gap")
    timed = _of_topic(f)
    return Replay(
        topic,
        pattern,
        f.text("exchange"),
        f.text("vhost", DEFAULT_VHOST),
        f.text("bookmark", "EPOCH", TEXT_LIMIT),
        f.optional_text("filter", TEXT_LIMIT),
        f.optional_count("limit"),
        _with_time(f.names("columns", REPLAY_COLUMNS), timed),
        f.text("bookmark_not_found", "now"),
        f.flag("follow"),
        f.optional_text("rate"),
        f.duration("rate_max_gap", 0) if gap else None,
        f.optional_text("stream"),
        f.optional_text("id"),
        select=_select_list(f),
    )


def _sow(f: Fields) -> Sow:
    return Sow(
        f.name("topic"),
        f.text("exchange"),
        f.text("vhost", DEFAULT_VHOST),
        f.optional_text("filter", TEXT_LIMIT),
        tuple(f.texts("order_by", 16)),
        f.optional_count("top_n"),
        f.count("skip_n"),
        f.count("batch_size", BATCH_MOST, 1, BATCH_MOST),
        f.names("columns", _RECORDS_COLUMNS),
        tuple(f.texts("projection", FIELDS_MOST)),
        tuple(f.texts("grouping", FIELDS_MOST)) if f.has("grouping") else None,
        _select_list(f),
        f.flag("stats"),
    )


def _subscribe(f: Fields) -> Subscribe:
    timed = _of_topic(f)
    return Subscribe(
        f.name("topic"),
        f.text("exchange"),
        f.text("vhost", DEFAULT_VHOST),
        f.optional_text("filter", TEXT_LIMIT),
        f.flag("sow", True),
        f.flag("delta"),
        f.flag("no_empties"),
        f.flag("oof"),
        tuple(f.texts("order_by", 16)),
        f.optional_count("top_n"),
        f.count("skip_n"),
        _with_time(f.names("columns", ("event", "reason", *_RECORDS_COLUMNS)), timed),
        f.optional_text("conflation"),
        tuple(f.texts("conflation_key", FIELDS_MOST)),
        tuple(f.texts("projection", FIELDS_MOST)),
        tuple(f.texts("grouping", FIELDS_MOST)) if f.has("grouping") else None,
        _select_list(f),
    )


def _kinds(f: Fields) -> tuple[int, ...] | None:
    """Names of kinds of record, as numbers."""
    names = f.names("kinds", [kind.name.lower() for kind in Kind])
    return None if names is None else tuple(int(Kind[name.upper()]) for name in names)


def _log_range(f: Fields) -> LogRange:
    command = LogRange(f.count("from", 1), f.count("to", LSN_MAX), f.names("columns", LOG_COLUMNS), _kinds(f))
    if command.from_lsn > command.to_lsn:
        raise InvalidArgument(f"log: from {command.from_lsn} is above to {command.to_lsn}")
    return command


def _plan(f: Fields) -> Plan:
    command = Plan(
        f.name("stream"),
        f.number("batch", 1),
        f.count("part"),
        f.count("parts", 1, 1, 100_000),
        f.names("columns", REPLAY_COLUMNS),
        f.optional_count("revision"),
        f.optional_text("query"),
        f.count("query_batch"),
        f.optional_count("epoch"),
        f.optional_text("key", TEXT_LIMIT),
    )
    if command.part >= command.parts:
        raise InvalidArgument(f"plan: part {command.part} of {command.parts} does not exist; parts count from 0")
    return command


def _sql(f: Fields) -> Sql:
    return Sql(f.name("statement", 1 << 20), f.text("vhost", DEFAULT_VHOST))


_PUT: Mapping[str, Callable[[Fields], Put]] = {"publish": _publish, "stage": _stage, "transact": _transact}
_EXCHANGE: Mapping[str, Callable[[Fields], Consume | Link]] = {"consume": _consume, "link": _link}
_GET: Mapping[str, Callable[[Fields], Get]] = {
    "queue": _queue_content,
    "replay": _replay,
    "log": _log_range,
    "plan": _plan,
    "sow": _sow,
    "subscribe": _subscribe,
    "sql": _sql,
}


def _one(data: bytes, call: str, known: Mapping[str, object]) -> tuple[str, Fields]:
    values = read_json(data, f"the command of {call}")
    if len(values) != 1:
        raise InvalidArgument(
            f"the command of {call} has {len(values)} keys; it needs one, which names the operation: {', '.join(known)}"
        )
    ((name, value),) = values.items()
    if name not in known:
        raise InvalidArgument(f"{call} has no operation {name[:60]!r}{nearest(name, known)}")
    if name == "sql" and isinstance(value, str):
        value = {"statement": value}
    return name, Fields.of(name, value)


def parse_put(data: bytes) -> Put:
    """The command of a DoPut."""
    name, fields = _one(data, "DoPut", _PUT)
    command = _PUT[name](fields)
    fields.finish()
    return command


def parse_exchange(data: bytes) -> Consume | Link:
    """The command of a DoExchange."""
    name, fields = _one(data, "DoExchange", _EXCHANGE)
    command = _EXCHANGE[name](fields)
    fields.finish()
    return command


def parse_get(data: bytes) -> Get:
    """The ticket of a DoGet."""
    name, fields = _one(data, "DoGet", _GET)
    command = _GET[name](fields)
    fields.finish()
    return command


def command(operation: str, **fields: object) -> bytes:
    """The JSON of a command; fields that are None are left out."""
    return write_json({operation: {name: value for name, value in fields.items() if value is not None}}, operation)


PARTS_MOST = 1000
TEXT_MOST = 64 * 1024
"""Parts and characters of a select list."""


def _select_list(f: Fields) -> tuple[str, ...]:
    """`select`: which fields of a JSON body are sent."""
    parts = f.texts("select", PARTS_MOST)
    if (size := sum(map(len, parts))) > TEXT_MOST:
        raise InvalidArgument(f"{f.where}: select has {size} characters, the most is {TEXT_MOST}")
    return tuple(parts)


def _of_topic(f: Fields) -> bool:
    """Options of a subscription to topics: whether the time is sent with each message.

    All that is told is durable, so `fully_durable` asks for nothing more, and `live` for what is never done.
    """
    if f.flag("live"):
        raise InvalidArgument(
            f"{f.where}: live is not done: of a topic only what is durable is told; "
            'a queue with deliver = "early" sends ahead of the sync'
        )
    f.flag("fully_durable")
    return f.flag("timestamp")


def _with_time(columns: tuple[str, ...] | None, timed: bool) -> tuple[str, ...] | None:
    """The columns that were asked for, and the time if it was."""
    return (*columns, "time") if timed and columns is not None and "time" not in columns else columns


def of_queue(f: Fields) -> None:
    """The same of a consumer, for which most of them cannot be."""
    if f.texts("select", PARTS_MOST):
        raise InvalidArgument(f"{f.where}: select is for sow and for subscriptions to topics; work comes whole")
    for name, way in (("live", "early"), ("fully_durable", "durable")):
        if f.flag(name):
            raise InvalidArgument(f'{f.where}: {name} is no option of a queue: its setting deliver = "{way}" is that')
    f.flag("timestamp")  # the column `time` is always there
