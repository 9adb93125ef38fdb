"""What is in a queue, where it stands, and the counts beside it.

It moves messages between its parts and keeps the counts true.  What others do with all of it they declare here: every
file of functions on a queue knows this one, and `core.queue.queue` puts them together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.consumers import Consumer, TargetList
from penstock.core.queue.order.returned import NOTHING_RETURNED, take_oldest
from penstock.core.queue.order.runs import END, NEVER, Key, Run, in_fewer, packed, pairs_body
from penstock.core.queue.parts import NO_BARRIERS, NO_DELAYS, NO_EXPIRY, NO_LETTERS, NO_TAIL, QueueParts
from penstock.core.queue.settling.leases import SLOT, STEP_MOST
from penstock.core.queue.settling.letters import Letter, names, wants
from penstock.core.queue.shares import Shares
from penstock.core.queue.whole import LEASES, SHARES, TRIM, WAITING, Place, State
from penstock.core.sizes import Ints
from penstock.records.causes import REPLACED, TIME_LIMIT
from penstock.records.chunks import Chunk, Now
from penstock.records.compute import lsns_of
from penstock.records.kinds import Kind

OF_KEYS = 16
"""A message whose key or rank is looked up as it comes or goes takes the time of so many others."""


class Contents(QueueParts):
    """What the parts of a queue hold together, and how messages move between them."""

    __slots__ = ()

    def __repr__(self) -> str:
        counts = f"ready={self.ready}, held={self.held}, leased={self.leased}"
        return f"Queue({self.name!r}, {counts}, delayed={self.delayed}, dying={self.dying})"

    # -- bytes of what is ready

    def weigh(self) -> None:
        """Count the bytes of what is ready from now on, if a limit asks for them."""
        self.weight = self.ready_bytes if self.bytes_limited else -1

    # -- emptied

    def bury(self) -> None:
        """Forget all messages and what is known of them; no consumer holds any."""
        self.main, self.tail, self.ranking = self.main.emptied(), NO_TAIL, None
        self.returned, self.delays, self.expiry, self.letters = NOTHING_RETURNED, NO_DELAYS, NO_EXPIRY, NO_LETTERS
        self.barriers, self.older, self.foreign = NO_BARRIERS, None, None
        if self.shares is not None:
            self.shares = Shares(self.settings, self.ranks)
            self.agenda |= SHARES
        self.leased = 0
        self.weight = min(self.weight, 0)

    def drop_ready(self) -> None:
        """Forget what is ready, and what barriers hold back."""
        if self.shares is not None:
            self.shares.drop_ready(self)
        self.main, self.tail = self.main.emptied(), NO_TAIL
        self.returned = NOTHING_RETURNED
        self.weight = min(self.weight, 0)
        self.barriers.clear()
        if self.older is not None:
            self.older.clear()

    def clear_returned(self) -> None:
        """Nothing stands beside the main order."""
        self.returned = NOTHING_RETURNED

    # -- ready messages

    @property
    def offered(self) -> int:
        """Ready messages that can be dispatched; the others wait for a key, a group or a tenant."""
        shares = self.shares
        if shares is None:
            return self.main.count + self.returned.count  # what is `ready`
        return self.main.count + self.returned.count if shares.tenants is None else shares.tenants.count

    @property
    def stopped(self) -> bool:
        """Whether a fault has stopped it until the next start (`core.queue.stopped`)."""
        return False

    @property
    def halted(self) -> bool:
        """Whether delivery is stopped: the queue is paused, the server drains, or other sites have to report first."""
        return self.draining or self.paused_until > 0 or len(self.behind) > 0

    @property
    def busy(self) -> bool:
        """Whether nothing may be dispatched now: the queue is halted, or work of its own has to end first."""
        shares = self.shares
        return (
            self.draining or self.paused_until > 0 or len(self.behind) > 0 or self.agenda & TRIM > 0
            or self.expiry.busy or self.ranking is not None or self.older is not None
            or (shares is not None and shares.unordered)
        )  # fmt: skip

    @property
    def held(self) -> int:
        """Messages held back: waiting barriers, what is behind them, and what a pass over older messages found."""
        return self.barriers.held + (self.older.count if self.older is not None else 0)

    @property
    def available(self) -> int:
        """Ready and held messages together: what clients that know no barriers, and queries, count as ready."""
        return self.ready + self.held

    def total(self) -> int:
        """Messages in it, in whatever state."""
        return sum(place.count for place in self.places())

    @property
    def inactive(self) -> int:
        """Messages beyond the target depth."""
        return self.tail.count

    @property
    def may_have_others(self) -> bool:
        """Whether messages that other sites published may be in it as in a queue of all."""
        return self.foreign is not None or self.settings.kind == "group-local"

    @property
    def foreign_count(self) -> int:
        """Messages that another site may lease."""
        return 0 if self.foreign is None else self.foreign.count

    @property
    def transfers(self) -> tuple[int, int, int]:
        """Messages that became this site's, that went to another, and that two sites took, since the start."""
        foreign = self.foreign
        return (0, 0, 0) if foreign is None else (foreign.taken, foreign.given, foreign.claims.doubled)

    @property
    def first_inactive(self) -> int:
        """The oldest of these; `NEVER` without one."""
        return self.tail.head() if self.tail.count else NEVER

    @property
    def first_barrier(self) -> int:
        """Where the first barrier stands that waits; `NEVER` without one."""
        first = self.barriers.first
        return NEVER if first is None else first.place

    @property
    def barriers_waiting(self) -> int:
        """Barriers that still hold messages back."""
        return len(self.barriers)

    @property
    def ready_bytes(self) -> int:
        """Bytes of the bodies of what is ready; counted at each call (`core.queue.places`)."""
        return sum(map(self.sizes.total, in_fewer(self.chunks("ready"))))

    def rows_within(self, most: int, rows: int) -> int:
        """How many of the oldest so many ready messages have `most` bytes together, all of them or at least one."""
        parts, n, last = list[Ints](), 0, -1
        for chunk in sorted(filter(len, self.chunks("ready")), key=lambda chunk: chunk[0]):
            if n >= rows and chunk[0] > last:
                break
            parts.append(lsns_of(chunk[:rows]))
            n, last = n + len(parts[-1]), max(last, int(parts[-1][-1]))
        if not parts:
            return rows
        each = self.sizes.of(packed(np.sort(np.concatenate(parts))[:rows]))
        within = int(np.searchsorted(np.cumsum(each), most, "right"))
        return rows if within == len(each) else max(within, 1)

    @property
    def room(self) -> int:
        """How many more the whole queue may have outstanding; what is removed as it is sent is leased to nobody."""
        settings = self.settings
        room = settings.max_backlog - self.outstanding if settings.max_backlog else NEVER
        if settings.max_leased[0] and settings.semantics == "at-least-once":
            room = min(room, settings.max_leased[0] - self.leased)
        return room

    def head(self) -> Key | None:
        """The place of the message that is dispatched next."""
        if self.shares is not None and self.shares.tenants is not None:
            return self.shares.tenants.peek(self.shares.mono)
        if not self.main.count:
            return self.returned.head() if self.returned.count else None
        first = self.main.key()
        return min(first, self.returned.head()) if self.returned.count else first

    def first_wanted(self, targets: TargetList) -> Key | None:
        """The place of the oldest message in a filter's target list."""
        return targets.head(self.main)

    def looks_on(self, targets: TargetList) -> bool:
        """Whether a filter has messages that it has not looked at."""
        return targets.busy or targets.stop(self.main, END) is not None

    @property
    def step_most(self) -> int:
        """Messages that leave their places in one step, about: fewer where each has a key or a rank to be looked up."""
        return STEP_MOST if self.shares is None and self.ranks is None else max(STEP_MOST // OF_KEYS, 1)

    def take_ready(self, count: int) -> list[Run]:
        """Take up to `count` ready messages in the order of dispatch; with tenants, of those whose turn it is."""
        if self.shares is not None and self.shares.tenants is not None:
            runs = self.shares.tenants.take(count, self.shares.mono)
        elif not self.returned.count:
            runs = self.main.take(count)
        else:
            runs = take_oldest(self.main, self.returned, count, self.targets.left if self.targets.lists else None)
        if self.weight >= 0:
            self.weight -= self.weight_of(runs)
        return runs

    def weight_of(self, runs: Sequence[Run]) -> int:
        """Bytes of the bodies of these messages."""
        total = self.sizes.total
        return sum([total(run.chunk) for run in runs])

    def take_one(self, key: Key) -> Run:
        """Take the ready message at this place."""
        if self.shares is not None and self.shares.tenants is not None:
            return self.take_ready(1)[0]
        lsn = key[1]
        if self.weight >= 0:
            self.weight -= self.sizes.total(range(lsn, lsn + 1))
        if self.main.stands(key):
            return self.main.punch(lsn)
        self.targets.left(range(lsn, lsn + 1))
        return self.returned.take_at(key)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take the wanted messages that wait out of their places.  The caller says what becomes of them."""
        return self._extracted(wanted, *WAITING)

    def extract_ready(self, wanted: Chunk) -> list[Run]:
        """The same of what is ready alone."""
        return self._extracted(wanted, "ready")

    def extract_ours(self, wanted: Chunk) -> list[Run]:
        """The same of what is ready, or would be without what it waits for in its queue."""
        return self._extracted(wanted, "ready", "held", "inactive")

    def _extracted(self, wanted: Chunk, *states: State) -> list[Run]:
        out: list[Run] = []
        for place in self.places(*states):
            if place.extract is not None:
                runs = place.extract(wanted)
                if place.state == "ready" and self.weight >= 0:
                    self.weight -= self.weight_of(runs)
                out += runs
        return out

    # -- offered

    def offer(self, run: Run) -> None:
        """Make a run available to consumers; it is counted as ready already."""
        if self.shares is not None and self.shares.tenants is not None:
            self.shares.tenants.put(run)
            return
        if self.targets.lists:
            self.targets.came_back(run)
        run.by = None
        self.ensure_returned().push(run)

    # -- gone

    def forget(self, wanted: Chunk) -> Sequence[Run]:
        """Remove waiting messages, of which another record says that they are gone; those that were there."""
        runs = self.extract(wanted)
        self.left(runs)
        return runs

    def wants_letter(self, reason: str) -> bool:
        """Whether messages that leave for this reason become dead letters (replaced ones only if that is set)."""
        if reason == REPLACED:
            return names(self.actions, reason)
        if self.settings.letters_to(reason) is not None:
            return True
        reasons = reason.split(",")
        return wants(self.actions, reasons)

    def evict(self, runs: Sequence[Run], reason: str, sink: Sink) -> None:
        """Log that these gave way to others; they are out of their places already."""
        if not runs:
            return
        count = sum(len(run.chunk) for run in runs)
        figures = self.counted()
        if reason == REPLACED:
            figures.replaced += count
        else:
            figures.dropped += count
        if self.wants_letter(reason):
            self.expire(runs, reason, sink)
        else:
            self.left(runs)
            sink.record(Kind.DROP, self.name, {"reason": reason}, pairs_body(self.id, runs))

    def expire(
        self,
        runs: Sequence[Run],
        reason: str,
        sink: Sink,
        by: str = "",
        why: str = "",
        dying: list[Letter] | None = None,
    ) -> None:
        """Log that these end undelivered; they are out of their places already.

        reason: causes of `records.causes`.  why: the words of who refused them.
        dying: takes those that want a letter, instead of the queue's own.
        """
        if self.foreign is not None and reason == TIME_LIMIT:
            away, runs = self.foreign.parted(runs)
            self.expire_elsewhere(away, sink)
        if not runs:
            return
        self.left(runs)
        self.counted().expired(reason, sum(len(run.chunk) for run in runs))
        if self.wants_letter(reason):
            if dying is not None:
                dying.append(Letter(list(runs), reason, by, why))
            else:
                self.ensure_letters().add(Letter(list(runs), reason, by, why), sink)
            return
        header = Letter([], reason, by, why).header()
        sink.record(Kind.EXPIRE, self.name, header, pairs_body(self.id, runs))

    def expire_elsewhere(self, runs: Sequence[Run], sink: Sink) -> None:
        """Remove messages that other sites own, without telling those: each site makes the dead letters of its own."""
        if runs:
            self.left(runs)
            self.counted().expired(TIME_LIMIT, sum(len(run.chunk) for run in runs))
            header = {"reason": TIME_LIMIT, "foreign": True}
            sink.record(Kind.EXPIRE, self.name, header, pairs_body(self.id, runs))

    # -- leases and consumers

    def freed(self, consumer: Consumer, runs: Sequence[Run]) -> tuple[int, int]:
        """A consumer holds these no longer; (how many, how many of them had left the queue before)."""
        count = slots = 0
        if self.shares is not None:
            self.shares.freed([run for run in runs if run.place != SLOT])
        by = consumer.let_in
        for run in runs:
            run.by = by
            count += len(run.chunk)
            if run.place == SLOT:
                slots += len(run.chunk)
        if not consumer.leases.count:
            consumer.mixed = False
        if consumer.serial:
            self.outstanding -= count
        self.leased -= count - slots
        shared = consumer.shared
        if shared is not None and count:
            shared.used -= count
            if shared not in self.free_credit:
                self.free_credit = [*self.free_credit, shared]
        if consumer.closed:
            self.drop_if_done(consumer)
        elif consumer.targets is not None or self.roster.spare is not None:
            self.roster.wake(consumer)
        return count, slots

    def leased_until(self, deadline: int) -> None:
        """Note that a lease ends at this time; 0: never."""
        if deadline and deadline < self.lease_due:
            self.lease_due = deadline
            self.agenda |= LEASES

    def holders(self) -> Iterator[Consumer]:
        """Consumers that hold something, but for the one that stands for nobody."""
        return (consumer for consumer in self.all_consumers if consumer.leases.count)

    def drop_if_done(self, consumer: Consumer) -> None:
        """Forget a closed consumer that holds nothing any more."""
        if consumer.closed and not consumer.leases.count and consumer in self.all_consumers:
            del self.all_consumers[consumer]
            if consumer.shared is not None:
                self.sharing -= 1
                del consumer.shared.consumers[consumer]

    # -- all of it

    @property
    def died(self) -> int:
        """How many ever began to die: a mark for `is_buried`."""
        return self.letters.begun

    def is_buried(self, mark: int) -> bool:
        """Whether what had begun to die by then has its letters, or cannot have them at present: a target is full."""
        letters = self.letters
        return letters.begun - letters.count >= mark or not letters.count or letters.due < NEVER

    @property
    def dying(self) -> int:
        """Messages that become dead letters once their bodies are fetched."""
        return self.letters.count

    def leased_runs(self) -> Iterator[Run]:
        """All runs of leased messages."""
        return (run for place in self.places("leased") for run in place.back())

    def living_pieces(self) -> Iterator[Chunk]:
        """All living messages in no order, not even within a piece; nothing of it will change."""
        for place in self.places():
            yield from place.lsns()
            yield from (run.chunk for run in place.back() if len(run.chunk))

    def catch_up(self, now: Now, sink: Sink) -> None:
        """Do what is due before anything else is decided."""
        if self.is_due(now):
            self.tick(now, sink)

    # -- what is done with all of it (`core.queue.queue` says where)

    @abstractmethod
    def places(self, /, *states: State) -> Iterator[Place]:
        """The places in these states, or in all, that hold something."""

    @abstractmethod
    def standing(self, /, *states: State) -> Iterator[tuple[State, Run, Consumer | None]]:
        """Everything in these states, or in all: of each run its state and who holds it, in no order."""

    @abstractmethod
    def chunks(self, /, *states: State) -> Iterator[Chunk]:
        """Everything in these states, or in all, in no order."""

    @abstractmethod
    def lives(self, lsn: int, /, *states: State) -> bool:
        """Whether a message is in one of these states, or in any."""

    @abstractmethod
    def floor(self, /) -> int:
        """No living message is older than this."""

    @abstractmethod
    def planned(self, /) -> object:
        """The stages that messages pass, worked out from its settings and from what stands where."""

    @abstractmethod
    def put_back(self, run: Run, /) -> None:
        """Make a run ready again at its place, unless a stage has it wait."""

    @abstractmethod
    def come_back(self, runs: list[Run], sink: Sink, /) -> None:
        """Return runs that were taken out of their place; some may find no room, and leave."""

    @abstractmethod
    def keep_away(self, run: Run, due: int, /) -> None:
        """Delay a failed run until `due` (wall)."""

    @abstractmethod
    def left(self, runs: Sequence[Run], /) -> None:
        """Tell the stages that these have left the queue for good."""

    @abstractmethod
    def is_due(self, now: Now, /) -> bool:
        """Whether something is due that has not been done."""

    @abstractmethod
    def tick(self, now: Now, sink: Sink, /) -> None:
        """Do what is due: leases end, delays end, messages expire; then dispatch."""

    @abstractmethod
    def carry_on(self, now: Now, sink: Sink, /) -> None:
        """Dispatch, and where shared credit came free also on the other queues that it serves, in turn."""

    @abstractmethod
    def serve(self, now: Now, sink: Sink, /) -> None:
        """Drop what exceeds a limit, dispatch what is ready, and have filters look further."""

    @abstractmethod
    def give_out(self, now: Now, sink: Sink, /) -> None:
        """Dispatch what is ready, and have filters look further."""

    @abstractmethod
    def offer_all(self, now: Now, sink: Sink, /) -> None:
        """Dispatch what is ready, and whatever becomes ready by that."""

    @abstractmethod
    def look_on(self, now: Now, sink: Sink, /) -> None:
        """Have filters look at what they have not seen yet."""
