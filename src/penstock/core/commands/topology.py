"""Commands about exchanges, bindings and declared topics.

What may be refused is `core.topology.admin`'s to say; this is the door to it, with the instant and who asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.commands.parts import NO_TABLE, Parts
from penstock.core.sow.holding import Bodies, Sow, Sows
from penstock.core.sow.worked import Answer, Job
from penstock.core.topology.routing import Taker
from penstock.core.topology.topology import Topology
from penstock.errors import InvalidArgument, NotFound
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.sow_settings import wrong


class SowCommands(Parts):
    """SOW topics."""

    @property
    def sows(self) -> Sows:
        """All SOW topics; to be read."""
        return self._keyed.sows

    def sow(self, vhost: str, exchange: str, name: str) -> Sow:
        """One SOW topic.  NotFound, or InvalidArgument for a topic without a key."""
        found = self._keyed.sows.by_name.get((vhost, exchange, name))
        if found is not None:
            return found
        if (vhost, exchange, name) in self._topology.topics:
            raise InvalidArgument(f"topic '{name}' in vhost '{vhost}' has no key, so it has no records")
        raise NotFound(f"no SOW topic '{name}' in vhost '{vhost}'")

    def lacking(self, batch: Publishes) -> list[int]:
        """LSNs of the messages whose bodies must be at hand (`bodies_from`) before this batch is published."""
        return self._keyed.lacking(batch) if self._publisher.keyed is not None else []

    def heavy(self, batch: Publishes, *, merging: bool) -> list[Job]:
        """What has to be worked out off the loop (`worked_out`) before this batch is published.

        First keys of large bodies; merging, when nothing is `lacking`, their deltas.
        """
        return self._keyed.heavy(batch, merging=merging) if self._publisher.keyed is not None else []

    def ahead(self, batch: Publishes) -> Publishes:
        """The batch as filters see it: with its large deltas merged, once nothing of it is `heavy`."""
        return self._keyed.ahead(batch) if self._publisher.keyed is not None else batch

    def worked_out(self, job: Job, answer: Answer) -> None:
        """The answer to one of these."""
        self._keyed.worked.put(job.body, job.mark, answer)

    def bodies_from(self, bodies: Bodies) -> None:
        """Where the bodies of present records are, as far as they are at hand."""
        self._keyed.bodies = bodies

    def sow_delete(
        self, now: Now, sow: Sow, numbers: Sequence[int], *, lsns: Sequence[int] | None = None, by: str = ""
    ) -> int:
        """Remove the records of these keys; how many there were.

        lsns: of the records that are meant: a key that has got another record meanwhile keeps it.
        """
        now = self._at(now)
        if self._keyed.sows.by_id.get(sow.id) is not sow:
            return 0
        if lsns is not None:
            get = sow.index.get
            numbers = [number for number, lsn in zip(numbers, lsns, strict=True) if get(number) == lsn]
        return self._keyed.drop(now, sow, numbers, "deleted", by)

    def _sow_declared(self, lsn: int, name: tuple[str, str, str], settings: Mapping[str, object]) -> None:
        sow = self._keyed.sows.declared(lsn, name, settings)
        self._paging.wanted |= sow is not None and sow.file_backed
        self._publisher.keyed = self._keyed if self._keyed.sows else None

    def _sow_deleted(self, name: tuple[str, str, str]) -> None:
        self._keyed.sows.deleted(name)
        self._publisher.keyed = self._keyed if self._keyed.sows else None


def check_topic(name: tuple[str, str, str], settings: Mapping[str, object]) -> None:
    """InvalidArgument for settings of a topic that cannot hold together."""
    why = wrong(settings)
    if why is not None:
        raise InvalidArgument(f"topic '{name[2]}' in vhost '{name[0]}': {why}")


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
