"""Memory of waiting messages, and bytes of log a message.

    python benchmarks/bench_memory.py --messages 10000000

The body cache is set to 8 MiB (`PENSTOCK_SERVER__MEMORY=8MiB`).  What counts is the resident memory of the server's
process beyond that of the empty server and of the cache, divided by the messages that wait: all in one queue (fifo),
or in random order in 50 queues (interleaved).  The bulk child, which ends when it is idle, is told by itself.  Every
message is consumed and checked afterwards.

fifo         100-byte bodies, one queue
interleaved  bodies of 50 to 150 bytes over 50 topics in random order, a queue each
file-backed  as interleaved, with `file_backed_metadata`; then the state of one queue alone, on the heap and in a file
log          100 random bytes of body, published in batches of 1,000: bytes in the segment files a message
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from amqp_client import publish
from bench_amqp import Place, file_backed_queues, many_queues, uniform
from harness import Server, emit, memory, parse, parser, work_folder
from paged_state import measured

CACHE = 8 << 20
SETTLE_S = 2.0
"""Time the server gets to write what it still holds, before its memory is read."""

PAGED_S = 15.0
"""The same where state goes to a file, a second or two after it came; its pages leave memory every five seconds."""

MAKE = {"fifo": uniform, "interleaved": many_queues, "file-backed": file_backed_queues}

LOG_MESSAGES = 500_000


def waiting(folder: Path, given: argparse.Namespace, mode: str) -> None:
    """Memory with all messages waiting, and again when they are gone."""
    beyond: list[float] = []
    drained: list[float] = []
    children: list[float] = []
    n: int = given.messages
    for run in range(given.repeat):
        environ = {"PENSTOCK_SERVER__MEMORY": "8MiB"}
        with Server(folder / f"{mode}{run}", environ=environ) as server:
            empty = memory(server.pid).own
            place = MAKE[mode](server.address("amqp"), "deep")
            publish(place.address, place.workload, n)
            time.sleep(0.0 if given.quick else PAGED_S if mode == "file-backed" else SETTLE_S)
            full, child = memory(server.pid)
            place.drain(n)
            after = memory(server.pid).own
            server.stop()
        beyond.append((full - empty - CACHE) / n)
        drained.append((after - empty) / 2**20)
        children.append(child / 2**20)
    settings: dict[str, object] = {"messages": n, "cache_mib": CACHE >> 20, "queues": len(place.queues)}
    settings["empty_mib"] = round(empty / 2**20, 1)
    budget = 10.0 if mode == "fifo" else 16.0
    emit(f"memory of waiting messages, {mode}", beyond, "bytes/message", budget=budget, settings=settings)
    emit(f"memory after the drain, {mode}", drained, "MiB beyond empty", settings=settings)
    emit(f"memory of the bulk child meanwhile, {mode}", children, "MiB", settings=settings)


def state_alone(given: argparse.Namespace) -> None:
    """The state of one queue, waiting and leased, on the heap and in a file."""
    n: int = given.messages
    for backed, where in ((False, "on the heap"), (True, "in a file")):
        runs = [measured(n, backed=backed) for _ in range(given.repeat)]
        for what, values in zip(("waiting", "leased"), zip(*runs, strict=True), strict=True):
            emit(f"state of one queue, {what}, {where}", list(values), "bytes/message", settings={"messages": n})


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
    options = parser(__doc__ or "", messages=10_000_000, repeat=1)
    options.add_argument("--mode", action="append", choices=[*MAKE, "log"], help="default: all")
    given = parse(options)
    with work_folder(given.folder) as folder:
        for mode in given.mode or [*MAKE, "log"]:
            if mode == "log":
                log_size(folder, given)
            else:
                waiting(folder, given, mode)
            if mode == "file-backed":
                state_alone(given)


if __name__ == "__main__":
    main()
