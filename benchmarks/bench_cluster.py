"""What a second disk costs, and how soon another server leads: a cluster of two beside a server alone.

    python benchmarks/bench_cluster.py --messages 1000000

confirm       one message at a time over AMQP: what the follower adds to the server alone
throughput    tables of 10,000 messages of 150 bytes over Flight: the rate, as a share of the server's alone; CPU a
              message of the leader (what the cluster adds) and of the follower.  Both servers run, and have their
              turns one after the other: what a machine does meanwhile is in both
catch up      an empty folder joins: megabytes a second until it is in sync
takeover      the leader is killed with all of `--messages` waiting: from the end of its lease until clients are served
hand over     the leader is stopped: until the other one serves
memory        of a follower: its server, which waits, and the process that copies

Servers are two processes each, all on this machine.  With `--own-core` the process that decides, of the server alone
as of the leader, has a core of its own while rates and CPU are measured, and all others, the client among them, share
the rest; without it, with fewer than four cores, nobody has one of his own.  Figures of the disk are those of one disk
that has both copies.  Memory for what is written is in use before, as after some minutes of any server: the first use
of a page of a virtual machine can take 5 us of whoever writes to it, which is 0.3 us a message of each copy, and were
the larger part of what is measured.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from harness import (
    PATIENCE_S,
    ROOT,
    Server,
    Usage,
    Wrong,
    compile_sources,
    emit,
    filled,
    memory,
    parse,
    parser,
    tree,
    until,
    usage,
    work_folder,
)  # fmt: skip

import penstock

sys.path.insert(0, str(ROOT / "tests"))  # its servers of a cluster

from cluster_of_servers import house
from crash_clients import Confirm, Peer, publish_bytes

BODY = 150
BATCH = 10_000
CONFIRMS = 400
TURNS = 4
"""Of the server alone and of the cluster, in each run."""
ROW = 250
"""Bytes that a message takes in a log."""
LEASE_S = 2.0
SECTION = f'lease = "{LEASE_S:g}s"\nmin_in_sync = 1'
BLOCK = bytes(1 << 20)
OWN = {"OPENBLAS_NUM_THREADS": "1"}
"""With a variable of its own a server is a new process: one that is forked shares memory, and has loaded all."""
ROUND_TRIP_MS = 0.1


def confirms(port: int, count: int) -> float:
    """Milliseconds of one, the median."""
    taken = list[float]()
    with Peer(port) as peer:
        peer.select_confirms()
        for _ in range(count):
            began = time.perf_counter()
            peer.send(publish_bytes("", "work", bytes(BODY)))
            while not any(isinstance(one, Confirm) for one in peer.events(10)):
                if time.perf_counter() - began > PATIENCE_S:
                    raise Wrong("a confirm did not come")
            taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def publish(url: str, count: int) -> float:
    """Messages a second."""
    table = pa.table({"body": pa.array([bytes(BODY)] * BATCH, pa.binary())})
    with penstock.connect(url, timeout="60s") as client:
        client.declare("work")
        began = time.perf_counter()
        for start in range(0, count, BATCH):
            client.publish_table("work", table.slice(0, min(BATCH, count - start)))
        return count / (time.perf_counter() - began)


def used(server: house.Server) -> Usage:
    """Of all its processes."""
    return usage(server.group)


@contextmanager
def cluster(folder: Path, members: int) -> Generator[house.Cluster]:
    """One in which all are in sync."""
    with house.Cluster(folder, members, section=SECTION, flight=True, environ=OWN) as made:
        made.leader(PATIENCE_S)
        made.level()
        yield made


def have_memory(size: int) -> None:
    """Have the system hold so many bytes that were in use before, and are free."""
    file = os.memfd_create("memory")
    try:
        for start in range(0, size, len(BLOCK)):
            os.pwrite(file, BLOCK, start)
    finally:
        os.close(file)


def on_cores(pids: Iterable[int], cores: Iterable[int]) -> None:
    """Have all threads of these processes run on these cores alone."""
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)


class Cost(NamedTuple):
    """Of messages that were published."""

    rate: float  # messages a second
    cpu: tuple[float, ...]  # microseconds a message, of each server


def cost(url: str, count: int, *used: Callable[[], Usage]) -> Cost:
    """Of as many as one turn has.  used: of each server."""
    have_memory(len(used) * count * ROW + (64 << 20))
    before = [one().cpu_s for one in used]
    rate = publish(url, count)
    return Cost(rate, tuple((one().cpu_s - was) / count * 1e6 for one, was in zip(used, before, strict=True)))


@contextmanager
def apart(alone: Server, made: house.Cluster) -> Generator[None]:
    """Whoever decides has the first core while this lasts, all others have the rest."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        raise Wrong("a core of its own needs a second one for the others")
    deciding = [alone.pid, made.leader().processes()[0]]
    servers = [*tree(alone.pid), *(pid for one in made.servers for pid in one.processes())]
    on_cores([os.getpid(), *(pid for pid in servers if pid not in deciding)], every[1:])
    on_cores(deciding, every[:1])
    try:
        yield
    finally:
        on_cores([os.getpid(), *(pid for one in made.servers for pid in one.processes())], every)


