"""Who consumes: what they may still take, and what waits for their filters.

A consumer's room is what all its limits leave: its own backlog, the queue's limit for each subscription, credit that it
shares with others, and whether its connection takes bytes at all.  The queue-wide limit is the queue's affair.

What filters said, as they came, of messages that wait in line behind others of their key is kept of a bounded number
(`Foreseen`).  When such a message is let go, whoever wants it has it at once, in its turn.  At the others lists look
when they are let go.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from operator import attrgetter
from typing import Protocol

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.recalled import Recalled
from penstock.core.queue.dispatching.takers import Takers
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import Key
from penstock.core.queue.settling.leases import Leases
from penstock.expr import Matcher
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.queue_settings import QueueSettings

UNLIMITED = 1 << 40
"""The backlog of a consumer without a limit."""


class Serving(Protocol):
    """What a consumer knows of its queue; whoever commands that has it by `core.queue.queue.queue_of`."""

    id: int
    name: str
    settings: QueueSettings
    sharing: int

    def is_due(self, now: Now, /) -> bool:
        """Whether something should have happened by now."""
        ...

    def tick(self, now: Now, sink: Sink, /) -> None:
        """Do what is due at this moment."""

    def serve(self, now: Now, sink: Sink, /) -> None:
        """Give out what can be given."""


class Credit:
    """One counter for several consumers: `qos global` of a channel, or one subscription over several queues."""

    __slots__ = ("consumers", "limit", "used", "whole")

    def __init__(self, limit: int = UNLIMITED, *, whole: bool = False) -> None:
        self.limit = limit
        self.used = 0
        self.whole = whole  # one subscription: the fairness models look at all of it, not at each consumer alone
        self.consumers = OrderedDict[Consumer, None]()  # the next to be served stands first

    @property
    def room(self) -> int:
        """How many more may be outstanding."""
        return self.limit - self.used

    def served(self, consumer: Consumer) -> None:
        """Let the others come first the next time credit comes free."""
        if consumer in self.consumers:
            self.consumers.move_to_end(consumer)

    def queues(self) -> list[Serving]:
        """The queues that may use credit which came free, in the order they may try."""
        return list(dict.fromkeys([one.queue for one in self.consumers if not (one.choked or one.closed)]))


@dataclass(slots=True, eq=False)
class Consumer:
    """One subscription to one queue."""

    queue: Serving
    serial: int  # order of subscription
    _: KW_ONLY
    tag: str
    holder: object
    client: str = ""
    no_ack: bool = False
    exclusive: bool = False
    filter: Matcher | None = None
    max_backlog: int | None = None
    shared: Credit | None = None
    priority: int = 0
    passive: bool = False
    choked: bool = False  # its connection takes no bytes now
    own_timeout: int | None = None  # microseconds; None: the queue's
    on_overdue: Callable[[int], None] | None = None
    read: tuple[int, int] = (0, 0)  # how far it has read a queue that nobody takes from: (place, LSN)
    arguments: Mapping[str, object] | None = None  # what its client asked with, for who looks at it
    first_grant: bytes = field(default=b"", init=False)  # header of the record of a first delivery, once there was one
    named: bytes = field(default=b"", init=False)  # its names in the header of a record for several, once there was one
    level: int = field(default=0, init=False)  # priority by which it is served; below all others while it is silent
    silent: bool = field(default=False, init=False)  # a delivery ended by time, and nothing settled since (`roster`)
    timeout: int = field(default=0, init=False)  # microseconds
    reported: bool = field(default=False, init=False)  # its holder was told
    standby: bool = field(default=False, init=False)  # it waits for others to go, or to come (`attendance`)
    heads: set[int] | None = field(default=None, init=False)  # which it has read of those that entered at the head
    closed: bool = field(default=False, init=False)
    leaving: str = field(default="", init=False)  # why it gives back what it holds, step by step; empty: it does not
    fenced: bool = field(default=False, init=False)  # nobody else may settle what it holds, whatever `leasing` says
    targets: TargetList | None = field(default=None, init=False)  # of its filter
    mixed: bool = field(default=False, init=False)  # it may hold what another filter let in
    leases: Leases = field(default_factory=Leases, init=False)
    limit: int = field(default=UNLIMITED, init=False)

    def __post_init__(self) -> None:
        self.level = self.priority
        self.set_limit()
        if self.shared is not None:
            self.shared.consumers[self] = None
            self.shared.consumers.move_to_end(self, last=False)

    def set_limit(self) -> None:
        """Work out the effective backlog again, after a setting changed."""
        settings = self.queue.settings
        own = UNLIMITED if self.max_backlog is None else self.max_backlog
        of_queue = settings.max_per_subscription_backlog or UNLIMITED
        if self.no_ack and own:
            own = of_queue = UNLIMITED  # nothing is ever outstanding
        self.limit = 0 if self.standby else min(own, of_queue)
        self.timeout = settings.consumer_timeout if self.own_timeout is None else self.own_timeout
        if settings.semantics == "at-most-once":
            self.timeout = 0  # there is nothing to go back
        self.leases.timed = self.timeout > 0

    def share(self, credit: Credit) -> None:
        """Use this credit from now on, and no backlog of its own; what is outstanding counts."""
        self.shared = credit
        self.queue.sharing += 1
        credit.consumers[self] = None
        credit.used += 0 if self.no_ack else self.outstanding
        self.max_backlog = None
        self.set_limit()

    @property
    def let_in(self) -> TargetList | None:
        """The list by which all that it holds was given out, as far as is known."""
        return None if self.mixed else self.targets

    @property
    def outstanding(self) -> int:
        """Messages delivered and not settled."""
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


class Lists(Protocol):
    """What a list asks of all those of its queue (`dispatching.filtering`)."""

    most: int  # positions in one of them
    joined: int  # lists that there have been
    lists: dict[str, TargetList]
    awake: dict[TargetList, None]  # those that may have a match and somebody to take it

    @property
    def all_follow(self) -> bool:
        """Whether each list looks at what comes."""
        ...

    def nothing_recalled(self) -> Recalled:
        """What to keep in mind what came back."""
        ...

    def unpark(self, targets: TargetList, /) -> None:
        """A full list has room again."""

    def recheck_of(self, targets: TargetList, /) -> Key | None:
        """Where the first message stands that came back and at which a list has still to look; None without one."""
        ...

    def recall(self, targets: TargetList, chunk: Chunk, place: int, /) -> None:
        """Messages came back, and the list wants them."""

    def ask_newer(self, joined: int, lsn: int, place: int, /) -> None:
        """Have lists look that came after so many had joined."""

    def matches(
        self, chunk: Chunk, batch: Publishes, rows: Sequence[int], /
    ) -> list[tuple[TargetList, list[int]]] | None:
        """For each list that has a filter here the places in the chunk that match; None: not on the loop."""
        ...


class TargetList:
    """The waiting messages that one filter wants."""

    __slots__ = (
        "_owner", "asked", "back", "born", "busy", "consumers", "filter", "found", "new", "parked", "recheck", "slot",
        "stride", "takers", "walked",
    )  # fmt: skip

    def __init__(self, filter: Matcher, owner: Lists, stride: int) -> None:
        self.filter = filter
        self.consumers: list[Consumer] = []
        self.takers: Takers[Consumer] = Takers()  # those that are pushed to and may have room
        self.found: deque[int] = deque()  # matching, of the main order, ascending; some may be gone
        self.walked = 0  # all of the main order up to this place was looked at; `ALL`: it follows
        self.back = owner.nothing_recalled()  # matching, of what came back
        self.recheck = owner.nothing_recalled()  # came back, and this list alone has still to look at it
        self.slot = -1  # among those that follow
        owner.joined += 1
        self.born = owner.joined  # the how many-th list it is
        self.stride = stride  # messages of the next stretch that it looks through
        self.busy = False  # a scan is under way for it
        self.new = True  # no scan for it was answered yet, and it does not follow
        self.asked = 0  # the serial of its last one
        self.parked = False  # full: it walks on when half of its positions are gone
        self._owner = owner

    def head(self, main: Main) -> Key | None:
        """Where the oldest match stands; None without one, and while the list has not looked at something before it."""
        first = self.first(main)
        return None if first is None or self.stop(main, first) is not None else first

    def first(self, main: Main) -> Key | None:
        """Where the oldest of the matches stands that are known; what is gone is dropped on the way."""
        found = self.found
        while found and not main.has(found[0]):
            found.popleft()
        if self.parked and 2 * len(found) <= self._owner.most:
            self._owner.unpark(self)
        back = self.back.head() if self.back else None
        if not found:
            return back
        first = (found[0], found[0])
        return first if back is None else min(first, back)

    def stop(self, main: Main, before: Key) -> Key | None:
        """Where the oldest message before a place stands at which the list has still to look; None without one.

        What stands behind it nobody is given by this list: it may be theirs, and then it is their next.
        """
        unseen = self.unseen(main) if before[0] > self.walked else None
        again = self._owner.recheck_of(self)
        if again is not None and (unseen is None or again < unseen):
            unseen = again
        return unseen if unseen is not None and unseen < before else None

    def unseen(self, main: Main) -> Key | None:
        """Where the oldest message of the main order stands at which it has still to look; None without one."""
        some = main.after(self.walked, 1)
        return (some[0], some[0]) if some else None

    def set_out(self, serial: int, end: int) -> None:
        """It walks up to this place, by the question with this number."""
        self.busy, self.asked = True, serial

    def arrived(self, place: int) -> None:
        """It has looked at all up to this place."""
        self.walked = place

    def take(self, lsns: Sequence[int], most: int) -> int:
        """Add matches of the main order, ascending, as far as there is room; returns how many were added."""
        room = max(most - len(self.found), 0)
        if lsns:
            self.found.extend(lsns if len(lsns) <= room else lsns[:room])
            self._owner.awake[self] = None
        return min(len(lsns), room)

    def gave(self, lsns: Sequence[int]) -> None:
        """These, the first of those found, are given out; some that are gone stood between them."""
        found = self.found
        if len(lsns) == len(found):
            found.clear()
        else:
            while found and found[0] <= lsns[-1]:
                found.popleft()

    @property
    def complete(self) -> bool:
        """Whether all its consumers are among the takers, whose order no count changes."""
        return self.takers.unweighed and len(self.takers) == len(self.consumers)

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again."""
        if not (consumer.passive or consumer.closed):
            self.takers.add(consumer)
            self._owner.awake[self] = None

    def forget(self) -> None:
        """The queue was emptied of what is ready."""
        self.found.clear()
        self.back.clear()
        self.recheck.clear()


