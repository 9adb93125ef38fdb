"""Many ordinary AMQP clients, each with one message in flight: CPU a message, rate, and how long a confirm takes.

    python benchmarks/bench_clients.py --mode publish-300 --seconds 6 --repeat 3

The modes are those of `crowd_loads`, each on a server of its own (one for all with --quick):

"""

from __future__ import annotations

import argparse
from pathlib import Path

import crowd_loads
from crowd import allow_many
from crowd_amqp import AmqpDoor
from crowd_loads import QUEUES, SIZE, Load, Outcome, load, run
from harness import Server, emit, filesystem, work_folder

BUDGETS: dict[str, dict[str, float]] = {
    "publish-300": {"cpu": 40.0},
    "work-300": {"cpu": 100.0},
    "paced-2000": {"p99": 30.0},
}
"""Microseconds of CPU a message, milliseconds of a confirm."""

MODES = (
    "one",
    "publish-1", "publish-20", "publish-300", "publish-2000",
    "work-1", "work-20", "work-300", "work-2000",
    "request-1", "request-20", "request-300", "request-2000", "request-direct-300",
    "paced-20", "paced-300", "paced-2000", "paced-work-300",
)  # fmt: skip
QUICK = ("publish-3", "work-3", "paced-3", "paced-work-3", "request-3", "request-direct-3", "one")


def measure(folder: Path, loads: dict[str, Load], given: argparse.Namespace) -> None:
    """Run loads, each time on a server for all of them; print their figures."""
    outcomes: dict[str, list[Outcome]] = {mode: [] for mode in loads}
    for turn in range(given.repeat):
        with Server(folder / f"{next(iter(loads))}-{turn}") as server:
            door = AmqpDoor(server.address("amqp"))
            for mode, one in loads.items():
                outcomes[mode].append(run(door, server, one, given.seconds))
            server.stop()
    for mode, one in loads.items():
        _tell(folder, mode, one, outcomes[mode])


def _tell(folder: Path, mode: str, one: Load, outcomes: list[Outcome]) -> None:
    settings: dict[str, object] = {"clients": one.clients, "queues": min(QUEUES, one.clients), "bytes": SIZE}
    settings |= {"filesystem": filesystem(folder), "client_us": round(outcomes[-1].client_us, 1)}
    budget = BUDGETS.get(mode, {})
    cpu = [outcome.cpu_us for outcome in outcomes]
    emit(f"{one.title}: server CPU", cpu, "us/msg", budget=budget.get("cpu"), settings=settings)
    emit(f"{one.title}: rate", [outcome.rate for outcome in outcomes], "msgs/s", settings=settings)
    p50, p99 = [outcome.p50 for outcome in outcomes], [outcome.p99 for outcome in outcomes]
    emit(f"{one.title}: {one.answer} p50", p50, "ms", settings=settings)
    emit(f"{one.title}: {one.answer} p99", p99, "ms", budget=budget.get("p99"), settings=settings)
    if one.kind == "one":
        delivered = [outcome.delivered_p50 for outcome in outcomes]
        emit(f"{one.title}: delivered p50", delivered, "ms", settings=settings)


def main() -> None:
    """Run the modes asked for."""
    description = f"{__doc__}{(crowd_loads.__doc__ or '').partition(chr(10))[2].lstrip()}"
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mode", action="append", help="one of the above; may be repeated (default: all)")
    options.add_argument("--seconds", type=float, default=6.0, help="how long messages are sent")
    options.add_argument("--repeat", type=int, default=3, help="runs of which the median is told")
    options.add_argument("--folder", type=Path, help="where data folders are made (default: the temporary folder)")
    options.add_argument("--quick", action="store_true", help="a few messages, once: shows that it works")
    given = options.parse_args()
    allow_many()
    modes = given.mode or list(MODES)
    if given.quick:
        modes, given.seconds, given.repeat = given.mode or list(QUICK), 0.3, 1
    try:
        loads = {mode: load(mode) for mode in modes}
    except ValueError as error:
        options.error(str(error))
    with work_folder(given.folder) as folder:
        for group in [loads] if given.quick else [{mode: one} for mode, one in loads.items()]:
            measure(folder, group, given)


if __name__ == "__main__":
    main()
