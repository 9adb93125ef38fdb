"""Fair shares: tenants of one queue take turns, each gets as much of a round as its weight says.

Weighted deficit round robin.  Tenants with something to deliver stand in a ring.  Whose turn it is gets its weight
added to what it may send, sends as much of that as it has, and goes to the end of the ring with the rest, which is
below one message.  Who has nothing left, or may not have more out (`max_leased`, `rate_limit` of a key), leaves the
ring with nothing in hand.  Who has something to deliver enters at the end when the next message is chosen, several in
the order of their first messages.

One message at a time is the definition: what arrives while nothing may be delivered and somebody has room goes out in
the order of arrival, for each is alone when it comes.

The order within a tenant is that of the queue, by priority where there are such.  It knows no consumer and no group.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

from penstock.core.queue.limits import Pace, Sleeping
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import NOTHING_RETURNED, PriorityReturned, Returned, Waiting
from penstock.core.queue.order.runs import NEVER, Key, Run, all_within, sift
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.staging import Keys
from penstock.core.state.lsns import chunked, flat
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.queue_settings import QueueSettings


class Tenant(Waiting):
    """One key: what of it may be delivered, and how much is out."""

    __slots__ = ("_newest", "deficit", "leased", "number", "pace", "ranks", "standing", "weight")

    def __init__(self, number: int, weight: float, pace: Pace | None, ranks: Ranks | None) -> None:
        super().__init__(Main() if ranks is None else PriorityOrder(ranks), NOTHING_RETURNED)
        self.number = number
        self.weight = weight
        self.pace = pace
        self.deficit = 0.0
        self.leased = 0
        self.standing = False  # in the ring
        self.ranks = ranks  # priorities, those of the queue
        self._newest = 0  # of those that were added

    def add(self, chunk: Chunk) -> bool:
        """New messages, behind all that are here; False: some here are newer."""
        main = self.main
        if self.ranks is None:
            if chunk[0] <= main.last():
                return False
        elif main.count and chunk[0] <= self._newest:
            return False
        self._newest = chunk[-1]
        main.append(chunk, solid=False)
        return True

    def put(self, run: Run) -> None:
        """A run at its place."""
        if run.tally == FRESH and not run.place and self.add(run.chunk):
            return
        if self.returned is NOTHING_RETURNED:
            self.returned = Returned() if self.ranks is None else PriorityReturned(self.ranks)
        run.solid = False
        self.returned.push(run)

    def clear(self) -> None:
        """All of it is gone, and its place in the ring."""
        self.main, self.returned, self.standing, self.deficit = self.main.emptied(), NOTHING_RETURNED, False, 0.0


def _leased_most(settings: QueueSettings) -> int:
    """How many messages of one tenant may be leased at once; what is removed as it is sent is leased to nobody."""
    return NEVER if settings.semantics == "at-most-once" else settings.max_leased[1] or NEVER


class Tenants:
    """The tenants of one queue."""

    __slots__ = (
        "_by_number", "_emptied", "_entering", "_rate", "_ring", "_sleeping", "_through",
        "_waits", "_weights", "count", "keys", "leased_most", "ranks",
    )  # fmt: skip

    def __init__(self, settings: QueueSettings, ranks: Ranks | None = None) -> None:
        self.keys = Keys()
        self.ranks = ranks  # priorities, those of the queue
        self.count = 0  # messages that could be delivered, but for what a tenant may have out
        self._weights: Mapping[str, float] = dict(settings.weights)
        self.leased_most = _leased_most(settings)
        self._rate = settings.rate_limit[2:]
        self._by_number: dict[int, Tenant] = {}
        self._ring: deque[Tenant] = deque()
        self._entering: dict[int, Tenant] = {}  # those that may be about to enter it
        self._emptied: list[Tenant] = []  # those that may be about to leave it
        self._through: list[int] = []  # messages that go out as they came, counted as leased
        self._waits: list[tuple[int, int]] = []  # heap: when a tenant has a token again, its number
        self._sleeping = Sleeping()

    def change(self, settings: QueueSettings) -> None:
        """The settings give other weights and limits."""
        self._weights = dict(settings.weights)
        self.leased_most = _leased_most(settings)
        if self._rate != settings.rate_limit[2:]:
            self._rate = settings.rate_limit[2:]
            self._sleeping = Sleeping()
            for tenant in self._by_number.values():
                tenant.pace = Pace(*self._rate) if self._rate[0] else None
        for tenant in self._by_number.values():
            tenant.weight = self._weights.get(self.keys.texts[tenant.number], 1.0)
            if tenant.leased >= self.leased_most:
                self._leave_ring(tenant)
            self._join(tenant)

    def follow(self, before: Tenants, mono: int) -> None:
        """The same tenants stood there until now: what they have sent counts, where the rate is the same."""
        if before._rate == self._rate:
            self._sleeping = before._sleeping
            for number, tenant in before._by_number.items():
                if tenant.pace is not None:
                    self._sleeping.add(before.keys.texts[number], tenant.pace, mono)

    def _tenant(self, number: int) -> Tenant:
        tenant = self._by_number.get(number)
        if tenant is None:
            text = self.keys.texts[number]
            pace = self._sleeping.wake(text)
            if pace is None and self._rate[0]:
                pace = Pace(*self._rate)
            tenant = self._by_number[number] = Tenant(number, self._weights.get(text, 1.0), pace, self.ranks)
        return tenant

    def _join(self, tenant: Tenant) -> None:
        if not tenant.standing:
            self._entering[tenant.number] = tenant

    def _enter(self) -> None:
        """Those that have something to deliver come into the ring."""
        some = [one for one in self._entering.values() if one.count and one.leased < self.leased_most]
        if len(some) > 1:
            some.sort(key=Tenant.head)
        for tenant in some:
            if not tenant.standing:
                tenant.standing = True
                self._ring.append(tenant)
        self._entering.clear()

    def _leave_ring(self, tenant: Tenant) -> None:
        if tenant.standing:
            if self._ring[0] is tenant:
                self._ring.popleft()
            else:
                self._ring.remove(tenant)
            tenant.standing, tenant.deficit = False, 0.0

    # -- in

    def arrive(self, lsns: Sequence[int], numbers: Sequence[int], room: int, mono: int) -> None:
        """New messages, ascending, and the numbers of their keys; `room`: how many would be taken at once."""
        self.count += len(lsns)
        if room > 0 and self._next(mono) is None:
            lsns, numbers = self._let_through(lsns, numbers, room, mono)
        mine: dict[int, list[int]] = {}
        for lsn, number in zip(lsns, numbers, strict=True):
            try:
                mine[number].append(lsn)
            except KeyError:
                mine[number] = [lsn]
        for number, own in mine.items():
            tenant = self._tenant(number)
            chunk = as_chunk(array("q", own))
            if not tenant.add(chunk):
                tenant.put(Run(chunk, False))
            if not tenant.standing:
                self._join(tenant)

    def _let_through(
        self, lsns: Sequence[int], numbers: Sequence[int], room: int, mono: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """What goes out as it comes; the rest, with its keys."""
        left, of_left = list[int](), list[int]()
        for place, (lsn, number) in enumerate(zip(lsns, numbers, strict=True)):
            if not room:
                left += lsns[place:]
                of_left += numbers[place:]
                break
            tenant = self._tenant(number)
            if tenant.leased >= self.leased_most or (tenant.pace is not None and tenant.pace.allowed(mono) <= 0):
                left.append(lsn)
                of_left.append(number)
                continue
            tenant.leased += 1
            if tenant.pace is not None:
                tenant.pace.spend(1)
            self._through.append(lsn)
            room -= 1
        return left, of_left

    def come_again(self) -> None:
        """What was let through and nobody took waits like everything else."""
        through, self._through = self._through, []
        for lsn in through:
            self._wait(lsn)

    def _wait(self, lsn: int) -> None:
        """A message that was let through is not."""
        number = self.keys.of(lsn)
        self._tenant(number).leased -= 1
        self._put(number, Run(range(lsn, lsn + 1), True))

    def _put(self, number: int, run: Run) -> None:
        tenant = self._tenant(number)
        tenant.put(run)
        self._join(tenant)

    def put(self, run: Run) -> None:
        """Messages that may be delivered now, each at its place."""
        chunk = run.chunk
        self.count += len(chunk)
        if len(chunk) == 1:
            self._put(self.keys.of(chunk[0]), run)
            return
        mine: dict[int, list[int]] = {}
        for lsn, number in zip(chunk, self.keys.each(chunk), strict=True):
            mine.setdefault(number, []).append(lsn)
        for number, own in mine.items():
            self._put(number, run.part(as_chunk(array("q", own)), False))

    def hold(self, lsn: int) -> None:
        """A message that is leased has a key."""
        self._tenant(self.keys.of(lsn)).leased += 1

    # -- out

    def _next(self, mono: int) -> tuple[Tenant, int] | None:
        """Whose turn it is, and how many it may have at once; None: nobody may have any."""
        if self._entering:
            self._enter()
        ring = self._ring
        while ring:
            tenant = ring[0]
            most = min(tenant.count, self.leased_most - tenant.leased)
            if most > 0 and tenant.pace is not None:
                most = min(most, tenant.pace.allowed(mono))
                if most <= 0:
                    heappush(self._waits, (tenant.pace.due, tenant.number))
            if most <= 0:
                self._leave_ring(tenant)
                continue
            if tenant.deficit < 1:
                tenant.deficit += tenant.weight
                if tenant.deficit < 1:
                    ring.rotate(-1)
                    continue
            return tenant, min(most, int(tenant.deficit))
        return None

    def peek(self, mono: int) -> Key | None:
        """Where the message stands that goes next."""
        if self._through:
            return self._through[0], self._through[0]
        turn = self._next(mono)
        return None if turn is None else turn[0].head()

    def take(self, count: int, mono: int) -> list[Run]:
        """Up to `count` messages, in the order in which they go; they count as leased."""
        out = list[Run]()
        if self._through:
            some, self._through = self._through[:count], self._through[count:]
            self.count -= len(some)
            count -= len(some)
            out.append(Run(as_chunk(array("q", some)), False))
        while count > 0 and not self._through and (turn := self._next(mono)) is not None:
            tenant, most = turn
            n = min(most, count)
            out += tenant.take(n)
            count -= n
            self.count -= n
            tenant.deficit -= n
            tenant.leased += n
            if tenant.pace is not None:
                tenant.pace.spend(n)
            if not tenant.count or tenant.leased >= self.leased_most:
                self._leave_ring(tenant)
            elif tenant.deficit < 1:
                self._ring.rotate(-1)
        for run in out:
            run.solid = False
        return out

    def freed(self, lsns: Iterable[int]) -> None:
        """These are leased no longer."""
        for lsn in lsns:
            if (tenant := self._by_number.get(self.keys.of(lsn))) is not None:
                tenant.leased -= 1
                self._join(tenant)

    def leave(self, lsn: int, mono: int) -> None:
        """A message that waited nowhere is gone for good."""
        number = self.keys.of(lsn)
        text = self.keys.texts[number]
        self.keys.drop(lsn, number)
        if number and not self.keys.living[number]:
            self._end(number, text, mono)

    def keep(self, stay: Chunk, mono: int) -> None:
        """Nothing waits here any more, and none but these lives; ascending."""
        self.come_again()
        tenants, texts, self._by_number = self._by_number, self.keys.texts, {}
        self.keys.keep(stay)
        living = dict.fromkeys(self.keys.each(stay))
        for number, tenant in tenants.items():
            if number in living:
                tenant.clear()
                self._by_number[number] = tenant
            else:
                self._sleep(texts[number], tenant, mono)
        self._ring.clear()
        self._entering.clear()
        self._emptied = []
        self.count = 0

    def _end(self, number: int, text: str, mono: int) -> None:
        """Nothing that lives is of this tenant."""
        tenant = self._by_number.pop(number, None)
        if tenant is not None:
            self._leave_ring(tenant)
            self._entering.pop(number, None)
            self._sleep(text, tenant, mono)

    def _sleep(self, text: str, tenant: Tenant, mono: int) -> None:
        """What a tenant that has ended has spent counts still."""
        if tenant.pace is not None and not tenant.pace.full(mono):
            self._sleeping.add(text, tenant.pace, mono)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that wait here; the others that were let through go out as they came."""
        if self._through and (gone := sift(as_chunk(array("q", self._through)), wanted)[0]) is not None:
            left = set(gone)
            self._through = [lsn for lsn in self._through if lsn not in left]
            for lsn in gone:
                self._wait(lsn)
        out = list[Run]()
        for tenant, own in self._of_tenants(wanted):
            out += tenant.extract(own)
            if not tenant.count:
                self._emptied.append(tenant)
        self.count -= sum(len(run.chunk) for run in out)
        return out

    def _of_tenants(self, wanted: Chunk) -> list[tuple[Tenant, Chunk]]:
        """The wanted of each tenant."""
        mine: dict[int, list[int]] = {}
        for lsn in self.keys.among(wanted):
            mine.setdefault(self.keys.of(lsn), []).append(lsn)
        tenants = ((self._by_number.get(number), own) for number, own in mine.items())
        return [(tenant, as_chunk(array("q", sorted(own)))) for tenant, own in tenants if tenant is not None]

    def prune(self) -> None:
        """A command is done: who had all it could deliver taken away, and got nothing else in it, leaves the ring."""
        if self._emptied:
            for tenant in self._emptied:
                if not tenant.count:
                    self._leave_ring(tenant)
            self._emptied = []

    # -- time

    @property
    def due(self) -> int:
        """When a tenant has a token again; 0: somebody is to leave the ring, before the next command lets him stay."""
        if self._emptied:
            return 0
        return self._waits[0][0] if self._waits else NEVER

    def tick(self, mono: int) -> bool:
        """Let those in the ring that have a token again; whether there were any."""
        some = False
        while self._waits and self._waits[0][0] <= mono:
            if (tenant := self._by_number.get(heappop(self._waits)[1])) is not None:
                self._join(tenant)
                some = True
        return some

    # -- asked

    def __len__(self) -> int:
        return len(self._by_number)

    def tenant(self, lsn: int) -> Tenant | None:
        """Whose a message is; None: its key is not known."""
        return self._by_number.get(self.keys.of(lsn)) if self.keys.knows(lsn) else None

    def stuck(self, mono: int) -> bool:
        """Whether none of those that wait may have anything now."""
        return not any(
            one.count and one.leased < self.leased_most and (one.pace is None or not one.pace.wait(mono))
            for one in self._by_number.values()
        )

    def between(self, first: int, stop: int) -> Chunk:
        """All that wait here with LSNs in [first, stop), ascending; they stay."""
        out: list[Chunk] = [as_chunk(array("q", self._through))]
        few = stop - first <= len(self._by_number)
        for number in set(map(self.keys.of, self.keys.known(first, stop))) if few else list(self._by_number):
            if (tenant := self._by_number.get(number)) is not None:
                out.append(tenant.between(first, stop))
        return all_within(out, first, stop)

    def chunks(self) -> Iterator[Chunk]:
        """What was never delivered and stands at its own place; copies."""
        if self._through:
            yield as_chunk(array("q", self._through))
        for tenant in self._by_number.values():
            yield from tenant.chunks()

    def pieces(self) -> Iterator[Chunk]:
        """All that wait here, in ascending chunks."""
        through: Chunk = as_chunk(array("q", self._through))
        return iter(chunked(flat([through, *(piece for one in self._by_number.values() for piece in one.pieces())])))

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that wait here, as runs; they stay."""
        through = sift(as_chunk(array("q", self._through)), wanted)[0] if self._through else None
        runs = [] if through is None else [Run(through, False)]
        return runs + [run for tenant, own in self._of_tenants(wanted) for run in tenant.among(own)]

    def copies(self) -> tuple[list[Run], list[Told]]:
        """What `runs` has, as runs and as columns that will not change."""
        copies = [tenant.copies() for tenant in self._by_number.values() if tenant.returned.count]
        return [run for runs, _ in copies for run in runs], [told for _, some in copies for told in some]

    def runs(self) -> Iterator[Run]:
        """The others: what came back, or became due."""
        for tenant in self._by_number.values():
            if tenant.returned.count:
                yield from tenant.runs()

    def floor(self) -> int:
        """No message of a tenant is older."""
        through = self._through[0] if self._through else NEVER
        return min((through, *(tenant.floor() for tenant in self._by_number.values())))

    def check(self, leased: Sequence[int]) -> None:
        """Recount; `leased`: all leased messages whose keys are known."""
        assert self.count == sum(tenant.count for tenant in self._by_number.values()) + len(self._through)
        told = Counter(self.keys.of(lsn) for lsn in (*leased, *self._through))
        counted = {number: tenant.leased for number, tenant in self._by_number.items() if tenant.leased}
        assert told == counted, f"tenants lease {told}, counted {counted}"
        self._check_ring()
        for number in self._by_number:
            assert not number or self.keys.living[number], f"tenant {number} has no message"

    def _check_ring(self) -> None:
        """In the ring stands who has something and may have more out."""
        everybody = self._by_number.values()
        able = {one.number for one in everybody if one.count and one.leased < self.leased_most and one.pace is None}
        standing = {one.number for one in everybody if one.standing}
        assert not (out := able - standing - set(self._entering)), f"tenants {out} are left out"
        ring = [tenant.number for tenant in self._ring]
        assert sorted(standing) == sorted(ring), f"tenants {standing} stand in the ring, which has {ring}"
        for tenant in self._ring:
            assert tenant.count or tenant in self._emptied, f"tenant {tenant.number} stands there with nothing"
            assert tenant.leased < self.leased_most, f"tenant {tenant.number} stands there with {tenant.leased} out"
