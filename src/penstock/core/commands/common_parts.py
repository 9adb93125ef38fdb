"""The parts that all commands share: outbox, topology, publisher, timers, stamps; and how they are joined.

`Timers` knows which queue has something due next without asking all of them: commands name the queues they touched, and
only those are asked again.
`Paging` keeps large state out of the heap: a matter of memory alone, no record, effect or answer depends on it; the
shell says when, and brings the arenas.  The commands stand beside it, by noun, and publishing in `core.broker`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.acted import Hops
from penstock.core.action_rules import Rules
from penstock.core.arena import Arena, Move
from penstock.core.effects import Effect, Part, Token, Verb
from penstock.core.links.asking import Wanted
from penstock.core.links.sharing import Peers
from penstock.core.outbox import Outbox
from penstock.core.publishing import Publisher
from penstock.core.publishing.admission import kept_as
from penstock.core.publishing.arrivals import Marks
from penstock.core.publishing.dead_letters import Buried, DeadLetters
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.lasting import page
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.queue import Queue, queue_of
from penstock.core.queue.settling.deferred import Deferred, Sweeps
from penstock.core.sizes import Sizes
from penstock.core.sow.holding import Sow
from penstock.core.sow.keyed import Keyed
from penstock.core.state.durable import DurableState, Reign
from penstock.core.state.pending import Passing, Spans
from penstock.core.state.stamps import Stamps
from penstock.core.streams import Streams
from penstock.core.streams.sinks import Sinks
from penstock.core.streams.stream_table import Holdings
from penstock.core.topology.declaring import Admin
from penstock.core.topology.register import Interning
from penstock.core.topology.routing import Router
from penstock.core.topology.ruling import Changes
from penstock.core.topology.topology import Topology
from penstock.expr import Filter
from penstock.records.chunks import Chunk, Now, as_chunk, pairs_of
from penstock.records.entries import Entry, Topic
from penstock.records.event_actions import Action
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.commands.subscription import Subscription


Arenas: TypeAlias = Callable[[str], Arena]
"""The arena of a file that a queue names; "" is the one that all others share."""


class Paging:
    """Which queues move cold state out of the heap, and how old it has to be for that."""

    __slots__ = ("asking", "at", "before", "full", "seen", "version", "wanted")

    def __init__(self) -> None:
        self.wanted = False  # somebody asked for it since the start; until then nobody is looked at
        self.version = -1  # of the topology when `asking` was put together
        self.asking: list[Queue | Sow] = []
        self.at = 0  # where a look that is not over goes on
        self.before = 0  # state of messages below this LSN was there at the last look already
        self.seen = -1  # all that was decided below this LSN has moved, where that was the next one
        self.full = False  # something found no room in this look

    def begin(self, version: int, queues: Iterable[Queue], sows: Iterable[Sow]) -> None:
        """Begin a look at the queues that ask for paging, as of this version of the topology."""
        self.version, self.at, self.seen = version, 0, -1
        self.asking = [queue for queue in queues if queue.settings.file_backed_metadata]
        self.asking += (sow for sow in sows if sow.file_backed)

    def look(self, arenas: Arenas, most: int, next_lsn: int) -> bool:
        """Move state that was there at the last look already, so many arrays at most; whether there was more."""
        if self.seen == next_lsn:
            return False
        if not self.at:
            self.full = False
        for at in range(self.at, len(self.asking)):
            one = self.asking[at]
            named = "" if isinstance(one, Sow) else one.settings.file_backed_metadata
            move = Move(arenas(named if isinstance(named, str) else ""), self.before, most)
            if isinstance(one, Sow):
                one.index.page(move)
            else:
                page(one, move)
            self.full |= move.full
            most = move.room
            if not most:
                self.at = at
                return True
        self.seen = next_lsn if self.before == next_lsn and not self.full else -1
        self.at, self.before = 0, next_lsn
        return False


_NEVER: tuple[int | None, int | None] = (None, None)

DUE_MOST = 256
"""Queues that have a turn of the server to do what is due; the others come in the next ones, in their order."""


class Timers:
    """The next deadlines of all queues."""

    def __init__(self, moved: set[Queue], outbox: Outbox[Effect]) -> None:
        """moved: gets every queue that was touched, too; somebody else empties it.  outbox: knows the time."""
        self._outbox = outbox
        self._moved = moved
        self._changed: set[Queue] | None = None  # touched since somebody asked; None: nobody asks
        self.touched: set[Queue] = set()
        self._known: dict[int, tuple[int | None, int | None]] = {}  # queue id -> its next deadlines, if it has any
        self._wall: list[tuple[int, int]] = []  # (time, queue id)
        self._mono: list[tuple[int, int]] = []
        self._line: dict[int, None] = {}  # ids of queues whose time has come, the first first

    def forget(self, queue: Queue) -> None:
        self.touched.discard(queue)
        if self._changed is not None:
            self._changed.add(queue)
        self._known.pop(queue.id, None)

    def watch(self, wanted: bool) -> None:
        """Record from now on which queues have `changed`, or stop."""
        self._changed = set() if wanted else None

    def changed(self) -> set[Queue]:
        """Queues that were touched, or are gone, since this was asked last; none unless watched."""
        self._look()
        taken = self._changed
        if taken is None:
            return set()
        self._changed = set()
        return taken

    def next(self) -> tuple[int | None, int | None]:
        """The earliest deadlines on the wall and on the monotonic clock; 0 is at once, None: nothing is due ever."""
        wall, mono = self._next()
        return (0 if self._line else wall), mono

    def _next(self) -> tuple[int | None, int | None]:
        """Of the queues that do not stand in the line."""
        self._look()
        wall, mono = self._wall, self._mono
        while wall and self._known.get(wall[0][1], _NEVER)[0] != wall[0][0]:
            heappop(wall)
        while mono and self._known.get(mono[0][1], _NEVER)[1] != mono[0][0]:
            heappop(mono)
        return (wall[0][0] if wall else None), (mono[0][0] if mono else None)

    def due(self, now: Now) -> list[int]:
        """Ids of queues with something due, ascending, `DUE_MOST` at most; while `next` says at once there are more.

        The caller ticks them and adds them to `touched`.
        """
        line, known = self._line, self._known
        wall, mono = self._next()
        while wall is not None and wall <= now.wall:
            line[heappop(self._wall)[1]] = None
            wall = self._next()[0]
        while mono is not None and mono <= now.mono:
            line[heappop(self._mono)[1]] = None
            mono = self._next()[1]
        out = list(islice(line, DUE_MOST))
        for number in out:
            del line[number]
            known.pop(number, None)  # asked again in any case
        return sorted(out)

    def _look(self) -> None:
        self._moved |= self.touched
        if self._changed is not None:
            self._changed |= self.touched
        time, before = self._outbox.time, self._known
        for queue in self.touched:
            wall, mono = queue.next_deadline() if queue.used(time) else _NEVER
            known = before.get(queue.id, _NEVER)
            if wall is None and mono is None and known is _NEVER:
                continue
            if wall is not None and wall != known[0]:
                heappush(self._wall, (wall, queue.id))
            if mono is not None and mono != known[1]:
                heappush(self._mono, (mono, queue.id))
            if wall is not None or mono is not None:
                self._known[queue.id] = (wall, mono)
            elif known != _NEVER:
                del self._known[queue.id]
        self.touched.clear()


class Floors:
    """The floors of the queues that hold something."""

    def __init__(self) -> None:
        self.moved: set[Queue] = set()  # touched since they were asked
        self._known: dict[int, int] = {}  # by queue id

    def forget(self, queue: Queue) -> None:
        self.moved.discard(queue)
        self._known.pop(queue.id, None)

    def look(self, most: int) -> bool:
        """Ask up to `most` of the queues that changed for their floor; whether some are left."""
        moved = self.moved
        while moved and most:
            most -= 1
            queue = moved.pop()
            floor = queue.floor()
            if floor < NEVER:
                self._known[queue.id] = floor
            else:
                self._known.pop(queue.id, None)
        return bool(moved)

    def lowest(self) -> int:
        """The lowest of the known floors."""
        return min(self._known.values(), default=NEVER)


TOPICS_MAX = 65_536
"""Topics interned in one generation; two generations are kept."""


class CoreParts:
    """What one instance consists of."""

    def __init__(
        self,
        origin: int,
        next_lsn: int = 1,
        actions: Sequence[Action] = (),
        instance: str = "penstock-1",
        refuse: Callable[[QueueSettings], str | None] | None = None,
    ) -> None:
        """origin: the data folder's own number, part of every bookmark.

        refuse: why settings of a queue cannot be together, None where they can; asked of what policies make of it.
        """
        self.origin = origin
        self.instance = instance
        self.rules = Rules(actions)
        self.hops = Hops()
        self.stamps = Stamps()
        self.sizes = Sizes()  # of the messages of all queues
        self.peers = Peers()  # sites that this one has met
        self.keep(DurableState())
        self.wanted = dict[int, Wanted]()  # by queue id: what filters here want of other sites' messages
        self._paging = Paging()
        self._out: Outbox[Effect] = Outbox(next_lsn)
        self._topology = Topology()
        self._router = Router(self._topology)
        self._interning = Interning(self._out)
        self._floors = Floors()
        self._timers = Timers(self._floors.moved, self._out)
        self._publisher = Publisher(self._router, self._interning, self._out, self._timers.touched, self.sizes)
        self._keyed = Keyed(self._out, self._publisher.traits, self._publisher.checks)
        self._holdings = Holdings(self._out, self._timers.touched)
        self._admin = Admin(
            self._topology, self._router, self._interning, self.rules, self.sizes, self._out, self._ending,
            lambda queue, lsn: self.departed.ended(queue, lsn),
            refuse,
        )  # fmt: skip
        self._at = self._out.at  # the instant to decide at: record times never decrease, and what is decided follows
        self.queue_by_id = self._admin.by_id.get
        self.streams = Streams(self._out, self._holdings, self.queue_by_id)
        self._letters = DeadLetters(
            self._out, self._publisher, self.rules, self.hops, self._letter_topic, self._interning, origin, instance
        )
        # what these do needs nothing of the other parts
        self.take_journal, self.take_effects = self._out.take_journal, self._out.take_effects
        self.whole_after = self._out.whole_after
        self.watch_queues, self.changed_queues = self._timers.watch, self._timers.changed
        self.declare_exchange, self.delete_exchange = self._admin.declare_exchange, self._admin.delete_exchange
        self.unbind, self.reach, self.dear = self._admin.unbind, self._publisher.reach, self._publisher.dear
        self.queue, self.find_queue = self._admin.queue, self._admin.queues.find
        self.missing_queue = self._admin.queues.missing
        self.queues_of_route = self._interning.queues_of
        self.transactions: int = 0  # committed by this process
        self._buried: dict[Token, list[Buried]] = {}  # dead letters whose rows are being judged
        self._sinks = Sinks(self._out, self._publisher, self.streams)
        self.streams.poison.committed = lambda query: self._sinks.known.batches.get(query, -1)
        self._topics: dict[tuple[str, str, str], Topic] = {}
        self._older_topics: dict[tuple[str, str, str], Topic] = {}
        self.ended_vhosts = Counter[str]()  # how often one of a name has gone, in this process: readers look at it
        self._cancelled: dict[int, int] = {}  # by queue id, since the start
        self.booted = 0  # LSN of this process's BOOT record
        self._recovered = 0  # LSN of the last RECOVERED record
        self._histories: dict[int, tuple[Queue, Queue | str, Chunk, tuple[Filter, ...]]] = {}  # looked at, by serial
        self._histories_asked = 0
        self._passes: dict[int, tuple[Spans, Passing | None]] = {}  # by queue id: what passes have been over
        self._deferred = Deferred()
        self._patterns: dict[Subscription, None] = {}  # subscriptions to several queues
        self._sweeps = Sweeps()
        self.queue_limits: dict[str, int] = {}  # of vhosts: queues there may be; whoever serves sets it, no log has it
        self.traced = frozenset[str]()  # vhosts whose messages are told to `amq.rabbitmq.trace`, set in the same way
        self.default_types: dict[str, str] = {}  # of vhosts: types of queues that name none, set in the same way
        self._unruled: dict[int, None] = {}  # ids of queues for which policies of now may say something else
        self._changes = Changes()  # what made them so
        self.lsn_at: Callable[[int], int] = lambda time: 0  # the first LSN published at this time (microseconds) or
        # later; whoever has the log sets it
        self.attendance: list[tuple[bool, Consumer]] | None = None  # consumers that came (True) or went; whoever wants
        # to know of them puts a list here, and empties it
        self._stopped: list[Queue] = []  # by a fault
        self._parts_stopped: dict[Part, None] = {}  # those that are no queues

    def keep(self, state: DurableState) -> None:
        """Go on with this: what of the durable state no part keeps in a form of its own."""
        self.kept = state
        self.acted = state.acted  # what actions have done; `acting` writes it
        self.carried, self.links = state.carried, state.links  # by site
        self.proxied, self.early, self.returned = state.proxied, state.early, state.returned
        self.sequences, self.departed = state.numbered, state.gone
        self.foretold, self.passed, self.began = state.foretold, state.passed, state.began

    @property
    def publishers(self) -> dict[str, int]:
        """The highest sequence of each publisher, by what it is kept under."""
        return self._publisher.publishers.highest

    def highest_of(self, vhost: str, publisher: str) -> int:
        """The highest sequence that is stored of a publisher of a vhost; 0 for one that nobody knows."""
        return self.publishers.get(kept_as(vhost, publisher), 0)

    def settled_of(self, vhost: str, publisher: str) -> int:
        """What of it a publisher need not send again: all up to this is stored, or refused for good."""
        return self._publisher.publishers.settled_of(kept_as(vhost, publisher))

    def expire_publishers(self, now: Now, expiration: int | None) -> None:
        """Forget publishers of whom nothing came for so many microseconds; None: never."""
        self._publisher.publishers.expire_after(self._at(now), expiration)

    @property
    def defaults(self) -> int:
        """Which defaults this folder goes by: see `core.state.durable.DEFAULTS`."""
        return self.kept.defaults

    @property
    def terms(self) -> tuple[Reign, ...]:
        """Of a cluster, oldest first: who wrote which LSNs.  The last one is this process's, if it leads."""
        return self.kept.terms

    # -- the outbox

    @property
    def next_lsn(self) -> int:
        """The LSN of the next record."""
        return self._out.next_lsn

    def write_as(self, format: int) -> None:
        """The format version that every reader of the log knows (`Outbox.check_format`); the newest by default."""
        if format != self._out.format:
            self._out.write_as(format)

    @property
    def time(self) -> int:
        """Microseconds since the epoch, of the last command; never decreases."""
        return self._out.time

    @property
    def last_lsn(self) -> int:
        """The last LSN given out."""
        return self._out.next_lsn - 1

    @property
    def last_message(self) -> int:
        """The highest LSN that a message was given since the start; 0: none was."""
        return self._out.last_message

    @property
    def journal(self) -> list[Entry]:
        """Entries that were not handed to the log yet; for reading only."""
        return self._out.journal

    @property
    def effects(self) -> list[Effect]:
        """Effects that were not handed out yet; for reading only."""
        return self._out.effects

    def group(self) -> AbstractContextManager[None]:
        """What is decided inside lies in one group: a crash keeps or loses all of it.

        The caller makes sure that nothing inside is refused (`judge`): what was written before a refusal stays.
        """
        return self._out.group()

    # -- topics

    def interned(self, vhost: str, exchange: str, key: str) -> Topic:
        """The interned topic of that name, even if its exchange does not exist."""
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
        return self.interned(vhost, *self._router.target_of(vhost, exchange, key))

    # -- how a queue ends

    def _ending(self, now: Now, queue: Queue) -> int:
        """What ends with a queue besides its records."""
        if len(self.peers.sites) > 1 and queue.exclusive_to is None and queue.settings.kind != "local":
            self.departed.note(queue.id, queue.vhost, queue.name, queue.settings)
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
        self.proxied.pop(queue.id, None)
        self.began.pop(queue.id, None)
        self.early.queue_gone(queue.id)
        self.wanted.pop(queue.id, None)
        return ready

    def _forget(self, now: Now, queue: Queue) -> None:
        self._ending(now, queue)
        self._admin.forget(queue)

    # -- small things

    def _marks(self) -> tuple[tuple[str, Marks], ...]:
        """Columns of the durable state that the queues do not keep."""
        return ("transient", self._publisher.transient), ("letter", self._letters.letters)

    def _defer(
        self, now: Now, queue: Queue, origin: int, lsns: Chunk, verb: Verb, by: str, *, twins: bool = False
    ) -> None:
        """Remember what was said of messages that have not come, whosever they are; as `Deferred.add`."""
        new = self._deferred.add(now, queue, origin, lsns, verb, by, self._out, twins=twins)
        if new and self.early:
            pairs = pairs_of(as_chunk(new), False)
            for first, stop in zip(pairs[::2], pairs[1::2], strict=True):
                self.early.came(origin, first, stop, queue.id)

    def _touch(self, queue: Queue, shared: Credit | None = None) -> None:
        """Time may have something to do in a queue now, and in those that share credit with it."""
        if shared is None and not queue.shares_credit:
            self._timers.touched.add(queue)
        else:
            self._touch_all((queue,), {shared})

    def _touch_all(self, queues: Collection[Queue], shared: Iterable[Credit | None]) -> None:
        """The same of several queues: each credit is looked at once."""
        touched, credits = self._timers.touched, set(shared)
        touched.update(queues)
        for queue in queues:
            if queue.shares_credit:
                credits.update([consumer.shared for consumer in queue.holders()])
        for credit in credits:
            if credit is not None:
                touched.update(map(queue_of, credit.consumers))
