"""The core: every command of the server in one place, decided with the `now` it is handed.

    command + now  ->  entries in the journal, effects, and an answer or a refusal

Nothing here touches a clock, a disk or a socket.  LSNs are given and applied at once; the engine writes the journal and
performs the effects that the journal's durability allows.  The work itself is done by the parts that this class joins:
`admin`, `routing`, `publishing`, `queue`, `dead_letters`, `streams`, `sinks`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from penstock.core.effects import Effect, Purpose, Token, Verb
from penstock.core.outbox import Outbox
from penstock.core.publishing.actions import Actions
from penstock.core.publishing.dead_letters import DeadLetters
from penstock.core.publishing.marks import Marks
from penstock.core.publishing.publishing import Published, Publisher
from penstock.core.publishing.traits import Refusal
from penstock.core.queue.consumers import Consumer, Credit
from penstock.core.queue.runs import packed
from penstock.core.queue.view import Queue
from penstock.core.state.durable import DurableState, Ints, QueueState, StreamState, flat, runs_of, spread
from penstock.core.streams.holding import Holdings
from penstock.core.streams.sinks import Committed, Sinks
from penstock.core.streams.streams import Streams
from penstock.core.timers import Timers
from penstock.core.topology.admin import Admin, no_exchange
from penstock.core.topology.interning import Interning
from penstock.core.topology.routing import Router
from penstock.core.topology.topology import Topology
from penstock.errors import AccessRefused, InvalidArgument, PreconditionFailed
from penstock.expr import Filter
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Entry, Group, Publishes, Rows, Topic
from penstock.records.kinds import Kind
from penstock.records.schema import LOG_VERSION
from penstock.records.settings import Action, QueueSettings

TOPICS_MAX = 65_536
"""Topics interned in one generation; two generations are kept."""

_GONE = object()
"""Who holds an exclusive queue whose connection ended with an earlier process."""

_NO_TABLE: Mapping[str, object] = {}
_NO_LSNS: Ints = np.zeros(0, dtype=np.int64)


class Core:
    """The rules of one instance."""

    def __init__(
        self,
        origin: int,
        next_lsn: int = 1,
        seed: int = 0,
        actions: Sequence[Action] = (),
        instance: str = "penstock-1",
    ) -> None:
        """origin: the data folder's own number, part of every bookmark.  seed: of whatever chance a rule needs."""
        self.origin = origin
        self.instance = instance
        self.seed = seed
        self._actions = tuple(actions)
        self._out: Outbox[Effect] = Outbox(next_lsn)
        self._topology = Topology()
        self._router = Router(self._topology)
        self._interning = Interning(self._out)
        self._publisher = Publisher(self._router, self._interning, self._out)
        self._timers = Timers()
        self._holdings = Holdings(self._out, self._timers.touched)
        self.streams = Streams(self._out, self._holdings, self._by_id)
        self._admin = Admin(self._out, self._topology, self._router, self._interning, self._ending, self._actions)
        self._letters = DeadLetters(
            self._out, self._publisher, Actions(self._actions), self._letter_topic, origin, instance
        )
        self._sinks = Sinks(self._out, self._publisher, self.streams)
        self._publisher.touched = self._timers.touched
        self._topics: dict[tuple[str, str, str], Topic] = {}
        self._older_topics: dict[tuple[str, str, str], Topic] = {}
        self._topics_version = -1
        self.publishers: dict[str, int] = {}  # highest sequence of each
        self._unclean = 0
        self._cancelled: dict[int, int] = {}  # by queue id, since the start

    # -- the outbox

    @property
    def next_lsn(self) -> int:
        """The LSN of the next record."""
        return self._out.next_lsn

    @property
    def last_lsn(self) -> int:
        """The last LSN given out."""
        return self._out.last_lsn

    @property
    def journal(self) -> list[Entry]:
        """Entries not yet taken."""
        return self._out.journal

    @property
    def effects(self) -> list[Effect]:
        """Effects not yet taken."""
        return self._out.effects

    def take_journal(self) -> list[Entry]:
        """The entries to log, in LSN order; the core starts a new list."""
        return self._out.take_journal()

    def take_effects(self) -> list[Effect]:
        """The effects to perform, in order; the core starts a new list."""
        return self._out.take_effects()

    @contextmanager
    def group(self) -> Generator[None]:
        """What is decided inside lies in one group: a crash keeps or loses all of it.

        The caller makes sure that nothing inside is refused (`judge`): what was written before a refusal stays.
        """
        self._out.begin()
        try:
            yield
        finally:
            self._out.end()

    # -- start and state

    @classmethod
    def restore(
        cls,
        state: DurableState,
        *,
        origin: int,
        seed: int = 0,
        actions: Sequence[Action] = (),
        instance: str = "penstock-1",
        now: Now,
    ) -> Core:
        """A core with this durable state and no session.  `boot` comes next."""
        core = cls(origin, state.last_lsn + 1, seed, actions, instance)
        now = core._out.at(now)
        core._topology.load(state)
        core._interning.load(state)
        for number, queue_state in sorted(state.queues.items()):
            queue = core._admin.make(queue_state, _GONE if queue_state.exclusive else None)
            queue.redelivered_below = state.unclean
            queue.load(queue_state.waiting, queue_state.columns)
            core._timers.touched.add(queue)
            assert queue.id == number
        for name, marks in core._marks():
            marked = [
                lsns[spread(lsns, one.columns[name]) > 0]
                for one in state.queues.values()
                if name in one.columns
                for lsns in (flat(one.waiting),)
            ]
            marks.reset(np.unique(np.concatenate(marked)) if marked else _NO_LSNS)
        core.streams.states = {
            name: StreamState(s.queue, s.epoch, s.mode, s.floor, s.planned, dict(s.plans))
            for name, s in state.streams.items()
        }
        core._sinks.batches = dict(state.sinks)
        core.publishers = dict(state.publishers)
        core._unclean = state.unclean
        for number, queue in core._admin.by_id.items():
            for name, chunks in core.streams.held(number).items():
                core._holdings.restore(now, queue, name, chunks)
        return core

    def boot(self, now: Now, *, clean: bool, next_lsn: int) -> None:
        """Begin a run: the BOOT record, what ends with a process, then whatever fell due meanwhile.

        next_lsn: after a clean stop the next one; after an unclean one the recovered end + 2**32.
        """
        if next_lsn < self._out.next_lsn:
            raise InvalidArgument(f"LSN {next_lsn} was given before; the next is {self._out.next_lsn}")
        self._out.next_lsn = next_lsn
        now = self._at(now)
        lsn = self._out.record(Kind.BOOT, "", {"clean": clean, "instance": self.instance, "version": LOG_VERSION})
        if not clean:
            self._unclean = lsn
        for queue in list(self._admin.by_id.values()):
            if queue.exclusive_to is not None or not queue.durable:
                self._forget(now, queue)
                self._topology.queue_gone(queue.vhost, queue.name)
                continue
            transient = self._publisher.transient
            if transient:
                lsns = flat(_snapshot(queue)[0])
                gone = packed(lsns[transient.column(lsns) > 0])
                if len(gone):
                    self._holdings.forget(queue, gone)
                    queue.forget(gone)
            if not clean:
                queue.redelivered_below = lsn
        self._publisher.transient.reset(_NO_LSNS)
        self._topology.boot()
        for queue in self._admin.by_id.values():
            queue.tick(now, self._out)
            self._timers.touched.add(queue)

    def durable_state(self) -> DurableState:
        """What a fold of everything journalled so far gives.  References to chunks that will not change, and copies."""
        state = DurableState(self._out.last_lsn, self._unclean)
        self._topology.save(state)
        self._interning.save(state)
        marks = self._marks()
        marked: dict[str, list[Ints]] = {name: [] for name, _ in marks}
        for number, queue in sorted(self._admin.by_id.items()):
            waiting, columns = _snapshot(queue)
            if any(some for _, some in marks):
                lsns = flat(waiting)
                for name, some in marks:
                    mine = some.column(lsns)
                    if mine.any():
                        columns[name] = runs_of(lsns, mine)
                        marked[name].append(lsns[mine > 0])
            state.queues[number] = QueueState(
                number, queue.vhost, queue.name, queue.settings, queue.durable, queue.exclusive_to is not None,
                queue.auto_delete, queue.arguments, waiting, columns,
            )  # fmt: skip
        for name, some in marks:
            some.reset(np.unique(np.concatenate(marked[name])) if marked[name] else _NO_LSNS)
        state.streams = {
            name: StreamState(s.queue, s.epoch, s.mode, s.floor, s.planned, dict(s.plans))
            for name, s in self.streams.states.items()
        }
        state.sinks = dict(self._sinks.batches)
        state.publishers = dict(self.publishers)
        return state

    def floor(self) -> int:
        """No message below this LSN is in a queue, and no stream may ask for one again."""
        floor = min((queue.floor() for queue in self._admin.by_id.values()), default=self._out.next_lsn)
        for stream in self.streams.states.values():
            floor = min([floor, *(pairs[0] for pairs in stream.plans.values() if pairs)])
        return min(floor, self._out.next_lsn)

    def write_base(self, now: Now, parts: int, build: Callable[[int, int], Group]) -> int:
        """Write a base of so many records, built from its first LSN and time; returns its last LSN."""
        self._at(now)
        first = self._out.next_lsn
        self._out.next_lsn = first + parts
        self._out.journal.append(build(first, self._out.time))
        return first + parts - 1

    # -- topics and publishing

    @property
    def topology_version(self) -> int:
        """Changes whenever a `Topic` got from `topic` may be stale."""
        return self._topology.version

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

    def _topic(self, vhost: str, exchange: str, key: str) -> Topic:
        name = (vhost, exchange, key)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._older_topics.get(name) or Topic(vhost, exchange, key)
            if len(self._topics) >= TOPICS_MAX:
                self._older_topics, self._topics = self._topics, {}
            self._topics[name] = topic
        return topic

    def _letter_topic(self, vhost: str, exchange: str, key: str) -> Topic | None:
        if self._topology.exchange(vhost, exchange) is None:
            return None
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
    ) -> Published:
        """Store a batch and let it arrive.  Rows nobody wants, and refused ones, are not stored.

        refuse: refuse every row for this reason.
        publisher, sequence: the first row has this sequence, each further row the next; rows
            at or below the publisher's highest are duplicates, confirmed and not stored again.
        persistent: overrides the delivery mode of the headers.
        """
        size = len(batch.bodies)
        if refuse is not None:
            return Published(0, self._out.last_lsn, refused=[(row, refuse) for row in range(size)])
        if not size:
            return Published(0, self._out.last_lsn)
        now = self._at(now)
        if publisher is None:
            return self._publisher.publish(now, batch, persistent=persistent)
        if sequence is None:
            raise InvalidArgument(f"publisher '{publisher}' must say the sequence of its first message")
        highest = self.publishers.get(publisher)
        last = sequence + size - 1
        skip = 0 if highest is None else min(max(highest - sequence + 1, 0), size)
        if skip == size:
            return Published(0, self._out.last_lsn, duplicates=skip)
        self._out.begin()
        self._out.record(Kind.PUBLISHERS, "", {publisher: last})
        self.publishers[publisher] = last
        published = self._publisher.publish(now, batch, skip=skip, persistent=persistent)
        self._out.end()
        return published

    def judge(self, batch: Publishes) -> list[tuple[int, Refusal]]:
        """The rows that `publish` would refuse, without publishing: a transaction asks before it begins."""
        memo = self._publisher.traits
        if isinstance(batch.properties, bytes):
            refusal = memo[batch.properties].refusal
            return [] if refusal is None else [(row, refusal) for row in range(len(batch))]
        return [
            (row, refusal) for row, data in enumerate(batch.properties) if (refusal := memo[data].refusal) is not None
        ]

    # -- topology

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
        arguments: Mapping[str, object] = _NO_TABLE,
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
        arguments: Mapping[str, object] = _NO_TABLE,
        by: object | None = None,
    ) -> None:
        """Bind a queue ("queue") or an exchange ("exchange") to an exchange."""
        self._usable(vhost, destination, destination_type, by)
        self._admin.bind(self._at(now), vhost, source, destination, destination_type, key, arguments)

    def unbind(
        self,
        now: Now,
        vhost: str,
        source: str,
        destination: str,
        destination_type: str,
        key: str,
        arguments: Mapping[str, object] = _NO_TABLE,
        by: object | None = None,
    ) -> None:
        """Remove a binding."""
        self._usable(vhost, destination, destination_type, by)
        self._admin.unbind(self._at(now), vhost, source, destination, destination_type, key, arguments)

    def _usable(self, vhost: str, name: str, kind: str, by: object | None) -> None:
        queue = self._admin.queues.get((vhost, name))
        if kind == "queue" and queue is not None and queue.exclusive_to is not None and by is not None:
            self._admin.queue(vhost, name, by)

    def declare_topic(
        self, now: Now, vhost: str, exchange: str, key: str, settings: Mapping[str, object] = _NO_TABLE
    ) -> None:
        """Declare a topic: it keeps what no queue takes."""
        self._admin.declare_topic(self._at(now), vhost, exchange, key, settings)

    def delete_topic(self, now: Now, vhost: str, exchange: str, key: str) -> None:
        """A topic keeps nothing more."""
        self._admin.delete_topic(self._at(now), vhost, exchange, key)

    # -- queues

    def queue(self, vhost: str, name: str, by: object | None = None) -> Queue:
        """A queue that `by` may use.  Raises NotFound or ResourceLocked."""
        return self._admin.queue(vhost, name, by)

    def queues(self) -> list[Queue]:
        """All queues, oldest first."""
        return [queue for _, queue in sorted(self._admin.by_id.items())]

    def declare_queue(
        self,
        now: Now,
        vhost: str,
        name: str,
        settings: QueueSettings,
        *,
        durable: bool = True,
        exclusive_to: object | None = None,
        auto_delete: bool = False,
        arguments: Mapping[str, object] = _NO_TABLE,
        passive: bool = False,
        by: object | None = None,
        server_named: bool = False,
    ) -> Queue:
        """Declare a queue, or find an equal one.

        exclusive_to: the connection that alone may use it.  by: the connection that asks.
        server_named: the server made the name, which may then begin with `amq.`.
        """
        return self._admin.declare_queue(
            self._at(now), vhost, name, settings, durable=durable, exclusive_to=exclusive_to, auto_delete=auto_delete,
            arguments=arguments, passive=passive, by=by, server_named=server_named,
        )  # fmt: skip

    def alter_queue(self, now: Now, queue: Queue, settings: QueueSettings) -> None:
        """New settings for a queue, at once."""
        now = self._at(now)
        if self._admin.alter_queue(queue, settings):
            queue.alter(now, settings, self._out)
            self._admin.altered(queue)
            self._touch(queue)

    def delete_queue(self, now: Now, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; returns how many were ready.  Errors: PreconditionFailed when in use or not empty."""
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{queue.vhost}' in use")
        if if_empty and queue.ready:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{queue.vhost}' not empty")
        now = self._at(now)
        self._out.begin()
        ready = self._admin.delete_queue(now, queue)
        self._out.end()
        return ready

    def _ending(self, now: Now, queue: Queue) -> int:
        """What ends with a queue besides its records."""
        self._touch(queue)
        self.streams.queue_gone(queue.id)
        self._holdings.queue_gone(queue.id)
        ready = queue.delete(now, self._out)
        self._timers.forget(queue)
        self._publisher.arrived.pop(queue.id, None)
        self._cancelled.pop(queue.id, None)
        return ready

    def _forget(self, now: Now, queue: Queue) -> None:
        self._ending(now, queue)
        self._admin.forget(queue)

    def end_exclusive(self, now: Now, holder: object) -> None:
        """A connection is gone: the queues that were its own go with it."""
        for queue in [queue for queue in self._admin.by_id.values() if queue.exclusive_to is holder]:
            self.delete_queue(now, queue)

    def purge_queue(self, now: Now, queue: Queue) -> int:
        """Remove what is ready; returns how many messages that were."""
        count = queue.purge(self._at(now), self._out)
        self._touch(queue)
        return count

    # -- consumers

    def subscribe(
        self,
        now: Now,
        queue: Queue,
        *,
        tag: str,
        holder: object,
        client: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        filter: Filter | None = None,
        max_backlog: int | None = None,
        shared: Credit | None = None,
        priority: int = 0,
        passive: bool = False,
        paused: bool = False,
    ) -> Consumer:
        """A new consumer, served at once.  Errors: AccessRefused when somebody has the queue for himself."""
        consumer = queue.subscribe(
            self._at(now), self._out, tag=tag, holder=holder, client=client, no_ack=no_ack, exclusive=exclusive,
            filter=filter, max_backlog=max_backlog, shared=shared, priority=priority, passive=passive, paused=paused,
        )  # fmt: skip
        self._touch(queue, shared)
        return consumer

    def unsubscribe(self, now: Now, consumer: Consumer, *, requeue: bool, lost: bool = False) -> None:
        """End a consumer.  requeue: what it holds goes back; lost: as its connection did, so its oldest failed."""
        now = self._at(now)
        queue = consumer.queue
        if self._admin.by_id.get(queue.id) is not queue:
            return
        was_open = not consumer.closed
        queue.unsubscribe(now, consumer, self._out, requeue=requeue, lost=lost)
        self._touch(queue, consumer.shared)
        if queue.auto_delete and was_open and not consumer.passive and not queue.consumers:
            self.delete_queue(now, queue)

    def pull(self, now: Now, consumer: Consumer, count: int) -> int:
        """Grant up to `count` messages to a consumer that gets only what it asks for; returns how many."""
        if count < 1:
            return 0
        granted = consumer.queue.pull(self._at(now), consumer, count, self._out)
        self._touch(consumer.queue, consumer.shared)
        return granted

    def pause(self, consumer: Consumer) -> None:
        """A consumer's connection takes no more bytes now."""
        consumer.queue.pause(consumer)

    def resume(self, now: Now, consumer: Consumer) -> None:
        """A consumer's connection takes bytes again."""
        consumer.queue.resume(self._at(now), consumer, self._out)
        self._touch(consumer.queue, consumer.shared)

    def settle(
        self,
        now: Now,
        queue: Queue,
        chunks: Sequence[Chunk],
        verb: Verb,
        *,
        by: Consumer | None = None,
        client: str = "",
        delay: int | None = None,
        reason: str | None = None,
    ) -> int:
        """End deliveries; returns how many it affected.  Stale ones are counted, never an error."""
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        affected = queue.settle(
            self._at(now), chunks, verb, self._out, by=by, client=client, delay=delay, reason=reason
        )
        if verb is Verb.CANCEL:
            self._cancelled[queue.id] = self._cancelled.get(queue.id, 0) + affected
        self._touch(queue, by.shared if by is not None else None)
        return affected

    # -- time and bodies

    def tick(self, now: Now) -> None:
        """Do what is due."""
        now = self._at(now)
        for number in self._timers.due(now):
            queue = self._admin.by_id.get(number)
            if queue is not None:
                queue.tick(now, self._out)
                self._touch(queue)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next: (wall, monotonic) microseconds, None for never; 0 is at once."""
        return self._timers.next()

    def fetched(self, now: Now, token: Token, rows: Rows) -> None:
        """The bodies that a `Fetch` effect asked for."""
        now = self._at(now)
        queue = self._admin.by_id.get(token.queue)
        if queue is None:
            return
        if token.purpose is Purpose.WALK:
            queue.fetched(now, token, rows, self._out)
        else:
            letter = queue.letter(token)
            if letter is not None:
                self._out.begin()
                self._letters.write(now, queue, rows, letter)
                queue.buried(token, self._out)
                self._out.end()
        self._touch(queue)

    def sink_commit(
        self,
        now: Now,
        query: str,
        batch: int,
        outputs: Sequence[Publishes],
        settle: tuple[str, int, int] | None = None,
    ) -> Committed:
        """Make the outputs of a query's batch visible, once.  See `Sinks.commit`."""
        return self._sinks.commit(self._at(now), query, batch, outputs, settle)

    def sink_state(self, query: str) -> int | None:
        """The highest committed batch of a query; None if it has none."""
        return self._sinks.batches.get(query)

    def stats(self, queue: Queue) -> dict[str, object]:
        """Figures of one queue; counts are since the start of this process."""
        return {
            "ready": queue.ready,
            "leased": queue.leased,
            "delayed": queue.delayed,
            "dying": queue.dying,
            "consumers": len(queue.consumers),
            "published": self._publisher.arrived.get(queue.id, 0),
            "delivered": queue.delivered,
            "acked": queue.acked,
            "cancelled": self._cancelled.get(queue.id, 0),
            "stale": queue.stale,
            "expired_leases": queue.expired_leases,
        }

    # -- small things

    def _marks(self) -> tuple[tuple[str, Marks], ...]:
        """Columns of the durable state that the queues do not keep."""
        return ("transient", self._publisher.transient), ("letter", self._letters.letters)

    def _at(self, now: Now) -> Now:
        """The instant to decide at: record times never decrease, and what is decided follows them."""
        return self._out.at(now)

    def _by_id(self, number: int) -> Queue | None:
        return self._admin.by_id.get(number)

    def _touch(self, queue: Queue, shared: Credit | None = None) -> None:
        touched = self._timers.touched
        touched.add(queue)
        if queue.sharing:
            for consumer in queue.holders():
                if consumer.shared is not None:
                    touched.update(consumer.shared.queues())
        if shared is not None:
            touched.update(shared.queues())


def _snapshot(queue: Queue) -> tuple[list[Chunk], dict[str, array[int]]]:
    if queue.ready or queue.leased or queue.delayed or queue.dying:
        return queue.snapshot()
    return [], {}
