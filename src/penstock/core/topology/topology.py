"""The topology: which exchanges, bindings and declared topics there are, and which queues belong to an exchange.

Facts alone, changed by one method per record kind; the living core and the fold use the same methods, so what a record
means is said once.  It knows no refusal (`core.topology.declaring` decides those before a record is written) and routes
nothing (`core.topology.routing`).  Predeclared exchanges are in every vhost and never in the log.

Queues of an exchange come and go with it, and nobody binds, alters or consumes from them:

    amq.delayed.NAME   what an exchange of type `x-delayed-message` routes later
    amq.recent.NAME    the last messages of one of type `x-recent-history`: a queue that is bound gets them, too
    amq.seen.NAME      messages whose key an exchange of type `x-message-deduplication` knows

They are queues like any other: limits, expiry, restarts, counts and listings are those of all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

import orjson

from penstock.core.state.durable import Binding, DurableState, ExchangeState
from penstock.core.state.encoding import Shape, as_table, wrap
from penstock.core.topology.ruling import Policies
from penstock.errors import InvalidArgument, Sees, slips, told_as
from penstock.records.field_tables import FieldValue, encode_table
from penstock.records.message_types import JSON, MESSAGE_TYPE
from penstock.records.queue_settings import QueueSettings
from penstock.records.regular_expressions import SPECIAL
from penstock.records.sow_settings import JSON_SCHEMA, JSON_SCHEMA_CHECK

DEFAULT = ""
"""The name of the default exchange."""

EVENTS = "amq.rabbitmq.event"
"""The exchange to which the server says what changes (`server.notices`)."""

TRACE = "amq.rabbitmq.trace"
"""The exchange to which messages are told that are published and delivered (`server.own_messages`)."""

DELAYED = "x-delayed-message"
"""The type of an exchange at which messages wait; its argument `x-delayed-type` says how it routes."""


def routing_type(exchange: ExchangeState) -> str:
    """The type by which an exchange routes; of one that delays the one it was declared to have then."""
    return str(exchange.arguments.get("x-delayed-type")) if exchange.type == DELAYED else exchange.type


PREDECLARED: Mapping[str, ExchangeState] = {
    DEFAULT: ExchangeState("direct"),
    "amq.direct": ExchangeState("direct"),
    "amq.fanout": ExchangeState("fanout"),
    "amq.topic": ExchangeState("topic"),
    "amq.headers": ExchangeState("headers"),
    "amq.match": ExchangeState("headers"),
    TRACE: ExchangeState("topic", internal=True),
    EVENTS: ExchangeState("topic", internal=True),
}


def canonical_table(table: Mapping[str, object] | None) -> str:
    """A table as JSON text with sorted keys: equal tables give equal texts; an empty one gives an empty text."""
    return orjson.dumps(wrap(table), option=orjson.OPT_SORT_KEYS).decode() if table else ""


def table_of(text: str) -> dict[str, FieldValue]:
    return cast("dict[str, FieldValue]", as_table(orjson.loads(text))) if text else {}


def check_fields(what: str, arguments: Mapping[str, object]) -> None:
    """InvalidArgument for what no field table of AMQP has room for: nobody there could name it, or be told."""
    with told_as(InvalidArgument, f"arguments of {what}: ", instead=InvalidArgument):
        encode_table(arguments)


BINDING = Shape(
    Binding, ("arguments",),
    arguments=(lambda text: orjson.loads(text or "{}"), lambda told: canonical_table(as_table(told))),
)  # fmt: skip
"""A binding as its records have it."""

CHANGES_MOST = 256
"""Bindings that came and went one by one before all of an exchange are looked at anew."""


class Topology:
    """Exchanges and bindings, indexed by source and by destination; declared topics."""

    def __init__(self) -> None:
        self.version = 0  # rises with each change
        # (vhost, exchange) whose bindings changed since routing looked: those that came and went; None: look anew
        self.touched: dict[tuple[str, str], list[tuple[Binding, bool]] | None] = {}
        self.exchanges: dict[tuple[str, str], ExchangeState] = {}  # declared ones, by (vhost, name)
        self.delaying: frozenset[tuple[str, str]] = frozenset()  # those of type `x-delayed-message`
        self.by_source: dict[tuple[str, str], dict[Binding, None]] = {}
        self.by_destination: dict[tuple[str, str, str], dict[Binding, None]] = {}  # (vhost, type, name)
        self.topics: dict[tuple[str, str, str], dict[str, object]] = {}
        self.kept_by_pattern: dict[tuple[str, str], dict[str, None]] = {}  # names of those that are patterns
        self.typed = set[object]()  # topics with other bodies than JSON; the router adds ids of such queues
        self.checked = set[tuple[str, str, str]]()  # topics with a JSON Schema that is looked at
        self.policies = Policies()
        self.went: dict[int, list[Binding]] | None = None  # by LSN of the record that ended a queue or an exchange: the
        # bindings that went with it; whoever wants to know of them puts a dict here, and empties it

    def exchange(self, vhost: str, name: str) -> ExchangeState | None:
        """A declared or predeclared exchange."""
        found = self.exchanges.get((vhost, name))
        return PREDECLARED.get(name) if found is None else found

    def place_of(self, vhost: str, text: str) -> tuple[str, str]:
        """Exchange and key of a topic as people write it: `K`, or `E/K` where an exchange E is."""
        exchange, slash, key = text.partition("/")
        there = slash and exchange and self.exchange(vhost, exchange) is not None
        return (exchange, key) if there else ("", text)

    def bindings_from(self, vhost: str, source: str) -> Iterable[Binding]:
        """Bindings whose source is that exchange, oldest first."""
        return self.by_source.get((vhost, source), ())

    def bindings_to(self, vhost: str, kind: str, name: str) -> Iterable[Binding]:
        """Bindings that end at that queue or exchange."""
        return self.by_destination.get((vhost, kind, name), ())

    def has(self, binding: Binding) -> bool:
        """Whether that very binding exists."""
        return binding in self.by_source.get((binding.vhost, binding.source), ())

    def note_ends(self, lsn: int, bindings: list[Binding]) -> None:
        """These go with an end of theirs, of which that record tells."""
        if self.went is not None and bindings:
            self.went[lsn] = [*self.went.get(lsn, ()), *bindings]

    # one method per kind of record

    def declare_exchange(self, vhost: str, name: str, exchange: ExchangeState) -> None:
        self.version += 1
        self.touched[vhost, name] = None
        self.exchanges[vhost, name] = exchange
        if exchange.type == DELAYED:
            self.delaying |= {(vhost, name)}

    def delete_exchange(self, vhost: str, name: str) -> None:
        """EXCHANGE_DELETE: with all bindings from it and to it."""
        self.version += 1
        self.touched[vhost, name] = None
        self.exchanges.pop((vhost, name), None)
        self.delaying -= {(vhost, name)}
        self.policies.exchanges.pop((vhost, name), None)
        for binding in [*self.bindings_from(vhost, name), *self.bindings_to(vhost, "exchange", name)]:
            self.unbind(binding)

    def bind(self, binding: Binding) -> None:
        """BIND; the same binding twice is one."""
        self.version += 1
        self._touch(binding, there=True)
        self.by_source.setdefault((binding.vhost, binding.source), {})[binding] = None
        end = (binding.vhost, binding.destination_type, binding.destination)
        self.by_destination.setdefault(end, {})[binding] = None
        source = self.exchanges.get((binding.vhost, binding.source))
        if source is not None:
            source.used = True

    def unbind(self, binding: Binding) -> None:
        """UNBIND; a binding that is not there is no error."""
        self.version += 1
        self._touch(binding, there=False)
        _drop(self.by_source, (binding.vhost, binding.source), binding)
        _drop(self.by_destination, (binding.vhost, binding.destination_type, binding.destination), binding)

    def _touch(self, binding: Binding, *, there: bool) -> None:
        """A binding is about to come or to go, unless it has."""
        if self.has(binding) is not there:
            changes = self.touched.setdefault((binding.vhost, binding.source), [])
            if changes is not None:
                changes.append((binding, there))
                if len(changes) > CHANGES_MOST:
                    self.touched[binding.vhost, binding.source] = None

    def queue_gone(self, vhost: str, name: str) -> None:
        """QUEUE_DELETE: the bindings that end at the queue go with it."""
        self.version += 1
        for binding in list(self.bindings_to(vhost, "queue", name)):
            self.unbind(binding)

    def declare_topic(self, vhost: str, exchange: str, key: str, settings: dict[str, object]) -> None:
        self.version += 1
        self.topics[vhost, exchange, key] = settings
        self._note_pattern((vhost, exchange, key))
        self._note_type((vhost, exchange, key))

    def delete_topic(self, vhost: str, exchange: str, key: str) -> None:
        self.version += 1
        self.topics.pop((vhost, exchange, key), None)
        self._note_pattern((vhost, exchange, key))
        self._note_type((vhost, exchange, key))

    def near_topic(
        self, vhost: str, exchange: str, name: str, shown: Callable[[str, str], object], sees: Sees
    ) -> str | None:
        """The name of a declared topic that is one slip away, or of what is shown as one, if there is one."""
        there = ((vhost, exchange, one) in self.topics or (not exchange and shown(vhost, one)) for one in slips(name))
        found = (one for one, is_there in zip(slips(name), there, strict=True) if is_there)
        return next((one for one in found if sees.sees_topic(vhost, exchange, one)), None)

    def _note_pattern(self, topic: tuple[str, str, str]) -> None:
        """A topic was declared or deleted: of one without a key whose name is a pattern all that match are kept."""
        vhost, exchange, key = topic
        here = self.kept_by_pattern.setdefault((vhost, exchange), {})
        here.pop(key, None)
        settings = self.topics.get(topic)
        keyed = settings is not None and (settings.get("key") or settings.get("key_from"))
        if settings is not None and not keyed and not SPECIAL.isdisjoint(key):
            here[key] = None
        if not here:
            del self.kept_by_pattern[vhost, exchange]

    def _note_type(self, topic: tuple[str, str, str]) -> None:
        """A topic was declared or deleted: which have other bodies than JSON, or a schema for them."""
        settings = self.topics.get(topic, {})
        if settings.get(JSON_SCHEMA) is None or settings.get(JSON_SCHEMA_CHECK) == "off":
            self.checked.discard(topic)
        else:
            self.checked.add(topic)
        if settings.get(MESSAGE_TYPE, JSON) == JSON:
            self.typed.discard(topic)
        else:
            self.typed.add(topic)

    def boot(self) -> None:
        """BOOT: exchanges that are not durable go.  (Queues are their owner's business: see `queue_gone`.)"""
        self.version += 1
        for vhost, name in [key for key, exchange in self.exchanges.items() if not exchange.durable]:
            self.delete_exchange(vhost, name)

    # the durable state

    def load(self, state: DurableState) -> None:
        """Take over a decoded state; it is copied."""
        for (vhost, name), x in state.exchanges.items():
            copy = ExchangeState(x.type, x.durable, x.auto_delete, x.internal, dict(x.arguments), x.used)
            self.declare_exchange(vhost, name, copy)
        for binding in sorted(state.bindings, key=_order):
            self.bind(binding)
        self.topics = {key: dict(value) for key, value in state.topics.items()}
        for topic in self.topics:
            self._note_pattern(topic)
            self._note_type(topic)
        for policy in state.policies.values():
            self.policies.put(policy)
        for setting in state.addresses.values():
            self.policies.put_address(setting)
        self.policies.exchanges = dict(state.exchange_rules)

    def save(self, state: DurableState) -> None:
        """Put a copy of everything into a state."""
        state.exchanges = {
            key: ExchangeState(x.type, x.durable, x.auto_delete, x.internal, dict(x.arguments), x.used)
            for key, x in self.exchanges.items()
        }
        state.bindings = {binding for some in self.by_source.values() for binding in some}
        state.topics = {key: dict(value) for key, value in self.topics.items()}
        state.policies = dict(self.policies.all)
        state.addresses = dict(self.policies.addresses)
        state.exchange_rules = dict(self.policies.exchanges)


def _order(b: Binding) -> tuple[str, ...]:
    return (b.vhost, b.source, b.destination_type, b.destination, b.key, b.arguments)


def _drop(index: dict[tuple[str, str], dict[Binding, None]] | dict[tuple[str, str, str], dict[Binding, None]],
          key: tuple[str, ...], binding: Binding) -> None:  # fmt: skip
    table = cast("dict[tuple[str, ...], dict[Binding, None]]", index)
    some = table.get(key)
    if some is not None:
        some.pop(binding, None)
        if not some:
            del table[key]


HISTORY_LENGTH = "x-recent-history-length"
HISTORY_USUAL, HISTORY_MOST = 20, 100_000
CACHE_SIZE, CACHE_TTL, CACHE_PERSISTENCE = "x-cache-size", "x-cache-ttl", "x-cache-persistence"
CACHE_MOST = 1_000_000
DEDUPLICATION_HEADER = "x-deduplication-header"
NO_STORE = "x-recent-history-no-store"


def _history(arguments: Mapping[str, object]) -> QueueSettings:
    value = arguments.get(HISTORY_LENGTH, HISTORY_USUAL)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= HISTORY_MOST:
        raise InvalidArgument(
            f"Invalid argument {value!r}, '{HISTORY_LENGTH}' must be a positive integer, and {HISTORY_MOST} at most"
        )
    return QueueSettings(max_length=int(value))


def _seen(arguments: Mapping[str, object]) -> QueueSettings:
    size, ttl = _number(arguments, CACHE_SIZE), _number(arguments, CACHE_TTL)
    if size is None:
        raise InvalidArgument(f"Missing or invalid argument, '{CACHE_SIZE}' must be an integer greater than 0")
    if size > CACHE_MOST:
        raise InvalidArgument(f"Invalid argument, '{CACHE_SIZE}' is {size}, and {CACHE_MOST} at most")
    if arguments.get(CACHE_PERSISTENCE, "memory") not in ("memory", "disk"):
        raise InvalidArgument(f"Invalid argument, '{CACHE_PERSISTENCE}' must be either 'disk' or 'memory'")
    return QueueSettings(
        max_length=size,
        message_ttl=None if ttl is None else ttl * 1000,
        expiration_model="queue",  # how long a key is known, whatever the message's own life is
        dedup_key=f"/@headers/{DEDUPLICATION_HEADER}",
        unique=True,
    )


def _number(arguments: Mapping[str, object], name: str) -> int | None:
    """A whole number above 0, also as text; None where it is not said."""
    value = arguments.get(name)
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 16:
        value = int(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**48):
        raise InvalidArgument(f"Missing or invalid argument, '{name}' must be an integer greater than 0")
    return value


class OwnQueue(NamedTuple):
    """What an exchange of a type has a queue for."""

    type: str
    prefix: str  # of its name; the exchange's follows
    argument: str  # of such a queue: whose it is
    settings: Callable[[Mapping[str, object]], QueueSettings]  # by the exchange's arguments, or InvalidArgument
    does: str  # what an exchange does that has one


def _waiting(arguments: Mapping[str, object]) -> QueueSettings:
    return QueueSettings()


WAITING = OwnQueue(DELAYED, "amq.delayed.", "x-delayed-exchange", _waiting, "delays")
RECENT = OwnQueue("x-recent-history", "amq.recent.", "x-recent-exchange", _history, "has a history")
SEEN = OwnQueue("x-message-deduplication", "amq.seen.", "x-seen-exchange", _seen, "keeps duplicates out")
OWN_QUEUES = (WAITING, RECENT, SEEN)


def own_queues(kind: str, arguments: Mapping[str, object]) -> list[OwnQueue]:
    """The queues of an exchange of this type with these arguments."""
    routes = routing_type(ExchangeState(kind, arguments=dict(arguments)))
    return [one for one in OWN_QUEUES if one.type in (kind, routes)]


def owner_of(name: str, arguments: Mapping[str, object]) -> tuple[OwnQueue, str] | None:
    """Which kind of own queue this is, and whose; None for one of a client."""
    for one in OWN_QUEUES:
        if name.startswith(one.prefix) and arguments.get(one.argument) == name.removeprefix(one.prefix):
            return one, name.removeprefix(one.prefix)
    return None


def own_names(exchange: str) -> Iterator[tuple[OwnQueue, str]]:
    """What the queues of an exchange would be called."""
    return ((one, one.prefix + exchange) for one in OWN_QUEUES)
