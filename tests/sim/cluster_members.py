"""Members of a cluster on simulated disks, links and a register: the product's rules, logs and streams, one seed.

What is real: `Member` with election, in-sync set, streams and copies, and the leader's log.  What is simulated: disks
that lose what was not synced, links that delay, break and go half-open, a register that loses answers and lets swaps
land late, clocks that do not go together, and processes that die or lose power between any two steps.

    no LSN is used for two records
    whoever takes over has every record that was confirmed, with its bytes
    what is cut was never confirmed
    when the world is quiet again all members have the same records
"""

from __future__ import annotations

import errno
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from random import Random
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar
from unittest import mock

from penstock.errors import LogDamaged
from penstock.log.log import Log
from penstock.log.replica import Beside, Replica
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk
from penstock.ports import File
from penstock.records.entries import Control
from penstock.records.kinds import FORMAT, Kind
from penstock.replication.insync import Times
from penstock.replication.messages import Message, decode, encode
from penstock.replication.register import TERM_LSNS, ClusterState
from penstock.replication.register import Member as Listed
from penstock.replication.register import decode as decode_state
from penstock.server.cluster import folder, log_sending
from penstock.server.cluster.member import Member
from penstock.server.cluster.outside import Terms
from penstock.server.cluster.process import plain
from sim.logkit import SMALL, T0, FakeClock, content, messages, opened

