"""Restart after kill -9 with messages waiting: seconds from the start of the process to the first delivery.

    python benchmarks/bench_restart.py [--messages 10000000]

With a million waiting and with `--messages`.  The log is made by live varied load (50 to 150 bytes, 50 topics in random
order in one queue) and never merged; files stay in the page cache, and the checkpoints are those that the server wrote.
Each run kills, starts, takes one message and makes its ack durable.  At the end every message is consumed and checked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from amqp_client import Link, publish
from bench_amqp import one_queue
from bench_recovery import first_delivery
from harness import Server, Wrong, emit, parse, parser, work_folder

BUDGETS = {1_000_000: 0.8, 10_000_000: 3.0}
"""Seconds, by messages waiting."""


def restart(folder: Path, messages: int, repeat: int, budget: float | None) -> None:
    """Fill, then kill and start again and again."""
    delivery: list[float] = []
    recovery: list[float] = []
    with Server(folder) as server:
        place = one_queue(server.address("amqp"), "deep")
        publish(place.address, place.workload, messages)
        for skip in range(repeat):
            server.kill()
            server.start()
            place.address = server.address("amqp")
            recovery.append(server.recovery_s)
            delivery.append(first_delivery(server, place, skip))
        with Link(place.address) as link:
            left = link.declare(place.name, passive=True)
            link.close()
        if left != messages - repeat:
            raise Wrong(f"{left} messages are there after {repeat} restarts, {messages - repeat} must be")
        settings: dict[str, object] = {"messages": messages, "log_mib": round(server.log_bytes() / 2**20, 1)}
        place.drain(messages - repeat, repeat, redelivered=True)
        server.stop()
    emit(f"restart with {messages:,} waiting: first delivery", delivery, "s", budget=budget, settings=settings)
    emit(f"restart with {messages:,} waiting: recovery in it", recovery, "s", settings=settings)


def main() -> None:
    """A million, then as many as asked for."""
    options = parser(__doc__ or "", messages=10_000_000, repeat=3)
    given: argparse.Namespace = parse(options)
    with work_folder(given.folder) as folder:
        for messages in sorted({min(1_000_000, given.messages), given.messages}):
            restart(folder / str(messages), messages, given.repeat, BUDGETS.get(messages))


if __name__ == "__main__":
    main()
