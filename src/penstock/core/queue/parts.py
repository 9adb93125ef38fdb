"""The parts of a queue: where its messages stand by state, its consumers, and the counts beside them.

Empty parts are shared by all queues, so an idle queue is small.  What moves between the parts is in `contents`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.core.links.sharing import Peers
from penstock.core.queue.barrier import Barriers
from penstock.core.queue.dedup import Dedup, deduplicates
from penstock.core.queue.delays import Delays
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.dispatching.filtering import Targets
from penstock.core.queue.dispatching.roster import Attendance, Roster
from penstock.core.queue.expiry import Expiry
from penstock.core.queue.foreign import Foreign
from penstock.core.queue.last_values import LastValues
from penstock.core.queue.limits import NOTHING_COUNTED, Figures, Pace, limits_of
from penstock.core.queue.order.main_order import Main, Nothing
from penstock.core.queue.order.pool import Older
from penstock.core.queue.order.priority import PriorityOrder, Ranking
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import NOTHING_RETURNED, PriorityReturned, Returned
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.order.targets import PriorityTargets
from penstock.core.queue.settling.letters import Letters
from penstock.core.queue.shares import Shares, expressions
from penstock.core.queue.whole import ATTENDANCE, DISPATCH, PACE, RANKS, SHARES, TIMES
from penstock.core.sizes import Sizes
from penstock.records.dataclass import dataclass
from penstock.records.event_actions import OnDelete, OnExpire
from penstock.records.queue_settings import QueueSettings, Ruling


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """Nothing of it changes while the queue lives."""

    vhost: str
    durable: bool
    exclusive_to: object | None
    auto_delete: bool
    arguments: dict[str, object]
    actions: tuple[OnExpire | OnDelete, ...]  # what actions want to know of its messages
    sizes: Sizes  # bytes of all messages of the core
    exchange: str | None = None  # whose it is (`core.topology.own_queues`); None: of clients
    waits: bool = False  # what is due in it goes on to that exchange


_NO_ARGUMENTS: dict[str, object] = {}
NO_DELAYS = Delays()
NO_EXPIRY = Expiry()
NO_LETTERS = Letters(0)
_TARGETS = Targets(0)
_ROSTER = Roster()
_ATTENDANCE = Attendance()
NO_BARRIERS = Barriers()
NO_MAIN: Main = Nothing()
NO_TAIL: Main = Nothing()
_CONSUMERS: dict[Consumer, None] = {}
_SIZES = Sizes()
DISPATCH_MOST = 2048
"""Messages granted in one step; the queue asks to be called again for the rest, so that nobody holds up a turn."""
NO_CREDIT = list[Credit]()
"""Empty parts that all queues share until they have something to put there; nobody adds to these."""


class QueueParts:
    """Where the messages of one queue are by state and place, its consumers and counts; made when first needed."""

    __slots__ = (
        "agenda", "all_consumers", "arrived", "attendance", "barriers", "behind", "declared", "dedup",
        "delays", "dispatch_most", "draining", "expiry", "figures", "foreign", "free_credit", "id",
        "last_values", "lease_due", "leased", "leases_in_order",
        "letters", "limits", "loaded", "main", "name", "older", "outstanding", "pace",
        "paused_until", "plan", "ranking", "ranks", "redelivered_below", "returned", "roster", "ruling", "serial",
        "settings", "shares", "sharing", "tail", "targets", "used_at", "usual", "weight",
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
        exchange: str | None = None,
        waits: bool = False,
    ) -> None:
        """sizes: bytes of all messages of the core; without, nothing weighs anything."""
        table: dict[str, object] = dict(arguments) if arguments else _NO_ARGUMENTS
        self.id = id
        self.name = name
        self.declared = Declared(
            vhost, durable, exclusive_to, auto_delete, table, tuple(actions), sizes, exchange, waits
        )  # perhaps one that others share
        self.settings = settings
        self.ruling: Ruling | None = None  # what makes them of its own ones; None: they are its own
        self.limits = limits_of(settings)  # of what is ready; None without any
        self.redelivered_below = 0  # what is older may have been seen before an unclean stop
        self.plan: object = None  # the stages that messages pass, for `stages.plan_of` alone; None: they are worked out
        # positions
        self.ranks: Ranks | None = None  # priorities; with them main order, what came back and target lists are others
        self.ranking: Ranking | None = None  # some of them are not known, so nothing is delivered
        self.main: Main = NO_MAIN  # `ensure_main` is what to add to
        self.tail = NO_TAIL  # inactive: beyond the target depth
        self.returned = NOTHING_RETURNED
        self.delays = NO_DELAYS
        self.expiry = NO_EXPIRY
        self.letters = NO_LETTERS
        self.barriers = NO_BARRIERS
        self.shares: Shares | None = None  # what is ready and may not be offered to anybody now
        rate = settings.rate_limit
        self.pace = Pace(rate[0], rate[1]) if rate[0] else None  # messages in a time
        self.foreign: Foreign | None = None  # what other sites may lease, and whose the messages are
        self.older: Older | None = None  # a pass over the log finds messages, and they wait for its end
        # consumers
        self.attendance = _ATTENDANCE
        self.roster = _ROSTER  # open ones that are pushed to
        self.usual: QueueSettings | None = None  # settings known to be `straight.is_usual`
        self.all_consumers = _CONSUMERS  # open ones, and closed ones that still hold something
        self.targets = _TARGETS
        self.sharing: int = 0  # consumers with shared credit
        self.free_credit = NO_CREDIT  # shared credit that came free in this command
        self.serial = 0
        self.agenda: int = 0  # what there is to come back to, in bits of `core.queue.whole`
        self.lease_due = NEVER  # no lease ends before this (mono)
        self.leases_in_order = True
        self.dispatch_most = DISPATCH_MOST
        self.draining = False  # nothing is delivered until the server drains no more; the process's own affair
        self.behind: tuple[str, ...] = ()  # sites that have to tell first what happened; also its own affair
        self.paused_until = 0  # nothing is delivered before this moment (wall); 0: not paused
        # counts, changed beside what they count; `check` recounts them (what is ready or delayed is a sum over places)
        self.leased: int = 0
        self.outstanding: int = 0  # backlog in use: leased, or delivered at most once and not yet acknowledged
        self.arrived = 0  # published to it since the start
        self.loaded = 0  # found in it by the start
        self.used_at = 0  # wall: the last turn that had to do with it, 0: none; below 0: consumers have room since
        self.figures: Figures | None = None  # what else it counts since then, once there is something
        self.last_values: LastValues | None = None  # where a message may replace another
        if settings.last_value_key is not None:
            self.renew_keys()
        self.dedup: Dedup | None = None  # where keys keep messages out
        if settings.dedup_window or settings.unique:
            self.renew_dedup(settings)
        self.weight: int = 0 if self.bytes_limited else -1  # bytes of what is ready, where a limit asks for them
        if settings.rank_text is not None:
            self.ranks = Ranks()
            self.main = PriorityOrder(self.ranks)
            self.agenda |= RANKS
        if expressions(settings):
            self.shares = Shares(settings, self.ranks)
            self.agenda |= SHARES
        if self.pace is not None:
            self.agenda |= PACE

    # -- what it was declared with

    @property
    def vhost(self) -> str:
        """Where its name is one."""
        return self.declared.vhost

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        return self.declared.durable

    @property
    def exclusive_to(self) -> object | None:
        """The connection that alone may use it."""
        return self.declared.exclusive_to

    def disown(self) -> None:
        """It is gone: plans of topics that nobody routes again still name it, and do not hold its connection."""
        if self.declared.exclusive_to is not None:
            self.declared = replace(self.declared, exclusive_to=None)

    @property
    def auto_delete(self) -> bool:
        """Whether it goes with its last consumer."""
        return self.declared.auto_delete

    @property
    def arguments(self) -> dict[str, object]:
        """As they were given; its settings are made of them."""
        return self.declared.arguments

    @property
    def actions(self) -> tuple[OnExpire | OnDelete, ...]:
        """What actions want to know of its messages."""
        return self.declared.actions

    @property
    def sizes(self) -> Sizes:
        """Bytes of all messages of the core."""
        return self.declared.sizes

    @property
    def exchange(self) -> str | None:
        """Whose own it is: an exchange's; None: of clients."""
        return self.declared.exchange

    @property
    def onward(self) -> str | None:
        """The exchange to which what is due in it goes on."""
        return self.declared.exchange if self.declared.waits else None

    # -- counts

    @property
    def ready(self) -> int:
        """Messages that may be leased now, or wait behind others of their key."""
        count = self.main.count + self.returned.count
        return count if self.shares is None else count + self.shares.count

    @property
    def bytes_limited(self) -> bool:
        """Whether a limit asks for the bytes of what is ready."""
        return self.limits is not None and self.limits.size < NEVER

    @property
    def delayed(self) -> int:
        """Messages in back-off, and scheduled ones."""
        return self.delays.retries.count + self.delays.scheduled.count

    def counted(self, mono: int = 0) -> Figures:
        """What it counts besides `arrived`, to count something there."""
        if self.figures is None:
            self.figures = Figures(mono)
        return self.figures

    @property
    def so_far(self) -> Figures:
        """The same, to look at."""
        return self.figures or NOTHING_COUNTED

    def used(self, wall: int) -> bool:
        """A turn that had to do with it is over; once for each, in their order.  Whether something may be due ever."""
        if self.used_at < 0:
            here = self.attendance
            (here if here is not _ATTENDANCE else self.ensure_attendance()).spare += wall + self.used_at
        waits = self.main.count or self.returned.count or (self.shares is not None and self.shares.count)
        able = self.roster.all and (self.agenda & DISPATCH or not waits)  # what is ready they have no room for
        self.used_at = -wall if able else wall
        return bool(self.agenda) or self.attendance is not _ATTENDANCE

    # -- parts, made if they are absent, to put something there

    def ensure_main(self) -> Main:
        """The main order, to add to."""
        if self.main is NO_MAIN:
            self.main = Main()
        return self.main

    def ensure_returned(self) -> Returned:
        """Ready messages beside the main order, to add to."""
        if self.returned is NOTHING_RETURNED:
            self.returned = Returned() if self.ranks is None else PriorityReturned(self.ranks)
        return self.returned

    def ensure_delays(self) -> Delays:
        """Delayed messages, to add to."""
        self.agenda |= TIMES
        if self.delays is NO_DELAYS:
            self.delays = Delays()
        return self.delays

    def ensure_tail(self) -> Main:
        """Messages beyond the target depth, to add to."""
        if self.tail is NO_TAIL:
            self.tail = Main()
            self.plan = None
        return self.tail

    def renew_keys(self) -> None:
        """The settings say anew whether a message may replace another; the queue is empty."""
        self.last_values = None if self.settings.last_value_key is None else LastValues()
        self.plan = None

    def renew_dedup(self, before: QueueSettings) -> None:
        """The settings say anew which messages stay out for their keys.  before: those until now."""
        if not deduplicates(self.settings):
            self.dedup = None
        elif self.dedup is None:
            self.dedup = Dedup(self.settings)
        else:
            self.dedup.alter(before, self.settings)

    def ensure_expiry(self) -> Expiry:
        """Deadlines of messages, to add to."""
        self.agenda |= TIMES
        if self.expiry is NO_EXPIRY:
            self.expiry = Expiry()
            self.plan = None
        return self.expiry

    def ensure_letters(self) -> Letters:
        """Dying messages, to add to."""
        if self.letters is NO_LETTERS:
            self.letters = Letters(self.id)
        return self.letters

    def ensure_barriers(self) -> Barriers:
        """Barriers and what they hold back, to add to."""
        if self.barriers is NO_BARRIERS:
            self.barriers = Barriers()
            self.plan = None
        return self.barriers

    def ensure_foreign(self, peers: Peers) -> Foreign:
        """Claims of sites to its messages, to add to.  peers: of the core."""
        if self.foreign is None:
            self.foreign = Foreign(peers)
            self.plan = None
        return self.foreign

    def ensure_attendance(self) -> Attendance:
        """Who attends to it, and since when nobody does, to be changed."""
        if self.attendance is _ATTENDANCE:
            self.attendance = Attendance()
            self.agenda |= ATTENDANCE
        return self.attendance

    def ensure_targets(self) -> Targets:
        """Target lists of filters, to be joined."""
        if self.targets is _TARGETS:
            self.targets = Targets(self.id) if self.ranks is None else PriorityTargets(self.id, self.ranks)
        return self.targets

    def renew_targets(self) -> None:
        """All target lists anew, for the order is another."""
        old, self.targets = self.targets, _TARGETS
        if old is _TARGETS:
            return
        new = self.ensure_targets()
        new.go_on_from(old)
        for consumer in self.all_consumers:
            if consumer.targets is not None and consumer.filter is not None and not consumer.closed:
                consumer.targets = new.join(consumer, consumer.filter, self.main, self.returned)
                self.roster.wake(consumer)

    def enlist(self, consumer: Consumer) -> None:
        """A new consumer is among its consumers from now on."""
        if self.all_consumers is _CONSUMERS:
            self.all_consumers = {}
        self.all_consumers[consumer] = None
        if not consumer.passive:
            if self.roster is _ROSTER:
                self.roster = Roster()
            self.roster.add(consumer)
