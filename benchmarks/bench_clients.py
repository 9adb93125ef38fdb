"""Many ordinary AMQP clients, each with one message in flight: CPU a message, rate, and how long a confirm takes.

    python benchmarks/bench_clients.py --mode publish-300 --seconds 6 --repeat 3

Persistent messages of 300 bytes with an id of their own, a time and two headers, over 50 queues, a confirm after each.

publish-N    N connections publish, each as soon as its last message is confirmed
work-N       the same, and N connections with a prefetch of 1 acknowledge each message
paced-N      N connections publish ten messages a second each, whatever the server does
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from amqp_client import Link
from harness import Server, Span, Wrong, emit, filesystem, percentile, work_folder
from many_clients import Crowd, Publisher, Worker, allow_many

QUEUES = 50
SIZE = 300
PACE = 10.0
"""Messages a second of each client that is paced."""

BUDGETS: dict[str, dict[str, float]] = {
    "publish-300": {"cpu": 40.0},
    "work-300": {"cpu": 100.0},
    "paced-2000": {"p99": 30.0},
}
"""Microseconds of CPU a message, milliseconds of a confirm."""

MODES = (
    "publish-1", "publish-20", "publish-300", "publish-2000", "work-1", "work-20", "work-300", "paced-20", "paced-300",
    "paced-2000",
)  # fmt: skip


def crowd(address: tuple[str, int], kind: str, clients: int) -> Crowd:
    """The clients of a mode, all logged in."""
    queues = [f"clients.{number}" for number in range(min(QUEUES, clients))]
    with Link(address) as link:
        for queue in queues:
            link.declare(queue)
    publishers = [Publisher(address, number, queues[number % len(queues)], SIZE) for number in range(clients)]
    seen = [set[int]() for _ in publishers]
    workers: list[Worker] = []
    if kind == "work":
        workers = [Worker(address, queues[number % len(queues)], publishers, seen) for number in range(clients)]
    return Crowd(publishers, workers)


def measure(folder: Path, mode: str, given: argparse.Namespace) -> None:
    """Run a mode on servers of its own; print its figures."""
    kind, _, count = mode.partition("-")
    clients = int(count)
    cpu, rate, p50, p99 = list[float](), list[float](), list[float](), list[float]()
    settings: dict[str, object] = {
        "clients": clients, "queues": min(QUEUES, clients), "bytes": SIZE, "filesystem": filesystem(folder),
    }  # fmt: skip
    for turn in range(given.repeat):
        with Server(folder / f"{mode}-{turn}") as server:
            with closing(crowd(server.address("amqp"), kind, clients)) as all_of_them:
                with Span(server) as span:
                    if kind == "paced":
                        all_of_them.paced(given.seconds, PACE)
                    else:
                        all_of_them.closed_loop(given.seconds)
                took = [one for publisher in all_of_them.publishers for one in publisher.took]
            _check(server, all_of_them)
            server.stop()
        cpu.append(span.server_s / len(took) * 1e6)
        rate.append(len(took) / span.wall_s)
        p50.append(percentile(took, 0.5) * 1e3)
        p99.append(percentile(took, 0.99) * 1e3)
        settings["client_us"] = round(span.client_s / len(took) * 1e6, 1)
    budget = BUDGETS.get(mode, {})
    name = f"{clients} clients, {'ten messages a second each' if kind == 'paced' else kind}"
    emit(f"{name}: server CPU", cpu, "us/msg", budget=budget.get("cpu"), settings=settings)
    emit(f"{name}: rate", rate, "msgs/s", settings=settings)
    emit(f"{name}: confirm p50", p50, "ms", settings=settings)
    emit(f"{name}: confirm p99", p99, "ms", budget=budget.get("p99"), settings=settings)


def _check(server: Server, all_of_them: Crowd) -> None:
    """What was confirmed and not worked off is in the queues."""
    left = sum(one.confirmed for one in all_of_them.publishers) - sum(one.done for one in all_of_them.workers)
    with Link(server.address("amqp")) as link:
        names = min(QUEUES, len(all_of_them.publishers))
        there = sum(link.declare(f"clients.{number}", passive=True) for number in range(names))
    if there != left:
        raise Wrong(f"{left} messages were confirmed and not acknowledged, the queues have {there}")


def main() -> None:
    """Run the modes asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mode", action="append", help="one of the above; may be repeated (default: all)")
    options.add_argument("--seconds", type=float, default=6.0, help="how long messages are sent")
    options.add_argument("--repeat", type=int, default=3, help="runs of which the median is told")
    options.add_argument("--folder", type=Path, help="where data folders are made (default: the temporary folder)")
    options.add_argument("--quick", action="store_true", help="a few messages, once: shows that it works")
    given = options.parse_args()
    allow_many()
    modes = given.mode or list(MODES)
    if given.quick:
        modes, given.seconds, given.repeat = given.mode or ["publish-3", "work-3", "paced-3"], 0.3, 1
    with work_folder(given.folder) as folder:
        for mode in modes:
            if mode.partition("-")[0] not in ("publish", "work", "paced") or not mode.partition("-")[2].isdigit():
                options.error(f"no such mode: {mode}")
            measure(folder, mode, given)


if __name__ == "__main__":
    main()
