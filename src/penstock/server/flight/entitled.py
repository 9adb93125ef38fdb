"""What a Flight call may do where entitlements are configured: every command passes here before it is carried out.

A command that nobody thought of takes the administrator's tag.  Reads come back narrowed: the filter of the user's
right is part of the command, so it holds wherever the rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, assert_never, cast

from penstock.config.arguments import queue_settings_from_mapping
from penstock.core.publishing.traits import read_traits
from penstock.core.sow.ordering import parse_order
from penstock.errors import AccessRefused, InvalidArgument
from penstock.expr import Filter
from penstock.expr.context import RECORDS
from penstock.records.bodies import listed
from penstock.records.entries import Topic
from penstock.server.entitlements import Rights, asks_shown, exchange_needs, narrowed_text, refused
from penstock.server.filters.asking import asked_by
from penstock.server.filters.evaluating import breathe
from penstock.wire.flight.commands import DEFAULT_VHOST, Get, LogRange, Plan, QueueContent, Replay, Sow, Sql, Subscribe

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.sow.select import SelectList
    from penstock.core.state.streams import Asked
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.handover import Handover
    from penstock.wire.flight.codec import Upload

T = TypeVar("T")

SLICE = 500
"""Rows of an upload that are judged between two breaths."""

REPLAYS = frozenset({"replay_pause", "replay_resume", "publisher"})
"""Actions about replays, which belong to their user, and about a publisher's own number."""

FREE = REPLAYS | frozenset(
    {"health", "position", "hold", "sink", "stage_drop", "list", "stats", "details", "topics", "ack", "ack_filter"}
    | {"policies", "policy_set", "policy_delete", "locate", "cuts", "pipeline_report"}
    | {"connections", "connection_close", "exchanges", "bindings", "vhosts", "vhost_set", "vhost_delete"}
    | {"users", "user_set", "user_delete", "permissions", "permission_set", "permission_delete"}
    | {"limits", "limit_set", "drain", "overview"}
)
"""Actions that show nothing of messages; those about queues, files, policies, users and vhosts ask for themselves."""

Body = Mapping[str, Any]