TIMES = Times(level=1_000, level_most=4_000)
WHILES = (1_000, 20_000, TIMES.renew // 2, TIMES.ack_timeout, TIMES.lease)
PACES = ((50, 60, 20, 1, 1), (60, 30, 30, 0, 0), (10, 20, 20, 2, 1))

W = TypeVar("W", bound="Walked")

PIECE = 300
"""Bytes of a file beside the log in one message; in some schedules of the log's files, too."""


class Broken(AssertionError):
    """Something that must hold does not."""


class Walked(Protocol):
    """A world of members that is walked through by chance."""

    seen: Counter[str]

    @property
    def confirmed(self) -> Sized: ...
    def quiet(self) -> None: ...
    def compare(self) -> None: ...


def walked(
    world: Callable[[int], W], seeds: Iterable[int], walk: Callable[[W], None]
) -> tuple[str | None, Counter[str]]:
    """The first thing that did not hold in the schedules of these seeds, and what was seen in them."""
    seen = Counter[str]()
    with unheard():
        for seed in seeds:
            pieces = {"SIDE_PIECE": PIECE, "PIECE_MOST": PIECE if seed % 8 == 1 else 1 << 20}
            with mock.patch.multiple(log_sending, **pieces):
                broken = _walked(partial(world, seed), walk, seen)
            if broken is not None:
                return f"seed {seed}: {broken}", seen
    return None, seen


@contextmanager
def unheard() -> Iterator[None]:
    """What members log of all that goes wrong costs more than the rest, and nobody reads it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _walked(world: Callable[[], W], walk: Callable[[W], None], seen: Counter[str]) -> Exception | None:
    try:
        one = world()
        walk(one)
        one.quiet()
        one.compare()
    except (Broken, LogDamaged) as broken:
        return broken
    seen.update(one.seen)
    seen["confirmed"] += len(one.confirmed)
    return None


class SimLink:
    """One end of a connection."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.life = host.life
        self.other: SimLink
        self.inbox = deque[Message]()
        self.closed = False
        self.cut = False  # nothing comes any more, and nobody has told

    @property
    def full(self) -> bool:
        return len(self.other.inbox) > 6

    def send(self, message: Message) -> None:
        if not self.closed and not self.other.closed and not self.other.cut:
            self.other.inbox.append(decode(*encode(message)) if self.host.world.encodes else message)

    def close(self) -> None:
        """What was sent may still arrive; the other end hears of it, or does not for a long time."""
        if not self.closed:
            self.closed = True
            world = self.host.world
            if world.rng.random() < world.told_of_ends:
                self.other.host.later(lambda: self.other.end())

    def end(self) -> None:
        if not self.closed and self.host.life == self.life and self.host.member is not None:
            self.closed = True
            self.host.member.lost(self)

    def deliver(self, most: int) -> None:
        """Some messages are heard, and perhaps synced."""
        member = self.host.member
        if member is None or self.host.life != self.life:
            self.inbox.clear()
            return
        for _ in range(min(most, len(self.inbox))):
            if self.closed:
                return
            member.heard(self, self.inbox.popleft())
        if not self.closed and self.host.world.rng.random() < 0.8:
            member.gathered(self)
        if self.other.host.member is not None and not self.other.closed:
            self.other.host.member.writable(self.other)


    def come(self) -> None:
        """All is heard that was sent so far."""
        if self.inbox:
            self.deliver(len(self.inbox))


class SimSyncer:
    """Syncs a file as it is when that is asked for, or as it is when its end is told."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.file: File | None = None
        self.early = False

    def begin(self, file: File) -> None:
        rng = self.host.world.rng
        if rng.random() < 0.1:
            raise OSError(errno.EAGAIN, "no more of such requests")
        assert self.file is None, "one at a time"
        self.file, self.early = file, rng.random() < 0.5
        if self.early:
            file.sync()
        self.host.later(lambda: self.host.sync_ended())

    def end(self) -> None:
        file, self.file = self.file, None
        assert file is not None, "it was not begun"
        if not self.early:
            file.sync()


class Host:
    """One machine: its disk, and what runs on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.disk = SimDisk(seed=world.rng.randrange(1 << 30))
        self.life = 0
        self.clock = 0
        self.member: Member | None = None
        self.log: Log | None = None
        self.events = deque[Callable[[], None]]()
        self.next_lsn = 0
        self.boot = 0
        self.marks = FakeClock()  # of the log
        self.pending = list[tuple[int, bytes]]()  # appended in this life, not confirmed
        self.number = 0  # of files beside the log
        self.staged = dict[int, str]()  # those that are not everywhere yet
        self.decided = list[str]()  # those that the log needs, durably
        self.copy: Mapping[str, bytes] | None = None  # its disk as it was at some time

    # what a member asks for

    def now(self) -> int:
        return self.clock

    def later(self, what: Callable[[], None]) -> None:
        self.events.append(what)

    def read(self) -> None:
        if self.world.rng.random() < self.world.answers:
            version, value = self.world.version, self.world.value
            self.later(lambda: self._running().register_read(version, value))

    def swap(self, version: int, value: ClusterState, *, own: bool) -> None:
        outcome = self.world.swap(version, value)
        self.later(lambda: self._running().swapped(outcome, value, own=own))

    def connect(self, address: str) -> None:
        other = self.world.hosts[address]

        def call() -> None:
            if other.member is None or self.world.rng.random() > self.world.answers:
                self._running().lost(None)
                return
            mine, theirs = SimLink(self), SimLink(other)
            mine.other, theirs.other = theirs, mine
            self.world.links += [mine, theirs]
            other.member.taken(theirs)
            self._running().connected(mine)

        self.later(call)

    def call(self, address: str) -> None:
        raise AssertionError("nobody has a copy of the register")

    def sync_ended(self) -> None:
        self.world.seen["syncs beside"] += self._running().synced()

    def lead(self, term: int, start: int, before: int) -> None:
        self.disk.unlock()
        self.later(lambda: self._take_over(term, start, before))

    def committed(self, lsn: int) -> None:
        self.later(lambda: self._committed(lsn))

    def kept(self, number: int) -> None:
        self.later(lambda: self._kept(number))

    def _kept(self, number: int) -> None:
        """Files are on every disk that counts: what needs them may be logged."""
        for one in [one for one in self.staged if one <= number]:
            self._decide(self.staged.pop(one))

    def _decide(self, name: str) -> None:
        if self.log is not None and not self.log.broken:
            self.world.decided_at[name] = self.next_lsn
            self._note(b"decided " + name.encode())

    def stage(self, least: int = 0, most: int = 99) -> None:
        """A leader gets a file whose rows it will copy into the log, or has copied one."""
        member, log, rng = self.member, self.log, self.world.rng
        if log is None or log.broken or member is None or member.role.value != "leading":
            return
        if self.decided and rng.random() < 0.5 and not least:
            self._note(b"copied " + self.decided.pop().encode())
            return
        name, content = f"stage/{rng.getrandbits(128):032x}.arrows", rng.randbytes(rng.randint(least, most))
        self.world.stages[name] = content
        self.disk.mkdir("stage")
        file = self.disk.open(name, create=True)
        file.pwrite(content, 0)
        file.sync()
        self.disk.sync_folder("stage")
        self.disk.sync_folder()
        self.number += 1
        self.staged[self.number] = name
        member.keep(name, self.number)

    def upkeep(self) -> None:
        """A leader writes a base, or drops old files, or writes some anew: joined, compressed, without old rows."""
        log, member, world, rng = self.log, self.member, self.world, self.world.rng
        if log is None or log.broken or member is None or member.role.value != "leading":
            return
        closed = [one for one in log.segments()[:-1] if one.last <= log.durable]
        if len(closed) < 3:
            return
        if rng.random() < 0.4:
            needed = [lsn for name, lsn in world.decided_at.items() if name not in world.copied]
            floor = min([rng.choice(closed).last + 1, *needed])
            group = log.base_group(self.next_lsn, 0, floor, b"state below %d" % floor)
            for one in group.entries:
                assert isinstance(one, Control)
                self._append(one, bytes(one.body), gathered=True)
            log.append([group])
        elif log.base_floor > log.first_lsn and rng.random() < 0.6:
            world.seen["retired"] += len(log.retire(log.base_floor))
        else:
            at = rng.randrange(len(closed) - 1)
            olds = closed[at : at + rng.randint(1, 3)]
            keep = b"" if olds[-1].last < log.base_floor and rng.random() < 0.5 else None
            made = tuple(Old(one.first, one.last, one.generation, one.rows) for one in olds)
            floor = 0 if keep is None else log.base_floor
            swap = log.swap(rewrite(self.disk, Order(made, keep, floor, rng.random() < 0.3)))
            swap.prepare()
            swap.enter()
            swap.finish()
            world.seen["rewritten"] += 1

    def may_lead(self, until: int) -> None:
        pass

    def end(self, why: str) -> None:
        self.world.seen["ended"] += 1
        self.stop()
        if "older copy" in why or "was removed" in why:
            self.world.seen["refused copies"] += 1
            self.anew()

    def anew(self) -> None:
        """A person takes the folder away; what starts in the empty one is another member."""
        self.world.reverted.add(self.id)
        self.disk = SimDisk(seed=self.world.rng.randrange(1 << 30))
        self.copy = None
        folder.write(self.disk, folder.Known("", f"m-{self.name}-{self.world.rng.randrange(1 << 30)}", 0, 0))
        for key, one in self.world.value.members.items():
            if one.name == self.name and key != self.world.value.leader:
                self.world.version += 1
                self.world.value = self.world.value.without_member(key)

    # its server

    def _running(self) -> Member:
        assert self.member is not None
        return self.member

    def _take_over(self, term: int, start: int, before: int) -> None:
        log = Log.open(self.disk, self.marks, self.world.settings)
        for _ in log.replay():
            pass
        if log.recovery.last_lsn != before:
            raise Broken(f"{self.name} was elected for LSN {before} and has {log.recovery.last_lsn}")
        have = dict(content(log))
        self.world.check(have, f"{self.name}, which leads term {term},")
        self.world.judge_leader(self, term, have)
        self.log, self.boot, self.next_lsn, self.pending = log, start, start, []
        self.staged.clear()
        self.decided = self.world.check_stages(self.disk.files(), have, f"{self.name}, which leads term {term},")
        for name in self.decided:
            self.number += 1
            self._running().keep(name, self.number)
        log.on_broken = lambda error: self.later(lambda: self._running().broken(str(error)))
        log.wait_for_copies(self._told, lambda lsn: self._running().log_synced(lsn))
        self.world.seen["terms"] += 1
        self._append(Control(Kind.BOOT, "", b"{}", b"boot %d" % term, start, T0), b"boot %d" % term)

    def _told(self, segment: int, end: int, last: int) -> None:
        if self.world.rng.random() < self.world.failing_syncs:
            self.disk.fail_next("sync")
        self._running().log_at(segment, end, last)

    def _append(self, entry: Control, body: bytes, *, gathered: bool = False) -> None:
        assert self.log is not None
        self.world.write(self.next_lsn, body)
        self.pending.append((self.next_lsn, body))
        if not gathered:
            self.log.append([entry])
        self.next_lsn += 1

    def _note(self, body: bytes) -> None:
        self._append(Control(Kind.SETTLE, "orders", b"{}", body, self.next_lsn, T0), body)

    def publish(self) -> None:
        """A leader takes some messages and writes them."""
        log, member, rng = self.log, self.member, self.world.rng
        if log is None or member is None or log.broken:
            return
        if member.role.value == "leading":
            for _ in range(rng.randint(1, 3)):
                body = b"%d " % self.next_lsn + rng.randbytes(rng.randint(0, 500))
                self.world.write(self.next_lsn, body)
                self.pending.append((self.next_lsn, body))
                log.append([messages(self.next_lsn, body)])
                self.next_lsn += 1
        log.flush()
        if not log.broken:
            member.moves(self.next_lsn, log.first_lsn)

    def _committed(self, lsn: int) -> None:
        log = self.log
        if log is None or log.broken:
            return
        log.committed(lsn)
        if self.world.rng.random() < 0.5:
            self.idle()
        confirmed = [one for one in self.pending if one[0] <= log.durable]
        self.world.confirmed.update(confirmed)
        for _, body in confirmed:
            what, _, name = body.decode("latin-1").partition(" ")
            if what == "decided":
                self.decided.append(name)
                self.world.seen["decided"] += 1
            elif what == "copied":
                self._running().forget(name)
                self.disk.remove(name)
                self.world.copied.add(name)
        self.world.floor = max(self.world.floor, log.base_floor)
        self.pending = [one for one in self.pending if one[0] > log.durable]
        if self.boot and log.durable >= self.boot:
            self.boot = 0
            self._running().booted(self.next_lsn)

    def idle(self) -> None:
        """A leader has nothing to write for a while: it writes a mark."""
        if self.log is not None:
            self.marks.pass_by(1_000_000)
            self.log.tick()

    # its life

    def start(self) -> None:
        """A process begins."""
        if self.member is None:
            self.disk.lock()
            self.events.clear()
            self.life += 1
            terms = self.terms()
            rng = self.world.rng
            beside = Beside(SimSyncer(self), rng.choice((0, 500)), short=rng.choice((1, 300, 1 << 20)))
            self.member = Member(self.disk, folder.opened(self.disk), terms, self, beside)

    def terms(self) -> Terms:
        """Of its next process."""
        return Terms(self.name, self.name, self.world.min_in_sync, TIMES, f"{self.life}")

    def stop(self, *, power: bool = False) -> None:
        """It ends at once; with the power what was not synced may go."""
        if self.member is None:
            return
        self.life += 1
        self.member, self.log = None, None
        self.events.clear()
        for link in self.world.links:
            if link.host is self and not link.closed:
                link.close()
        if power:
            self.disk.crash()
        else:
            self.disk.kill()

    @property
    def id(self) -> str:
        """Of the member whose folder it has."""
        known = folder.read(SimDisk(self.disk.files()))
        assert known is not None
        return known.member

    def step(self) -> None:
        if self.events and self.member is not None:
            self.events.popleft()()


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
    """What happens besides."""

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
        self.calm = False  # nothing goes wrong any more
        self.settings = replace(SMALL, segment=6000)
        self.answers, self.told_of_ends, self.failing_syncs, self.loses = 0.9, 0.8, 0.01, 0.12
        self.written = dict[int, bytes]()
        self.confirmed = set[tuple[int, bytes]]()
        self.seen = Counter[str]()
        self.links = list[SimLink]()
        self.late = list[tuple[int, ClusterState]]()
        self.floor = 0  # what lies below may be gone: a base stands for it
        self.decided_at = dict[str, int]()  # stage -> LSN of its decision
        self.copied = set[str]()
        self.stages = dict[str, bytes]()  # all that there ever were
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

    def judge_leader(self, host: Host, term: int, have: Mapping[int, bytes]) -> None:
        """Whether somebody who is to lead has what it must have."""
        lacking = self.lacking(have)
        if lacking:
            raise Broken(f"{host.name} leads term {term} and lacks {min(lacking)}")

    def lacking(self, have: Mapping[int, bytes]) -> set[tuple[int, bytes]]:
        """What was confirmed and is not here."""
        return {one for one in self.confirmed - have.items() if one[0] >= self.floor}

    def check_stages(self, files: Mapping[str, bytes], have: dict[int, bytes], who: str) -> list[str]:
        """Whether a disk has all files that its log needs; these."""
        bodies = [body.decode("latin-1") for body in have.values() if body.startswith((b"decided ", b"copied "))]
        copied = {body.removeprefix("copied ") for body in bodies}
        needed = [name for body in bodies if (name := body.removeprefix("decided ")) != body and name not in copied]
        for name in needed:
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

    def run(self, steps: int) -> None:
        """So many random steps; Broken says what does not hold."""
        names, weights = zip(*self._weights({**ACTIONS, **self.more}), strict=True)
        hosts = list(self.hosts.values())
        for action in self.rng.choices(names, weights, k=steps):
            host = self.rng.choice(hosts)
            try:
                action(self, host)
            except OSError:
                host.stop(power=True)
            except LogDamaged as error:
                raise Broken(f"{host.name}: {error}") from error
            self.links = [one for one in self.links if not (one.closed and not one.inbox)]

    def _weights(self, actions: Mapping[Action, int]) -> Iterable[tuple[Action, int]]:
        return ((one, self.mood.get(one, weight)) for one, weight in actions.items())

    def directed(self, disasters: int) -> None:
        """So many times: all are level, some random steps come, and then a disaster."""
        names, weights = zip(*self._weights(DISASTERS), strict=True)
        for disaster in self.rng.choices(names, weights, k=disasters):
            self.level_out()
            self.run(self.rng.randint(10, 100))
            disaster(self, self.rng.choice(list(self.hosts.values())))
            self.seen["disasters"] += 1

    def level_out(self) -> None:
        """Time goes by until all have the same, or are not about to."""
        for n in range(20):
            self.turn(self.hosts.values(), publishes=n % 4 == 0)
            if n > 1 and self._level():
                return
            if self.leader() is None and n % 4 == 0:
                for host in self.hosts.values():
                    host.clock += TIMES.lease // 2

    def tick(self, host: Host) -> None:
        host.clock += self.rng.choices(WHILES, self.pace)[0]
        if host.member is not None:
            if host.log is not None and not host.log.broken and self.rng.random() < 0.95:
                host.member.moves(host.next_lsn, host.log.first_lsn)
            host.member.tick()

    def event(self, host: Host) -> None:
        host.step()

    def deliver(self, _: Host) -> None:
        links = [one for one in self.links if one.inbox]
        if links:
            link = self.rng.choice(links)
            self.at(link.host, lambda: link.deliver(self.rng.randint(1, 4)))

    def publish(self, host: Host) -> None:
        host.publish()

    def stage(self, host: Host) -> None:
        host.stage()

    def upkeep(self, host: Host) -> None:
        host.upkeep()

    def roll(self, host: Host) -> None:
        if host.log is not None and not host.log.broken:
            host.log.roll()
            host.log.flush()
            self.seen["rolls"] += 1

    def cut(self, _: Host) -> None:
        """A connection breaks; one end may hear of it late, or never."""
        if self.links:
            link = self.rng.choice(self.links)
            link.host.later(link.end)
            if self.rng.random() < self.told_of_ends:
                link.other.host.later(link.other.end)
            else:
                link.other.inbox.clear()
                link.other.cut = True

    def arrive(self, _: Host) -> None:
        """A swap whose answer is long lost lands."""
        if self.late:
            self.seen["late swaps"] += self.land(*self.late.pop(self.rng.randrange(len(self.late))))

    def crash(self, host: Host) -> None:
        if self.rng.random() < 0.25:
            self.seen["crashes"] += 1
            host.stop(power=self.rng.random() < 0.6)

    def leader(self) -> Host | None:
        """Who has a log to write."""
        return next((one for one in self.hosts.values() if one.log is not None and not one.log.broken), None)

    def topple(self, _: Host) -> None:
        """Who leads writes a little more and dies; perhaps somebody else leads before it is back."""
        leader = self.leader()
        if leader is None:
            return
        self.seen["toppled"] += 1
        for _ in range(self.rng.randint(0, 2)):
            leader.publish()
        leader.idle()
        leader.stop(power=self.rng.random() < 0.3)
        others = [one for one in self.hosts.values() if one is not leader]
        if self.rng.random() < 0.5:
            self.hush()
        for other in others:
            other.clock += TIMES.lease
        self.turns(others, self.rng.randint(0, 8))

    def lull(self, host: Host) -> None:
        """All are level; who leads has nothing to write, says so where nobody hears it any more, and dies."""
        self.turns(self.hosts.values(), 3)
        if (leader := self.leader()) is not None:
            leader.idle()
            self.hush()
        self.topple(host)

    def hush(self) -> None:
        """What was sent and has not come arrives nowhere."""
        for link in self.links:
            link.inbox.clear()

    def put_back(self, host: Host) -> None:
        """A machine gets an older copy of its disk, and may be asked to lead soon."""
        self.snapshot(host)
        self.turns(self.hosts.values(), 4)
        self.revert(host)
        host.start()
        self.topple(host)

    def halve(self, host: Host) -> None:
        """Who leads dies while a file that the log needs soon is on its way."""
        self.turns(self.hosts.values(), 3)
        if (leader := self.leader()) is not None:
            leader.stage(9 * PIECE, 25 * PIECE)
            for _ in range(self.rng.randint(1, 4)):
                leader.step()
            leader.publish()
            for _ in range(self.rng.randint(1, 5)):
                for link in self.links:
                    if link.host is not leader:
                        self.at(link.host, link.come)
            self.hush()
        self.topple(host)

    def black_out(self, _: Host) -> None:
        """All machines lose power; one of those that did not lead is up first."""
        leader = self.leader()
        for one in self.hosts.values():
            one.stop(power=True)
            one.clock += TIMES.lease
        self.seen["black-outs"] += 1
        first = self.rng.choice([one for one in self.hosts.values() if one is not leader])
        self.turns([first], 1)
        first.clock += TIMES.lease
        self.turns([first], self.rng.randint(0, 8))

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
                self.at(link.host, lambda link=link: self._hear_all(link))

    def _turn_of(self, host: Host, publishes: bool) -> None:
        host.start()
        host.clock += self.round
        while host.events and host.member is not None:
            host.step()
        if host.member is not None:
            if host.log is not None and not host.log.broken:
                host.publish() if publishes else host.member.moves(host.next_lsn, host.log.first_lsn)
            host.member.tick()

    def _hear_all(self, link: SimLink) -> None:
        link.deliver(len(link.inbox))
        if link.host.member is not None and not link.closed:
            link.host.member.gathered(link)

    def start(self, host: Host) -> None:
        host.start()

    def snapshot(self, host: Host) -> None:
        """Somebody copies a disk."""
        host.copy = SimDisk(host.disk.files()).files()

    def revert(self, host: Host) -> None:
        """A machine gets an older copy of its disk, or loses its log.

        Only where another one that may be elected has everything, and the register can know better: it says once in a
        beat how far all are.
        """
        others = self.value.in_sync - {host.id} - self.reverted
        copy = host.copy
        if copy is None or not others or host.id not in self.value.in_sync:
            return
        if self.rng.random() < 0.3:
            copy = {name: content for name, content in copy.items() if not name.startswith("log/")}
        if Replica(SimDisk(copy), 0).last >= self.value.committed:
            return
        host.stop(power=True)
        host.disk, host.copy = SimDisk(copy, seed=self.rng.randrange(1 << 30)), None
        self.reverted.add(host.id)
        self.late.clear()  # one that drops the others would leave nobody who has everything
        self.seen["reverts"] += 1

    def quiet(self, rounds: int = 400) -> None:
        """No more faults: the members find together, and have the same."""
        self.answers = self.told_of_ends = 1.0
        self.failing_syncs = self.loses = 0.0
        self.calm = True
        self.late.clear()
        second = 1_000_000 // self.round
        for n in range(rounds):
            self.turn(self.hosts.values(), publishes=n % second == 0)
            if n > second and self._level():
                return
            self.mend(n)
        told = {name: None if host.member is None else plain(host.member) for name, host in self.hosts.items()}
        raise Broken(f"they do not find together: {told}")

    def mend(self, n: int) -> None:
        """What a person does in the n-th round of quiet."""

    def state_now(self) -> ClusterState:
        """What the register says of who is in sync."""
        return self.value

    def _level(self) -> bool:
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
            self.check_stages(files, have, name)
            self.judge_end(host, have)
        if any(one != found[0] for one in found):
            raise Broken("members have other records than each other")

    def judge_end(self, host: Host, have: Mapping[int, bytes]) -> None:
        """Whether a member has what all must have in the end."""
        if lacking := self.lacking(have):
            raise Broken(f"{host.name} lacks {min(lacking)}")


Action = Callable[[World, Host], None]
ACTIONS: dict[Action, int] = {
    World.tick: 30, World.event: 45, World.deliver: 60, World.publish: 24, World.roll: 5, World.cut: 2,
    World.arrive: 2, World.crash: 3, World.start: 8, World.snapshot: 1, World.revert: 1,
    World.stage: 3, World.upkeep: 7,
}  # fmt: skip
"""How often each comes."""

@cache
def begun(members: int, min_in_sync: int) -> Begun:
    """A cluster in sync, as directed schedules begin with it."""
    world = World(0, members=members, min_in_sync=min_in_sync)
    world.quiet()
    for host in world.hosts.values():
        host.stop()
    return world.begun()


DISASTERS: dict[Action, int] = {
    World.topple: 2, World.lull: 2, World.put_back: 1, World.halve: 1, World.black_out: 2,
}  # fmt: skip
"""How often each ends a part of a directed schedule."""

Mood = Mapping[Action, int]
_NO_FILES: Mood = {
    World.roll: 1, World.stage: 0, World.upkeep: 0, World.snapshot: 0, World.revert: 0,
    World.put_back: 0, World.halve: 0,
}  # fmt: skip
LEADING: Mood = {**_NO_FILES, World.topple: 8}
DARK: Mood = {**_NO_FILES, World.topple: 0, World.lull: 0}
IDLING: Mood = {**_NO_FILES, World.publish: 8, World.lull: 8}
STAGING: Mood = {**_NO_FILES, World.stage: 14, World.halve: 10}
REVERTING: Mood = {**_NO_FILES, World.put_back: 10}
"""What happens oftener or not at all: a fault that takes long is found where nothing else comes in between."""
