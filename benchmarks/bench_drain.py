"""Draining deep queues from the disk, cold: server CPU a message, acks every 100.

    python benchmarks/bench_drain.py [--messages 10000000]
    python benchmarks/bench_drain.py --mode interleaved --messages 1000000

The queues are filled, the server stopped, the system told to forget its pages of the log, and the
server started with a cache of 8 MiB: so every body comes from the disk.  Every delivery is checked.  Told are the CPU
of all server processes a message, that of the server's own process, and how fast it went; and how much of the log the
system had forgotten.

one          bodies of 100 bytes in one queue, one consumer
varied       the same with sizes and topics varied
interleaved  50 queues whose messages lie in the log in random order, a consumer each, all at once
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
from amqp_client import Consumer, Link, drive, empty, publish
from bench_amqp import PREFETCH, Place, many_queues, one_queue, uniform
from harness import Server, Span, emit, parse, parser, work_folder

CACHE = "8MiB"
ACK_EVERY = 100
BUDGETS_US = {"one": 1.5, "varied": 2.0, "interleaved": 2.0}
MOST = {"one": 100_000_000, "varied": 100_000_000, "interleaved": 1_000_000}
PLACES = {"one": uniform, "varied": one_queue, "interleaved": many_queues}
TELLS = {
    "one": "drain from disk, cold",
    "varied": "drain of varied messages from disk, cold",
    "interleaved": "drain of 50 interleaved queues from disk, cold",
}


def forget(folder: Path) -> float:
    """Have the system drop the pages of all files of a folder; the share that is still there."""
    there = pages = 0
    for path in sorted(folder.iterdir()):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found, of = resident(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        there, pages = there + found, pages + of
    return there / max(1, pages)


def resident(fd: int, size: int) -> tuple[int, int]:
    """Pages of a file that are in memory, and all of its pages: mincore(2)."""
    if not size:
        return 0, 0
    count = -(-size // mmap.PAGESIZE)
    answer = (ctypes.c_ubyte * count)()
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), answer)
        del view  # else the map cannot be closed
    return (0 if failed else sum(page & 1 for page in answer)), count


def own(pid: int) -> float:
    """CPU seconds of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drain(server: Server, place: Place, messages: int) -> tuple[Span, float]:
    """Consume all queues at once; the span, and CPU seconds of the server's own process alone."""
    with ExitStack() as links:
        consumers = list[Consumer]()
        before = own(server.pid)
        with Span(server) as span:
            for name, topic in place.queues.items():
                share = messages if topic is None else place.workload.share(topic, messages)
                if share:
                    link = links.enter_context(closing(Link(place.address)))
                    consumers.append(
                        Consumer(link, place.workload, share, name, topic=topic, prefetch=PREFETCH, ack_every=ACK_EVERY)
                    )
            drive(*consumers)
            for consumer in consumers:
                consumer.finish()
        alone = own(server.pid) - before
    for name in place.queues:
        empty(place.address, name)
    return span, alone


def cold(folder: Path, mode: str, n: int, repeat: int) -> None:
    """Fill, forget, drain."""
    costs, alone, rates = list[float](), list[float](), list[float]()
    warm = 0.0
    for run in range(repeat):
        with Server(folder / f"{mode}{run}", environ={"PENSTOCK_SERVER__MEMORY": CACHE}) as server:
            place = PLACES[mode](server.address("amqp"), "deep")
            publish(place.address, place.workload, n)
            server.stop()
            warm = forget(server.data / "log")
            server.start()
            place.address = server.address("amqp")
            span, own_s = drain(server, place, n)
            server.stop()
        costs.append(span.server_s / n * 1e6)
        alone.append(own_s / n * 1e6)
        rates.append(n / span.wall_s)
    settings: dict[str, object] = {"messages": n, "ack_every": ACK_EVERY, "cache": CACHE}
    settings |= {"queues": len(place.queues), "still_in_page_cache": round(warm, 4)}
    what = TELLS[mode]
    emit(f"{what}: server CPU", costs, "us/message", budget=BUDGETS_US[mode], settings=settings)
    emit(f"{what}: CPU of the server's own process", alone, "us/message", settings=settings)
    emit(f"{what}: rate", rates, "messages/s", settings=settings)


def main() -> None:
    """Run the modes asked for."""
    options = parser(__doc__ or "", messages=10_000_000, repeat=1)
    options.add_argument("--mode", action="append", choices=list(TELLS), help="default: one")
    given = parse(options)
    with work_folder(given.folder) as folder:
        for mode in given.mode or ["one"]:
            cold(folder, mode, min(given.messages, MOST[mode]), given.repeat)


if __name__ == "__main__":
    main()
