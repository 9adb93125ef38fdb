"""Members of a cluster on simulated disks, links and a register: the product's rules, logs and streams, one seed.

What is real: `Member` with election, in-sync set, streams and copies, and the leader's log.  What is simulated: disks
that lose what was not synced, links that delay, break and go half-open, a register that loses answers and lets swaps
land late, clocks that do not go together, and processes that die or lose power between any two steps.

    no LSN is used for two records
    whoever takes over has every record that was confirmed, with its bytes, and every stage that was answered
    what is cut was never confirmed
    the folder of one that counts can be opened by itself, whatever a power cut left of it
    what a leader took back, as its disk was full, is nowhere
    when the world is quiet again all members have the same records

What goes wrong, and how often, is in `members_faults`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from penstock.errors import LogDamaged
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.records.kinds import FORMAT
from penstock.replication.register import TERM_LSNS, ClusterState
from penstock.replication.register import Member as Listed
from penstock.replication.register import decode as decode_state
from penstock.server.cluster import folder
from penstock.server.cluster.process import plain
from sim.logkit import SMALL, FakeClock, content, opened
from sim.members_links import SimLink
from sim.members_machine import Broken, Host

PACES = ((50, 60, 20, 1, 1), (60, 30, 30, 0, 0), (10, 20, 20, 2, 1))
"""How often time goes on by how much, see `members_faults.tick`."""

Action: TypeAlias = "Callable[[World, Host], None]"
Mood: TypeAlias = "Mapping[Action, int]"
"""What happens oftener or not at all."""


class Begun(NamedTuple):
    """What a schedule may begin with: members in sync that have stopped."""

    files: Mapping[str, Mapping[str, bytes]]  # of each machine
    value: ClusterState
    written: Mapping[int, bytes]
    confirmed: AbstractSet[tuple[int, bytes]]
    floor: int


class World:
    """One schedule, of one number."""

    more: Mapping[Action, int] = MappingProxyType({})
    """What happens besides what happens everywhere."""

    round = 250_000
    """How far each clock goes on in a round in which nothing goes wrong any more."""

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        min_in_sync: int = 2,
        mood: Mood | None = None,
        after: Begun | None = None,
    ) -> None:
        """after: where others have come to; None: one has a log, and the others have nothing."""
        self.rng = Random(seed)
        self.pace = self.rng.choice(PACES)
        self.mood = mood or {}
        self.min_in_sync = min_in_sync
        self.encodes = not seed % 8
        self.opens_alone = seed % 2 == 1
        self.calm = False  # nothing goes wrong any more
        self.settings = replace(SMALL, segment=6000)
        self.answers, self.told_of_ends, self.failing_syncs, self.loses = 0.9, 0.8, 0.01, 0.12
        self.written = dict[int, bytes]()
        self.confirmed = set[tuple[int, bytes]]()
        self.refused = set[int]()  # LSNs of what was taken back: its publishers were told that it is nowhere
        self.seen = Counter[str]()
        self.links = list[SimLink]()
        self.late = list[tuple[int, ClusterState]]()
        self.floor = 0  # what lies below may be gone: a base stands for it
        self.decided_at = dict[str, int]()  # stage -> LSN of its decision
        self.copied = set[str]()
        self.stages = dict[str, bytes]()  # all that there ever were
        self.answered = set[str]()  # those whose uploads were answered, until they are dropped
        self.reverted = set[str]()  # members whose folder lacks what they acked, as far as the register knows
        self.hosts = {f"p{n}": self.machine(f"p{n}") for n in range(members)}
        if after is None:
            self.found()
        else:
            self.go_on(after)
        self.begin()
        for host in self.hosts.values():
            host.start()

    def found(self) -> None:
        """One has a log, and leads; the others have nothing."""
        log = Log.open(self.hosts["p0"].disk, FakeClock(), self.settings)
        origin = log.origin
        log.close()
        for name, host in self.hosts.items():
            folder.write(host.disk, folder.Known("c" if name == "p0" else "", f"m-{name}", 0, 0))
        about = {"m-p0": Listed("p0", "p0", FORMAT, 0)}
        self.value = ClusterState(
            "c", origin, ceiling=TERM_LSNS, in_sync=frozenset(about), members=about, to="m-p0"
        )  # fmt: skip
        self.version = 1

    def go_on(self, after: Begun) -> None:
        """All are in sync, and start anew: the one that led is to lead again."""
        for name, files in after.files.items():
            self.hosts[name].disk = SimDisk(files, seed=self.rng.randrange(1 << 30))
        self.value, self.version = after.value.handing_to(after.value.leader), 1
        self.written, self.confirmed, self.floor = dict(after.written), set(after.confirmed), after.floor

    def begun(self) -> Begun:
        """Where this one has come to, when all was quiet."""
        files = {name: host.disk.files() for name, host in self.hosts.items()}
        return Begun(files, self.value, self.written, self.confirmed, self.floor)

    def machine(self, name: str) -> Host:
        return Host(self, name)

    def begin(self) -> None:
        """All is there, and nobody runs yet."""

    def write(self, lsn: int, body: bytes) -> None:
        if self.written.setdefault(lsn, body) != body:
            raise Broken(f"LSN {lsn} is used twice")

    def check(self, have: dict[int, bytes], who: str) -> None:
        """Whether a log has nothing but what somebody wrote there."""
        for lsn, body in have.items():
            if self.written.get(lsn) != body:
                raise Broken(f"{who} has {body[:20]!r} at LSN {lsn}, where {self.written.get(lsn)!r} was written")
        if refused := self.refused & have.keys():
            raise Broken(f"{who} has LSN {min(refused)}, which was taken back where it was written")

    def judge_leader(self, host: Host, term: int, start: int, have: Mapping[int, bytes]) -> None:
        """Whether somebody who is to lead has what it must have: all that was confirmed before its own first LSN.

        By the time that it has opened its log somebody else may lead a later term.
        """
        if lacking := {one for one in self.lacking(have) if one[0] < start}:
            raise Broken(f"{host.name} leads term {term} and lacks {min(lacking)}")

    def judge_alone(self, host: Host) -> None:
        """Whether the folder of one that counts can be opened by itself after its machine lost power."""
        if not self.opens_alone or host.id not in self.value.in_sync:
            return
        self.seen["opened alone"] += 1
        try:
            opened(SimDisk(host.disk.files()), self.settings)
        except LogDamaged as error:
            raise Broken(f"{host.name} lost power, and what its log claims is not there: {error}") from error

    def lacking(self, have: Mapping[int, bytes]) -> set[tuple[int, bytes]]:
        """What was confirmed and is not here."""
        return {one for one in self.confirmed - have.items() if one[0] >= self.floor}

    def check_stages(self, files: Mapping[str, bytes], have: dict[int, bytes], who: str, floor: int) -> list[str]:
        """Whether a disk has all files that were answered, and all that its log needs; these.

        For what lies below the floor a base stands: a file of the log that decided may be there still, and the one
        that said what became of it may be gone.
        """
        told = [body for lsn, body in have.items() if lsn >= floor and body.startswith((b"decided ", b"copied "))]
        bodies = [body.decode("latin-1") for body in told]
        copied = {body.removeprefix("copied ") for body in bodies}
        needed = [name for body in bodies if (name := body.removeprefix("decided ")) != body and name not in copied]
        for name in sorted({*needed, *self.answered}):
            if files.get(name) != self.stages[name]:
                there = "nothing" if name not in files else f"{len(files[name])} bytes"
                raise Broken(f"{who} has {there} as {name}, and needs {len(self.stages[name])} bytes")
        return needed

    def swap(self, version: int, value: ClusterState) -> int | str:
        if self.rng.random() < self.loses:
            self.late.append((version, value))
            return "unknown"
        done = self.land(version, value)
        if self.rng.random() < self.loses / 2:
            return "unknown"
        return self.version if done else "changed"

    def kept(self, value: ClusterState) -> ClusterState:
        """As it is read back from where it is kept."""
        return decode_state(value.encode()) if self.encodes else value

    def land(self, version: int, value: ClusterState) -> bool:
        if version != self.version:
            return False
        self.version, self.value = version + 1, self.kept(value)
        self.reverted &= self.value.in_sync
        return True

    def leader(self) -> Host | None:
        """Who has a log to write."""
        return next((one for one in self.hosts.values() if one.log is not None and not one.log.broken), None)

    def hush(self) -> None:
        """What was sent and has not come arrives nowhere."""
        for link in self.links:
            link.inbox.clear()

    def at(self, host: Host, what: Callable[[], None]) -> None:
        """Something happens on a machine, which ends with its disk."""
        try:
            what()
        except OSError:
            if self.calm:
                raise
            host.stop(power=True)

    def turns(self, hosts: Iterable[Host], count: int) -> None:
        for n in range(count):
            self.turn(hosts, publishes=n % 4 == 3)

    def turn(self, hosts: Iterable[Host], *, publishes: bool) -> None:
        """Time goes on for these, and all hear what there is to hear.  OSError."""
        for host in hosts:
            self.at(host, lambda host=host: self._turn_of(host, publishes))
        self.links = [one for one in self.links if not one.closed]  # nobody hears what is left in the others
        for link in self.links:
            if link.inbox:
                self.at(link.host, lambda link=link: self.hear_all(link))

    def _turn_of(self, host: Host, publishes: bool) -> None:
        host.start()
        host.clock += self.round
        while host.events and host.member is not None:
            host.step()
        if host.member is not None:
            if host.log is not None and not host.log.broken:
                host.publish() if publishes else host.member.moves(host.next_lsn, host.log.first_lsn)
            host.member.tick()

    def hear_all(self, link: SimLink) -> None:
        link.deliver(len(link.inbox))
        if link.host.member is not None and not link.closed:
            link.host.member.gathered(link)

    def quiet(self, rounds: int = 400) -> None:
        """No more faults: the members find together, and have the same."""
        self.answers = self.told_of_ends = 1.0
        self.failing_syncs = self.loses = 0.0
        self.calm = True
        self.late.clear()
        second = 1_000_000 // self.round
        for n in range(rounds):
            self.turn(self.hosts.values(), publishes=n % second == 0)
            if n > second and self.level:
                return
            self.mend(n)
        told = {name: None if host.member is None else plain(host.member) for name, host in self.hosts.items()}
        raise Broken(f"they do not find together: {told}")

    def mend(self, n: int) -> None:
        """What a person does in the n-th round of quiet."""

    def state_now(self) -> ClusterState:
        """What the register says of who is in sync."""
        return self.value

    @property
    def level(self) -> bool:
        """Whether all are in sync, one leads, and all have what it wrote."""
        if len(self.state_now().in_sync) < len(self.hosts):
            return False
        leaders = [one for one in self.hosts.values() if one.member is not None and one.member.role.value == "leading"]
        if len(leaders) != 1 or leaders[0].pending:
            return False
        followers = [one.member.replica for one in self.hosts.values() if one.member and one.member.replica]
        return all(one is not None and one.synced == leaders[0].next_lsn - 1 for one in followers)

    def compare(self) -> None:
        """All members have the same records, and everything that was confirmed."""
        found = list[dict[int, bytes]]()
        read = list[tuple[Mapping[str, bytes], dict[int, bytes]]]()
        for name, host in self.hosts.items():
            host.stop()
            files = host.disk.files()
            log = {name: content for name, content in files.items() if name.startswith("log/")}
            have = next((have for same, have in read if same == log), None)  # equal files have equal records
            if have is None:
                have = dict(content(opened(SimDisk(log), self.settings)))
                self.check(have, name)
                read.append((log, have))
                found.append({lsn: body for lsn, body in have.items() if lsn >= self.floor})
            self.check_stages(files, have, name, self.floor)
            self.judge_end(host, have)
        if any(one != found[0] for one in found):
            raise Broken("members have other records than each other")

    def judge_end(self, host: Host, have: Mapping[int, bytes]) -> None:
        """Whether a member has what all must have in the end."""
        if lacking := self.lacking(have):
            raise Broken(f"{host.name} lacks {min(lacking)}")
