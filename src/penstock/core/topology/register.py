"""The queues that there are, by name, number and connection; numbers that the log has for queues and exchanges.

A queue is put here when its record is written, and routing learns of it at the same time.  Why one cannot be declared
is said in the texts that AMQP clients know and some compare.

Interned numbers say which queues took a message (ROUTE), and which vhost and exchange it came by (VIA).  Keys that a
message has and nobody is shown (BCC) are part of what its VIA says: a dead letter of it goes there, too, whenever it
dies, and no reader of rows sees them.  A number is given once and never used again for anything else, so the fold may
read all of them before any message.  When a process has as many live routes as a segment may name, further
combinations are written beside their rows (TOOK).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import islice

from penstock.core.action_rules import Rules
from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.parts import Declared
from penstock.core.queue.queue import Queue
from penstock.core.sizes import Sizes
from penstock.core.state.durable import ROUTES_MAX, DurableState
from penstock.core.state.queue_state import QueueState
from penstock.core.topology.routing import Router
from penstock.core.topology.topology import DEFAULT, WAITING, Topology, canonical_table, owner_of
from penstock.errors import (
    AccessRefused,
    ExpressionError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from penstock.expr import TopicPattern, compile_filter, compile_value
from penstock.expr.bodies import body_type
from penstock.records.chunks import Chunk, pack_pairs, pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.field_tables import Timestamp
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.queue_settings import NAMES, QueueSettings, Ruling
from penstock.records.remembered import Remembered

DEFAULT_VHOST = "/"
ROUTE_LAST = (1 << 31) - 1
"""The column has 32 bits: what comes after two thousand million combinations is told as where the table is full."""

BLIND_BYTES = 4 << 20
"""Memory that BCC keys may take, each combination counted once.  Messages with further ones are stored without them."""

RETIRED_AT_ONCE = 1_000
"""Ids of a vhost that is gone which are told anew in one group."""

_BLIND_ENTRY = 256
"""Bytes of a combination besides its text."""


class Interning:
    """The two tables, and the records that tell of them."""

    def __init__(self, outbox: Outbox[Effect]) -> None:
        self._outbox = outbox
        self._routes_max = ROUTES_MAX
        self._routes: dict[tuple[int, ...], int] = {}
        self._queues: dict[int, tuple[int, ...]] = {}  # the same the other way round
        self._vias: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._named: dict[int, tuple[str, str, tuple[str, ...]]] = {}  # the same the other way round
        self._blind_room = BLIND_BYTES
        self._by_queue: dict[int, set[int]] = {}  # numbers: the hash of a combination of thousands is worked out anew
        self._next_route = 0
        self.beside = 0  # up to this LSN it may be said beside a row without a route who took it
        self._next_via = 0

    @property
    def full(self) -> bool:
        """Whether new combinations of queues get no number any more."""
        return len(self._routes) >= self._routes_max or self._next_route > ROUTE_LAST

    def route(self, queues: tuple[int, ...]) -> int:
        """The number of a combination of queue ids in ascending order; `NO_ROUTE` when the table is full."""
        number = self._routes.get(queues)
        if number is None:
            if self.full:
                return NO_ROUTE
            number = self._next_route
            self._outbox.record(Kind.ROUTE, body=struct.pack(f"<{len(queues)}q", *queues), route=number)
            self._add_route(queues, number)
        return number

    def queues_of(self, number: int) -> tuple[int, ...]:
        """The ids of the queues that a route names; none for `NO_ROUTE`, and for one that is not in use any more."""
        return self._queues.get(number, ())

    def without(self, queue: int) -> frozenset[int]:
        """Routes of rows that this queue has not taken, as far as the rows can tell; nor has it those behind `beside`
        that have none.
        """
        return frozenset(number for number, queues in self._queues.items() if queue not in queues)

    def _add_route(self, queues: tuple[int, ...], number: int) -> None:
        self._routes[queues] = number
        self._queues[number] = queues
        self._next_route = max(self._next_route, number + 1)
        for queue in queues:
            self._by_queue.setdefault(queue, set()).add(number)

    def forget_queue(self, queue: int) -> None:
        """A queue is gone: combinations with it will not be used again."""
        for number in self._by_queue.pop(queue, ()):
            queues = self._queues.pop(number)
            del self._routes[queues]
            for other in queues:
                if other != queue:
                    self._by_queue[other].discard(number)

    def took(self, queue: Queue, chunk: Chunk) -> None:
        """Say beside the rows that a queue took them."""
        pairs, self.beside = pairs_of(chunk, False), chunk[-1]
        self._outbox.record(Kind.TOOK, queue.name, body=pack_pairs(queue.id, pairs))

    def place(self, topic: Topic) -> None:
        """Give a topic its `via` before its first row is written; one without BCC keys if there is no room for them."""
        if topic.via == NO_VIA and (topic.exchange != DEFAULT or topic.vhost != DEFAULT_VHOST or topic.blind):
            if not self._has_room(topic, topic.blind):
                topic.blind = ()  # as whoever reads it from the log will have it
            topic.via = self.via(topic.vhost, topic.exchange, topic.blind)

    def via(self, vhost: str, exchange: str, blind: tuple[str, ...] = ()) -> int:
        """The number of a (vhost, exchange, BCC keys); `NO_VIA` for the default ones."""
        if vhost == DEFAULT_VHOST and exchange == DEFAULT and not blind:
            return NO_VIA
        number = self._vias.get((vhost, exchange, blind))
        if number is None:
            number = self._next_via
            self._tell_via(number, vhost, exchange, blind)
            self._add_via(number, vhost, exchange, blind)
        return number

    def _add_via(self, number: int, vhost: str, exchange: str, blind: tuple[str, ...]) -> None:
        self._name(number, vhost, exchange, blind)
        self._next_via = max(self._next_via, number + 1)
        if blind:
            self._blind_room -= _weight(blind)

    def _name(self, number: int, vhost: str, exchange: str, blind: tuple[str, ...]) -> None:
        name = self._named[number] = vhost, exchange, blind
        self._vias[name] = number

    def retire(self, vhost: str) -> int:
        """What has come in a vhost that is gone is of no vhost from now on, whoever makes one of its name; how many
        ids were told anew, at most `RETIRED_AT_ONCE`: 0 when there are no more.
        """
        some = list(islice((one for one in self._vias.items() if one[0][0] == vhost), RETIRED_AT_ONCE))
        for (_, exchange, blind), number in some:
            del self._vias[vhost, exchange, blind]
            self._tell_via(number, f"{vhost}\0{number}", exchange, blind)
        return len(some)

    def _tell_via(self, number: int, vhost: str, exchange: str, blind: tuple[str, ...]) -> None:
        header: dict[str, object] = {"vhost": vhost, "exchange": exchange}
        if blind:
            header["bcc"] = blind
        self._outbox.record(Kind.VIA, exchange, header, via=number)
        self._name(number, vhost, exchange, blind)

    def named(self, via: int) -> tuple[str, str, tuple[str, ...]]:
        """What a via stands for: vhost, exchange, BCC keys."""
        return (DEFAULT_VHOST, DEFAULT, ()) if via == NO_VIA else self._named[via]

    def hiding(self, topic: Topic, blind: tuple[str, ...]) -> Topic | None:
        """The same topic for newcomers with these BCC keys; None: there is no room to remember them."""
        return topic.with_blind(blind) if self._has_room(topic, blind) else None

    def _has_room(self, topic: Topic, blind: tuple[str, ...]) -> bool:
        return (topic.vhost, topic.exchange, blind) in self._vias or _weight(blind) <= self._blind_room

    def blind_of(self, topic: Topic) -> tuple[str, ...]:
        """BCC keys of messages with this topic, as they were stored."""
        return topic.blind or self.named(topic.via)[2]

    def load(self, state: DurableState) -> None:
        """Take over a decoded state."""
        for number, pair in state.vias.items():
            self._add_via(number, pair[0], pair[1], pair[2:])
        self._next_route, self.beside = state.next_route, state.beside
        for number, queues in state.routes.items():
            self._add_route(queues, number)

    def save(self, state: DurableState) -> None:
        """Put a copy of both tables into a state."""
        state.routes = {number: queues for queues, number in self._routes.items()}
        state.vias = {number: (*topic, *blind) for (*topic, blind), number in self._vias.items()}
        state.next_route, state.beside = self._next_route, self.beside


def _weight(blind: tuple[str, ...]) -> int:
    return _BLIND_ENTRY + sum(map(len, blind))


def check_settings(vhost: str, name: str, settings: QueueSettings, *, by_arguments: bool = False) -> None:
    """Refuse settings that cannot hold together.  ExpressionError for a filter that cannot be read.

    by_arguments: whoever asks for them has said them as arguments of a declare, and hears of them so.
    """
    where = f"queue '{name}' in vhost '{vhost}'"
    spell = _argument if by_arguments else str
    if settings.underlying_topic:
        try:
            pattern = TopicPattern(settings.underlying_topic)
        except ValueError as error:
            raise bad_argument(spell("underlying_topic"), where, error) from error
        target = settings.default_publish_target
        if target is None and not pattern.literal:
            raise bad_argument(spell("default_publish_target"), where, "a pattern of topics needs one")
        if target is not None and not pattern.matches(target):
            raise bad_argument(spell("default_publish_target"), where, f"'{target}' is not among its underlying topics")
    if settings.dead_letter_routing_key is not None and settings.dead_letter_exchange is None:
        raise bad_argument(spell("dead_letter_routing_key"), where, "routing_key_but_no_dlx_defined")
    if settings.semantics == "at-most-once" and settings.fairness_model != "round-robin":
        raise bad_argument(spell("fairness_model"), where, "at-most-once queues know round-robin alone")
    body_type(settings.message_type)  # PreconditionFailed where its library is missing
    check_expressions(where, settings, spell)


def _argument(key: str) -> str:
    """What the arguments of a declare call a setting."""
    return f"x-{key.replace('_', '-')}"


def check_expressions(where: str, settings: QueueSettings, spell: Callable[[str], str] = str) -> None:
    """Refuse expressions that cannot be read, or say another thing of a message at another time.

    where: whose they are, for the message.  spell: what whoever said them calls a setting.
    """
    if settings.filter:
        with _naming(spell("filter"), where):
            deterministic = compile_filter(settings.filter).deterministic
        if not deterministic:
            raise bad_argument(spell("filter"), where, "a queue's filter must say the same of a message at any time")
    if settings.priority_expression is not None:
        with _naming(spell("priority_expression"), where):
            compile_value(settings.priority_expression).require_deterministic("a priority expression")
    for key, what in (
        ("group_key", "a group key"),
        ("fairness_key", "a fairness key"),
        ("last_value_key", "the key of a last value"),
        ("dedup_key", "the key of duplicates"),
    ):
        if (text := getattr(settings, key)) is not None:
            with _naming(spell(key), where):
                compile_value(text).require_deterministic(what)
    if settings.barrier_expression:
        with _naming(spell("barrier_expression"), where):
            compile_filter(settings.barrier_expression).require_deterministic("a barrier expression")


def why_not(
    vhost: str, name: str, settings: QueueSettings, refuse: Callable[[QueueSettings], str | None] | None
) -> str | None:
    """Why a queue cannot have these settings, in words that do not name it; None where it can."""
    if refuse is not None and (why := refuse(settings)) is not None:
        return why
    try:
        check_settings(vhost, name, settings)
    except (ExpressionError, InvalidArgument, PreconditionFailed) as error:
        where = f"queue '{name}' in vhost '{vhost}'"
        return str(error).replace(f" for {where}", "").replace(f" of {where}", "")
    return None


@contextmanager
def _naming(key: str, where: str) -> Generator[None]:
    """Let an expression that cannot be read say whose it is."""
    try:
        yield
    except ExpressionError as error:
        told = f"invalid arg '{key}' for {where}" if key.startswith("x-") else f"{key} of {where}"
        raise ExpressionError(f"{told}: {error}", text=error.text, place=error.place) from None


def no_exchange(vhost: str, name: str) -> NotFound:
    """The refusal for a missing exchange."""
    return NotFound(f"no exchange '{name}' in vhost '{vhost}'")


def on_default_exchange() -> AccessRefused:
    """The refusal to touch the default exchange."""
    return AccessRefused("operation not permitted on the default exchange")


def bad_argument(argument: str, where: str, detail: object) -> InvalidArgument:
    """The refusal of one argument of a declare."""
    return InvalidArgument(f"invalid arg '{argument}' for {where}: {detail}")


def locked(vhost: str, name: str) -> ResourceLocked:
    """The refusal of a queue that is exclusive to somebody else."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )


