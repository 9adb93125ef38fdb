"""Commands about SOW topics: what they hold, what a delta needs, and removal.  Publishing to one is publishing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.commands.parts import Parts
from penstock.core.sow.holding import Bodies, Sow, Sows
from penstock.core.sow.worked import Answer, Job
from penstock.errors import InvalidArgument, NotFound
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.sow import wrong


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
