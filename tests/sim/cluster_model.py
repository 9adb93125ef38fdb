"""Members with logs, a register and links between them, all of which lose and delay: the rules of replication at large.

What is simulated is as small as it can be: a log is a list of (LSN, what was written), a link carries some records of
it, the register answers or does not.  The rules are the product's own: who leads, whose ack a confirm waits for, where
two logs part.  Nobody's clock goes with another's.

    no LSN is used for two records
    every member that the register has in sync has, synced, every record that was confirmed
    what is cut was never confirmed
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from penstock.replication.election import Election, End, Read, Role, Swap, TakeOver
from penstock.replication.insync import Times
from penstock.replication.register import ClusterState, Member, decode
from penstock.replication.terms import Written, common

TIMES = Times(level=1_000, level_most=4_000)
WHILES = (0, 1_000, TIMES.renew // 2, TIMES.ack_timeout, TIMES.lease)
"""How far a member's clock goes on between two looks at it, in microseconds."""
PACES = ((50, 100, 50, 1, 4), (10, 20, 20, 1, 8), (10, 20, 20, 2, 1), (1, 1, 1, 1, 1))
"""How often each, in one world or another."""


class Broken(AssertionError):
    """Something that must hold does not."""


class Record(NamedTuple):
    """One record of a log."""

    lsn: int
    what: str


class Terms:
    """Of one log, oldest first."""

    def __init__(self, written: Iterable[Written] = ()) -> None:
        self._all = list[Written]()
        for one in written:
            self.begin(one.term, one.first)
            self.reach(one.last)

    def __iter__(self) -> Iterator[Written]:
        return iter(self._all)

    @property
    def newest(self) -> int:
        """The highest term that wrote here; 0: none did."""
        return self._all[-1].term if self._all else 0

    def begin(self, term: int, first: int) -> None:
        """A leader's first record.  ValueError where the log says otherwise: that is damage."""
        if self._all and (term <= self.newest or first <= self._all[-1].last):
            raise ValueError(f"term {term} begins at LSN {first}, behind term {self.newest} up to {self._all[-1].last}")
        self._all.append(Written(term, first, first))

    def reach(self, lsn: int) -> None:
        """The log goes up to here."""
        if self._all:
            self._all[-1] = self._all[-1]._replace(last=max(lsn, self._all[-1].last))

    def cut(self, lsn: int) -> None:
        """The log has nothing above `lsn` any more."""
        self._all = [one._replace(last=min(one.last, lsn)) for one in self._all if one.first <= lsn]

    def of(self, lsn: int) -> int | None:
        """The term that wrote a record; None: it is older than the cluster, or not here."""
        at = bisect_right(self._all, lsn, key=lambda one: one.first) - 1
        return self._all[at].term if at >= 0 and lsn <= self._all[at].last else None


class Rules(NamedTuple):
    """The rules that are tried, each replaceable by a wrong one."""

    election: type[Election] = Election
    common: Callable[[list[Written], list[Written]], int] = lambda ours, theirs: common(ours, theirs)
    acks_before_sync: bool = False


@dataclass
class Server:
    """A member: what is on its disk, and of its process what is up."""

    name: str
    log: list[Record] = field(default_factory=list[Record])
    synced: int = 0  # records
    highest: int = 0  # term; synced with the folder
    now: int = 0
    terms: Terms = field(default_factory=Terms)
    election: Election | None = None  # None: it is down
    leader: tuple[str, int] | None = None  # whom it copies from, and in which term
    next_lsn: int = 0

    def last(self, records: int) -> int:
        return self.log[records - 1].lsn if records else 0

    @property
    def leads(self) -> bool:
        return self.election is not None and self.election.role is Role.LEADING


