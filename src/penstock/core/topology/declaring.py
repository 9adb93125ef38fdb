"""Administration: declaring, altering, binding and deleting, with every refusal decided before a record is written.

The queues that there are, and the words of refusals, stand in `register`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import EXCHANGE, Binding, ExchangeState
from penstock.core.state.encoding import as_table, dump_settings, wrap
from penstock.core.state.queue_state import QueueState
from penstock.core.topology.exchange_types import check_binding, check_type
from penstock.core.topology.register import (
    Register,
    bad_argument,
    check_settings,
    locked,
    no_exchange,
    on_default_exchange,
    refuse_difference,
    unknown,
    why_not,
)
from penstock.core.topology.routing import REPLY_TO
from penstock.core.topology.ruling import dump_difference, dump_exchanges, dump_ruling
from penstock.core.topology.topology import (
    BINDING,
    DEFAULT,
    PREDECLARED,
    canonical_table,
    check_fields,
    own_names,
    own_queues,
    owner_of,
)
from penstock.errors import AccessRefused, InvalidArgument, PreconditionFailed, known_name
from penstock.records.chunks import Now, pack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.declared_types import EXCHANGE_TYPES
from penstock.records.kinds import Kind
from penstock.records.message_types import JSON, MESSAGE_TYPE, alike, goes_on, named
from penstock.records.queue_settings import ExchangeRule, QueueSettings, Ruling, given_after, kept, ruling_of, told
from penstock.records.sow_settings import goes_on_with_records

NO_TABLE: Mapping[str, object] = {}


@dataclass(eq=False)
class Admin(Register):
    """The commands that change the topology."""

    _outbox: Outbox[Effect]
    _on_delete: Callable[[Now, Queue], int]  # ends its consumers, streams and timers; returns how much was ready
    _on_gone: Callable[[int, int], None]  # hears which queue is gone, and the LSN that says so
    _refuse: Callable[[QueueSettings], str | None] | None
    """Why settings cannot be together; None where they can."""
    created: int = field(default=0, init=False)  # queues, in this process
    deleted: int = field(default=0, init=False)

    # queues

    def ruled(
        self, vhost: str, name: str, arguments: Mapping[str, object], own: QueueSettings, given: frozenset[str]
    ) -> tuple[QueueSettings, Ruling | None]:
        """The settings in force for a queue with these of its own, and its ruling."""
        policies = self._topology.policies
        if policies.empty or owner_of(name, arguments) is not None:
            return own, kept(Ruling(own, given))
        kind = arguments.get("x-queue-type", own.queue_type)
        settings, ruling = policies.rule(
            vhost, name, str(kind), own, given, lambda tried: why_not(vhost, name, tried, self._refuse)
        )
        return settings, kept(ruling)

    def why_not(self, queue: Queue, settings: QueueSettings) -> str | None:
        """Why a queue cannot have these settings; None where it can."""
        return why_not(queue.vhost, queue.name, settings, self._refuse)

    def declare_queue(
        self,
        now: Now,
        vhost: str,
        name: str,
        settings: QueueSettings,
        *,
        durable: bool,
        exclusive_to: object | None,
        auto_delete: bool,
        arguments: Mapping[str, object],
        passive: bool,
        by: object | None,
        server_named: bool,
        given: Iterable[str] | None = None,
    ) -> Queue:
        """Declare, or find an equal one.  A passive declare never creates.

        given: names of the settings that somebody gave; None: those that differ from their default.
        """
        existing = self.queues.find(vhost, name)
        if existing is not None or passive:
            found = self.queue(vhost, name, by if by is not None else exclusive_to)
            if not passive:
                if (exclusive_to is not None) != (found.exclusive_to is not None):
                    raise locked(vhost, name)
                refuse_difference(f"queue '{name}' in vhost '{vhost}'", (
                    ("durable", durable, found.durable), ("auto_delete", auto_delete, found.auto_delete),
                ), arguments, found.arguments, unknown)  # fmt: skip
            return found
        self._check_new_queue(vhost, name, settings, server_named, bool(arguments), (
            ("non-durable", not durable), ("exclusive-owner", exclusive_to is not None), ("auto-delete", auto_delete),
        ))  # fmt: skip
        check_fields(f"queue '{name}' in vhost '{vhost}'", arguments)
        now = self._outbox.at(now, True)
        names = told(settings) if given is None else frozenset(given)
        in_force, ruling = self.ruled(vhost, name, arguments, settings, names)
        table = wrap(arguments)
        header = {
            "vhost": vhost,
            "durable": durable,
            "exclusive": exclusive_to is not None,
            "auto_delete": auto_delete,
            "arguments": table,
            "settings": dump_settings(settings),
        }
        if changed := dump_difference(in_force, settings):
            header["changed"] = changed
        if ruling is not None:
            header["ruling"] = dump_ruling(ruling, in_force)
        number = self._outbox.record(Kind.QUEUE_DECLARE, name, header)
        kept_arguments = as_table(table)  # as a start finds them
        state = QueueState(
            number, vhost, name, in_force, durable, exclusive_to is not None, auto_delete, kept_arguments
        )  # fmt: skip
        state.ruling = ruling
        self.created += 1
        return self.make(state, exclusive_to)

    def _check_new_queue(
        self, vhost: str, name: str, settings: QueueSettings, server_named: bool, by_arguments: bool,
        passing: Sequence[tuple[str, bool]],
    ) -> None:  # fmt: skip
        """Whether there may be a queue of this name with these settings.  passing: what a lasting one may not be."""
        if name.startswith("amq.") and not server_named:
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        if not name or len(name.encode()) > 255:
            raise InvalidArgument(f"a queue name has 1 to 255 bytes, not {len(name.encode())}")
        check_settings(vhost, name, settings, by_arguments=by_arguments)
        self._refuse_other_type(vhost, name, settings)
        if settings.type.lasting:
            _refuse_passing(vhost, name, settings.queue_type, server_named, passing)

    def _refuse_other_type(self, vhost: str, name: str, settings: QueueSettings) -> None:
        """A queue and the topic that it shows by name say the same of their bodies."""
        key = settings.underlying_topic or name
        declared = self._topology.topics.get((vhost, settings.exchange, key))
        kind = settings.message_type if declared is None else declared.get(MESSAGE_TYPE, JSON)
        if not alike(str(kind), settings.message_type):
            raise PreconditionFailed(
                f"queue '{name}' in vhost '{vhost}' has message_type {named(settings.message_type)}, and its topic "
                f"'{key}' was declared with {named(str(kind))}"
            )

    def altering(
        self, queue: Queue, own: QueueSettings, given: Iterable[str] | None
    ) -> tuple[QueueSettings, Ruling | None]:
        """What is in force for a queue with these settings of its own.  Refuses those that cannot hold together.

        given: as in `declare_queue`; None: what was given before, and what is others now.
        """
        present = ruling_of(queue.settings, queue.ruling)
        names = given_after(present.own, present.given, own) if given is None else frozenset(given)
        if own.queue_type != present.own.queue_type:
            where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise PreconditionFailed(f"{where} is {present.own.queue_type}: a type comes with the declare, and stays")
        if own.message_type != present.own.message_type and not goes_on(own.message_type, present.own.message_type):
            where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            kind = named(present.own.message_type)
            raise PreconditionFailed(f"{where} has message_type {kind}: it comes with the declare, and stays")
        if own != present.own:
            check_settings(queue.vhost, queue.name, own)
        return self.ruled(queue.vhost, queue.name, queue.arguments, own, names)

    def alter_queue(self, queue: Queue, settings: QueueSettings, ruling: Ruling | None) -> bool:
        """Log what is in force from now on, and why; whether that is other settings, which the caller then tells.

        Where it is, the queue is out of routing until `altered`.
        """
        changed = dump_difference(settings, queue.settings)
        if not changed and ruling == queue.ruling:
            return False
        header = {"changed": changed, "ruling": dump_ruling(ruling, settings)}
        self._outbox.record(Kind.QUEUE_ALTER, queue.name, header, pack_pairs(queue.id, ()))
        queue.ruling = self.shared(ruling)
        if changed:
            self._router.remove(queue)
        return bool(changed)

    def altered(self, queue: Queue) -> None:
        """The queue has its new settings."""
        self._topology.version += 1
        self._router.add(queue)

    def delete_queue(self, now: Now, queue: Queue) -> int:
        """Log the end of a queue, with the bindings and auto-delete exchanges that go with it; how much was ready."""
        now = self._outbox.at(now)
        self._outbox.begin()
        ready = self._on_delete(now, queue)
        bound = list(self._topology.bindings_to(queue.vhost, "queue", queue.name))
        self._topology.queue_gone(queue.vhost, queue.name)
        left = self._sweep(now, queue.vhost, {b.source for b in bound}, bound)
        lsn = self._outbox.record(Kind.QUEUE_DELETE, queue.name, {"vhost": queue.vhost}, pack_pairs(queue.id, ()))
        self._topology.note_ends(lsn, left)
        self._on_gone(queue.id, lsn)
        self.forget(queue)
        self.deleted += 1
        self._outbox.end()
        return ready

    # exchanges

    def declare_exchange(
        self,
        now: Now,
        vhost: str,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] = NO_TABLE,
        passive: bool = False,
    ) -> None:
        """Declare an exchange, or find an equal one."""
        if name == DEFAULT:
            raise on_default_exchange()
        existing = self._topology.exchange(vhost, name)
        if passive:
            if existing is None:
                raise no_exchange(vhost, name)
            return
        if kind not in EXCHANGE_TYPES:
            known = known_name(kind, EXCHANGE_TYPES, f"; there are {', '.join(EXCHANGE_TYPES)}")
            raise InvalidArgument(f"unknown exchange type '{kind}'{known}")
        if existing is not None:
            what = f"exchange '{name}' in vhost '{vhost}'"
            if kind != existing.type:
                raise PreconditionFailed(
                    f"inequivalent arg 'type' for {what}: received '{kind}' but current is '{existing.type}'"
                )
            refuse_difference(what, (
                ("durable", durable, existing.durable), ("auto_delete", auto_delete, existing.auto_delete),
                ("internal", internal, existing.internal),
            ), arguments, existing.arguments)  # fmt: skip
            return
        _check_new_exchange(vhost, name, kind, arguments)
        now = self._outbox.at(now, True)
        self._outbox.begin()
        exchange = ExchangeState(kind, durable, auto_delete, internal, as_table(wrap(arguments)))
        header = {"vhost": vhost, **EXCHANGE.dump(exchange)}
        rule = self._topology.policies.of_exchange(vhost, name)
        if rule is not None:
            header["exchanges"] = dump_exchanges({(vhost, name): rule})
        self._outbox.record(Kind.EXCHANGE_DECLARE, name, header)
        self._topology.declare_exchange(vhost, name, exchange)
        for own in own_queues(kind, arguments):
            self.declare_queue(
                now, vhost, own.prefix + name, own.settings(arguments), durable=durable, exclusive_to=None,
                auto_delete=False, arguments={own.argument: name}, passive=False, by=None, server_named=True,
            )  # fmt: skip
        self._outbox.end()
        if rule is not None:
            self._topology.policies.rule_exchanges({(vhost, name): rule})

    def rules_of_exchanges(self, vhosts: Iterable[str]) -> dict[tuple[str, str], ExchangeRule | None]:
        """The exchanges for which another rule is in force than policies say, and what these say."""
        policies, out = self._topology.policies, dict[tuple[str, str], ExchangeRule | None]()
        for vhost in vhosts:
            names = {name for place, name in policies.exchanges if place == vhost}
            if policies.rules_exchanges(vhost):
                names = {name for place, name in self._topology.exchanges if place == vhost} | PREDECLARED.keys()
            for name in names:
                rule = policies.of_exchange(vhost, name)
                if rule != policies.exchanges.get((vhost, name)):
                    out[vhost, name] = rule
        return out

    def delete_exchange(self, now: Now, vhost: str, name: str, *, if_unused: bool = False) -> None:
        """Delete; one that does not exist is no error."""
        if name == DEFAULT:
            raise on_default_exchange()
        if name in PREDECLARED:
            raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost}' not allowed")
        if (vhost, name) not in self._topology.exchanges:
            return
        if if_unused and any(True for _ in self._topology.bindings_from(vhost, name)):
            raise PreconditionFailed(f"exchange '{name}' in vhost '{vhost}' in use")
        now = self._outbox.at(now)
        self._outbox.begin()
        lsn, bound = self._delete_exchange(now, vhost, name)
        self._topology.note_ends(lsn, self._sweep(now, vhost, {b.source for b in bound}, bound))
        self._outbox.end()

    def _delete_exchange(
        self, now: Now, vhost: str, name: str, ended: Iterable[Binding] = ()
    ) -> tuple[int, list[Binding]]:
        """Delete one, which `ended` bindings came from; returns the LSN, and the bindings to it from others."""
        bound = [b for b in self._topology.bindings_to(vhost, "exchange", name) if b.source != name]
        lsn = self._outbox.record(Kind.EXCHANGE_DELETE, name, {"vhost": vhost})
        self._topology.note_ends(lsn, [*ended, *self._topology.bindings_from(vhost, name)])
        self._topology.delete_exchange(vhost, name)
        for _, queue_name in own_names(name):
            queue = self.queues.find(vhost, queue_name)
            if queue is not None and queue.exchange == name:
                self.delete_queue(now, queue)
        return lsn, bound

    def _sweep(self, now: Now, vhost: str, sources: set[str], ended: Iterable[Binding] = ()) -> list[Binding]:
        """Auto-delete exchanges go with their last binding as source, and may take others along.

        ended: bindings that went by now, which are told with their source if it goes; returns the others.
        """
        todo, left = sorted(sources), list(ended)
        while todo:
            name = todo.pop()
            exchange = self._topology.exchanges.get((vhost, name))
            if exchange is None or not exchange.auto_delete or not exchange.used:
                continue
            if not any(True for _ in self._topology.bindings_from(vhost, name)):
                _, bound = self._delete_exchange(now, vhost, name, [b for b in left if b.source == name])
                left = [b for b in left if b.source != name] + bound
                todo += sorted({b.source for b in bound})
        return left

    # bindings

    def bind(
        self,
        now: Now,
        vhost: str,
        source: str,
        destination: str,
        kind: str,
        key: str,
        arguments: Mapping[str, object] = NO_TABLE,
        by: object | None = None,
    ) -> bool:
        """Bind a queue ("queue") or an exchange ("exchange") to an exchange; the same twice is one.  Whether it is new.

        by: the connection that asks, which may not bind the exclusive queue of another one.
        """
        binding = _binding(vhost, source, destination, kind, key, arguments)
        if kind == "queue" and destination.startswith(REPLY_TO):
            raise AccessRefused("cannot bind or unbind to a volatile (direct reply-to) queue")
        exchange = self._topology.exchange(vhost, source)
        if exchange is None:
            raise no_exchange(vhost, source)
        if kind == "queue":
            bound = self.queues.find(vhost, destination)
            if bound is None:
                raise self.queues.missing(vhost, destination)
            if bound.exchange is not None:
                raise AccessRefused(f"queue '{destination}' belongs to exchange '{bound.exchange}': it cannot be bound")
            self._refuse_other(bound, by)
        elif self._topology.exchange(vhost, destination) is None:
            raise no_exchange(vhost, destination)
        check_binding(exchange, key, arguments)
        if self._topology.has(binding):
            return False
        check_fields(f"the binding of {kind} '{destination}' to exchange '{source}' in vhost '{vhost}'", arguments)
        now = self._outbox.at(now, True)
        self._outbox.record(Kind.BIND, destination, BINDING.dump(binding))
        self._topology.bind(binding)
        return True

    def unbind(
        self,
        now: Now,
        vhost: str,
        source: str,
        destination: str,
        kind: str,
        key: str,
        arguments: Mapping[str, object] = NO_TABLE,
        by: object | None = None,
    ) -> None:
        """Remove a binding, `by` as in `bind`; one that does not exist is no error, whether its ends do or not."""
        binding = _binding(vhost, source, destination, kind, key, arguments)
        if self._topology.has(binding):
            bound = self.queues.find(vhost, destination) if kind == "queue" else None
            if bound is not None:
                self._refuse_other(bound, by)
            now = self._outbox.at(now)
            self._outbox.begin()
            self._topology.unbind(binding)
            left = self._sweep(now, vhost, {source})
            lsn = self._outbox.record(Kind.UNBIND, destination, BINDING.dump(binding))
            self._topology.note_ends(lsn, left)
            self._outbox.end()

    @staticmethod
    def _refuse_other(queue: Queue, by: object | None) -> None:
        """ResourceLocked for a connection that wants to change the bindings of another one's queue."""
        if by is not None and queue.exclusive_to not in {None, by}:
            raise locked(queue.vhost, queue.name)

    # topics

    def declare_topic(self, now: Now, vhost: str, exchange: str, key: str, settings: Mapping[str, object]) -> bool:
        """A topic that keeps what no queue takes; whether its record says that the records of its keys go on."""
        if self._topology.exchange(vhost, exchange) is None:
            raise no_exchange(vhost, exchange)
        table = as_table(wrap(settings))
        before = self._topology.topics.get((vhost, exchange, key))
        if before == table:
            return False
        kind = str(settings.get(MESSAGE_TYPE, JSON))
        for queue in self._router.shows(vhost, exchange, key):
            if not alike(other := queue.settings.message_type, kind):
                raise PreconditionFailed(
                    f"topic '{key}' in vhost '{vhost}' is declared with message_type {named(kind)}, and queue "
                    f"'{queue.name}', which shows it, has {named(other)}"
                )
        now = self._outbox.at(now)
        header = {"vhost": vhost, "exchange": exchange, "settings": wrap(settings)}
        stays = goes_on_with_records(settings, before or NO_TABLE)
        self._outbox.record(Kind.TOPIC_DECLARE, key, header | ({"kept": True} if stays else {}))
        self._topology.declare_topic(vhost, exchange, key, table)
        return stays

    def delete_topic(self, now: Now, vhost: str, exchange: str, key: str) -> None:
        """The topic keeps nothing more; one that was not declared is no error."""
        if (vhost, exchange, key) in self._topology.topics:
            now = self._outbox.at(now)
            self._outbox.record(Kind.TOPIC_DELETE, key, {"vhost": vhost, "exchange": exchange})
            self._topology.delete_topic(vhost, exchange, key)


