"""Connections at rest: what each one holds in its door and in the core, and what all cost while they do nothing.

    python benchmarks/bench_connections.py --messages 20000

`--messages` connections log in over two doors (`doors = 2`), open a channel each, and then do as idle clients do: a
heart every thirty seconds, and one is sent to them.  Memory is what a process has for itself alone, beyond what it had
after a thousand connections, a tenth of all at most, came and went.  Clients are processes of their own, with 5,000
connections each, since a process may often have no more descriptors.

Told are the memory that a connection takes in its door and in the core, that of each process, the CPU that all of them
cost meanwhile, how many were opened a second, and how soon one more is open.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from amqp_client import Link
from crowd import allow_many
from harness import Server, Wrong, cpu_of, emit, parse, parser, percentile, private, tree, until, work_folder

DOORS = 2
HEART_S = 30
EACH = 5_000
"""Connections of a process of clients."""
WARM = 1_000
REST_S = 60.0
MORE = 100
HEART = b"\x08\0\0\0\0\0\0\xce"

CLIENTS = """
import sys
import bench_connections
bench_connections.rest((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]))
"""


def rest(address: tuple[str, int], count: int) -> None:
    """What a process of clients does: opens all, says so, and sends hearts until its input ends."""
    allow_many()
    Link.heartbeat = 2 * HEART_S
    links = [Link(address) for _ in range(count)]
    print("open", flush=True)
    while True:
        began = time.monotonic()
        for link in links:
            link.sock.sendall(HEART)
            link.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not link.sock.recv(1 << 12):
                    raise Wrong("a connection at rest was closed")
        time.sleep(max(0.0, began + HEART_S - time.monotonic()))


@contextlib.contextmanager
def resting(address: tuple[str, int], count: int) -> Generator[list[subprocess.Popen[str]]]:
    """So many connections, open while this lasts."""
    host, port = address
    sizes = [min(EACH, count - at) for at in range(0, count, EACH)]
    here = str(Path(__file__).parent)
    with contextlib.ExitStack() as stack:
        clients = list[subprocess.Popen[str]]()
        for size in sizes:
            command = [sys.executable, "-c", CLIENTS, host, str(port), str(size)]
            client = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=here))
            stack.callback(client.kill)
            clients.append(client)
        for client in clients:
            assert client.stdout is not None
            if client.stdout.readline() != "open\n":
                raise Wrong("not all connections could be opened")
        yield clients


def doors_of(server: Server) -> list[int]:
    """The processes of the AMQP doors."""
    found = [pid for pid in tree(server.pid) if b"amqp.front" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    if len(found) != DOORS:
        raise Wrong(f"there are {len(found)} AMQP doors, {DOORS} were wanted")
    return found


def descriptors(pids: list[int]) -> int:
    """How many files and sockets these processes have open."""
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def one_more(address: tuple[str, int]) -> float:
    """Milliseconds until another one is open."""
    began = time.perf_counter()
    with Link(address):
        return 1e3 * (time.perf_counter() - began)


class Figure(NamedTuple):
    """What is measured in each run."""

    what: str
    unit: str
    budget: float | None = None


IN_DOOR = Figure("in its door", "KiB/connection", 12.0)
IN_CORE = Figure("in the core", "KiB/connection", 2.0)
OF_CORE, OF_DOOR = Figure("memory of the core", "MiB"), Figure("memory of a door", "MiB")
CPU_OF_CORE, CPU_OF_DOORS = Figure("CPU of the core", "% of a core"), Figure("CPU of the doors together", "% of a core")
OPENED, ONE_MORE = Figure("opened", "1/s"), Figure("one more is open after", "ms")


def at_rest(folder: Path, count: int, seconds: float) -> dict[Figure, float]:
    """So many connections to a server of its own."""
    with Server(folder, environ={"PENSTOCK_SERVER__DOORS": str(DOORS)}) as server:
        address = server.address("amqp")
        core, doors = server.pid, doors_of(server)
        idle = descriptors(doors)
        with resting(address, min(WARM, count // 10)):
            pass
        until(lambda: descriptors(doors) <= idle, "the first connections have gone")
        time.sleep(seconds / 10)
        before = {pid: private(pid) for pid in (core, *doors)}
        began = time.perf_counter()
        with resting(address, count) as clients:
            opened = count / (time.perf_counter() - began)
            time.sleep(seconds / 10)
            cpu, began = {pid: cpu_of(pid) for pid in before}, time.perf_counter()
            time.sleep(seconds)
            took = time.perf_counter() - began
            used = {pid: 100 * (cpu_of(pid) - cpu[pid]) / took for pid in before}
            holds = {pid: private(pid) for pid in before}
            more = percentile([one_more(address) for _ in range(min(MORE, count))], 0.5)
            if any(client.poll() is not None for client in clients):
                raise Wrong("connections at rest were lost")
        server.stop()
    return {
        IN_DOOR: sum(holds[pid] - before[pid] for pid in doors) / count / 1024,
        IN_CORE: (holds[core] - before[core]) / count / 1024,
        OF_CORE: holds[core] / 2**20,
        OF_DOOR: max(holds[pid] for pid in doors) / 2**20,
        CPU_OF_CORE: used[core],
        CPU_OF_DOORS: sum(used[pid] for pid in doors),
        OPENED: opened,
        ONE_MORE: more,
    }


def main() -> None:
    """Run it.  `--messages` is the number of connections."""
    given = parse(parser(__doc__ or "", messages=20_000, repeat=1, quick=500))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < given.messages / DOORS + 1000:
        raise SystemExit(f"a process may have too few descriptors for {given.messages:,} connections: see ulimit -Hn")
    with work_folder(given.folder) as folder:
        seconds = 1.0 if given.quick else REST_S
        runs = [at_rest(folder / f"run-{turn}", given.messages, seconds) for turn in range(given.repeat)]
    settings: dict[str, object] = {"connections": given.messages, "doors": DOORS, "heartbeat_s": 2 * HEART_S}
    for figure in runs[0]:
        what = f"{given.messages:,} connections at rest: {figure.what}"
        emit(what, [run[figure] for run in runs], figure.unit, budget=figure.budget, settings=settings)


if __name__ == "__main__":
    main()
