"""What routes messages, exchanges and bindings; and the topics that keep them.

A topic keeps what no queue takes, with a key records; views are asked for like it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.publishing.body_checks import check_mode
from penstock.core.topology.topology import DEFAULT, PREDECLARED, table_of
from penstock.errors import AccessRefused, InvalidArgument, NotFound, shown
from penstock.operations.operation import Answer, House, Operation
from penstock.records import message_types
from penstock.records.message_types import JSON, MESSAGE_TYPE
from penstock.records.rights import SEES, TENDS, USES, sees, uses
from penstock.records.sow_settings import (
    EXPIRATION,
    INDEX,
    JSON_SCHEMA,
    JSON_SCHEMA_CHECK,
    KEY,
    KEY_DOMAIN,
    KEY_FROM,
    SCHEMA,
    version,
    versions,
)
from penstock.server.people.entitlements import exchange_needs
from penstock.units import format_duration
from penstock.wire.fields import VHOST, Field, Fields, flag, name, table, text
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.core.state.durable import Binding, ExchangeState
    from penstock.server.people.access import Who


# -- exchanges


def exchanges(house: House, who: Who, vhost: str | None, exchange: str | None = None) -> Iterator[dict[str, object]]:
    """Of one vhost or of all: the predeclared ones, then those that were declared.  exchange: those of this name."""
    for one in list(house.accounts.vhosts) if vhost is None else [vhost]:
        for called, state in PREDECLARED.items():
            if exchange in {None, called}:
                yield _exchange(one, called, state)
    for (one, called), state in list(house.core.topology.exchanges.items()):
        if vhost in {None, one} and exchange in {None, called}:
            yield _exchange(one, called, state)


def _exchange(vhost: str, exchange: str, state: ExchangeState) -> dict[str, object]:
    return {
        "name": exchange,
        "vhost": vhost,
        "type": state.type,
        "durable": state.durable,
        "auto_delete": state.auto_delete,
        "internal": state.internal,
        "arguments": state.arguments,
    }


def declare_exchange(
    house: House, who: Who, exchange: str, vhost: str, type: str, durable: bool, auto_delete: bool, internal: bool,
    arguments: Mapping[str, object],
) -> Answer:  # fmt: skip
    """Make an exchange, or find an equal one."""
    if who.rights is not None:
        needs = exchange_needs(exchange, arguments.get("alternate-exchange"))
        who.rights.configure("declaring an exchange", vhost, needs)
    fresh = house.core.topology.exchange(vhost, exchange) is None
    house.core.declare_exchange(
        house.now(), vhost, exchange, type, durable=durable, auto_delete=auto_delete, internal=internal,
        arguments=arguments, passive=False,
    )  # fmt: skip
    return {"exchange": exchange, "new": fresh}


def delete_exchange(house: House, who: Who, exchange: str, vhost: str, if_unused: bool, there: bool = False) -> Answer:
    """With its bindings.  there: NotFound for one that is not."""
    if there and house.core.topology.exchange(vhost, exchange) is None:
        raise NotFound(f"no exchange '{exchange}' in vhost '{vhost}'")
    house.core.delete_exchange(house.now(), vhost, exchange, if_unused=if_unused)
    return {"exchange": exchange}


# -- bindings


def bindings(
    house: House,
    who: Who,
    vhost: str | None,
    queue: str | None,
    source: str | None,
    destination: str | None,
    between: bool = False,
) -> Iterable[dict[str, object]]:
    """Of a queue, those that begin or end at an exchange, those between two, or all of one vhost or of all.

    Those of the default exchange, which every queue has, too; of queues that the user sees.
    between: of several ends.  Raises NotFound.
    """
    ends = (queue, source, destination)
    if not between and ends.count(None) < 2:
        raise InvalidArgument(f"bindings: queue is {shown(queue)}, not the only one of queue, source and destination")
    if vhost is None or ends.count(None) == len(ends):
        return _seen(who, _every(house, vhost))
    topology = house.core.topology
    for exchange in filter(None, (source, destination)):
        if topology.exchange(vhost, exchange) is None:
            raise NotFound("Not Found" if between else f"no exchange '{exchange}' in vhost '{vhost}'")
    if queue is not None or destination is not None:
        return [one for one in _at_end(house, who, vhost, queue, destination) if source in {None, one["source"]}]
    if source == DEFAULT:
        return _seen(who, _by_default(house, vhost))
    return _seen(who, map(_binding, list(topology.bindings_from(vhost, source or ""))))


def _seen(who: Who, found: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Those that end at an exchange, or at a queue that the user is shown."""
    rights = who.rights
    return (
        one
        for one in found
        if rights is None or one["destination_type"] != "queue" or rights.sees_queue(one["vhost"], one["destination"])
    )