def refuse_difference(
    what: str,
    flags: tuple[tuple[str, bool, bool], ...],
    received: Mapping[str, object],
    current: Mapping[str, object],
    alike: Callable[[str], bool] = lambda name: False,
) -> None:
    """Raise PreconditionFailed at the first difference between a declare and what is there.

    alike: arguments that may differ.
    """
    for name, mine, theirs in flags:
        if mine != theirs:
            raise PreconditionFailed(
                f"inequivalent arg '{name}' for {what}: received '{_word(mine)}' but current is '{_word(theirs)}'"
            )
    for name in sorted({*received, *current}, key=_looked_at):
        if alike(name):
            continue
        if name not in current:
            text = f"received {_described(received[name])} but current is none"
        elif name not in received:
            text = f"received none but current is {_described(current[name])}"
        elif canonical_table({"": received[name]}) == canonical_table({"": current[name]}):
            continue
        else:
            text = f"received '{_word(received[name])}' but current is '{_word(current[name])}'"
        raise PreconditionFailed(f"inequivalent arg '{name}' for {what}: {text}")


_FIRST = (
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy",
    "x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-max-priority",
    "x-overflow", "x-queue-mode", "x-single-active-consumer", "x-queue-type",
)  # fmt: skip
"""In which order RabbitMQ looks at arguments: of several that differ clients are told the first."""