class World:
    """One schedule, of one number."""

    def __init__(self, seed: int, rules: Rules, *, members: int = 3, min_in_sync: int = 2) -> None:
        self.rng = Random(seed)
        self.rules = rules
        self.pace = self.rng.choice(PACES)
        self.min_in_sync = min_in_sync
        names = [f"m{n}" for n in range(members)]
        self.servers = {name: Server(name) for name in names}
        about = {name: Member(name, f"penstock://{name}", 1) for name in names}
        self.state = ClusterState("c", 1, in_sync=frozenset(names), members=about)
        self.version = 1
        self.late: list[Swap] = []
        self.acks: list[tuple[str, int, str, int]] = []  # to whom, of which term, from whom, LSN
        self.written: dict[int, str] = {}
        self.confirmed = set[Record]()
        self.seen = Counter[str]()
        for server in self.servers.values():
            self._open(server)

    def run(self, steps: int) -> None:
        """So many random steps; Broken says what does not hold."""
        names, weights = zip(*ACTIONS.items(), strict=True)
        servers = list(self.servers.values())
        for action in self.rng.choices(names, weights, k=steps):
            action(self, self.rng.choice(servers))
            self._judge()

    # one member

    def look(self, server: Server) -> None:
        """Let time pass and do what the rules ask for."""
        server.now += self.rng.choices(WHILES, self.pace)[0]
        election = server.election
        if election is None:
            return
        if server.leads and self.rng.random() < 0.9:
            election.progress(server.next_lsn, server.now)
        for step in election.steps(server.now):
            match step:
                case Read():
                    if self.rng.random() < 0.9:
                        election.read(self.version, decode(self.state.encode()), server.now)
                case Swap():
                    self._swap(election, step, server.now)
                case TakeOver():
                    self._take_over(server, step)
                case End():
                    self._stop(server)
                    return

    def poll(self, server: Server) -> None:
        """The register has a new value, or a read is tried again."""
        if server.election is not None:
            server.election.read(self.version, decode(self.state.encode()), server.now)

    def _take_over(self, server: Server, step: TakeOver) -> None:
        server.synced = len(server.log)
        server.leader, server.highest, server.next_lsn = None, step.term, step.start
        # a later term may have begun meanwhile: it lacks what that confirmed, and confirms nothing itself
        if lacking := {one for one in self.confirmed - set(server.log) if one.lsn < step.start}:
            raise Broken(f"{server.name} leads term {step.term} and lacks {min(lacking)}")
        server.terms.begin(step.term, step.start)
        self._append(server, f"boot {step.term}")
        assert server.election is not None
        server.election.booted(server.next_lsn, server.now)
        self.seen["terms"] += 1

    def append(self, server: Server) -> None:
        """A leader takes some messages."""
        if server.leads:
            for _ in range(self.rng.randint(1, 3)):
                self._append(server, f"message {len(self.written)}")

    def _append(self, server: Server, what: str) -> None:
        lsn = server.next_lsn
        if self.written.setdefault(lsn, what) != what:
            raise Broken(f"LSN {lsn} is used twice")
        server.log.append(Record(lsn, what))
        server.terms.reach(lsn)
        server.next_lsn += 1

    def sync(self, server: Server) -> None:
        """Its disk has what was written."""
        if server.election is not None:
            server.synced = len(server.log)

    def commit(self, server: Server) -> None:
        """A leader tells publishers what is committed."""
        if server.leads and server.election is not None and (insync := server.election.in_sync) is not None:
            insync.synced(server.last(server.synced))
            self.confirmed.update(one for one in server.log if one.lsn <= insync.committed)

    # the register

    def _swap(self, election: Election, step: Swap, now: int) -> None:
        if self.rng.random() < 0.15:
            self.late.append(step)
            election.swapped("unknown", now)
            return
        done = self._land(step)
        if self.rng.random() < 0.1:
            election.swapped("unknown", now)
        else:
            election.swapped(self.version if done else "changed", now)

    def _land(self, step: Swap) -> bool:
        if step.version != self.version:
            return False
        self.version, self.state = self.version + 1, decode(step.value.encode())
        return True

    def land(self, _: Server) -> None:
        """A swap whose answer is long lost arrives."""
        if self.late:
            self.seen["late swaps"] += self._land(self.late.pop(self.rng.randrange(len(self.late))))

    # links

    def connect(self, server: Server) -> None:
        """A follower calls who leads, as it believes; its log is cut to what both have."""
        leader = self.rng.choice(list(self.servers.values()))
        if server.election is None or server.election.in_sync is not None or not leader.leads or leader is server:
            return
        assert leader.election is not None
        term = leader.terms.newest
        if term < server.highest or server.leader == (leader.name, term):
            return
        server.highest = term
        server.leader = (leader.name, term)
        end = self.rules.common(list(leader.terms), list(server.terms))
        kept = [one for one in server.log if one.lsn <= end]
        if kept != [one for one in leader.log if one.lsn <= end]:
            raise Broken(f"{server.name} and {leader.name} differ below LSN {end}")
        cut = set(server.log[len(kept) :])
        if cut & self.confirmed:
            raise Broken(f"{server.name} cuts {min(cut & self.confirmed)}, which was confirmed")
        self.seen["cut"] += len(cut)
        server.log, server.synced = kept, min(server.synced, len(kept))
        server.terms.cut(end)
        server.election.log_ends(end)
        server.election.heard(term, 0, server.now)

    def send(self, server: Server) -> None:
        """Some records reach a follower, or it finds that its leader is gone."""
        if server.election is None or server.leader is None:
            return
        name, term = server.leader
        leader = self.servers[name]
        if not leader.leads or leader.terms.newest != term:
            server.leader = None
            return
        new = leader.log[len(server.log) : len(server.log) + self.rng.randint(1, 4)]
        for one in new:
            if leader.terms.of(one.lsn) != server.terms.newest:
                written = next(some for some in leader.terms if some.first <= one.lsn <= some.last)
                server.terms.begin(written.term, one.lsn)
            server.terms.reach(one.lsn)
        server.log += new
        server.election.log_ends(server.last(len(server.log)))
        server.election.heard(term, 0, server.now)
        assert leader.election is not None
        leader.election.hears(server.name, leader.now)

    def ack(self, server: Server) -> None:
        """A follower says what its disk has, to the leader of the highest term that it knows."""
        if server.election is not None and server.leader is not None and server.leader[1] == server.highest:
            have = len(server.log) if self.rules.acks_before_sync else server.synced
            self.acks.append((*server.leader, server.name, server.last(have)))

    def deliver(self, _: Server) -> None:
        """An ack arrives, or gets lost."""
        if not self.acks:
            return
        name, term, member, lsn = self.acks.pop(self.rng.randrange(len(self.acks)) if self.rng.random() < 0.5 else 0)
        leader = self.servers[name]
        if self.rng.random() < 0.9 and leader.leads and leader.terms.newest == term:
            assert leader.election is not None
            assert leader.election.in_sync is not None
            last = leader.last(len(leader.log))
            leader.election.in_sync.acked(member, lsn, last, leader.now, level=last - lsn < 8)

    def lose(self, server: Server) -> None:
        """A leader finds that a follower's connection is gone."""
        if server.leads and server.election is not None and server.election.in_sync is not None:
            counted = sorted(server.election.in_sync.counted)
            if counted and self.rng.random() < 0.3:
                server.election.in_sync.gone(self.rng.choice(counted))

    # processes

    def crash(self, server: Server) -> None:
        """Its process ends; with the power what was not synced may go."""
        if self.rng.random() < 0.05 and server.election is not None:
            if self.rng.random() < 0.6:
                left = self.rng.randint(server.synced, len(server.log))
                del server.log[left:]
                server.terms.cut(server.last(left))
            self._stop(server)

    def start(self, server: Server) -> None:
        """It comes back."""
        if server.election is None:
            self._open(server)

    def _open(self, server: Server) -> None:
        server.synced = len(server.log)
        server.election = self.rules.election(
            server.name, last_lsn=server.last(server.synced), highest_term=server.highest,
            min_in_sync=self.min_in_sync, times=TIMES, now=server.now,
        )  # fmt: skip

    def _stop(self, server: Server) -> None:
        server.election = server.leader = None

    def _judge(self) -> None:
        for name in self.state.in_sync:
            server = self.servers[name]
            lacking = self.confirmed - set(server.log[: server.synced])
            if lacking:
                raise Broken(f"{name} is in sync and lacks {min(lacking)}")


ACTIONS: dict[Callable[[World, Server], None], int] = {
    World.look: 30, World.poll: 8, World.land: 6, World.append: 8, World.sync: 12, World.connect: 10, World.send: 20,
    World.ack: 18, World.deliver: 20, World.commit: 14, World.lose: 3, World.crash: 4, World.start: 6,
}  # fmt: skip
"""How often each comes."""
