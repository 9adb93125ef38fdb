"""Commands about queues, exchanges and bindings, as `wire.http.exchanges` and `wire.http.bindings` ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from penstock.config.arguments import GENERATED, given_arguments, queue_settings
from penstock.core.topology.topology import DEFAULT, PREDECLARED, table_of
from penstock.errors import AccessRefused, NotFound
from penstock.server.entitlements import exchange_needs
from penstock.server.http.commands import Commands

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.core.state.durable import Binding, ExchangeState


class Topology(Commands):
    """Changes are answered when they are durable; each asks for the user's rights as AMQP does."""

    # -- queues

    async def declare_queue(
        self,
        user: str | None,
        vhost: str,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: Mapping[str, object],
        held: Mapping[str, object] | None = None,
        wait: bool = True,
    ) -> bool:
        """Declare, or find an equal one; whether it is new.  Raises what the core refuses.

        held: those of the arguments that settings are made of; None: all.  wait: until it is durable.
        """
        held = arguments if held is None else held
        settings = queue_settings(held, queue=name, vhost=self.vhost(vhost))
        present = self.core.find_queue(vhost, name)
        rights = self.rights(user)
        if rights is not None:
            rights.declare(vhost, name, settings, present)
        await self.decide(
            lambda: self.core.declare_queue(
                self.now(), vhost, name, settings, durable=durable, auto_delete=auto_delete, arguments=arguments,
                given=given_arguments(held), server_named=name.startswith(GENERATED),
            ),
            wait=wait,
        )  # fmt: skip
        return present is None

    async def declare_topic(self, vhost: str, name: str, *, wait: bool = True) -> bool:
        """Keep what is published to a name of the default exchange and no queue takes; whether that is new."""
        fresh = (vhost, DEFAULT, name) not in self.core.topology.topics
        await self.decide(lambda: self.core.declare_topic(self.now(), self.vhost(vhost), DEFAULT, name), wait=wait)
        return fresh

    async def delete_topic(self, vhost: str, name: str) -> None:
        """Keep it no more."""
        await self.decide(lambda: self.core.delete_topic(self.now(), self.vhost(vhost), DEFAULT, name))

    async def delete_queue(self, user: str | None, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        """Delete."""
        queue = self._visible(user, vhost, name)
        await self.decide(lambda: self.core.delete_queue(self.now(), queue, if_unused=if_unused, if_empty=if_empty))

    async def purge_queue(self, user: str, vhost: str, name: str) -> None:
        """Remove what is ready."""
        queue = self._visible(user, vhost, name)
        await self.decide(lambda: self.core.purge_queue(self.now(), queue))

    def _visible(self, user: str | None, vhost: str, name: str) -> Queue:
        rights = self.rights(user)
        queue = self.queue(vhost, name)
        if rights is not None and not rights.sees_queue(vhost, name):
            raise NotFound("Not Found")
        return queue

    # -- exchanges

    def exchanges(self, vhost: str | None) -> Iterator[Mapping[str, object]]:
        """Of one vhost or of all: the predeclared ones, then those that were declared."""
        vhosts = self.facts.vhosts() if vhost is None else [self.vhost(vhost)]
        topology = self.core.topology
        for one in vhosts:
            for name, exchange in PREDECLARED.items():
                yield _exchange(one, name, exchange)
        for (one, name), exchange in list(topology.exchanges.items()):
            if vhost is None or one == vhost:
                yield _exchange(one, name, exchange)

    def exchange(self, vhost: str, name: str) -> Mapping[str, object] | None:
        """One."""
        found = self.core.topology.exchange(self.vhost(vhost), name)
        return None if found is None else _exchange(vhost, name, found)

    async def declare_exchange(
        self,
        user: str | None,
        vhost: str,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, object],
        wait: bool = True,
    ) -> bool:
        """Declare, or find an equal one; whether it is new."""
        needs = exchange_needs(name, arguments.get("alternate-exchange"))
        self.configure(user, "declaring an exchange", vhost, *needs)
        fresh = self.exchange(vhost, name) is None
        await self.decide(
            lambda: self.core.declare_exchange(
                self.now(), vhost, name, kind, durable=durable, auto_delete=auto_delete, internal=internal,
                arguments=arguments,
            ),
            wait=wait,
        )  # fmt: skip
        return fresh

    async def delete_exchange(self, user: str | None, vhost: str, name: str, *, if_unused: bool) -> None:
        """Delete with its bindings.  Raises NotFound."""
        if self.exchange(vhost, name) is None:
            raise NotFound("Not Found")
        await self.decide(lambda: self.core.delete_exchange(self.now(), vhost, name, if_unused=if_unused))

    # -- bindings

    def bindings(self, vhost: str | None) -> Iterator[Mapping[str, object]]:
        """Of one vhost or of all; those of the default exchange, which every queue has, too."""
        if vhost is not None:
            self.vhost(vhost)
        for queue in self.core.queues():
            if vhost in {None, queue.vhost} and _by_default(queue):
                yield _default_binding(queue)
        for (one, _), some in list(self.core.topology.by_source.items()):
            if vhost is None or one == vhost:
                yield from map(_binding, list(some))

    def bindings_to_queue(self, user: str, vhost: str, name: str) -> Iterable[Mapping[str, object]]:
        """Bindings of one queue."""
        queue = self._visible(user, vhost, name)
        own = [_default_binding(queue)] if _by_default(queue) else []
        return chain(own, map(_binding, list(self.core.topology.bindings_to(vhost, "queue", name))))

    def bindings_of_exchange(self, vhost: str, name: str, *, as_source: bool) -> Iterable[Mapping[str, object]]:
        """Bindings that begin, or end, at an exchange.  Raises NotFound."""
        if self.exchange(vhost, name) is None:
            raise NotFound("Not Found")
        topology = self.core.topology
        if as_source and name == DEFAULT:
            queues = self.core.queues()
            return (_default_binding(queue) for queue in queues if queue.vhost == vhost and _by_default(queue))
        found = topology.bindings_from(vhost, name) if as_source else topology.bindings_to(vhost, "exchange", name)
        return map(_binding, list(found))

    def bindings_between(self, vhost: str, source: str, kind: str, name: str) -> list[Mapping[str, object]]:
        """From one exchange to one queue or exchange.  Raises NotFound when an end is missing."""
        topology = self.core.topology
        if self.exchange(vhost, source) is None:
            raise NotFound("Not Found")
        if kind == "exchange" and self.exchange(vhost, name) is None:
            raise NotFound("Not Found")
        queue = self.queue(vhost, name) if kind == "queue" else None
        if source == DEFAULT:
            return [_default_binding(queue)] if queue is not None and _by_default(queue) else []
        return [_binding(one) for one in topology.bindings_to(vhost, kind, name) if one.source == source]

    async def bind(
        self,
        user: str | None,
        vhost: str,
        source: str,
        kind: str,
        name: str,
        key: str,
        arguments: Mapping[str, object],
        wait: bool = True,
    ) -> None:
        """Bind; the same twice is one.  Raises NotFound."""
        self.binds(user, vhost, source, key)
        self.vhost(vhost)
        if kind == "queue":
            self.queue(vhost, name)
        await self.decide(lambda: self.core.bind(self.now(), vhost, source, name, kind, key, arguments), wait=wait)

    async def unbind(
        self, user: str | None, vhost: str, source: str, kind: str, name: str, key: str, arguments: Mapping[str, object]
    ) -> None:
        """Remove a binding."""
        self.binds(user, vhost, source, key)
        if source == DEFAULT:
            raise AccessRefused("operation not permitted on the default exchange")
        await self.decide(lambda: self.core.unbind(self.now(), vhost, source, name, kind, key, arguments))


def _exchange(vhost: str, name: str, exchange: ExchangeState) -> Mapping[str, object]:
    return {
        "name": name,
        "vhost": vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }


def _by_default(queue: Queue) -> bool:
    """Whether it sees its own name in the default exchange."""
    return not queue.settings.underlying_topic and queue.settings.exchange == DEFAULT


def _default_binding(queue: Queue) -> Mapping[str, object]:
    return {
        "source": DEFAULT,
        "vhost": queue.vhost,
        "destination": queue.name,
        "destination_type": "queue",
        "routing_key": queue.name,
        "arguments": {},
    }


def _binding(binding: Binding) -> Mapping[str, object]:
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.key,
        "arguments": table_of(binding.arguments),
    }
