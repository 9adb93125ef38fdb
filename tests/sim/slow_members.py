"""Members on slow machines: one clock, processes that run now and then only, and a register that takes its time.

Nothing dies here but who gives up leading, and it is started again.  What is asked is how long nothing is confirmed:
nobody may wait for what is not needed, and members may not take turns in leading without an end.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from penstock.replication.insync import Times
from penstock.replication.register import ClusterState
from penstock.server.cluster.membership import Terms
from sim.members_links import SimLink
from sim.members_machine import Host
from sim.members_walks import begun
from sim.members_world import World

SECOND = 1_000_000
PUBLISHES = SECOND
MOVES = SECOND // 10
TICK = SECOND // 20

Span = tuple[float, float]


class Slowness(NamedTuple):
    """Seconds, from and to."""

    gap: float  # until a process runs again, at most
    register: Span  # of one call
    opening: Span = (0.2, 0.5)  # of a log
    starting: Span = (3.0, 8.0)  # of a process after its end


class Machine(Host):
    """One, whose member and server run now and then."""

    world: Slow
    life_of_read = 0  # in which a call of the register for its value is under way
    busy_until = 0  # of its one thread for the register
    starts_at = 0
    opened_at = 0
    published_at = 0
    start_of_term = 0

    def __init__(self, world: Slow, name: str) -> None:
        super().__init__(world, name)
        self.due = list[tuple[int, int, int, Callable[[], None]]]()

    # what a member asks for

    def now(self) -> int:
        return self.world.now

    def terms(self) -> Terms:
        return Terms(self.name, self.name, self.world.min_in_sync, self.world.times, f"{self.life}")

    def later(self, what: Callable[[], None], at: int = 0) -> None:
        heappush(self.due, (at or self.world.now, next(self.world.order), self.life, what))

    def _call(self, lands: Callable[[], None], answered: Callable[[bool], None]) -> None:
        """Of the register.  It may land after nobody waits for its answer any more."""
        world = self.world
        begins, took = max(world.now, self.busy_until), world.chosen(world.slow.register)
        timeout = world.times.call
        self.busy_until = begins + min(took, timeout)
        world.push(begins + took // 2, lands)
        self.later(lambda: answered(took <= timeout), self.busy_until)

    def read(self) -> None:
        if self.life_of_read == self.life:
            return
        self.life_of_read, found = self.life, list[tuple[int, ClusterState]]()

        def answered(there: bool) -> None:
            self.life_of_read = 0
            if there:
                self._running().register_read(*found[0])

        self._call(lambda: found.append((self.world.version, self.world.value)), answered)

    def swap(self, version: int, value: ClusterState, *, own: bool) -> None:
        outcomes = list[int | str]()

        def lands() -> None:
            outcomes.append(self.world.version if self.world.land(version, value) else "changed")

        def answered(there: bool) -> None:
            self._running().swapped(outcomes[0] if there else "unknown", value, own=own)  # type: ignore[arg-type]

        self._call(lands, answered)

    def connect(self, address: str) -> None:
        world, other = self.world, self.world.hosts[address]

        def call() -> None:
            if other.member is None:
                self._running().lost(None)
                return
            mine, theirs = SimLink(self), SimLink(other)
            mine.other, theirs.other = theirs, mine
            world.links += [mine, theirs]
            other.member.taken(theirs)
            self._running().connected(mine)

        self.later(call, world.now + world.chosen((0, world.slow.gap)))

    def lead(self, term: int, start: int, before: int) -> None:
        self.disk.unlock()
        self.start_of_term, self.opened_at = start, self.world.now + self.world.chosen(self.world.slow.opening)
        self.later(lambda: self._take_over(term, start, before), self.opened_at)

    def end(self, why: str) -> None:
        self.world.seen["ended"] += 1
        self.stop()
        self.starts_at = self.world.now + self.world.chosen(self.world.slow.starting)

    # when it runs

    def runs(self) -> None:
        """Its member's process hears all that there is."""
        world = self.world
        if self.member is None and world.now >= self.starts_at:
            self.due.clear()
            self.life_of_read, self.busy_until = 0, world.now
            self.start()
        while self.member is not None and self.due and self.due[0][0] <= world.now:
            _, _, life, what = heappop(self.due)
            if life == self.life:
                what()
        for link in [one for one in world.links if one.host is self and one.inbox]:
            world.hear_all(link)
        if self.member is not None:
            self.member.tick()
        world.links = [one for one in world.links if not one.closed]
        world.push(world.now + TICK + world.chosen((0, world.slow.gap)), self.runs)

    def serves(self) -> None:
        """Its server writes, or opens its log."""
        world, log, member = self.world, self.log, self.member
        if log is not None and not log.broken and member is not None:
            if world.now - self.published_at >= PUBLISHES:
                self.published_at = world.now
                self.publish()
            else:
                log.flush()
                member.moves(self.next_lsn, log.first_lsn)
        elif member is not None and member.leads and world.now < self.opened_at:
            member.moves(self.start_of_term, 0)
        world.push(world.now + max(MOVES, world.chosen((0, world.slow.gap))), self.serves)


class Slow(World):
    """Three members in sync, started anew."""

    hosts: dict[str, Machine]  # type: ignore[assignment]

    def __init__(self, seed: int, slow: Slowness, times: Times) -> None:
        self.slow, self.times, self.now = slow, times, 0
        self.order, self._events = count(), list[tuple[int, int, Callable[[], object]]]()
        super().__init__(seed, after=begun(3, 2))
        self.told_of_ends, self.failing_syncs, self.loses, self.encodes = 1.0, 0.0, 0.0, False
        for host in self.hosts.values():
            self.push(self.chosen((0, slow.gap)), host.runs)
            self.push(self.chosen((0, slow.gap)), host.serves)

    def machine(self, name: str) -> Machine:
        return Machine(self, name)

    def chosen(self, span: Span) -> int:
        """Microseconds of a span of seconds."""
        return round(self.rng.uniform(*span) * SECOND)

    def push(self, at: int, what: Callable[[], object]) -> None:
        """Have something happen then."""
        heappush(self._events, (at, next(self.order), what))

    def longest_silence(self, seconds: float) -> float:
        """In so many seconds: the most for which nothing was confirmed."""
        until, last, longest = self.now + round(seconds * SECOND), self.now, 0
        there = len(self.confirmed)
        while self._events[0][0] <= until:
            self.now, _, what = heappop(self._events)
            what()
            if len(self.confirmed) > there:
                longest, last, there = max(longest, self.now - last), self.now, len(self.confirmed)
        self.now = until
        return max(longest, until - last) / SECOND
