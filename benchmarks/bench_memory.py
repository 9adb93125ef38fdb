"""Memory of waiting messages, and bytes of log a message.

    python benchmarks/bench_memory.py --messages 5000000

The body cache is set to 8 MiB (`PENSTOCK_SERVER__MEMORY=8MiB`).  What counts is the resident memory of the process tree
beyond that of the empty server and of the cache, divided by the messages that wait: all in one queue (fifo), or in
random order in 50 queues (interleaved).  Every message is consumed and checked afterwards.

fifo         100-byte bodies, one queue
interleaved  bodies of 50 to 150 bytes over 50 topics in random order, a queue each
log          100 random bytes of body, published in batches of 1,000: bytes in the segment files a message
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from amqp_client import publish
from bench_amqp import Place, many_queues, uniform
from harness import Server, emit, parse, parser, work_folder

CACHE = 8 << 20
SETTLE_S = 2.0
"""Time the server gets to write what it still holds, before its memory is read."""

LOG_MESSAGES = 500_000


def waiting(folder: Path, given: argparse.Namespace, mode: str) -> None:
    """Memory with all messages waiting, and again when they are gone."""
    beyond: list[float] = []
    drained: list[float] = []
    n: int = given.messages
    for run in range(given.repeat):
        environ = {"PENSTOCK_SERVER__MEMORY": "8MiB"}
        with Server(folder / f"{mode}{run}", environ=environ) as server:
            empty = server.usage().resident
            place = (uniform if mode == "fifo" else many_queues)(server.address("amqp"), "deep")
            publish(place.address, place.workload, n)
            time.sleep(0.0 if given.quick else SETTLE_S)
            full = server.usage().resident
            place.drain(n)
            after = server.usage().resident
            server.stop()
        beyond.append((full - empty - CACHE) / n)
        drained.append((after - empty) / 2**20)
    settings: dict[str, object] = {"messages": n, "cache_mib": CACHE >> 20, "queues": len(place.queues)}
    settings["empty_mib"] = round(empty / 2**20, 1)
    budget = 10.0 if mode == "fifo" else 16.0
    emit(f"memory of waiting messages, {mode}", beyond, "bytes/message", budget=budget, settings=settings)
    emit(f"memory after the drain, {mode}", drained, "MiB beyond empty", settings=settings)


def log_size(folder: Path, given: argparse.Namespace) -> None:
    """Bytes of log a message."""
    sizes: list[float] = []
    n = min(given.messages, LOG_MESSAGES)
    for run in range(given.repeat):
        with Server(folder / f"log{run}") as server:
            place = Place.uniform(server.address("amqp"), "log")
            server.stop()
            before = server.log_bytes()
            server.start()
            place = Place.uniform(server.address("amqp"), "log")
            publish(place.address, place.workload, n, 1000, batches=True)
            server.stop()
            sizes.append((server.log_bytes() - before) / n)
            server.start()
            place.address = server.address("amqp")
            place.drain(n)
            server.stop()
    settings = {"messages": n, "body": 100}
    emit("log bytes a message, batches of 1,000", sizes, "bytes/message", budget=180.0, settings=settings)


def main() -> None:
    """Run the modes asked for."""
    options = parser(__doc__ or "", messages=5_000_000, repeat=1)
    options.add_argument("--mode", action="append", choices=["fifo", "interleaved", "log"], help="default: all")
    given = parse(options)
    with work_folder(given.folder) as folder:
        for mode in given.mode or ["fifo", "interleaved", "log"]:
            if mode == "log":
                log_size(folder, given)
            else:
                waiting(folder, given, mode)


if __name__ == "__main__":
    main()
