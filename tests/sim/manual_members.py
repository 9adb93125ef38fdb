"""Members that have a copy of the register each, and people who say who leads: at the wrong moment, twice, or in haste.

The members, their logs and streams are those of `members_world`.  What is added: networks that part a machine from
the others and heal, orders to lead given to anybody, with `--lose` where that is asked for, servers that are stopped in
order, and hand-overs.

    no LSN is used for two records, by anybody, ever
    whoever leads has every record that was confirmed in the terms that it went on from, but what a person gave up
    what was confirmed and is not there in the end was set aside by a person, and the register tells so
    when the world is quiet, and a person has decided what members could not, all have the same records
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.errors import PreconditionFailed
from penstock.log.simdisk import SimDisk
from penstock.replication.register import ClusterState
from penstock.replication.terms import first_base, term_of
from penstock.server.cluster.membership import Terms
from penstock.server.cluster.registers import promoted
from sim.members_faults import LEADING
from sim.members_links import SimLink
from sim.members_machine import TIMES, Broken, Host
from sim.members_world import Mood, World


class Machine(Host):
    """One, with its member's copy of the register."""

    world: Parted

    def __init__(self, world: Parted, name: str) -> None:
        super().__init__(world, name)
        self.version = 0
        self.copy_of: ClusterState | None = None
        self.gives_up = False  # a person said so, with the last order

    def terms(self) -> Terms:
        others = tuple(f"p{n}" for n in range(self.world.members))
        return Terms(
            self.name, self.name, self.world.min_in_sync, TIMES, f"{self.life}", manual=True, others=others
        )  # fmt: skip

    def read(self) -> None:
        copy, version = self.copy_of, self.version
        if copy is not None:
            self.later(lambda: self._running().register_read(version, copy))

    def swap(self, version: int, value: ClusterState, *, own: bool) -> None:
        makes = not own and self.copy_of is not None and value.term != self.copy_of.term
        outcome = self.put(version, value)
        if makes and outcome != "changed":
            self.world.begins(self, value)
        self.later(lambda: self._running().swapped(outcome, value, own=own))

    def put(self, version: int, value: ClusterState) -> int | str:
        if version != self.version:
            return "changed"
        if value.leader != self.id and not value.order:
            self.gives_up = False  # another's copy: the order is void
        self.version, self.copy_of = version + 1, self.world.kept(value)
        self.world.seen["level"] += value.leader == self.id and len(value.in_sync) > 1
        return self.version

    def connect(self, address: str) -> None:
        self._reach(address, tell=False)

    def call(self, address: str) -> None:
        self._reach(address, tell=True)

    def _reach(self, address: str, *, tell: bool) -> None:
        other, world = self.world.hosts[address], self.world

        def call() -> None:
            link = None
            if other.member is not None and world.rng.random() < world.answers and not world.apart(self, other):
                link, theirs = SimLink(self), SimLink(other)
                link.other, theirs.other = theirs, link
                world.links += [link, theirs]
                other.member.taken(theirs)
            if tell:
                self._running().called(address, link)
            elif link is None:
                self._running().lost(None)
            else:
                self._running().connected(link)

        self.later(call)

    def end(self, why: str) -> None:
        self.world.seen["ended"] += 1
        self.world.seen["both stopped"] += "TWO LEADERS" in why
        if "TWO FOLDERS" in why or "older copy" in why:
            raise Broken(f"{self.name} ends: {why}")
        self.stop()

    # people

    def promote(self, *, insist: bool) -> bool:
        """`penstock cluster promote`, here; insist: with --lose, where that is asked for."""
        copy = self.copy_of
        if copy is None or copy.term == 0 or self.id not in copy.members:
            return False
        disk = SimDisk(self.disk.files())
        try:
            wanted = promoted(disk, copy, self.id, None)
        except PreconditionFailed as refusal:
            if not insist:
                return False
            [lose] = re.findall(r"--lose (\d+)", str(refusal))
            wanted, self.gives_up = promoted(disk, copy, self.id, int(lose)), True
            self.world.seen["gave up"] += 1
        self.put(self.version, wanted)
        self.world.seen["orders"] += 1
        return True

    def hand_over(self) -> None:
        """`penstock cluster switchover`, to one that is level."""
        member, log = self.member, self.log
        if member is None or log is None or log.broken or member.role.value != "leading" or self.pending:
            return
        in_sync = set() if member.state is None else member.state.in_sync
        there = [one for one in member.sendings.values() if one.member in in_sync and one.acked >= log.durable]
        if not there or log.durable != log.appended:
            return
        self.log = None
        log.close()
        member.hand_over(there[0].member)
        self.world.seen["hand-overs"] += 1

    def leave(self) -> None:
        """Its server is stopped in order."""
        if self.member is not None and self.log is None:
            self.member.leave()
            self.world.seen["left"] += not self.member.known.intact
            self.stop()


