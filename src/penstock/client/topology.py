"""Exchanges, bindings and connections.  All of it is server actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from penstock.client.link import Acting

Arguments = Mapping[str, object]


class TopologyCalls(Acting):
    """What routes messages, and who is connected."""

    def exchanges(self) -> list[dict[str, Any]]:
        """Every exchange of the vhost, those that are always there first; the default one has no name."""
        return self._listed("exchanges")

    def declare_exchange(
        self,
        exchange: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Make an exchange (direct, fanout, topic or headers), or find it as asked."""
        self.action(
            "declare_exchange",
            exchange=exchange,
            type=type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Remove an exchange and its bindings."""
        self.action("delete_exchange", exchange=exchange, if_unused=if_unused)

    def bindings(
        self, queue: str | None = None, *, source: str | None = None, destination: str | None = None
    ) -> list[dict[str, Any]]:
        """Every binding of the vhost, those of queues to the default exchange too; or some of them.

        queue          those that end at this queue
        source         those that begin at this exchange
        destination    those that end at this exchange
        """
        return self._listed("bindings", queue=queue, source=source, destination=destination)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Let a queue take what an exchange routes by this key."""
        self.action("bind", queue=queue, exchange=exchange, key=key, arguments=dict(arguments or {}))

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Remove a binding."""
        self.action("unbind", queue=queue, exchange=exchange, key=key, arguments=dict(arguments or {}))

    def bind_exchange(self, destination: str, source: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Let an exchange take what another one, the source, routes by this key."""
        self.action("bind", destination=destination, exchange=source, key=key, arguments=dict(arguments or {}))

    def unbind_exchange(self, destination: str, source: str, key: str = "", arguments: Arguments | None = None) -> None:
        """Remove a binding between exchanges."""
        self.action("unbind", destination=destination, exchange=source, key=key, arguments=dict(arguments or {}))

    def connections(self, user: str | None = None) -> list[dict[str, Any]]:
        """Open AMQP connections of all vhosts, oldest first, in RabbitMQ's words; without a tag for more one's own.

        Flight has none: each of its calls stands by itself.
        """
        return self._listed("connections", user=user)

    def close_connection(
        self, name: str | None = None, *, user: str | None = None, reason: str | None = None
    ) -> list[str]:
        """Close a connection by its name, or all of a user; the names of those closed.  What they hold goes back.

        reason    is told to the client, with code 320
        Errors: NotFound, AccessRefused for connections of others without the tag administrator.
        """
        told = self.action("connection_close", connection=name, user=user, reason=reason)
        return cast("list[str]", told["closed"])
