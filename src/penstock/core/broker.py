"""The core: every command of the server in one place, decided with the `now` it is handed.

    command + now  ->  entries in the journal, effects, and an answer or a refusal

Nothing here touches a clock, a disk or a socket.  LSNs are given and applied at once; the engine writes the journal and
performs the effects that the journal's durability allows.  The commands stand by noun in `core.commands`; publishing,
the busiest of them, stands here.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.commands.deliveries import AnswerCommands, InterventionCommands
from penstock.core.commands.life import Life
from penstock.core.commands.linking import LinkingCommands
from penstock.core.commands.subscriptions import SubscriptionCommands
from penstock.core.commands.topology import PolicyCommands, TopologyCommands
from penstock.core.commands.transactions import SinkCommands, TransactionCommands
from penstock.core.effects import Question
from penstock.core.publishing.published import Published, Refusal
from penstock.core.publishing.publishing import Whole
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import Reign
from penstock.core.topology.register import no_exchange
from penstock.errors import AccessRefused, InvalidArgument
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic
from penstock.records.schema import GROUP_BYTES_MAX


class Core(
    Life, TopologyCommands, SubscriptionCommands, AnswerCommands, InterventionCommands, SinkCommands,
    TransactionCommands, PolicyCommands, LinkingCommands,
):  # fmt: skip
    """The rules of one instance."""

    def boot(self, now: Now, *, clean: bool, next_lsn: int, leads: Reign | None = None) -> None:
        """Begin a run: the BOOT record, what ends with a process, then whatever fell due meanwhile.

        next_lsn: after a clean stop the next one; after an unclean one the recovered end + 2**32; of a leader in a
        cluster the first of its term.
        """
        super().boot(now, clean=clean, next_lsn=next_lsn, leads=leads)
        self._go_on_ruling(now)
        self._number_publishes()
        self.twins.update(self.sequences.twins())
        for queue in self._admin.by_id.values() if self.peers.here else ():
            self._say_owner(now, queue)

    @property
    def dead_lettered(self) -> Mapping[str, int]:
        """Messages that became a dead letter since the start of this process, by AMQP's reason."""
        return self._letters.counts

    @property
    def dead_letters_refused(self) -> int:
        """How often a target had no room for a dead letter, which then waits."""
        return self._letters.without_place

    def topic(self, vhost: str, exchange: str, key: str) -> Topic:
        """The interned topic that a client's publish goes to.

        Errors: NotFound for a missing exchange, AccessRefused for an internal one.
        """
        found = self._topology.exchange(vhost, exchange)
        if found is None:
            raise no_exchange(vhost, exchange)
        if found.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'")
        return self._topic(vhost, *self._router.target_of(vhost, exchange, key))

    def publish(
        self,
        now: Now,
        batch: Publishes,
        refuse: Refusal | None = None,
        *,
        publisher: str | None = None,
        sequence: int | None = None,
        persistent: bool | None = None,
        mandatory: bool = False,
    ) -> Published:
        """Store a batch and let it arrive.  Rows nobody wants, and refused ones, are not stored.

        refuse: refuse every row for this reason.
        publisher, sequence: the first row has this sequence, each further row the next; rows
            at or below the publisher's highest are duplicates, confirmed and not stored again.
        persistent: overrides the delivery mode of the headers.
        mandatory: Unroutable for a topic that nobody keeps, before anything is written or a sequence counts.
        """
        size = len(batch.bodies)
        if refuse is not None:
            return Published(0, self._out.last_lsn, refused=[(row, refuse) for row in range(size)])
        if not size:
            return Published(0, self._out.last_lsn)
        now = self._at(now)
        if self._unruled:
            self._rule_takers(now, batch)
        if mandatory:
            Whole(self._publisher, "this upload").refuse_unwanted(batch.distinct_topics)
        if publisher is None:
            return self._publisher.publish(now, batch, persistent=persistent)
        if sequence is None:
            raise InvalidArgument(f"publisher '{publisher}' must say the sequence of its first message")
        if batch.size > GROUP_BYTES_MAX:  # its sequence and its rows are one group
            raise InvalidArgument(f"a batch has {batch.size} bytes, a group of the log at most {GROUP_BYTES_MAX}")
        self._out.begin()

        def store(rows: Publishes, skip: int) -> Published:
            return self._publisher.publish(now, rows, skip=skip, persistent=persistent, numbered=True)

        published = self._publisher.publishers.follow(publisher, sequence, batch, store)
        self._out.end()
        return published

    @property
    def at_once(self) -> int:
        """How many bytes of messages may be one batch whoever sent them, without asking `unjudged` first; 0: none may.

        Where a queue holds its publishers up each of them is let in alone; deltas to records may wait for their record.
        """
        if self._router.blocking or self._publisher.keyed is not None:
            return 0
        return self._publisher.at_once

    @property
    def blocking(self) -> bool:
        """Whether some queue holds its publishers up while it is full: ask `let_in` before `publish`."""
        return bool(self._router.blocking)

    def let_in(self, now: Now, batch: Publishes) -> tuple[int, Queue | None]:
        """How many rows of a batch, from its first on, may be published now, and which queue holds the next one up.

        None: nobody does; of rows that are left more is known once these are published.  Without this a publish to a
        full queue is refused as one of `reject-publish`.
        """
        return self._publisher.let_in(self._at(now), batch)

    def holds_up(self, queue: Queue, size: int) -> bool:
        """Whether a queue still has a message of so many bytes wait for room."""
        return queue.holds_up(size) and self._router.queues.find(queue.vhost, queue.name) is queue

    def unjudged(
        self, batch: Publishes, *, publisher: str | None = None, sequence: int | None = None
    ) -> list[Question]:
        """What content filters have to judge off the loop before this batch is published.

        The door has it evaluated, puts the answers on the batch (`Publishes.judged`), and asks again, for queues may
        have come meanwhile.  `publish` does without: then everything is evaluated in place.
        """
        skip = 0
        if publisher is not None and sequence is not None and publisher in self.publishers:
            skip = min(max(self.publishers[publisher] - sequence + 1, 0), len(batch.bodies))
        return self._publisher.unjudged(batch, skip=skip)