class Parted(World):
    """One schedule, of one number."""

    hosts: dict[str, Machine]  # type: ignore[assignment]
    round = 20_000

    def __init__(self, seed: int, *, members: int = 2, min_in_sync: int = 1, mood: Mood | None = None) -> None:
        self.members = members
        self.alone: str | None = None  # a machine that reaches nobody
        self.line = {0: frozenset({0})}  # term -> the terms that it went on from, and itself
        self.gave_up = dict[int, tuple[frozenset[int], frozenset[int]]]()
        """Term of who was told to lead without something -> the terms that it went on from, and LSNs that it had."""
        super().__init__(seed, members=members, min_in_sync=min_in_sync, mood={**LEADING, **(mood or {})})
        chances = self.answers, self.told_of_ends, self.failing_syncs, self.loses
        self.quiet()
        self.answers, self.told_of_ends, self.failing_syncs, self.loses = chances
        self.calm = False

    def machine(self, name: str) -> Machine:
        return Machine(self, name)

    def begin(self) -> None:
        first = self.hosts["p0"]
        about = {key: one.numbered(1) for key, one in self.value.members.items()}
        self.base = first_base(1)
        first.put(0, replace(self.value, base=self.base, numbers=1, members=about))

    def apart(self, one: Host, other: Host) -> bool:
        return self.alone in (one.name, other.name)

    # what happens besides

    def part(self, host: Host) -> None:
        """One machine reaches nobody any more, and nobody is told; or all is well again."""
        if self.alone is not None:
            self.alone = None
            return
        self.alone = host.name
        self.seen["parted"] += 1
        for link in self.links:
            if self.apart(link.host, link.other.host):
                link.inbox.clear()
                link.cut = True
                link.host.later(link.end)

    def promote(self, host: Host) -> None:
        self.hosts[host.name].promote(insist=self.rng.random() < 0.3)

    def hand_over(self, host: Host) -> None:
        self.hosts[host.name].hand_over()

    def leave(self, host: Host) -> None:
        if self.rng.random() < 0.3:
            self.hosts[host.name].leave()

    # what must hold

    def judge_alone(self, host: Host) -> None:
        """Who counts each copy of the register says for itself."""

    def begins(self, host: Host, state: ClusterState) -> None:
        """Somebody makes a term."""
        if state.term in self.line:
            raise Broken(f"{host.name} makes term {state.term}, which was made before")
        before = state.terms[-2].term if len(state.terms) > 1 else 0
        self.line[state.term] = self.line[before] | {state.term}

    def judge_leader(self, host: Host, term: int, start: int, have: Mapping[int, bytes]) -> None:
        machine = self.hosts[host.name]
        copy = machine.copy_of
        assert copy is not None
        if aside := [lsn for lsn in have if term_of(self.base, lsn) not in self.line[term]]:
            raise Broken(f"{host.name} leads term {term} with LSN {min(aside)}, which was set aside")
        if machine.gives_up:
            self.gave_up[term] = self.line[term] - {term}, frozenset(have)
            machine.gives_up = False
        if lacking := self.wanted(term) - have.items():
            raise Broken(f"{host.name} leads term {term}, was not told to give up anything, and lacks {min(lacking)}")

    def wanted(self, term: int) -> set[tuple[int, bytes]]:
        """What was confirmed in the terms that one went on from, and nobody gave up."""
        line = self.line[term]
        gave_up = [self.gave_up[one] for one in self.gave_up.keys() & line]

        def counts(lsn: int) -> bool:
            of = term_of(self.base, lsn)
            return of in line and all(of not in before or lsn in have for before, have in gave_up)

        return {one for one in self.confirmed if counts(one[0])}

    def judge_end(self, host: Host, have: Mapping[int, bytes]) -> None:
        copy = self.hosts[host.name].copy_of
        assert copy is not None
        if aside := [lsn for lsn in have if term_of(self.base, lsn) not in self.line[copy.term]]:
            raise Broken(f"{host.name} has LSN {min(aside)}, which was set aside")
        if lacking := self.wanted(copy.term) - have.items():
            raise Broken(f"{host.name} lacks {min(lacking)}")
        for one in self.confirmed - have.items():
            if not copy.knows(term := term_of(self.base, one[0])):
                raise Broken(f"{one} was confirmed in term {term}; it is lost, and nobody said so")
        self.seen["set aside"] += len(self.confirmed - have.items())

    def state_now(self) -> ClusterState:
        leads = [one.copy_of for one in self.hosts.values() if one.log is not None and one.copy_of is not None]
        return leads[0] if leads else self.value

    def quiet(self, rounds: int = 8000) -> None:
        self.alone = None
        super().quiet(rounds)

    def mend(self, n: int) -> None:
        """A person looks now and then: where nobody leads, or one waits for somebody, one is told to lead."""
        if n % 700 != 699:
            return
        members = [one.member for one in self.hosts.values() if one.member is not None]
        stuck = not any(one.role.value == "leading" for one in members)
        split = any(one.talks is not None and one.talks.rival is not None for one in members)
        if (stuck or split) and not any(one.promote(insist=False) for one in self.hosts.values()):
            any(one.promote(insist=True) for one in self.hosts.values())


Parted.more = {
    Parted.part: 1, Parted.promote: 1, Parted.hand_over: 2, Parted.leave: 1,
}  # fmt: skip