class Gatekeeper:
    """Asks for rights.  Methods belong to Flight's threads; what needs the core is handed to the loop."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._actions: dict[str, Callable[[Caller, Rights, Body], None]] = {
            "declare": self._declare,
            "purge": self._purge,
            "stream_open": self._stream_open,
            "plan": self._stream,
            "plan_range": self._stream,
            "range_parts": self._stream,
            "stream_begin": self._stream,
            "plan_changes": self._stream_open,
            "settle": self._stream,
            "stream_resume": self._stream,
            "stream_lag": self._stream,
            "stream_release": self._stream,
            "sink_commit": self._sink_commit,
            "sow_delete": self._sow_delete,
            "topic": self._topic,
            "declare_exchange": self._declare_exchange,
            "delete_exchange": self._delete_exchange,
            "bind": self._bind,
            "unbind": self._bind,
        }

    def _call(self, caller: Caller, work: Callable[[Core], T]) -> T:
        core = self._handover.engine.core
        return self._handover.call(lambda: work(core), caller.gone, durable=False)

    # -- publishing

    def publish(self, caller: Caller, vhost: str, exchange: str, upload: Upload) -> None:
        """AccessRefused unless the user may publish every row of an upload."""
        rights = caller.rights
        if rights is None:
            return
        data = upload.properties
        extra = [read_traits(one).keys if b"CC" in one else () for one in ([data] if isinstance(data, bytes) else data)]
        names = {*upload.names, *(key for keys in extra for key in keys)}
        found = self._call(caller, lambda core: {n: rights.publish(core, vhost, exchange, n) for n in names})
        if all(one is None for one in found.values()):
            return
        places = [0] * len(upload) if upload.name_of is None else upload.name_of
        asked = dict[Filter, list[int]]()
        for row, place in enumerate(places):
            keys = extra[0] if len(extra) == 1 else extra[row]
            for one in {found[key] for key in (upload.names[place], *keys)}:
                if one is not None:
                    asked.setdefault(one, []).append(row)
        bodies = listed(upload.bodies)
        for one, rows in asked.items():
            for start in range(0, len(rows), SLICE):
                some = rows[start : start + SLICE]
                heads = data if isinstance(data, bytes) else [data[row] for row in some]
                topics = [Topic(vhost, exchange, upload.names[places[row]]) for row in some]
                hits = one.matches([bodies[row] for row in some], heads, topics)
                if not all(hits):
                    row = some[hits.index(False)]
                    raise AccessRefused(
                        f"row {row} to topic '{upload.names[places[row]]}' in vhost '{vhost}' is not one that user "
                        f"'{rights.user}' may write; nothing of its batch is stored"
                    )
                breathe()

    # -- reading

    def get(self, caller: Caller, wanted: Get) -> Get:
        """The command as far as the user may read.  Raises AccessRefused; ExpressionError for its filter."""
        if not isinstance(wanted, (Plan, LogRange, Sql)) and wanted.filter:
            instance = self._call(caller, lambda core: core.instance)
            wanted = replace(
                wanted, filter=asked_by(wanted.filter, client=caller.peer, user=caller.user, instance=instance)
            )
        rights = caller.rights
        if rights is None:
            return wanted
        match wanted:
            case QueueContent():
                right = rights.read_queue(wanted.vhost, wanted.name)
                return replace(wanted, filter=narrowed_text(wanted.filter, right))
            case Replay():
                return self._replay(rights, wanted)
            case Plan():
                self._stream_of(caller, rights, wanted.stream)
                return wanted
            case Sow():
                queue, topic = self._call(caller, lambda core: (sow_of_queue(core, wanted), source_of(core, wanted)))
                if queue:
                    right = rights.read_queue(wanted.vhost, wanted.topic)
                    return replace(wanted, filter=narrowed_text(wanted.filter, right, RECORDS))
                gathers = bool(wanted.projection) or wanted.grouping is not None
                right = rights.read_topic(wanted.vhost, *topic, whole=gathers)
                fields = rights.fields(wanted.vhost, *topic)
                asks_shown(rights.user, fields, (wanted.filter, *_values(wanted.order_by)))
                narrow = narrowed_text(wanted.filter, right, RECORDS)
                return replace(wanted, filter=narrow, shown=parts_of(fields))
            case Subscribe():
                gathered = Sow(wanted.topic, wanted.exchange, wanted.vhost)
                if wanted.grouping is not None and self._call(caller, lambda core: sow_of_queue(core, gathered)):
                    right = rights.read_queue(wanted.vhost, wanted.topic)
                    return replace(wanted, filter=narrowed_text(wanted.filter, right))
                topic = self._call(caller, lambda core: source_of(core, wanted))
                gathers = bool(wanted.projection) or wanted.grouping is not None
                right = rights.read_topic(wanted.vhost, *topic, whole=gathers)
                fields = rights.fields(wanted.vhost, *topic)
                asks_shown(rights.user, fields, (wanted.filter, *_values(wanted.order_by), *wanted.conflation_key))
                return replace(wanted, filter=narrowed_text(wanted.filter, right), shown=parts_of(fields))
            case Sql():
                return wanted  # each of its tables is asked for by itself
            case LogRange():
                return wanted  # the administrator's
        assert_never(wanted)  # a new read says what right it takes

    def _replay(self, rights: Rights, wanted: Replay) -> Replay:
        if wanted.topic is not None:
            name = wanted.vhost, wanted.exchange, wanted.topic
            right, fields = rights.read_topic(*name, whole=False), rights.fields(*name)
            asks_shown(rights.user, fields, [wanted.filter])
            return replace(wanted, filter=narrowed_text(wanted.filter, right), shown=parts_of(fields))
        return replace(wanted, rights=rights.topic_rights(wanted.vhost, wanted.exchange))

    # -- actions

    def act(self, caller: Caller, name: str, body: Body) -> None:
        """AccessRefused unless the user may do this."""
        rights = caller.rights
        if rights is None or rights.administrator:
            return
        if (asks := self._actions.get(name)) is not None:
            asks(caller, rights, body)
        elif name in {"stats", "details"} or (name == "explain" and isinstance(body.get("queue"), str)):
            vhost, queue = _vhost(body), _text(body, "queue")
            if not rights.sees_queue(vhost, queue):
                raise refused("see", f"queue '{queue}' in vhost '{vhost}'", rights.user)
        elif name not in FREE:
            rights.configure(name, _vhost(body))

    def _declare(self, caller: Caller, rights: Rights, body: Body) -> None:
        name, vhost = _text(body, "queue"), _vhost(body)
        given = body.get("settings")
        settings = queue_settings_from_mapping(cast("Body", given) if isinstance(given, dict) else {}, name)
        self._call(caller, lambda core: rights.declare(vhost, name, settings, core.find_queue(vhost, name)))

    def _purge(self, caller: Caller, rights: Rights, body: Body) -> None:
        rights.read_all_of_queue(_vhost(body), _text(body, "queue"), "purging")

    def _declare_exchange(self, caller: Caller, rights: Rights, body: Body) -> None:
        name, given = _text(body, "exchange"), body.get("arguments")
        alternate = cast("Body", given).get("alternate-exchange") if isinstance(given, dict) else None
        rights.configure("declaring an exchange", _vhost(body), exchange_needs(name, alternate))

    def _delete_exchange(self, caller: Caller, rights: Rights, body: Body) -> None:
        needs = [("configure", "exchange", _text(body, "exchange"))]
        rights.configure("deleting an exchange", _vhost(body), needs)

    def _bind(self, caller: Caller, rights: Rights, body: Body) -> None:
        kind = "queue" if body.get("destination") is None else "exchange"
        name = _text(body, "destination" if kind == "exchange" else "queue")
        vhost, source, key = _vhost(body), _text(body, "exchange"), str(body.get("key", ""))
        rights.configure("binding", vhost, [("write", kind, name), ("read", "exchange", source)])
        self._call(caller, lambda core: rights.binds(core, vhost, source, key))

    def _stream_open(self, caller: Caller, rights: Rights, body: Body) -> None:
        if body.get("queue") is not None:
            rights.read_all_of_queue(_vhost(body), _text(body, "queue"), "a stream")
        if body.get("topic") is not None:
            rights.read_topic(_vhost(body), str(body.get("exchange", "")), _text(body, "topic"))
        self._stream(caller, rights, body)

    def _stream(self, caller: Caller, rights: Rights, body: Body) -> None:
        self._stream_of(caller, rights, _text(body, "stream"))

    def _sink_commit(self, caller: Caller, rights: Rights, body: Body) -> None:
        settle = body.get("settle")
        for one in cast("list[object]", settle) if isinstance(settle, list) else [settle]:
            if isinstance(one, dict):
                self._stream_of(caller, rights, _text(cast("Body", one), "stream"))
        drop = body.get("drop")
        if isinstance(drop, dict):
            self._sow_delete(caller, rights, cast("Body", drop))

    def _sow_delete(self, caller: Caller, rights: Rights, body: Body) -> None:
        vhost, exchange, name = _vhost(body), body.get("exchange", ""), _text(body, "topic")
        right = self._call(caller, lambda core: rights.publish(core, vhost, str(exchange), name))
        if right is not None:  # whether the records match is not looked at
            raise refused("remove records of", f"topic '{name}' in vhost '{vhost}'", rights.user)

    def _topic(self, caller: Caller, rights: Rights, body: Body) -> None:
        rights.read_topic(_vhost(body), str(body.get("exchange", "")), _text(body, "topic"), whole=False)

    def _stream_of(self, caller: Caller, rights: Rights, stream: str) -> None:
        """A stream of a queue takes all of it; one of a topic reads what of the topic the user may read."""

        def look(core: Core) -> tuple[tuple[str, str] | None, Asked]:
            state = core.streams.states.get(stream)
            queue = next((one for one in core.queues() if state is not None and one.id == state.queue), None)
            return None if queue is None else (queue.vhost, queue.name), {} if state is None else state.asked

        found, asked = self._call(caller, look)
        if found is not None:
            rights.read_all_of_queue(*found, "a stream")
        if asked.get("topic") is not None:
            rights.read_topic(str(asked.get("vhost")), str(asked.get("exchange", "")), str(asked["topic"]))


def parts_of(fields: SelectList | None) -> tuple[str, ...]:
    """A list of fields as a command carries it; empty: all of them."""
    return () if fields is None else fields.parts


def _values(order_by: Sequence[str]) -> list[str]:
    return [term.value.text for term in parse_order(order_by or None)]


def sow_of_queue(core: Core, wanted: Sow) -> bool:
    """Whether a `sow` is about a queue: no SOW topic has the name, and a queue has."""
    name = wanted.vhost, wanted.exchange, wanted.topic
    return name not in core.sows.by_name and not wanted.exchange and core.find_queue(*name[::2]) is not None


def source_of(core: Core, wanted: Sow | Subscribe) -> tuple[str, str]:
    """Exchange and key of the topic that a read is about: one that gathers may write them as one name, `E/K`."""
    exchange, slash, key = wanted.topic.partition("/")
    gathers = bool(wanted.projection) or wanted.grouping is not None
    if gathers and not wanted.exchange and slash and exchange and (wanted.vhost, exchange, key) in core.sows.by_name:
        return exchange, key
    return wanted.exchange, wanted.topic


def shown(caller: Caller, queues: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Of figures of queues those that the user may see."""
    rights = caller.rights
    return [one for one in queues if rights is None or rights.sees_queue(str(one["vhost"]), str(one["queue"]))]


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise InvalidArgument(f"{key} is missing, or no text")
    return value


def _vhost(body: Body) -> str:
    value = body.get("vhost", DEFAULT_VHOST)
    return value if isinstance(value, str) else DEFAULT_VHOST
