"""`make soak-cluster`: three servers that keep one log, a load, and all that can become of machines and networks.

    PYTHONPATH=tests python -m soak.cluster_soak --seconds 3600

Servers are killed, stopped, paused, cut off from each other, from the register and from clients in all ways of
`fault_proxy`, alone and two at once; disks are full, or fail; the register goes, too.  Judged are: what was confirmed
and is absent, what was settled for sure and came again, what came twice at most once, the order of each publisher, that
it all goes on by itself once it is healed, and at the end the logs of all members, byte by byte.  `SOAK_LEAK=alone`
plants a leader that waits for nobody: see whether that is noticed.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cluster_of_servers.house import Cluster, Server
from crash_clients import GONE
from etcd_process import ETCD, Etcd
from fault_proxy import Fault, Network, Way
from penstock.log.copies import compare
from penstock.log.disk import OsDisk
from soak import by_hand
from soak.books import DELIVERED, LOST, Books, Id
from soak.clients import drained
from soak.cluster_clients import Client, Link, Publisher, Worker
from soak.person import Person

SECTION = 'lease = "1500ms"\nack_timeout = "1s"\nstall = "4s"'
MORE = """
[[queue]]
name = "busy"
[[queue]]
name = "once"
semantics = "at-most-once"
[[queue]]
name = "kept"
[[queue]]
name = "markers"
max_length = 100
[log]
segment = "4MiB"
retention = { bytes = "24MiB" }
checkpoint_bytes = "8MiB"
"""
QUEUES = ("work", "busy", "once", "kept")
"""`kept` has no worker before the end: what is worked at once may be lost, and nobody would know."""
PATIENCE_S = 60.0
"""So long after everything was healed somebody must confirm again."""
NO_QUOTA, SQUEEZED = 1 << 60, 20 << 20
FILE_MOST = 256 << 10
"""Bytes of a file of a server whose disk fails: beyond them is the log, and not what it says."""
ENDED_WELL = {0, 6, -signal.SIGKILL, -signal.SIGTERM}


class Register:
    """The cluster's register, which may be gone for a while: etcd where it is installed, else a folder; or none."""

    def __init__(self, folder: Path, *, manual: bool) -> None:
        self.folder = folder / "register"
        self.etcd = None if ETCD is None or manual else Etcd(folder / "etcd")
        if self.etcd is not None:
            self.etcd.start()
        self.url = f"file://{self.folder}" if self.etcd is None else f"etcd://{self.etcd.client}/soak"
        self.url = "manual" if manual else self.url

    def away(self, chance: random.Random) -> Callable[[], object]:
        """It goes; what brings it back."""
        if self.etcd is None:
            hidden = self.folder.rename(self.folder.with_name("hidden"))
            return lambda: hidden.rename(self.folder)
        if chance.random() < 0.5:
            self.etcd.kill()
            return self.etcd.start
        self.etcd.signal(signal.SIGSTOP)
        return lambda: self.etcd is not None and self.etcd.signal(signal.SIGCONT)

    def end(self) -> None:
        if self.etcd is not None:
            self.etcd.kill()


