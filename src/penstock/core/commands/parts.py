"""The parts that all commands share: the outbox, the topology, the publisher, the timers; and how they are joined.

It owns no command.  What the commands are about stands beside it: `life`, `topology`, `queues`, `deliveries`, and
publishing in `core.broker`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.core.actions.acted import Acted, Hops
from penstock.core.actions.rules import Rules
from penstock.core.asks import Token
from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.paging import Paging
from penstock.core.publishing.dead_letters import Buried, DeadLetters
from penstock.core.publishing.marks import Marks
from penstock.core.publishing.publishing import Publisher
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.settling.deferred import Deferred
from penstock.core.queue.settling.sweep import Sweep
from penstock.core.queue.view import Queue, queue_of
from penstock.core.sizes.sizes import Sizes
from penstock.core.sow.keyed import Keyed
from penstock.core.stamps import Stamps
from penstock.core.state.passing import Passing, Spans
from penstock.core.streams.holding import Holdings
from penstock.core.streams.sinks import Sinks
from penstock.core.streams.streams import Streams
from penstock.core.timers import Floors, Timers
from penstock.core.topology.admin import Admin
from penstock.core.topology.interning import Interning
from penstock.core.topology.routing import Router
from penstock.core.topology.topology import Topology
from penstock.records.chunks import Now
from penstock.records.entries import Entry, Topic
from penstock.records.event_actions import Action
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.commands.subscription import Subscription

TOPICS_MAX = 65_536
"""Topics interned in one generation; two generations are kept."""

NO_TABLE: Mapping[str, object] = {}


class Parts:
    """What one instance consists of."""

    def __init__(
        self,
        origin: int,
        next_lsn: int = 1,
        seed: int = 0,
        actions: Sequence[Action] = (),
        instance: str = "penstock-1",
        refuse: Callable[[QueueSettings], str | None] | None = None,
    ) -> None:
        """origin: the data folder's own number, part of every bookmark.  seed: of whatever chance a rule needs.

        refuse: why settings of a queue cannot be together, None where they can; asked of what policies make of it.
        """
        self.origin = origin
        self.instance = instance
        self.seed = seed
        self.rules = Rules(actions)
        self.acted = Acted()  # what they have done; `acting` writes it
        self.hops = Hops()
        self.stamps = Stamps()
        self.sizes = Sizes()  # of the messages of all queues
        self._paging = Paging()
        self._out: Outbox[Effect] = Outbox(next_lsn)
        self._topology = Topology()
        self._router = Router(self._topology)
        self._interning = Interning(self._out)
        self._floors = Floors()
        self._timers = Timers(self._floors.moved, self._out)
        self._publisher = Publisher(self._router, self._interning, self._out, self._timers.touched, self.sizes)
        self._keyed = Keyed(self._out, self._publisher.traits)
        self._holdings = Holdings(self._out, self._timers.touched)
        self.streams = Streams(self._out, self._holdings, self._by_id)
        self._admin = Admin(
            self._out,
            self._topology,
            self._router,
            self._interning,
            self._ending,
            self.rules,
            self.sizes,
            refuse,
        )
        self._letters = DeadLetters(
            self._out, self._publisher, self.rules, self.hops, self._letter_topic, self._interning, origin, instance
        )
        self.transactions: int = 0  # committed by this process
        self._buried: dict[Token, list[Buried]] = {}  # dead letters whose rows are being judged
        self._sinks = Sinks(self._out, self._publisher, self.streams)
        self.streams.poison.committed = lambda query: self._sinks.known.batches.get(query, -1)
        self._topics: dict[tuple[str, str, str], Topic] = {}
        self._older_topics: dict[tuple[str, str, str], Topic] = {}
        self._topics_version = -1
        self._unclean = 0
        self._defaults = 0  # of the folder: see `core.state.durable`
        self._cancelled: dict[int, int] = {}  # by queue id, since the start
        self._booted = 0  # LSN of this process's BOOT record
        self._recovered = 0  # LSN of the last RECOVERED record
        self._passes: dict[int, tuple[Spans, Passing | None]] = {}  # by queue id: what passes have been over
        self._deferred = Deferred()
        self._patterns: dict[Subscription, None] = {}  # subscriptions to several queues
        self._sweeps: dict[Token, Sweep] = {}  # settlements by filter on their way
        self.queue_limits: dict[str, int] = {}  # of vhosts: queues there may be; whoever serves sets it, no log has it
        self._unruled: dict[int, None] = {}  # ids of queues for which policies of now may say something else
        self.lsn_at: Callable[[int], int] = lambda time: 0  # the first LSN published at this time (microseconds) or
        # later; whoever has the log sets it
        self._sweeping = 0  # the serial number of the last one
        self.attendance: list[tuple[bool, Consumer]] | None = None  # consumers that came (True) or went; whoever wants
        # to know of them puts a list here, and empties it

    @property
    def publishers(self) -> dict[str, int]:
        """The highest sequence of each publisher."""
        return self._publisher.publishers.highest

    def expire_publishers(self, now: Now, expiration: int | None) -> None:
        """Forget publishers of whom nothing came for so many microseconds; None: never."""
        self._publisher.publishers.expire_after(self._at(now), expiration)

    @property
    def defaults(self) -> int:
        """Which defaults this folder goes by: see `core.state.durable.DEFAULTS`."""
        return self._defaults

    @property
    def booted(self) -> int:
        """The LSN of this process's BOOT record; 0 before it."""
        return self._booted

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
        """Entries that nobody has taken for the log yet; to be read."""
        return self._out.journal

    @property
    def effects(self) -> list[Effect]:
        """Effects that nobody has taken to perform yet; to be read."""
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

    # -- topics

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

    # -- how a queue ends

    def _ending(self, now: Now, queue: Queue) -> int:
        """What ends with a queue besides its records."""
        self._touch(queue)
        if self.attendance is not None:
            self.attendance += [(False, one) for one in queue.consumers]
        self.streams.queue_gone(queue.id)
        self._holdings.queue_gone(queue.id)
        ready = queue.delete(now, self._out)
        self._timers.forget(queue)
        self._floors.forget(queue)
        self._cancelled.pop(queue.id, None)
        self._passes.pop(queue.id, None)
        self._deferred.queue_gone(queue.id)
        return ready

    def _forget(self, now: Now, queue: Queue) -> None:
        self._ending(now, queue)
        self._admin.forget(queue)

    # -- small things

    def _marks(self) -> tuple[tuple[str, Marks], ...]:
        """Columns of the durable state that the queues do not keep."""
        return ("transient", self._publisher.transient), ("letter", self._letters.letters)

    def _at(self, now: Now) -> Now:
        """The instant to decide at: record times never decrease, and what is decided follows them."""
        return self._out.at(now)

    def watch_queues(self, wanted: bool) -> None:
        """Whether somebody will ask for `changed_queues`."""
        self._timers.watch(wanted)

    def changed_queues(self) -> set[Queue]:
        """Queues to which something happened since this was asked last, also what is gone; none unless watched."""
        return self._timers.changed()

    def _by_id(self, number: int) -> Queue | None:
        return self._admin.by_id.get(number)

    def _touch(self, queue: Queue, shared: Credit | None = None) -> None:
        touched = self._timers.touched
        touched.add(queue)
        if queue.shares_credit:
            for consumer in queue.holders():
                if consumer.shared is not None:
                    touched.update(map(queue_of, consumer.shared.consumers))
        if shared is not None:
            touched.update(map(queue_of, shared.consumers))