def _at_end(
    house: House, who: Who, vhost: str, queue: str | None, destination: str | None
) -> Sequence[dict[str, object]]:
    """Those that end at a queue, its own to the default exchange too, or at an exchange."""
    bindings_to = house.core.topology.bindings_to
    if queue is None:
        return [*map(_binding, bindings_to(vhost, "exchange", destination or ""))]
    return [*_own(house, who, vhost, queue), *map(_binding, bindings_to(vhost, "queue", queue))]


def _every(house: House, vhost: str | None) -> Iterator[dict[str, object]]:
    """Of one vhost or of all, those of the default exchange first."""
    yield from _by_default(house, vhost)
    for (of, _), some in list(house.core.topology.by_source.items()):
        if vhost in {None, of}:
            yield from map(_binding, list(some))


def _by_default(house: House, vhost: str | None) -> Iterator[dict[str, object]]:
    """One for each queue that sees its own name in the default exchange."""
    return (_default_binding(one) for one in house.core.queues() if vhost in {None, one.vhost} and _plain(one))


def _own(house: House, who: Who, vhost: str, queue: str) -> Sequence[dict[str, object]]:
    """The one of a queue that the user sees, if it has one."""
    found = house.core.queue(vhost, queue)
    if who.rights is not None and not who.rights.sees_queue(vhost, queue):
        raise house.core.missing_queue(vhost, queue)
    return [_default_binding(found)] if _plain(found) else []


def _plain(queue: Queue) -> bool:
    return not queue.settings.underlying_topic and queue.settings.exchange == DEFAULT


def _default_binding(queue: Queue) -> dict[str, object]:
    return {
        "source": DEFAULT,
        "vhost": queue.vhost,
        "destination": queue.name,
        "destination_type": "queue",
        "routing_key": queue.name,
        "arguments": {},
    }


def _binding(binding: Binding) -> dict[str, object]:
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.key,
        "arguments": table_of(binding.arguments),
    }


def bind(
    house: House, who: Who, exchange: str, vhost: str, destination: str | None, queue: str | None, key: str,
    arguments: Mapping[str, object],
) -> Answer:  # fmt: skip
    """Let a queue, or an exchange, take what another exchange routes by this key; the same twice is one."""
    kind, end = _end(house, who, "bind", exchange, vhost, destination, queue, key)
    if kind == "queue":
        house.core.queue(vhost, end)
    house.core.bind(house.now(), vhost, exchange, end, kind, key, arguments)
    return {kind: end}


def unbind(
    house: House, who: Who, exchange: str, vhost: str, destination: str | None, queue: str | None, key: str,
    arguments: Mapping[str, object],
) -> Answer:  # fmt: skip
    """What it has routed stays where it is."""
    kind, end = _end(house, who, "unbind", exchange, vhost, destination, queue, key)
    if exchange == DEFAULT:
        raise AccessRefused("operation not permitted on the default exchange")
    house.core.unbind(house.now(), vhost, exchange, end, kind, key, arguments)
    return {kind: end}