class ClusterSoak:
    """One run.  Faults are in `books.wrong`."""

    def __init__(
        self,
        folder: Path,
        seconds: float,
        seed: int,
        *,
        pause_most: float = 60.0,
        leak: str = "",
        manual: bool = False,
        least: int = 0,
        rest: float = 0.0,
        say: Callable[[str], object] = print,
    ) -> None:
        """pause_most: seconds that a process is stopped at the longest.  leak: what is planted, see `hosted`.

        manual: a person says who leads.  least: goes on until so many messages were confirmed.

        rest: seconds that publishers wait between bursts, whatever they are told.
        """
        self.folder, self.seconds, self.pause_most, self.say = folder, seconds, pause_most, say
        self.least = least
        self.leak, self.manual = leak, manual
        self.person: Person | None = None
        self.random = random.Random(seed)
        self.books = Books()
        self.counts: Counter[str] = self.books.counts
        self.pace, self.rest = 0.02, rest
        self.team = list[Client]()
        self.quota = folder / "quota"
        self._squeeze(NO_QUOTA)
        self._failing = set[Server]()  # whose writes have failed, or may have
        self._over = threading.Event()
        self.cluster: Cluster
        self.register: Register

    def random_servers(self) -> list[Server]:
        servers = list(self.cluster.servers)
        random.shuffle(servers)
        return servers

    def run(self) -> None:
        """All of it."""
        self.register = Register(self.folder, manual=self.manual)
        environ = {"SOAK_LEAK": self.leak, "SOAK_QUOTA": str(self.quota), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [str(Path(__file__).with_name("hosted.py"))]
        try:
            with Network() as network, Cluster(
                self.folder, 3, section=SECTION, more=MORE, registry=self.register.url, network=network,
                command=command, environ=environ,
            ) as self.cluster:  # fmt: skip
                keeper = threading.Thread(target=self._keep, daemon=True)
                keeper.start()
                try:
                    self.cluster.leader(3 * PATIENCE_S)
                    self.cluster.level()
                    if self.manual:
                        self.person = Person(self.cluster, self.counts, self.say)
                        self.person.start()
                    self.team += [Publisher(self, queue) for queue in QUEUES]
                    self.team += [Worker(self, "work"), Worker(self, "once")]
                    self.team += [Worker(self, "busy", alone=False) for _ in range(2)]
                    for client in self.team:
                        client.start()
                    self._trouble()
                    self._rest()
                    self._account()
                finally:
                    self._over.set()
                    keeper.join(30)
                    if self.person is not None:
                        self.person.over.set()
                        self.person.join(2 * PATIENCE_S)
        finally:
            self.register.end()

    # what happens

    def _trouble(self) -> None:
        troubles = [*3 * [self.killed], self.isolated, *2 * [self.paused], *3 * [self.parted], self.stopped,
                    self.no_register, self.failing_disk, self.full_disk, self.blackout]  # fmt: skip
        if self.manual:
            troubles.remove(self.no_register)
        self.cluster.leader().signal(signal.SIGKILL)
        self.counts["killed"] += 1
        self._goes_on()
        end, turns = time.monotonic() + self.seconds, list[Callable[[], object]]([self.isolated])
        while (time.monotonic() < end or self.counts["confirmed"] < self.least) and not self.books.wrong:
            if not turns:
                turns = [*troubles, *troubles]
                self.random.shuffle(turns)
            with ExitStack() as stack:
                for _ in range(self.random.choice((1, 1, 2))):
                    trouble = turns.pop() if turns else self.killed
                    said = stack.enter_context(trouble())  # type: ignore[arg-type]
                    self.say(f"{said}")
                    self.counts[trouble.__name__.replace("_", " ")] += 1
                time.sleep(self.random.uniform(0.3, 4.0))
            if self.random.random() < 0.6:
                self._goes_on()
            if self.random.random() < 0.1:
                self._level()
            self._listen()

    def _goes_on(self) -> None:
        """All is healed: somebody confirms again, by itself."""
        began = time.monotonic()
        publishers = [one for one in self.team if isinstance(one, Publisher)]
        while not all(one.confirmed_at > began for one in publishers):
            if time.monotonic() - began > PATIENCE_S:
                told = [f"nothing was confirmed for {PATIENCE_S:g} s after all was healed"]
                told += [f"--- {one.name} at port {one.door}\n{one.said()[-2000:]}" for one in self.cluster.servers]
                told += [f"{one.name}, {one.state}" for one in publishers]
                self.books.fault("\n".join(told))
                return
            if any(one.failure for one in self.team):
                return
            time.sleep(0.05)

    def _level(self) -> int:
        """Nobody is left behind for ever.  The LSN up to which every member has the log; 0: one is left behind."""
        until = time.monotonic() + PATIENCE_S
        while True:
            leader = next((one for one in self.cluster.servers if one.runs and one.serves), None)
            known = {} if leader is None else leader.get("/api/cluster", timeout=5.0)[1]
            if len(known.get("in_sync", ())) == len(self.cluster.servers):
                return int(known["committed_lsn"])
            if time.monotonic() > until:
                told = [f"{PATIENCE_S:g} s after all was healed there are in sync: {known.get('in_sync')}"]
                told += [f"--- {one.name}\n{one.said()[-2000:]}" for one in self.cluster.servers]
                self.books.fault("\n".join(told))
                return 0
            time.sleep(0.2)

    @contextmanager
    def killed(self) -> Generator[str]:
        server = self._one()
        server.signal(signal.SIGKILL)
        yield f"{server.name} killed"

    @contextmanager
    def stopped(self) -> Generator[str]:
        server = self._one()
        with suppress(ProcessLookupError):
            os.kill(server.group, signal.SIGTERM)
        yield f"{server.name} stopped"

    @contextmanager
    def blackout(self) -> Generator[str]:
        """All at once."""
        for server in self.cluster.servers:
            server.signal(signal.SIGKILL)
        yield "all killed"

    @contextmanager
    def paused(self) -> Generator[str]:
        """The server and its member's process, or one of the two."""
        server = self._one()
        pids = server.processes()
        chosen = self.random.choice((pids, pids[:1], pids[1:]))
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield f"{server.name} paused, {len(chosen)} of its {len(pids)} processes"
        if self.random.random() < 0.1:
            time.sleep(self.random.uniform(0, self.pause_most))
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def parted(self) -> Generator[str]:
        """A server and the others, the register, clients, or some of these."""
        server, fault = self._one(), self.random.choice(list(Fault))
        others = [one for one in self.cluster.servers if one is not server]
        ways = list[tuple[Way, int]]()
        said = list[str]()
        if (register := server.register_way) is not None and self.random.random() < 0.5:
            ways.append((register, 0))
            said.append("the register")
        if self.random.random() < 0.4:
            ways.append((server.door_way, 0))
            said.append("clients")
        if not said or self.random.random() < 0.7:
            some = others if self.random.random() < 0.6 else others[:1]
            for one in some:
                ways += [(server.stream_way, one.group), (one.stream_way, server.group)]
                said.append(one.name)
        for way, caller in ways:
            way.fault(fault, caller)
        yield f"{server.name} and {', '.join(said)}: {fault.value}"
        for way, caller in ways:
            way.heal(caller)

    @contextmanager
    def isolated(self) -> Generator[str]:
        """Whoever leads, from all but its clients, until others lead: what it confirms meanwhile would be lost."""
        leads = [one for one in self.cluster.servers if one.runs and one.serves]
        server = leads[0] if leads else self._one()
        fault = self.random.choice((Fault.SILENT, Fault.CUT))
        ways = [(server.stream_way, 0), *((one.stream_way, server.group) for one in self.cluster.servers)]
        if server.register_way is not None:
            ways.append((server.register_way, 0))
        for way, caller in ways:
            way.fault(fault, caller)
        if self.person is not None:
            self.person.cut_off.add(server)
            if self.random.random() < 0.7:
                self.person.has_lead([one for one in self.cluster.servers if one is not server and one.runs])
        time.sleep(self.random.uniform(1.0, 4.0))
        yield f"{server.name} isolated from all but clients: {fault.value}"
        if self.person is not None:
            self.person.cut_off.discard(server)
        for way, caller in ways:
            way.heal(caller)

    @contextmanager
    def no_register(self) -> Generator[str]:
        back = self.register.away(self.random)
        yield "the register is gone"
        back()

    @contextmanager
    def failing_disk(self) -> Generator[str]:
        """Files of one server cannot grow beyond a size: a write fails."""
        server = self._one()
        pids = server.processes()
        self._failing.add(server)
        for pid in pids:
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_MOST, hard))
        yield f"{server.name}: writes fail"
        for pid in pids:
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    @contextmanager
    def full_disk(self) -> Generator[str]:
        """Whoever leads has no room for more than acks."""
        self._squeeze(max(map(_size_of, (one.folder / "data" for one in self.cluster.servers))) + SQUEEZED)
        yield "disks are full"
        self._squeeze(NO_QUOTA)

    def _one(self) -> Server:
        """The leader more often than others."""
        leads = [one for one in self.cluster.servers if one.runs and one.serves]
        return leads[0] if leads and self.random.random() < 0.5 else self.random.choice(self.cluster.servers)

    def _squeeze(self, size: int) -> None:
        part = self.quota.with_suffix(".new")
        part.write_text(str(size))
        part.replace(self.quota)

    # servers

    def _keep(self) -> None:
        """Who has ended is started again, as any supervisor does."""
        while not self._over.wait(0.1):
            for server in self.cluster.servers:
                if server.process is not None and (status := server.process.poll()) is not None:
                    self.counts[f"ended with {status}"] += 1
                    well = ENDED_WELL | {1} if server in self._failing else ENDED_WELL  # 1: a start was refused
                    if status not in well and not self._over.is_set():
                        self.books.fault(f"{server.name} ended with {status}:\n{server.said()[-3000:]}")
                    self._failing.discard(server)
                    server.signal(signal.SIGKILL)  # forked ones are not its children, to which it does so as it ends
                    server.start()

    def _listen(self) -> None:
        for client in self.team:
            if client.failure is not None:
                self.books.fault(f"{client.name}: {client.failure!r}")

    # the end

    def _rest(self) -> None:
        self._goes_on()
        for client in self.team:
            client.stopping.set()
        for client in self.team:
            client.join(30)
            if client.is_alive():
                self.books.fault(f"{client.name} does not stop")
        self._listen()

    def _account(self) -> None:
        """What is still there; then the logs."""
        if self.books.wrong:
            return
        self._level()
        leader = self._who_serves()
        found = drained(leader.door, self.books, QUEUES, quiet=1.0)
        self._settle_once(found)
        self.books.close(found)
        agreed = self._level()
        self._over.set()
        for server in self.cluster.servers:
            server.signal(signal.SIGKILL)
        for server in self.cluster.servers:
            assert server.process is not None
            server.process.wait(20)
        report = compare([(one.name, OsDisk(one.folder / "data")) for one in self.cluster.servers])
        for said, _ in report.wrong:
            self.books.fault(f"logs: {said}")
        for one in report.copies:
            if (one.parts_at or one.last + 1) <= agreed:  # what is written later may be on its way when they are killed
                told = f"lacks {one.lacks} records, and has {one.unconfirmed} of its own"
                self.books.fault(f"{one.folder} {told}, where all had the log up to LSN {agreed}")
            self.counts["records cut"] += sum(kept.rows for kept in one.kept)
        self.counts["bytes compared"], self.counts["records compared"] = report.bytes, report.records
        self.counts["terms"] = report.terms[-1].term

    def _who_serves(self) -> Server:
        """The one that takes a client: it may have ended since it was level, and another one leads."""
        until = time.monotonic() + PATIENCE_S
        while True:
            leader = self.cluster.leader()
            try:
                Link(leader.door).socket.close()
            except GONE:
                if time.monotonic() > until:
                    raise
            else:
                return leader

    def _settle_once(self, found: Counter[Id]) -> None:
        """What is sent at most once may have been removed for a send that never came."""
        books = self.books
        for publisher, queue in enumerate(books.queues):
            if queue == "once":
                unseen = [(publisher, n) for n, flags in enumerate(books.flags[publisher]) if not flags & DELIVERED]
                books.settle([one for one in unseen if one not in found], LOST)


