"""What is in a queue, where it stands, and the counts beside it.

It moves messages between its parts and keeps the counts true; it decides nothing, writes no record and asks for no
effect.  `core.queue.view` has the commands.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.queue import lasting, weighing
from penstock.core.queue.barriers.barriers import Barriers, hold_back, join_front
from penstock.core.queue.dispatching.attendance import Attendance
from penstock.core.queue.dispatching.consumers import Consumer, Credit, Roster
from penstock.core.queue.dispatching.dispatch import DISPATCH_MOST
from penstock.core.queue.dispatching.filtering import Targets
from penstock.core.queue.figures import Figures
from penstock.core.queue.limits.limits import limits_of
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned
from penstock.core.queue.order.runs import END, NEVER, Key, Run
from penstock.core.queue.priority.order import PriorityOrder
from penstock.core.queue.priority.ranking import Ranking, begin_ranks
from penstock.core.queue.priority.ranks import Ranks
from penstock.core.queue.priority.returned import PriorityReturned
from penstock.core.queue.priority.targets import PriorityTargets
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.letters import Letters
from penstock.core.queue.shares.pace import Pace
from penstock.core.queue.shares.shares import Shares, expressions
from penstock.core.queue.timed.delays import Delays
from penstock.core.queue.timed.expiry import Expiry
from penstock.core.sizes.sizes import Sizes
from penstock.core.state.capture import Contained
from penstock.records.actions import OnDelete, OnExpire
from penstock.records.chunks import Chunk
from penstock.records.policies import Ruling
from penstock.records.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.dedup import Dedup
    from penstock.core.queue.last_values import LastValues
    from penstock.core.queue.older import Older

_NO_ARGUMENTS: dict[str, object] = {}
_RETURNED = Returned()
_DELAYS = Delays()
_EXPIRY = Expiry()
_LETTERS = Letters(0)
_TARGETS = Targets(0)
_ROSTER = Roster()
_ATTENDANCE = Attendance()
_BARRIERS = Barriers()
_TAIL = Main()
_CONSUMERS: dict[Consumer, None] = {}
_SIZES = Sizes()
NO_CREDIT = list[Credit]()
"""Empty parts that all queues share until they have something to put there; nobody adds to these."""


class Contents:
    """The messages of one queue by state and place, and its consumers.  Parts are made when they are first needed."""

    __slots__ = (
        "_consumers", "_free_credit", "_serial", "acked", "actions", "arguments", "arrived", "attendance",
        "auto_delete", "barriers", "dedup",
        "delayed", "delays", "delivered", "dispatch_most", "durable", "exclusive_to", "expired_leases", "expiry",
        "figures", "hungry", "id", "last_values", "lease_due", "leased", "leases_in_order", "leaving",
        "letters", "limits", "main", "name", "older", "onward", "outstanding", "overfull", "overspent", "pace",
        "paused_until", "ranking", "ranks", "ready", "redelivered_below", "returned", "roster",
        "ruling", "settings", "shares", "sharing", "sizes", "stale", "tail", "targets", "vhost", "weight",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        vhost: str,
        name: str,
        settings: QueueSettings,
        durable: bool = True,
        exclusive_to: object | None = None,
        auto_delete: bool = False,
        arguments: Mapping[str, object] | None = None,
        actions: Sequence[OnExpire | OnDelete] = (),
        sizes: Sizes = _SIZES,
    ) -> None:
        """sizes: bytes of all messages of the core; without, nothing weighs anything."""
        self.id = id
        self.vhost = vhost
        self.name = name
        self.settings = settings
        self.ruling: Ruling | None = None  # what makes them of its own ones; None: they are its own
        self.durable = durable
        self.exclusive_to = exclusive_to
        self.auto_delete = auto_delete
        self.arguments: dict[str, object] = dict(arguments) if arguments else _NO_ARGUMENTS
        self.actions = tuple(actions)  # what actions want to know of its messages
        self.sizes = sizes
        self.limits = limits_of(settings)  # of what is ready; None without any
        self.redelivered_below = 0  # what is older may have been seen before an unclean stop
        # positions
        self.ranks: Ranks | None = None  # priorities; with them main order, what came back and target lists are others
        self.ranking: Ranking | None = None  # some of them are not known, so nothing is delivered
        self.main = Main()
        self.tail = _TAIL  # inactive: beyond the target depth
        self.returned = _RETURNED
        self.delays = _DELAYS
        self.expiry = _EXPIRY
        self.letters = _LETTERS
        self.barriers = _BARRIERS
        self.shares: Shares | None = None  # what is ready and may not be offered to anybody now
        rate = settings.rate_limit
        self.pace = Pace(rate[0], rate[1]) if rate[0] else None  # messages in a time
        self.older: Older | None = None  # a pass over the log finds messages, and they wait for its end
        # consumers
        self.attendance = _ATTENDANCE
        self.roster = _ROSTER  # open ones that are pushed to
        self._consumers = _CONSUMERS  # open ones, and closed ones that still hold something
        self.targets = _TARGETS
        self.sharing: int = 0  # consumers with shared credit
        self._free_credit = NO_CREDIT  # shared credit that came free in this command
        self._serial = 0
        self.lease_due = NEVER  # no lease ends, and no letter is tried again, before this (mono)
        self.leases_in_order = True
        self.leaving = False  # a consumer that is gone still has something to give back
        self.hungry = False  # a step stopped at its bound: more can be granted at once
        self.dispatch_most = DISPATCH_MOST
        self.overspent = False  # restored messages may be over their limits
        self.overfull = False  # more is ready than its limits allow, and goes in steps before anything is given out
        self.onward: str | None = None  # whose it is: an exchange at which messages wait until they are due
        self.paused_until = 0  # nothing is delivered before this moment (wall); 0: not paused
        # counts, changed beside what they count; `check` recounts them
        self.ready: int = 0
        self.leased: int = 0
        self.delayed: int = 0
        self.outstanding: int = 0  # backlog in use: leased, or delivered at most once and not yet acknowledged
        self.arrived = 0  # published to it since the start, as those below
        self.delivered = 0
        self.acked = 0
        self.stale = 0
        self.expired_leases = 0
        self.figures: Figures | None = None  # what else it counts, from its first delivery on
        self.last_values: LastValues | None = None  # where a message may replace another
        if settings.last_value_key is not None:
            self.renew_keys()
        self.dedup: Dedup | None = None  # where keys keep messages out
        if settings.dedup_window or settings.unique:
            self.renew_dedup(settings)
        self.weight: int = -1  # bytes of what is ready, counted where a limit asks for them; -1: nobody does
        self.weigh()
        if settings.rank_text is not None:
            begin_ranks(self)
        if expressions(settings):
            self.shares = Shares(settings)

    def __repr__(self) -> str:
        counts = f"ready={self.ready}, held={self.held}, leased={self.leased}"
        return f"Queue({self.name!r}, {counts}, delayed={self.delayed}, dying={self.dying})"

    def weigh(self) -> None:
        """Count the bytes of what is ready from now on, if a limit asks for them."""
        asked = self.limits is not None and self.limits.size < NEVER
        self.weight = weighing.ready_bytes(self) if asked else -1

    # -- parts, to put something there

    def coming_back(self) -> Returned:
        """Ready messages beside the main order."""
        if self.returned is _RETURNED:
            self.returned = Returned() if self.ranks is None else PriorityReturned(self.ranks)
        return self.returned

    def late(self) -> Delays:
        """Delayed messages."""
        if self.delays is _DELAYS:
            self.delays = Delays()
        return self.delays

    def inactive_order(self) -> Main:
        """Messages beyond the target depth."""
        if self.tail is _TAIL:
            self.tail = Main()
        return self.tail

    def renew_keys(self) -> None:
        """The settings say anew whether a message may replace another; the queue is empty."""
        from penstock.core.queue.last_values import LastValues  # it needs what is made of this

        self.last_values = None if self.settings.last_value_key is None else LastValues()

    def renew_dedup(self, before: QueueSettings) -> None:
        """The settings say anew which messages stay out for their keys.  before: those until now."""
        from penstock.core.queue.dedup import Dedup, deduplicates  # it needs what is made of this

        if not deduplicates(self.settings):
            self.dedup = None
        elif self.dedup is None:
            self.dedup = Dedup(self.settings)
        else:
            self.dedup.alter(before, self.settings)

    def timed(self) -> Expiry:
        """Deadlines."""
        if self.expiry is _EXPIRY:
            self.expiry = Expiry()
        return self.expiry

    def mourned(self) -> Letters:
        """Dying messages."""
        if self.letters is _LETTERS:
            self.letters = Letters(self.id)
        return self.letters

    def fenced(self) -> Barriers:
        """Barriers, and what they hold back."""
        if self.barriers is _BARRIERS:
            self.barriers = Barriers()
        return self.barriers

    def attended(self) -> Attendance:
        """Who attends to it, and since when nobody does."""
        if self.attendance is _ATTENDANCE:
            self.attendance = Attendance()
        return self.attendance

    def sieved(self) -> Targets:
        """Target lists of filters."""
        if self.targets is _TARGETS:
            self.targets = Targets(self.id) if self.ranks is None else PriorityTargets(self.id)
        return self.targets

    def renew_targets(self) -> None:
        """All target lists anew, for the order is another."""
        old, self.targets = self.targets, _TARGETS
        if old is _TARGETS:
            return
        new = self.sieved()
        new.go_on_from(old)
        for consumer in self._consumers:
            if consumer.targets is not None and not consumer.closed:
                consumer.targets = new.join(consumer, consumer.targets.filter, self.main, self.returned)
                consumer.targets.wake(consumer)

    def enlist(self, consumer: Consumer) -> None:
        """A new consumer."""
        if self._consumers is _CONSUMERS:
            self._consumers = {}
        self._consumers[consumer] = None
        if not consumer.passive:
            if self.roster is _ROSTER:
                self.roster = Roster()
            self.roster.add(consumer)

    def _bury(self) -> None:
        """Forget all messages and what is known of them; no consumer holds any."""
        self.main, self.tail, self.ranking = self.main.emptied(), _TAIL, None
        self.returned, self.delays, self.expiry, self.letters = _RETURNED, _DELAYS, _EXPIRY, _LETTERS
        self.barriers, self.older = _BARRIERS, None
        if self.shares is not None:
            self.shares = Shares(self.settings)
        self.ready = self.leased = self.delayed = 0
        self.weight = min(self.weight, 0)

    def _drop_ready(self) -> None:
        """Forget what is ready, and what barriers hold back."""
        if self.shares is not None:
            self.shares.drop_ready(self)
        self.main, self.tail = self.main.emptied(), _TAIL
        self.returned = _RETURNED
        self.ready = 0
        self.weight = min(self.weight, 0)
        self.barriers.clear()
        if self.older is not None:
            self.older.clear()

    def begin_anew(self) -> None:
        """Nothing is ready or held for a moment: the caller has it all, and puts it in order."""
        self._drop_ready()

    def clear_returned(self) -> None:
        """Nothing stands beside the main order."""
        self.returned = _RETURNED

    # -- ready messages

    @property
    def offered(self) -> int:
        """Ready messages that consumers may have; the others wait for something of their own queue."""
        shares = self.shares
        if shares is None:
            return self.ready
        return self.main.count + self.returned.count if shares.tenants is None else shares.tenants.count

    @property
    def held(self) -> int:
        """Messages that nobody may be given yet: barriers that wait, what they hold back, what a pass has found."""
        return self.barriers.held + (self.older.count if self.older is not None else 0)

    @property
    def ready_bytes(self) -> int:
        """Bytes of the bodies of what is ready; counted at each call (`core.queue.weighing`)."""
        return weighing.ready_bytes(self)

    @property
    def room(self) -> int:
        """How many more the whole queue may have outstanding."""
        settings = self.settings
        room = settings.max_backlog - self.outstanding if settings.max_backlog else NEVER
        if settings.max_leased[0]:
            room = min(room, settings.max_leased[0] - self.leased)
        return room

    def head(self) -> Key | None:
        """Where the message stands that goes next."""
        if self.shares is not None and self.shares.tenants is not None:
            return self.shares.tenants.peek(self.shares.mono)
        if not self.main.count:
            return self.returned.head() if self.returned.count else None
        first = self.main.key()
        return min(first, self.returned.head()) if self.returned.count else first

    def take_ready(self, count: int) -> list[Run]:
        """Up to `count` of the oldest ready messages, in order; of several tenants those whose turn it is."""
        if self.shares is not None and self.shares.tenants is not None:
            runs = self.shares.tenants.take(count, self.shares.mono)
            self.ready -= sum([len(run.chunk) for run in runs])
            if self.weight >= 0:
                self.weight -= self.weight_of(runs)
            return runs
        main, returned = self.main, self.returned
        if not returned.count:
            self.ready -= min(main.count, count)
            alone = main.take(count)
            if self.weight >= 0:
                self.weight -= self.weight_of(alone)
            return alone
        out = list[Run]()
        while count and (main.count or returned.count):
            first = main.key() if main.count else END
            if returned.count and returned.head() < first:
                part = returned.take(count, first)
                if self.targets.lists:
                    for run in part:
                        self.targets.left(run.chunk)
            else:
                part = main.take(count, returned.head()[0] if returned.count else NEVER)
            taken = sum(len(run.chunk) for run in part)
            count -= taken
            self.ready -= taken
            out += part
        if self.weight >= 0:
            self.weight -= self.weight_of(out)
        return out

    def weight_of(self, runs: Sequence[Run]) -> int:
        """Bytes of these."""
        total = self.sizes.total
        return sum([total(run.chunk) for run in runs])

    def take_one(self, key: Key) -> Run:
        """The ready message that stands there."""
        if self.shares is not None and self.shares.tenants is not None:
            return self.take_ready(1)[0]
        self.ready -= 1
        lsn = key[1]
        if self.weight >= 0:
            self.weight -= self.sizes.total(range(lsn, lsn + 1))
        if self.main.stands(key):
            return self.main.punch(lsn)
        one = range(lsn, lsn + 1)
        self.targets.left(one)
        return self.returned.extract(one)[0]

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are ready or delayed, wherever they stand."""
        out = self.main.extract(wanted)
        back = self.returned.extract(wanted)
        if back:
            if self.targets.lists:
                for run in back:
                    self.targets.left(run.chunk)
            out += back
        self.ready -= sum(len(run.chunk) for run in out)
        if self.shares is not None:
            waiting = self.shares.extract(wanted)
            self.ready -= sum(len(run.chunk) for run in waiting)
            out += waiting
        if self.weight >= 0:
            self.weight -= self.weight_of(out)
        if self.tail.count:
            out += self.tail.extract(wanted)
        if self.barriers is not _BARRIERS:
            held, freed = self.barriers.extract(wanted)
            out += held
            if freed:
                join_front(self, freed)
                self.hungry = True
        if self.older is not None:
            out += self.older.extract(wanted)
        if self.delayed:
            late = self.delays.extract(wanted)
            self.delayed -= sum(len(run.chunk) for run in late)
            out += late
            if self.barriers is not _BARRIERS:
                self.barriers.forget_delayed(late)
        return out

    def put_back(self, run: Run) -> None:
        """A run is ready again, at its place."""
        if self.shares is not None:
            offered = self.shares.come_back(self, run)
            if offered is not None:
                self._put_back(offered)
        elif self.barriers is _BARRIERS:
            self._put_back(run)
        else:
            for part in hold_back(self, run):
                self._put_back(part)

    def _put_back(self, run: Run) -> None:
        self.ready += len(run.chunk)
        if self.last_values is not None:
            self.last_values.came_back(run)
        if self.weight >= 0:
            self.weight += self.sizes.total(run.chunk)
        self.offer(run)

    def offer(self, run: Run) -> None:
        """Let consumers have this, which counts as ready already."""
        if self.shares is not None and self.shares.tenants is not None:
            self.shares.tenants.put(run)
            return
        self.coming_back().push(run)
        if self.targets.lists:
            self.targets.came_back(run.chunk)

    # -- leases and consumers

    def freed(self, consumer: Consumer, runs: Sequence[Run]) -> tuple[int, int]:
        """The consumer holds these no longer; (how many, how many of them were no longer in the queue)."""
        count = slots = 0
        if self.shares is not None:
            self.shares.freed([run for run in runs if run.place != SLOT])
        for run in runs:
            count += len(run.chunk)
            if run.place == SLOT:
                slots += len(run.chunk)
        if consumer.serial:
            self.outstanding -= count
        self.leased -= count - slots
        shared = consumer.shared
        if shared is not None and count:
            shared.used -= count
            if shared not in self._free_credit:
                self._free_credit = [*self._free_credit, shared]
        if consumer.closed:
            self._drop_if_done(consumer)
        elif consumer.targets is not None:
            consumer.targets.wake(consumer)
        return count, slots

    def leased_until(self, deadline: int) -> None:
        """A lease was given that ends then; 0: never."""
        if deadline and deadline < self.lease_due:
            self.lease_due = deadline

    def holders(self) -> Iterator[Consumer]:
        """Consumers that hold something."""
        return (consumer for consumer in self._consumers if consumer.leases.count)

    @property
    def consumers(self) -> list[Consumer]:
        """Open consumers that are pushed to, in order of subscription."""
        return self.roster.all

    def _drop_if_done(self, consumer: Consumer) -> None:
        """Forget a closed consumer that holds nothing any more."""
        if consumer.closed and not consumer.leases.count and consumer in self._consumers:
            del self._consumers[consumer]
            if consumer.shared is not None:
                self.sharing -= 1
                consumer.shared.consumers.remove(consumer)

    # -- all of it

    @property
    def dying(self) -> int:
        """Messages that leave without success as soon as their bodies were fetched."""
        return self.letters.count

    def floor(self) -> int:
        """No living message is older than this."""
        floor = self.main.lowest() if self.main.count else NEVER
        if self.tail.count:
            floor = min(floor, self.tail.head())
        if self.returned.count:
            floor = min(floor, self.returned.lowest())
        for consumer in self._consumers:
            floor = min(floor, consumer.leases.lowest())
        for runs in (self.delays.retries.runs(), self.letters.runs()):
            floor = min(floor, min((run.chunk[0] for run in runs), default=NEVER))
        for block in self.delays.scheduled.blocks:
            floor = min(floor, block.lsns[0])
        if self.barriers is not _BARRIERS:
            floor = min(floor, self.barriers.floor())
        if self.shares is not None:
            floor = min(floor, self.shares.floor())
        return floor if self.older is None or not self.older.count else min(floor, self.older.floor())

    def runs(self) -> Iterator[Run]:
        """All runs of living messages, but the main order, what is scheduled, and what barriers hold."""
        yield from self.runs_held()
        yield from self.delays.retries.runs()

    def runs_held(self) -> Iterator[Run]:
        """All runs of living messages that are ready again, leased or dying."""
        yield from self.returned.runs()
        yield from self.leased_runs()
        yield from self.letters.runs()

    def leased_runs(self) -> Iterator[Run]:
        """All runs of leased messages."""
        for consumer in self._consumers:
            yield from (run for run in consumer.leases.held() if run.place != SLOT)

    def living_pieces(self) -> Iterator[Chunk]:
        """All living messages, but those that a pass has found, in no order; nothing of it will change."""
        copies = self.main.copies() if isinstance(self.main, PriorityOrder) else []
        yield from copies or self.main.chunks()
        yield from self.beside_main()

    def beside_main(self) -> Iterator[Chunk]:
        """The same without those that are ready and were never delivered."""
        yield from self.tail.chunks()
        if self.shares is not None:
            yield from self.shares.chunks()
            yield from (run.chunk for run in self.shares.runs())
        yield from self.barriers.chunks()
        yield from (run.chunk for runs in (self.runs(), self.barriers.runs()) for run in runs if len(run.chunk))
        yield from (lsns for lsns, _ in self.delays.scheduled.items())

    # -- what lasts

    def capture(self) -> Contained | None:
        """What lasts of it, as references; None for an empty queue."""
        if self.ready or self.leased or self.delayed or self.dying or self.held or self.tail.count:
            return lasting.capture(self)
        return None

    def snapshot(self) -> tuple[list[Chunk], dict[str, array[int]]]:
        """`waiting`, in any order, and `columns` of a `QueueState`; `transient` and `letter` are not known here."""
        contained = self.capture()
        return ([], {}) if contained is None else (contained.waiting(), contained.columns())

    def load(self, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
        """Take up what a snapshot or the fold says; the queue is new and empty.  `tick` does what fell due since."""
        lasting.load(self, waiting, columns)

    def check(self) -> None:
        """Recount everything; AssertionError names what is off."""
        lasting.check(self)