def _end(
    house: House, who: Who, what: str, source: str, vhost: str, destination: str | None, queue: str | None, key: str
) -> tuple[str, str]:
    """Kind and name of what takes.  AccessRefused unless the user may bind it to this exchange with this key."""
    kind, end = ("queue", queue) if destination is None else ("exchange", destination)
    if end is None:
        raise InvalidArgument(f"{what}: queue is missing")
    if who.rights is not None:
        who.rights.configure("binding", vhost, [("write", kind, end), ("read", "exchange", source)])
        who.rights.binds(house.core, vhost, source, key)
    return kind, end


_BOUND = (
    name("exchange"), VHOST, text("destination", least=1), text("queue", least=1), text("key", ""), table("arguments"),
)  # fmt: skip
_EXCHANGE = uses(("configure", "exchange", "exchange"))

EXCHANGES = Operation(
    "exchanges", exchanges, "list", "the exchanges of a vhost, those that are always there first", SEES, (VHOST,),
    key="exchanges", sdk="exchanges", cli="exchange list",
)  # fmt: skip
DECLARE_EXCHANGE = Operation(
    "declare_exchange", declare_exchange, "decide", "exchange, type, durable, auto_delete, internal", USES,
    (name("exchange"), VHOST, text("type", "direct"), flag("durable", True), flag("auto_delete"), flag("internal"),
     table("arguments")),
    sdk="declare_exchange", cli="exchange declare",
)  # fmt: skip
DELETE_EXCHANGE = Operation(
    "delete_exchange", delete_exchange, "decide", "exchange, if_unused", _EXCHANGE,
    (name("exchange"), VHOST, flag("if_unused")), sdk="delete_exchange", cli="exchange delete",
)  # fmt: skip
BINDINGS = Operation(
    "bindings", bindings, "list", "queue, source or destination: the bindings of a vhost, a queue or an exchange", SEES,
    (VHOST, text("queue"), text("source"), text("destination")), key="bindings", sdk="bindings", cli="binding list",
)  # fmt: skip
BIND = Operation(
    "bind", bind, "decide", "exchange, queue or destination (an exchange), key, arguments", USES, _BOUND,
    sdk="bind", cli="binding declare",
)  # fmt: skip
UNBIND = Operation("unbind", unbind, "decide", "the same", USES, _BOUND, sdk="unbind", cli="binding delete")


# -- topics


def declare_topic(house: House, who: Who, topic: str, exchange: str, vhost: str, settings: object = None) -> Answer:
    """Keep what is published to it and no queue takes.  settings: None leaves what is there as it is."""
    asked = None if settings is None else _settings(Fields.of("declare_topic: settings", settings))
    house.core.declare_topic(house.now(), vhost, exchange, topic, asked)
    return {"topic": topic}


def _settings(f: Fields) -> dict[str, object]:
    given: dict[str, object] = {
        KEY: f.texts("key", 100), KEY_DOMAIN: f.optional_text("key_domain"), KEY_FROM: f.optional_text("key_from"),
        EXPIRATION: f.duration("expiration", 0), INDEX: f.optional_text("index"),
        SCHEMA: f.optional_text("schema", TEXT_LIMIT),
        MESSAGE_TYPE: f.optional_text(MESSAGE_TYPE, message_types.TEXT_MOST),
        JSON_SCHEMA: f.optional_text(JSON_SCHEMA, TEXT_LIMIT), JSON_SCHEMA_CHECK: f.optional_text(JSON_SCHEMA_CHECK),
    }  # fmt: skip
    f.finish()
    return {key: value for key, value in given.items() if value}


def register_schema(house: House, who: Who, topic: str, schema: str, exchange: str, vhost: str, unless: bool) -> Answer:
    """Another schema for readers; the topic's other settings stay.  `unless`: one that it has stays as well."""
    found = house.core.register_schema(house.now(), vhost, exchange, topic, schema, unless=unless)
    return {"topic": topic, "schema": found[SCHEMA], "version": version(found)}


def delete_topic(house: House, who: Who, topic: str, exchange: str, vhost: str) -> Answer:
    """Keep nothing more, and forget its records."""
    house.core.delete_topic(house.now(), vhost, exchange, topic)
    return {"topic": topic}


