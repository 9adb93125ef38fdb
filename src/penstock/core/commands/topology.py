"""Commands about exchanges, bindings and declared topics.

What may be refused is `core.topology.admin`'s to say; this is the door to it, with the instant and who asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.commands.parts import NO_TABLE
from penstock.core.commands.sow import SowCommands, check_topic
from penstock.core.topology.names import Taker
from penstock.core.topology.topology import Topology
from penstock.records.chunks import Now


class TopologyCommands(SowCommands):
    """Exchanges, bindings, topics."""

    @property
    def topology_version(self) -> int:
        """Changes whenever a `Topic` got from `topic` may be stale."""
        return self._topology.version

    @property
    def topology(self) -> Topology:
        """Exchanges, bindings and declared topics as they are now; to be read."""
        return self._topology

    def keeps(self, vhost: str, exchange: str, key: str) -> bool:
        """Whether messages of this topic are stored: a queue takes them, or may, or a declared topic keeps them."""
        plan = self._router.plan(vhost, exchange, (key,), None)
        return bool(plan.queues) or plan.keep or plan.by_headers

    def open_replies(self, vhost: str, name: str, take: Taker) -> None:
        """Have messages that come to this address (`REPLY_PREFIX` and a secret) given away instead of stored."""
        self._router.replies[vhost, name] = take

    def close_replies(self, vhost: str, name: str) -> None:
        """Nobody waits there any more."""
        self._router.replies.pop((vhost, name), None)

    def takes_replies(self, vhost: str, name: str) -> bool:
        """Whether somebody waits at this address."""
        return (vhost, name) in self._router.replies

    def declare_exchange(
        self,
        now: Now,
        vhost: str,
        name: str,
        type: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] = NO_TABLE,
        passive: bool = False,
    ) -> None:
        """Declare an exchange, or find an equal one."""
        self._admin.declare_exchange(
            self._at(now), vhost, name, type, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=arguments, passive=passive,
        )  # fmt: skip

    def delete_exchange(self, now: Now, vhost: str, name: str, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings."""
        self._admin.delete_exchange(self._at(now), vhost, name, if_unused=if_unused)

    def bind(
        self,
        now: Now,
        vhost: str,
        source: str,
        destination: str,
        destination_type: str,
        key: str,
        arguments: Mapping[str, object] = NO_TABLE,
        by: object | None = None,
    ) -> None:
        """Bind a queue ("queue") or an exchange ("exchange") to an exchange.

        by: the connection that asks, which may not bind the exclusive queue of another one.
        """
        self._admin.bind(self._at(now), vhost, source, destination, destination_type, key, arguments, by)

    def unbind(
        self,
        now: Now,
        vhost: str,
        source: str,
        destination: str,
        destination_type: str,
        key: str,
        arguments: Mapping[str, object] = NO_TABLE,
        by: object | None = None,
    ) -> None:
        """Remove a binding, if it is there; `by` as in `bind`."""
        self._admin.unbind(self._at(now), vhost, source, destination, destination_type, key, arguments, by)

    def declare_topic(
        self, now: Now, vhost: str, exchange: str, key: str, settings: Mapping[str, object] | None = None
    ) -> None:
        """Declare a topic: it keeps what no queue takes.

        settings: `key` or `key_from` make it a SOW topic (`records.sow`); None: those that it has, if it is there.
        InvalidArgument for what cannot be.
        """
        if settings is None:
            settings = self._topology.topics.get((vhost, exchange, key), NO_TABLE)
        check_topic((vhost, exchange, key), settings)
        lsn = self._out.next_lsn
        self._admin.declare_topic(self._at(now), vhost, exchange, key, settings)
        if self._out.next_lsn > lsn:
            self._sow_declared(lsn, (vhost, exchange, key), settings)

    def delete_topic(self, now: Now, vhost: str, exchange: str, key: str) -> None:
        """A topic keeps nothing more."""
        self._admin.delete_topic(self._at(now), vhost, exchange, key)
        self._sow_deleted((vhost, exchange, key))
