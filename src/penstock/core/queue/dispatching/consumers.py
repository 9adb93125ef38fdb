"""Who consumes: what they may still take, and in which order they stand.

A consumer's room is what all its limits leave: its own backlog, the queue's limit for each subscription, credit that it
shares with others, and whether its connection takes bytes at all.  The queue-wide limit is the queue's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Required, TypedDict

from penstock.core.queue.settling.leases import Leases

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.filtering import Matcher
    from penstock.core.queue.dispatching.target_list import TargetList
    from penstock.core.queue.view import Queue

UNLIMITED = 1 << 40
"""The backlog of a consumer without a limit."""


class Credit:
    """One counter for several consumers: `qos global` of a channel, or one subscription over several queues."""

    __slots__ = ("consumers", "limit", "used", "whole")

    def __init__(self, limit: int = UNLIMITED, *, whole: bool = False) -> None:
        self.limit = limit
        self.used = 0
        self.whole = whole  # one subscription: the fairness models look at all of it, not at each consumer alone
        self.consumers: list[Consumer] = []  # the next to be served stands first

    @property
    def room(self) -> int:
        """How many more may be outstanding."""
        return self.limit - self.used

    def served(self, consumer: Consumer) -> None:
        """Let the others come first the next time credit comes free."""
        if self.consumers and self.consumers[-1] is not consumer:
            self.consumers.remove(consumer)
            self.consumers.append(consumer)

    def queues(self) -> list[Queue]:
        """The queues that may use credit which came free, in the order they may try."""
        return list(dict.fromkeys(consumer.queue for consumer in self.consumers))


class Terms(TypedDict, total=False):
    """On which terms somebody consumes from a queue; the defaults are those of `Consumer`."""

    tag: Required[str]
    holder: Required[object]  # the session's own object
    client: str
    no_ack: bool
    exclusive: bool  # nobody else may consume
    filter: Matcher | None
    max_backlog: int | None  # outstanding at once; None: no limit of its own; 0: it gets nothing
    shared: Credit | None
    priority: int  # higher is served first
    passive: bool  # it gets only what it asks for by `pull`
    paused: bool  # its connection takes nothing now, until `resume`
    timeout: int | None  # microseconds that a delivery may stay unsettled; None: as the queue says; 0: any time
    on_overdue: Callable[[int], None] | None  # told that time when it is over, ends it; None: what is overdue goes back


class Consumer:
    """One subscription to one queue."""

    __slots__ = (
        "_timeout", "client", "closed", "exclusive", "fenced", "filter", "first_grant", "heads", "holder", "leases",
        "leaving", "limit", "max_backlog", "mixed", "named", "no_ack", "on_overdue", "passive", "paused", "priority",
        "queue", "read", "reported", "serial", "shared", "standby", "tag", "targets", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        queue: Queue,
        serial: int,
        *,
        tag: str,
        holder: object,
        client: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        filter: Matcher | None = None,
        max_backlog: int | None = None,
        shared: Credit | None = None,
        priority: int = 0,
        passive: bool = False,
        paused: bool = False,
        timeout: int | None = None,
        on_overdue: Callable[[int], None] | None = None,
    ) -> None:
        self.queue = queue
        self.serial = serial  # order of subscription
        self.tag = tag
        self.holder = holder
        self.client = client
        self.first_grant = b""  # header of the record of a first delivery to it, once there was one
        self.named = b""  # its names in the header of a record for several, once there was one
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.filter = filter
        self.max_backlog = max_backlog
        self.shared = shared
        self.priority = priority
        self.passive = passive
        self.paused = paused  # its connection takes no bytes now
        self._timeout = timeout
        self.timeout = 0  # microseconds
        self.on_overdue = on_overdue
        self.reported = False  # its holder was told
        self.standby = False  # it waits for others to go, or to come (`attendance`)
        self.heads: set[int] | None = None  # of such a queue, which it has read of those that entered at the head
        self.read: tuple[int, int] = (0, 0)  # how far it has read a queue that nobody takes from: (place, LSN)
        self.closed = False
        self.leaving = ""  # why it gives back what it holds, a step at a time; empty: it does not
        self.fenced = False  # nobody else may settle what it holds, whatever `leasing` says: a stream
        self.targets: TargetList | None = None  # of its filter
        self.mixed = False  # it may hold what another filter let in
        self.leases = Leases()
        self.limit = UNLIMITED
        self.set_limit()
        if shared is not None:
            shared.consumers.insert(0, self)

    def set_limit(self) -> None:
        """Work out the effective backlog again, after a setting changed."""
        own = UNLIMITED if self.max_backlog is None else self.max_backlog
        of_queue = self.queue.settings.max_per_subscription_backlog or UNLIMITED
        if self.no_ack and own:
            own = of_queue = UNLIMITED  # nothing is ever outstanding
        self.limit = 0 if self.standby else min(own, of_queue)
        settings = self.queue.settings
        self.timeout = settings.consumer_timeout if self._timeout is None else self._timeout
        if settings.semantics == "at-most-once":
            self.timeout = 0  # there is nothing to go back
        self.leases.timed = self.timeout > 0

    def share(self, credit: Credit) -> None:
        """Use this credit from now on, and no backlog of its own; what is outstanding counts."""
        self.shared = credit
        self.queue.sharing += 1
        credit.consumers.append(self)
        credit.used += 0 if self.no_ack else self.outstanding
        self.max_backlog = None
        self.set_limit()

    @property
    def let_in(self) -> TargetList | None:
        """The list by which all that it holds was given out, as far as is known."""
        return None if self.mixed else self.targets

    @property
    def outstanding(self) -> int:
        """Delivered and not settled."""
        return self.leases.count

    @property
    def room(self) -> int:
        """How many more it may take; 0 or less is none.  Who never acknowledges uses up no credit."""
        room = self.limit - self.leases.count
        shared = self.shared
        return room if shared is None or self.no_ack else min(room, shared.limit - shared.used)

    @property
    def weight(self) -> int:
        """The backlog by which the `proportional` model divides."""
        limit = self.shared.limit if self.shared is not None and self.shared.whole else self.limit
        return 1_000_000 if limit >= UNLIMITED else limit

    @property
    def load(self) -> int:
        """What the `proportional` model divides."""
        shared = self.shared
        return shared.used if shared is not None and shared.whole and not self.no_ack else self.leases.count

    def __repr__(self) -> str:
        return f"Consumer({self.tag!r} of {self.queue.name!r}, {self.outstanding} outstanding)"


class Roster:
    """The consumers of a queue that are pushed to, by priority and order of subscription."""

    __slots__ = ("all", "in_order", "levels", "plain", "turn")

    def __init__(self) -> None:
        self.all: list[Consumer] = []
        self.in_order = True  # their serials ascend: none of them had left and came back
        self.plain: list[Consumer] = []  # those without a filter
        self.levels: list[list[Consumer]] = []  # highest priority first
        self.turn = 0  # serial of the one that was served last

    def add(self, consumer: Consumer) -> None:
        """A new subscription, the last of its priority."""
        self.in_order = not self.all or (self.in_order and self.all[-1].serial < consumer.serial)
        self.all.append(consumer)
        if consumer.targets is None:
            self.plain.append(consumer)
        self._sort()

    def remove(self, consumer: Consumer) -> None:
        """A subscription has ended."""
        self.all.remove(consumer)
        if consumer.targets is None:
            self.plain.remove(consumer)
        self._sort()

    def sift(self) -> None:
        """A subscription has got a filter, or lost it."""
        self.plain = [consumer for consumer in self.all if consumer.targets is None]

    def _sort(self) -> None:
        priorities = sorted({consumer.priority for consumer in self.all}, reverse=True)
        self.levels = [[c for c in self.all if c.priority == priority] for priority in priorities]