def topics(house: House, who: Who, vhost: str) -> Iterator[Mapping[str, object]]:
    """Declared topics that the user may see, then views and conflated topics, each kind by name."""
    declared = house.core.topology.topics
    for found in sorted(one for one in declared if one[0] == vhost):
        if (who.rights is None or who.rights.sees_topic(*found)) and found in declared:
            yield facts(house.core, found)
    for view in house.views(vhost):
        if who.rights is None or who.rights.sees_topic(vhost, "", str(view["topic"])):
            yield view


def topic(house: House, who: Who, topic: str, exchange: str, vhost: str) -> Answer:
    """One declared topic or view as facts.  NotFound."""
    if (vhost, exchange, topic) in house.core.topology.topics:
        return facts(house.core, (vhost, exchange, topic))
    views = {} if exchange else {str(one["topic"]): one for one in house.views(vhost)}
    if topic not in views:
        why = f"no declared topic '{topic}' in vhost '{vhost}'"
        raise house.core.missing_topic(vhost, exchange, topic, why, lambda _, name: name in views)
    return views[topic]


def facts(core: Core, name: tuple[str, str, str]) -> dict[str, object]:
    """What was declared of a topic; with a key, the figures of its records: those of what happened since the start."""
    settings, sow = core.topology.topics[name], core.sows.by_name.get(name)
    life = settings.get(EXPIRATION)
    found: dict[str, object] = {
        "topic": name[2], "kind": "topic", "exchange": name[1], "vhost": name[0], "key": settings.get(KEY),
        "key_from": settings.get(KEY_FROM), "key_domain": settings.get(KEY_DOMAIN),
        "expiration": format_duration(life) if isinstance(life, int) else None, "index": settings.get(INDEX),
        "schema": settings.get(SCHEMA), "schema_version": version(settings),
        "schemas": {str(number): text for number, text in versions(settings).items()},
        MESSAGE_TYPE: settings.get(MESSAGE_TYPE, JSON),
    }  # fmt: skip
    if (check := check_mode(settings)) != "off":
        failures = core.check_failures(name)
        found |= {"json_schema_check": check, "json_schema_failed": failures.count, "json_schema_last": failures.last}
    if sow is not None:
        found |= {
            "records": sow.index.count, "index_bytes": sow.index.nbytes, "inserted": sow.inserted,
            "updated": sow.updated, "deleted": sow.deleted, "expired": sow.expired,
        }  # fmt: skip
    return found


_TOPIC = (name("topic"), text("exchange", ""), VHOST)
_HERE = "over HTTP topics with a key are listed, and declared by the settings"

DECLARE_TOPIC = Operation(
    "declare_topic", declare_topic, "decide",
    "topic, exchange, settings: keep what no queue takes; a key makes records", TENDS,
    (*_TOPIC, Field("settings", "value")), sdk="declare_topic", missing=_HERE,
)  # fmt: skip
REGISTER_SCHEMA = Operation(
    "register_schema", register_schema, "decide",
    "topic, exchange, schema, unless: the next version of its schema; unless: if it has none", TENDS,
    (*_TOPIC, name("schema", TEXT_LIMIT), flag("unless")), sdk="register_schema", cli="topic schema", missing=_HERE,
)  # fmt: skip
DELETE_TOPIC = Operation(
    "delete_topic", delete_topic, "decide", "topic, exchange: keep nothing more, forget its records", TENDS, _TOPIC,
    sdk="delete_topic", missing=_HERE,
)  # fmt: skip
TOPICS = Operation(
    "topics", topics, "list", "every declared topic and view of a vhost with its counts", SEES, (VHOST,), key="topics",
    sdk="topics", cli="topic list", missing=_HERE,
)  # fmt: skip
TOPIC = Operation(
    "topic", topic, "look", "topic, exchange: one of them", sees("topic", "topic"), _TOPIC, sdk="topic",
    cli="topic show", missing=_HERE,
)  # fmt: skip
