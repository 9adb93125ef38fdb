"""How the commands of DoPut, DoExchange and DoGet are written: one JSON object with one key that names the operation.

    DoPut       {"publish": {...}}, {"stage": {...}}, {"transact": {...}}
    DoExchange  {"consume": {...}}, {"link": {...}}     `wire.flight.linking` has what follows
    DoGet       {"queue": {...}}, {"replay": {...}}, {"sow": {...}}, {"subscribe": {...}}, {"log": {...}},
                {"plan": {...}}, {"sql": "SELECT ..."} or {"sql": {"statement", "vhost"}}

A table has what each may hold.  What it is where nobody gives it stands in `commands`, with what it means.

Owns names, types and ranges.  Refuses to know what a queue or a topic is.  Every error is an InvalidArgument that names
the operation, the field and what it may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from penstock.errors import InvalidArgument, shown
from penstock.records.kinds import Kind
from penstock.records.schema import SITES_MOST
from penstock.wire.fields import (
    LSN_MAX,
    NAME_LIMIT,
    NUMBER_MOST,
    Field,
    Fields,
    as_list,
    count,
    flag,
    name,
    names,
    nearest,
    read_json,
    text,
    texts,
    write_json,
)
from penstock.wire.flight.commands import (
    BATCH_MOST,
    MESSAGES,
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


def origin_of(fields: Fields, name: str) -> int:
    """The number of a log, which is text in JSON."""
    return _origin(fields.where, fields.name(name))


def _origin(where: str, text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 21 and int(text) < 2**64):
        raise InvalidArgument(f"{where}: origin {shown(text)} is no number of a log")
    return int(text)


def sites_of(fields: Fields, name: str) -> tuple[tuple[str, int, str], ...]:
    """Sites that somebody has met."""
    return _sites(fields.where, fields.objects(name))


def _sites(where: str, found: Sequence[object]) -> tuple[tuple[str, int, str], ...]:
    if len(found) > SITES_MOST:
        raise InvalidArgument(f"{where}: {len(found)} sites; {SITES_MOST} are the most")
    return tuple(_site(where, one) for one in found)


def _site(where: str, given: object) -> tuple[str, int, str]:
    values = as_list(given) or []
    if len(values) != 3:
        raise InvalidArgument(f"{where}: {shown(given)} is no site: name, origin and group")
    site, origin, group = values
    if not isinstance(site, str) or not isinstance(group, str) or not 0 < len(site.encode()) <= NAME_LIMIT:
        raise InvalidArgument(f"{where}: {shown(given)} is no site: its name and its group are texts")
    return site, _origin(where, origin), group


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

RANGES_MOST = 10_000
"""Parts in which one read, or one batch of a stream, may be asked for."""

BATCH_ROWS_MOST = 10_000_000
"""Messages of a queue that may be asked for as one batch of a stream."""


REPLAY_COLUMNS = tuple(name for name in MESSAGES.names if name != "state")
LOG_COLUMNS = (
    "lsn", "kind", "name", "via", "route", "time", "expires_at", "not_before", "priority", "properties", "body",
)  # fmt: skip
_CONTENT_COLUMNS = tuple(MESSAGES.names)
_RECORDS_COLUMNS = ("sow_key", *REPLAY_COLUMNS)

PARTS_MOST = 1000
TEXT_MOST = 64 * 1024
"""Parts and characters of a select list."""

Values: TypeAlias = "dict[str, Any]"
"""What was given of a command, by name."""


def _publish(where: str, given: Values) -> None:
    if ("publisher" in given) != ("sequence" in given):
        raise InvalidArgument(f"{where}: publisher and sequence belong together; one of them is missing")
    if given.get("publisher") == "":
        raise InvalidArgument(f"{where}: publisher is empty")
    if "\0" in given.get("publisher", ""):
        raise InvalidArgument(f"{where}: publisher {shown(given['publisher'])} has a zero byte")
    given["delta"] = given.get("delta") or None


def _stage(where: str, given: Values) -> None:
    if given.get("mandatory") and "topic" not in given:
        raise InvalidArgument(f"{where}: mandatory goes with a topic for all rows, and there is none")


def _consume(where: str, given: Values) -> None:
    """Of what a subscription to topics may say most cannot be for a consumer of a queue."""
    if given.pop("select", ()):
        raise InvalidArgument(f"{where}: select is for sow and for subscriptions to topics; work comes whole")
    for option, way in (("live", "early"), ("fully_durable", "durable")):
        if given.pop(option, False):
            raise InvalidArgument(f'{where}: {option} is no option of a queue: its setting deliver = "{way}" is that')
    given.pop("timestamp", None)  # the column `time` is always there
    if "heartbeat" in given:
        given["heartbeat"] = max(given["heartbeat"], 1_000_000)


def _link(where: str, given: Values) -> None:
    given["origin"], given["offers"] = _origin(where, given["origin"]), list(given.get("offers", ()))
    given["sites"] = _sites(where, given.get("sites", ()))


def _replay(where: str, given: Values) -> None:
    if ("topic" in given) == ("pattern" in given):
        raise InvalidArgument(f"{where}: name either a topic or a pattern of topics")
    if "bookmark_not_found" in given:
        given["missing"] = given.pop("bookmark_not_found")
    _subscribe(where, given)


def _selected(where: str, given: Values) -> None:
    if (size := sum(map(len, given.get("select", ())))) > TEXT_MOST:
        raise InvalidArgument(f"{where}: select has {size} characters, the most is {TEXT_MOST}")


def _subscribe(where: str, given: Values) -> None:
    """All that is told of a topic is durable: `fully_durable` asks for nothing more, `live` for what is never done."""
    if given.pop("live", False):
        raise InvalidArgument(
            f"{where}: live is not done: of a topic only what is durable is told; "
            'a queue with deliver = "early" sends ahead of the sync'
        )
    given.pop("fully_durable", None)
    columns = given.get("columns")
    if given.pop("timestamp", False) and columns is not None and "time" not in columns:
        given["columns"] = (*columns, "time")
    _selected(where, given)


def _log_range(where: str, given: Values) -> None:
    low, high = given.pop("from", 1), given.pop("to", LSN_MAX)
    if low > high:
        raise InvalidArgument(f"{where}: from {low} is above to {high}")
    given |= {"from_lsn": low, "to_lsn": high}
    if "kinds" in given:
        given["kinds"] = tuple(int(Kind[one.upper()]) for one in given["kinds"])


def _plan(where: str, given: Values) -> None:
    part, parts = given.get("part", 0), given.get("parts", 1)
    if part >= parts:
        raise InvalidArgument(f"{where}: part {part} of {parts} does not exist; parts count from 0")


class _Command:
    def __init__(
        self, of: type[Any], fields: Iterable[Field], judge: Callable[[str, Values], None] = lambda where, given: None
    ) -> None:
        """judge: of values together, which it may change."""
        self.of, self.judge = of, judge
        self.fields = {one.name: one for one in fields}


_VHOST, _EXCHANGE_NAME, _TOPIC = text("vhost"), text("exchange"), text("topic")
_FILTER, _LIMIT = text("filter", most=TEXT_LIMIT), count("limit")
_PLACED = (_TOPIC, _EXCHANGE_NAME, _VHOST)
_NAMED = (name("topic"), _EXCHANGE_NAME, _VHOST)
_SELECT = texts("select", PARTS_MOST)
_DELTA, _MANDATORY = flag("delta"), flag("mandatory")
_TOLD = (_SELECT, flag("live"), flag("fully_durable"), flag("timestamp"))
"""What subscriptions to topics may say."""
_SHAPED = (
    _FILTER, texts("order_by", 16), count("top_n"), count("skip_n"), texts("projection", FIELDS_MOST),
    texts("grouping", FIELDS_MOST),
)  # fmt: skip
"""Which records or rows, and in which order."""

_PUT: Mapping[str, _Command] = {
    "publish": _Command(
        Publish, (*_PLACED, text("publisher"), count("sequence", 1), _DELTA, _MANDATORY), _publish,
    ),
    "stage": _Command(
        Stage,
        (
            name("query"), count("batch", high=NUMBER_MOST, needed=True), count("partition", needed=True),
            count("attempt"), *_PLACED, _DELTA, flag("ordered"), _MANDATORY,
        ),
        _stage,
    ),
    "transact": _Command(Transact, (_VHOST,)),
}  # fmt: skip
_EXCHANGE: Mapping[str, _Command] = {
    "consume": _Command(
        Consume,
        (
            name("queue"), _VHOST, _FILTER, count("backlog", high=BACKLOG_MOST), text("name"), flag("no_ack"),
            count("priority", -(2**31), 2**31 - 1), Field("heartbeat", "duration"),
            count("max_backlog", high=BACKLOG_MOST), *_TOLD,
        ),
        _consume,
    ),
    "link": _Command(
        Link,
        (
            name("name"), name("site"), name("origin"), text("group"), flag("sync"), Field("offers", "list"),
            Field("sites", "list"),
        ),
        _link,
    ),
}  # fmt: skip
_GET: Mapping[str, _Command] = {
    "queue": _Command(
        QueueContent,
        (name("name"), _VHOST, names("states", STATES), _LIMIT, _FILTER, names("columns", _CONTENT_COLUMNS)),
    ),
    "replay": _Command(
        Replay,
        (
            *_PLACED, text("pattern", most=TEXT_LIMIT), text("bookmark", most=TEXT_LIMIT), _FILTER, _LIMIT,
            names("columns", REPLAY_COLUMNS), text("bookmark_not_found"), flag("follow"), text("rate"),
            Field("rate_max_gap", "duration"), text("stream"), text("id"), text("held_for"),
            *_TOLD,
        ),
        _replay,
    ),
    "log": _Command(
        LogRange,
        (
            count("from"), count("to"), names("columns", LOG_COLUMNS),
            names("kinds", [kind.name.lower() for kind in Kind]),
        ),
        _log_range,
    ),
    "plan": _Command(
        Plan,
        (
            name("stream"), count("batch", 1, needed=True), count("part"), count("parts", 1, 100_000),
            names("columns", REPLAY_COLUMNS), count("revision"), text("query"), count("query_batch"), count("epoch"),
            text("key", most=TEXT_LIMIT),
        ),
        _plan,
    ),
    "sow": _Command(
        Sow,
        (
            *_NAMED, *_SHAPED, count("batch_size", 1, BATCH_MOST), names("columns", _RECORDS_COLUMNS), _SELECT,
            flag("stats"),
        ),
        _selected,
    ),
    "subscribe": _Command(
        Subscribe,
        (
            *_NAMED, *_SHAPED, flag("sow"), _DELTA, flag("no_empties"), flag("oof"),
            names("columns", ("event", "reason", *_RECORDS_COLUMNS)), text("conflation"),
            texts("conflation_key", FIELDS_MOST), *_TOLD,
        ),
        _subscribe,
    ),
    "sql": _Command(Sql, (name("statement", 1 << 20), _VHOST)),
}  # fmt: skip


def _parsed(data: bytes, call: str, known: Mapping[str, _Command]) -> Any:
    values = read_json(data, f"the command of {call}")
    if len(values) != 1:
        raise InvalidArgument(
            f"the command of {call} has {len(values)} keys; it needs one, which names the operation: {', '.join(known)}"
        )
    ((operation, value),) = values.items()
    if operation not in known:
        raise InvalidArgument(f"{call} has no operation {operation[:60]!r}{nearest(operation, known)}")
    if operation == "sql" and isinstance(value, str):
        value = {"statement": value}
    wanted = known[operation]
    given = Fields.of(operation, value).given(wanted.fields)
    wanted.judge(operation, given)
    return wanted.of(**given)


def parse_put(data: bytes) -> Put:
    """The command of a DoPut."""
    return cast("Put", _parsed(data, "DoPut", _PUT))


def parse_exchange(data: bytes) -> Consume | Link:
    """The command of a DoExchange."""
    return cast("Consume | Link", _parsed(data, "DoExchange", _EXCHANGE))


def parse_get(data: bytes) -> Get:
    """The ticket of a DoGet."""
    return cast("Get", _parsed(data, "DoGet", _GET))


def command(operation: str, **fields: object) -> bytes:
    """The JSON of a command; fields that are None are left out."""
    return write_json({operation: {name: value for name, value in fields.items() if value is not None}}, operation)