def _size_of(folder: Path) -> int:
    total = 0
    for one in folder.rglob("*"):
        with suppress(OSError):
            total += one.stat().st_blocks * 512
    return total


def told(soak: ClusterSoak) -> str:
    """What happened, in lines."""
    gaps = sorted(gap for one in soak.team if isinstance(one, Publisher) for gap in one.gaps)
    lines = [", ".join(f"{count:,} {name}" for name, count in soak.counts.items())]
    if gaps:
        half = gaps[len(gaps) // 2]
        lines.append(f"{len(gaps)} times no confirm for 0.5 s or longer: median {half:.1f} s, longest {gaps[-1]:.1f} s")
    return "\n".join(lines)


def main() -> int:
    """Run; 1 when something is wrong."""
    options = by_hand.options(__doc__)
    options.add_argument("--manual", action="store_true", help="no register: a person says who leads")
    given = options.parse_args()
    run = by_hand.Run(given, "soak-cluster")
    leak = os.environ.get("SOAK_LEAK", "")
    soak = ClusterSoak(run.folder, given.seconds, given.seed, leak=leak, manual=given.manual, say=run.say)
    try:
        soak.run()
    finally:
        print(told(soak), flush=True)
    return run.end(soak.books.wrong)


if __name__ == "__main__":
    sys.exit(main())
