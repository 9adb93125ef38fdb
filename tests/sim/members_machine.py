"""One machine of a simulated cluster: its disk, its member, and the log that this one writes while it leads.

What is real: `Member` and the leader's log.  Its world keeps the register and the links, and judges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.log.log import Log
from penstock.log.replica import Beside
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import UNLIMITED, SimDisk
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from penstock.replication.insync import Times
from penstock.replication.register import ClusterState
from penstock.server.cluster import folder
from penstock.server.cluster.member import Member
from penstock.server.cluster.membership import Terms
from sim.logkit import T0, FakeClock, content, messages
from sim.members_links import SimLink, SimSyncer

if TYPE_CHECKING:
    from sim.members_world import World

TIMES = Times(level=1_000, level_most=4_000)


class Broken(AssertionError):
    """Something that must hold does not."""


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
        self.answered = list[str]()  # those whose uploads were answered, and that nothing was made of yet
        self.decided = list[str]()  # those that the log needs, durably
        self.copy: Mapping[str, bytes] | None = None  # its disk as it was at some time
        self.full_since: int | None = None  # by its clock
        self.next = ""  # whom its server, whose doors are closed, has named

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
        """Files are on every disk that counts: their uploads are answered, and what needs them may be logged."""
        for one in [one for one in self.staged if one <= number]:
            name = self.staged.pop(one)
            self.world.answered.add(name)
            if self.world.rng.random() < 0.5:
                self._decide(name)
            else:
                self.answered.append(name)

    def _decide(self, name: str) -> None:
        if self.log is not None and not self.log.broken:
            self.world.decided_at[name] = self.next_lsn
            self._note(b"decided " + name.encode())

    def _drop(self, name: str) -> None:
        """What the file brings is in the log, or never will be."""
        self.world.answered.discard(name)
        self._running().forget(name)
        self.disk.remove(name)

    def stage(self, least: int = 0, most: int = 99) -> None:
        """A leader gets a file whose rows it will copy into the log, or decides to, or has copied one, or drops one."""
        member, log, rng = self.member, self.log, self.world.rng
        if log is None or log.broken or member is None or member.role.value != "leading":
            return
        if self.answered and rng.random() < 0.5 and not least:
            name = self.answered.pop(rng.randrange(len(self.answered)))
            if rng.random() < 0.7:
                self._decide(name)
            else:
                self._drop(name)
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
        have, who = dict(content(log)), f"{self.name}, which leads term {term},"
        self.world.check(have, who)
        self.world.judge_leader(self, term, start, have)
        self.log, self.boot, self.next_lsn, self.pending = log, start, start, []
        self.staged.clear()
        self.decided = self.world.check_stages(self.disk.files(), have, who, log.base_floor)
        told = [body for body in have.values() if body.startswith((b"decided ", b"copied "))]
        self.answered = sorted(self.world.answered - {body.partition(b" ")[2].decode() for body in told})
        for name in self.disk.list("stage"):
            self.number += 1
            self._running().keep(f"stage/{name}", self.number)
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
        if member.role.value == "leading" and self.full_since is None:
            for _ in range(rng.randint(1, 3)):
                body = b"%d " % self.next_lsn + rng.randbytes(rng.randint(0, 500))
                self.world.write(self.next_lsn, body)
                self.pending.append((self.next_lsn, body))
                log.append([messages(self.next_lsn, body)])
                self.next_lsn += 1
        log.flush()
        if not log.broken:
            member.moves(self.next_lsn, log.first_lsn)
            self._yield(member)

    def fill(self) -> None:
        """Its disk becomes full, so that a server there refuses publishes."""
        self.disk.capacity = self.disk.used() + self.world.rng.randint(20_000, 40_000)
        self.full_since = self.clock

    def drain(self) -> None:
        """Its disk has room again."""
        self.disk.capacity, self.full_since = UNLIMITED, None

    def _yield(self, member: Member) -> None:
        """A server whose disk stays full closes its doors, and names who is to lead, as an operator may have it do."""
        since = self.full_since
        if since is None or self.clock - since < TIMES.stall or self.next or not member.relief:
            return
        self.next = member.relief
        member.hand_over(self.next)

    def overfill(self) -> None:
        """A leader's disk becomes full within a commit of some batches: nothing of it stays, and it leads no longer."""
        log, rng = self.log, self.world.rng
        if log is None or log.broken:
            return
        log.flush()
        first, log._appender._rows = self.next_lsn, 1  # each is a batch
        for _ in range(3):
            self._note(rng.randbytes(rng.randint(0, 900)))
        self.disk.capacity = self.disk.used() + rng.randint(500, 4_000)
        log.flush()
        self.disk.capacity = UNLIMITED
        log._appender._rows = log.settings.batch_rows
        if log.broken:
            self.world.refused.update(range(first, self.next_lsn))
            self.world.seen["taken back"] += 1

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
                self._drop(name)
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
            try:
                self.member = Member(self.disk, folder.opened(self.disk), terms, self, beside)
            except OSError:  # its disk takes nothing: that process has ended
                self.disk.kill()
                raise

    def terms(self) -> Terms:
        """Of its next process."""
        return Terms(self.name, self.name, self.world.min_in_sync, TIMES, f"{self.life}")

    def stop(self, *, power: bool = False) -> None:
        """It ends at once; with the power what was not synced may go."""
        if self.member is None:
            return
        self.life += 1
        self.member, self.log, self.next = None, None, ""
        self.events.clear()
        for link in self.world.links:
            if link.host is self and not link.closed:
                link.close()
        if power:
            self.disk.crash()
            self.world.judge_alone(self)
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
