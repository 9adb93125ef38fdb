"""Recovery after kill -9 with millions of messages waiting, written by live varied load.

    python benchmarks/bench_recovery.py --messages 5000000

Bodies of 50 to 150 bytes over 50 topics in random order in one queue; files stay in the page cache.  Twice: with the
checkpoints the server wrote, and with them deleted.  Told are the seconds of recovery (from the ready file) and those
from the start of the process to its first delivery.  At the end every message is consumed and checked.
"""

from __future__ import annotations

import argparse
import shutil
import time

from amqp_client import Link, publish
from bench_amqp import Place, one_queue, uniform
from harness import Server, Wrong, emit, parse, parser, work_folder

FIRST_DELIVERY_S = ((1_000_000, 0.8), (10_000_000, 3.0))
"""Up to so many messages, from the start of the process to its first delivery."""


def first_delivery(server: Server, place: Place, skip: int) -> float:
    """Take one message, the `skip`-th from 0 on, and make its ack durable; seconds since the process was spawned."""
    stream = place.workload.delivered("bench", first=1 - skip, redelivered=True)
    start, stop = stream.offset(skip), stream.offset(skip + 1)
    with Link(place.address) as link:
        link.consume(place.name, "bench", 1)
        while len(link.rest) < stop - start:
            data = link.sock.recv(65536)
            if not data:
                raise Wrong("the server closed the connection")
            link.rest += data
        seconds = time.perf_counter() - server.spawned
        stream.check(link.rest, start)
        link.rest = b""
        link.cancel("bench")
        link.ack(1)
        link.round_trip()
        link.close()
    # A later record that is confirmed says that the ack before it is on disk.
    mark = uniform(place.address, "mark")
    publish(mark.address, mark.workload, 1)
    mark.remove()
    return seconds


def recover(server: Server, place: Place, runs: int, *, checkpoints: bool, skip: int, messages: int) -> int:
    """Kill and start again, several times; how many messages are gone from the queue's head by now."""
    recovery: list[float] = []
    delivery: list[float] = []
    for _ in range(runs):
        server.kill()
        folder = server.data / "checkpoints"
        if not checkpoints and folder.exists():
            shutil.rmtree(folder)
        server.start()
        place.address = server.address("amqp")
        recovery.append(server.recovery_s)
        delivery.append(first_delivery(server, place, skip))
        skip += 1
        with Link(place.address) as link:
            left = link.declare(place.name, passive=True)
            link.close()
        if left != messages - skip:
            raise Wrong(f"{left} messages are there after recovery, {messages - skip} must be")
    kind = "with checkpoints" if checkpoints else "checkpoints deleted"
    log_mib = round(server.log_bytes() / 2**20, 1)
    settings: dict[str, object] = {"messages": messages, "log_mib": log_mib, "checkpoints": checkpoints}
    settings["records"] = server.ready["recovered"]
    emit(f"recovery, {kind}", recovery, "s", budget=0.5 if checkpoints else 2.5, settings=settings)
    within = next((budget for most, budget in FIRST_DELIVERY_S if messages <= most), None) if checkpoints else None
    emit(f"process start to first delivery, {kind}", delivery, "s", budget=within, settings=settings)
    return skip


def main() -> None:
    """Fill, kill, recover, check."""
    options = parser(__doc__ or "", messages=5_000_000, repeat=3)
    options.add_argument("--keep-checkpoints", action="store_true", help="leave out the runs without checkpoints")
    given = parse(options)
    with work_folder(given.folder) as folder, Server(folder) as server:
        _run(server, given)


def _run(server: Server, given: argparse.Namespace) -> None:
    place = one_queue(server.address("amqp"), "deep")
    publish(place.address, place.workload, given.messages)
    skip = recover(server, place, given.repeat, checkpoints=True, skip=0, messages=given.messages)
    if not given.keep_checkpoints:
        skip = recover(server, place, given.repeat, checkpoints=False, skip=skip, messages=given.messages)
    place.drain(given.messages - skip, skip, redelivered=True)
    server.stop()


if __name__ == "__main__":
    main()