def _binding(
    vhost: str, source: str, destination: str, kind: str, key: str, arguments: Mapping[str, object]
) -> Binding:
    """One that somebody may ask for; the default exchange has none but its own."""
    if source == DEFAULT or (kind == "exchange" and destination == DEFAULT):
        raise on_default_exchange()
    return Binding(vhost, source, destination, kind, key, canonical_table(arguments))


def _refuse_passing(vhost: str, name: str, kind: str, server_named: bool, flags: Iterable[tuple[str, bool]]) -> None:
    """Errors of RabbitMQ for a queue of a lasting type that is declared as one that passes."""
    if server_named:
        raise PreconditionFailed(f"Cannot declare a server-named queue for type rabbit_{kind}_queue")
    for word, said in flags:
        if said:
            raise PreconditionFailed(f"invalid property '{word}' for queue '{name}' in vhost '{vhost}'")


def _check_new_exchange(vhost: str, name: str, kind: str, arguments: Mapping[str, object]) -> None:
    """Errors of RabbitMQ for an exchange that cannot be so."""
    if name.startswith("amq."):
        raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    alternate = arguments.get("alternate-exchange", "")
    if not isinstance(alternate, str):
        raise bad_argument("alternate-exchange", f"exchange '{name}' in vhost '{vhost}'", f"{alternate!r} is not text")
    check_type(what := f"exchange '{name}' in vhost '{vhost}'", kind, arguments)
    check_fields(what, arguments)
    for own in own_queues(kind, arguments):
        if len((own.prefix + name).encode()) > 255:
            raise InvalidArgument(f"the name of an exchange that {own.does} has at most {255 - len(own.prefix)} bytes")