class Run:
    """One run of all of it; each figure under its name."""

    def __init__(self, folder: Path, messages: int, count: int, *, own_core: bool) -> None:
        self.found = dict[str, float]()
        with cluster(folder / "cluster", 2) as made:
            with Server(folder / "alone", flight=True) as alone, apart(alone, made) if own_core else nullcontext():
                self._costs(alone, made, messages, count)
            self._catch_up(made)
            self._change(made)

    def _costs(self, alone: Server, made: house.Cluster, messages: int, count: int) -> None:
        leader, [follower] = made.leader(), made.followers()
        url = "penstock://{}:{}".format(*alone.address("flight"))
        publish(url, BATCH)
        publish(made.url, BATCH)
        turns = list[dict[str, float]]()
        for _ in range(TURNS):
            one = confirms(alone.address("amqp")[1], count // TURNS)
            both = confirms(leader.amqp, count // TURNS)
            own = cost(url, messages // TURNS, alone.usage)
            copied = cost(made.url, messages // TURNS, lambda: used(leader), lambda: used(follower))
            turns.append(
                {
                    "confirm": both - one, "throughput": copied.rate / own.rate, "leader": copied.cpu[0] - own.cpu[0],
                    "follower": copied.cpu[1],
                }
            )  # fmt: skip
        for name in turns[0]:
            self.found[name] = statistics.median(one[name] for one in turns)
        self.found["memory"] = sum(memory(follower.group)) / 2**20

    def _catch_up(self, made: house.Cluster) -> None:
        """A third member comes with an empty folder."""
        size = sum(map(filled, (made.leader().folder / "data/log").glob("*.arrows")))
        have_memory(size)
        new = house.Server(made, made.servers[0].folder.parent / "new", 3, SECTION, "", None)
        made.servers.append(new)
        new.start()
        log = new.folder / "data/log"

        def has() -> int:
            return sum(file.stat().st_size for file in log.glob("*.arrows")) if log.is_dir() else 0

        until(lambda: has() > 0, "the first byte of a copy")
        began, first = time.perf_counter(), has()
        until(lambda: has() >= 0.95 * size, "a copy of all")
        self.found["catch up"] = (has() - first) / (time.perf_counter() - began) / 1e6
        made.level()

    def _change(self, made: house.Cluster) -> None:
        leader = made.leader()
        leader.kill()
        taken = until(lambda: any(one.runs and one.serves for one in made.servers), "a takeover")
        self.found["takeover"] = max(0.0, taken - LEASE_S)
        leader.start()
        made.level()
        leader = made.leader()
        others = [one for one in made.servers if one is not leader]
        process = leader.process
        assert process is not None
        process.terminate()
        self.found["hand over"] = until(lambda: any(one.serves for one in others), "a hand-over")


def main() -> None:
    """Some runs, and the median of each figure beside its budget."""
    options = parser(__doc__ or "", messages=1_000_000, repeat=3, quick=20_000)
    options.add_argument("--own-core", action="store_true", help="a core for the process that decides alone")
    given = parse(options)
    compile_sources(ROOT / "src")
    count = 20 if given.quick else CONFIRMS
    with work_folder(given.folder) as folder:
        runs = [
            Run(folder / str(number), given.messages, count, own_core=given.own_core).found
            for number in range(given.repeat)
        ]
    settings = {"messages": given.messages, "body": BODY, "members": 2, "lease": LEASE_S, "own_core": given.own_core}

    def told(name: str) -> list[float]:
        return [one[name] for one in runs]

    emit("cluster: confirm, beyond alone", told("confirm"), "ms", budget=ROUND_TRIP_MS + 0.3, settings=settings)
    shares = told("throughput")
    emit("cluster: throughput, of alone", shares, "share", budget=0.7, sense="at least", settings=settings)
    emit("cluster: leader, CPU beyond alone", told("leader"), "us/message", budget=0.15, settings=settings)
    emit("cluster: follower, CPU", told("follower"), "us/message", budget=0.5, settings=settings)
    emit("cluster: memory of a follower", told("memory"), "MiB", budget=150.0, settings=settings)
    emit("cluster: catching up", told("catch up"), "MB/s", budget=300.0, sense="at least", settings=settings)
    emit("cluster: takeover after the lease", told("takeover"), "s", budget=5.0, settings=settings)
    emit("cluster: hand-over", told("hand over"), "s", budget=1.0, settings=settings)


if __name__ == "__main__":
    main()