_SETTINGS = (*NAMES, "expires", "max_age", "message_deduplication")

_OF_QUEUES = frozenset((*_FIRST, *(f"x-{name.replace('_', '-')}" for name in _SETTINGS)))
"""Arguments that say something."""


def unknown(name: str) -> bool:
    """Whether an argument of a queue is nobody's: RabbitMQ keeps it, and asks no second declare for it."""
    return name not in _OF_QUEUES


def _looked_at(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _described(value: object) -> str:
    return f"the value '{_word(value)}' of type '{_type_name(value)}'"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_name(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case Timestamp():
            return "timestamp"
        case int():
            return "signedint" if -(2**31) <= value < 2**31 else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes():
            return "binary"
        case list() | tuple():
            return "array"
        case dict():
            return "table"
        case None:
            return "void"
        case _:
            return type(value).__name__


SETTINGS_MOST = 1024
"""Different settings that are remembered, so that queues declared alike share one object."""


@dataclass(eq=False)
class Register:
    """All queues of an instance."""

    _topology: Topology
    _router: Router
    _interning: Interning
    _rules: Rules
    _sizes: Sizes
    by_id: dict[int, Queue] = field(default_factory=dict[int, "Queue"], init=False)  # ascending
    exclusive: dict[object, dict[int, Queue]] = field(default_factory=dict[object, "dict[int, Queue]"], init=False)
    """By connection."""

    def __post_init__(self) -> None:
        self.queues = self._router.queues  # the one table by name
        self._settings = Remembered[QueueSettings, QueueSettings](SETTINGS_MOST)  # equal ones are one object
        self._rulings = Remembered[Ruling, Ruling](SETTINGS_MOST)  # as well
        self._declared = Remembered[tuple[object, ...], Declared](SETTINGS_MOST)  # as well

    def make(self, state: QueueState, exclusive_to: object | None) -> Queue:
        """The queue of a state, without messages, in the register; its record is written already."""
        actions = self._rules.on_queue(state.vhost, state.name)
        own = owner_of(state.name, state.arguments)
        queue = Queue(
            state.id, state.vhost, state.name, self._settings.alike(state.settings, state.settings), state.durable,
            exclusive_to, state.auto_delete, state.arguments, () if own is not None else actions, self._sizes,
            None if own is None else own[1], own is not None and own[0] is WAITING,
        )  # fmt: skip
        queue.ruling = self.shared(state.ruling)
        if exclusive_to is None and not queue.actions:
            queue.declared = self._alike(queue.declared)
        self.by_id[queue.id] = queue
        if exclusive_to is not None:
            self.exclusive.setdefault(exclusive_to, {})[queue.id] = queue
        self._topology.version += 1
        self._router.add(queue)
        return queue

    def _alike(self, declared: Declared) -> Declared:
        """Equal ones as one object, of those that nobody is the owner of and no action asks about."""
        key = (
            declared.vhost,
            declared.durable,
            declared.auto_delete,
            declared.exchange,
            declared.waits,
            canonical_table(declared.arguments),
        )
        return self._declared.alike(key, declared)

    def shared(self, ruling: Ruling | None) -> Ruling | None:
        """Equal rulings as one object."""
        return None if ruling is None else self._rulings.alike(ruling, ruling)

    def queue(self, vhost: str, name: str, by: object | None = None) -> Queue:
        """A queue that `by` may use.  NotFound, or ResourceLocked when it is exclusive to somebody else."""
        queue = self.queues.find(vhost, name)
        if queue is None:
            raise self.queues.missing(vhost, name)
        if queue.exclusive_to is not None and queue.exclusive_to is not by:
            raise locked(vhost, name)
        return queue

    def forget(self, queue: Queue) -> None:
        """Take a queue out of the register and of routing."""
        self._router.remove(queue)
        self.by_id.pop(queue.id, None)
        if (own := self.exclusive.get(queue.exclusive_to)) is not None:
            own.pop(queue.id, None)
            if not own:
                del self.exclusive[queue.exclusive_to]
        self._interning.forget_queue(queue.id)
        self._topology.version += 1
        queue.disown()