NONE: tuple[TargetList, ...] = ()


class Foreseen:
    """By message: which lists were there, as a number that grows with each new one, and which of them want it."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[int, tuple[int, tuple[TargetList, ...]]] = {}

    def __len__(self) -> int:
        return len(self._said)

    def look(
        self, targets: Lists, chunk: Chunk, arrived: Chunk, batch: Publishes | None, rows: Sequence[int] | None
    ) -> None:
        """Ask the filters about some of the messages that arrived, if all of them follow and there is room.

        batch, rows    as `Queue.arrive` has them
        """
        if batch is None or not targets.all_follow or len(self._said) + len(chunk) > targets.most:
            return
        here: Sequence[int] = range(len(batch)) if rows is None else rows
        if len(chunk) < len(arrived):
            some = set(chunk)
            here = [row for lsn, row in zip(arrived, here, strict=True) if lsn in some]
        found = targets.matches(chunk, batch, here)
        if found is None:
            return
        wanting: dict[int, tuple[TargetList, ...]] = {}
        for one, places in found:
            for place in places:
                wanting[place] = (*wanting.get(place, NONE), one)
        joined = targets.joined
        said = self._said
        for place, lsn in enumerate(chunk):
            said[lsn] = joined, wanting.get(place, NONE)

    def let_go(self, targets: Lists, chunk: Chunk, place: int) -> Chunk:
        """Messages stand among what came back now, at this place: tell the lists; those at which all have to look."""
        said = self._said
        strange = array("q")
        for lsn in chunk:
            known = said.pop(lsn, None)
            if known is None:
                strange.append(lsn)
                continue
            joined, wanting = known
            one = range(lsn, lsn + 1)
            for each in wanting:
                if targets.lists.get(each.filter.text) is each:
                    targets.recall(each, one, place)
            if joined < targets.joined:
                targets.ask_newer(joined, lsn, place)
        return as_chunk(strange)

    def forget(self, chunks: Iterable[Chunk]) -> None:
        """These wait in line no longer."""
        said = self._said
        for chunk in chunks:
            for lsn in chunk:
                said.pop(lsn, None)

    def clear(self) -> None:
        """Nothing waits in line any more."""
        self._said.clear()


serial_of = attrgetter("serial")
"""What consumers that came one after another ascend by."""
