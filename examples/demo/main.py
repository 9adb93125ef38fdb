"""The demo: a year of flights through AMQP, Arrow Flight, workers, dead letters and Spark, and a kill -9 in the middle.

    make demo
    .venv/bin/python examples/demo/main.py --flights 20000 --output /tmp/demo

Ends with a table that compares every figure with the truth; exit status 1 if any is off by one, 2 if it could not be
run to its end, 130 after Ctrl-C.  Leaves nothing behind but the output folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import findings
import flights
import publishers
import workers
from measuring import Measured, measure, ping
from processes import Crew, Failure, Server, adopt, sweep
from rich.console import Console
from shared import ALLOWED, OVER, RATE, World, counters, read_books
from watching import Eyes, Screen

import penstock
from penstock.spark.sessions import find_java

HERE = Path(__file__).resolve().parent

PIKA_PUBLISHERS = 4
PIKA_SHARE = 40_000 / 336_776
PIKA_SLOTS = slice(0, PIKA_PUBLISHERS)
FLIGHT_SLOT = PIKA_PUBLISHERS
WORKERS: tuple[tuple[str, Callable[[World, int, int], None]], ...] = (
    ("pika worker 1", workers.work_with_pika),
    ("pika worker 2", workers.work_with_pika),
    ("SDK worker 1", workers.work_with_sdk),
    ("SDK worker 2", workers.work_with_sdk),
)
FIRST_WORKER = FLIGHT_SLOT + 1
WATCH_SLOT = FIRST_WORKER + len(WORKERS)

RATES = (3_000, 6_000)
"""Rows a second that the Flight publisher may send before and after the kill; four workers on two cores keep up."""

SHORTEST_S = 5
"""With few flights it takes its time, for there must be a middle to be killed in."""

KILL_FROM, KILL_AT_LAST = 0.6, 0.8
"""The Flight publisher waits at the first share of its rows until all others are at work; at the second one the server
is killed whatever they do at that moment."""

LOOK_S = 0.25
START_S = 60.0
LONGEST_S = 200.0


class Demo:
    """One run.  Its steps, in the order of `run`."""

    def __init__(self, options: argparse.Namespace, console: Console, folder: Path) -> None:
        self.console = console
        self.folder = folder
        self.spark: bool = options.spark
        self.output: Path = options.output
        if self.spark:
            find_java()
        table = flights.load(options.flights)
        self.truth = flights.truth(table)
        self.count = table.num_rows
        self.by_pika = round(self.count * PIKA_SHARE) // PIKA_PUBLISHERS * PIKA_PUBLISHERS
        self.server = Server(folder, self._settings())
        self.world = World(folder, self.server.amqp, self.server.url, counters(WATCH_SLOT + 1), counters(3))
        flights.save(table, self.world.table)
        self.crew = Crew()
        self.eyes = Eyes(self.server.url)
        self.recovered: dict[str, float] = {}

    def _settings(self) -> Path:
        """demo.toml, without Spark's part when Spark is not wanted."""
        text = (HERE / "demo.toml").read_text()
        if not self.spark:
            text = text.partition("# What follows is Spark's part")[0]
        path = self.folder / "demo.toml"
        path.write_text(text)
        return path

    # -- what is going on

    def counts(self) -> dict[str, int]:
        """One look at everything."""
        pika, flight = sum(self.world.counters[PIKA_SLOTS]), int(self.world.counters[FLIGHT_SLOT])
        queues = self.eyes.look()  # later than the publishers' counts, so that it holds all they speak of
        stored = pika + flight
        dead = self.eyes.count("dead", "ready")

        def through(queue: str) -> int:
            """Of what was published, how much has left this queue."""
            if queue not in queues:
                return 0
            return max(0, stored - self.eyes.count(queue, "ready", "leased", "delayed", "dying"))

        counts = {"pika": pika, "flight": flight, "worked": max(0, through("work") - dead), "dead": dead}
        if self.spark:
            counts["spark"] = through("to-spark")
        return counts

    def until(self, screen: Screen, done: Callable[[dict[str, int]], bool], what: str, patience: float) -> None:
        """Look at everything until it is so.  Failure when it takes too long."""
        deadline = time.monotonic() + patience
        while True:
            self.server.check()
            self.crew.look()
            counts = self.counts()
            screen.show(counts)
            if done(counts):
                return
            if time.monotonic() > deadline:
                raise Failure(f"{what}: not after {patience:g} s; {counts}\n{self.eyes.queues}\n{self.server.told()}")
            time.sleep(LOOK_S)

    # -- the steps

    def run(self) -> bool:
        """All of it; whether every figure was right."""
        bars = {
            "pika": ("published by pika, confirmed one by one", self.by_pika),
            "flight": ("published as Arrow batches, Flight", self.count - self.by_pika),
            "worked": ("worked by pika and SDK workers", len(self.truth.workable)),
            "dead": ("dead letters after three attempts", len(self.truth.poison)),
        }
        if self.spark:
            bars["spark"] = ("through the Spark pipeline", self.count)
        with Screen(self.console, bars) as screen:
            self._start(screen)
            self.until(screen, lambda _: self.server.ready() is not None, "the server ready", START_S)
            screen.say(f"server ready: AMQP {self.server.amqp[1]}, Flight {self.server.url.rpartition(':')[2]}")
            self._kill(screen)
            self._finish(screen)
        figures, measured = self._judge(screen)
        import report  # who publishes and works loads this file too, and draws nothing

        return report.tell(self.console, self.output, figures, measured, screen.history, self.spark_table)

    @property
    def spark_table(self) -> Path | None:
        """Spark's Parquet output."""
        return self.folder / "delays" if self.spark else None

    def _start(self, screen: Screen) -> None:
        """Everybody at work."""
        world, crew = self.world, self.crew
        rows = self.count - self.by_pika
        world.orders[ALLOWED] = int(rows * KILL_FROM)
        world.orders[RATE] = int(min(RATES[0], rows / SHORTEST_S))
        share = self.by_pika // PIKA_PUBLISHERS
        for slot in range(PIKA_PUBLISHERS):
            crew.start(f"pika publisher {slot + 1}", publishers.publish_with_pika, world, slot, slot * share, share)
        crew.start("Flight publisher", publishers.publish_with_flight, world, FLIGHT_SLOT, self.by_pika)
        for place, (name, work) in enumerate(WORKERS):
            crash_after = max(20, self.count * (place + 1) // 80)  # each of them once, one after the other
            crew.start(name, work, world, FIRST_WORKER + place, crash_after)
        crew.start("watcher", workers.watch, world, WATCH_SLOT, "late")
        screen.say(
            f"started {PIKA_PUBLISHERS} pika publishers, 1 Flight publisher, {len(WORKERS)} workers and 1 watcher"
        )

    def _kill(self, screen: Screen) -> None:
        """kill -9, while everybody is busy, and wait until the supervisor has brought the server back."""
        rows = self.count - self.by_pika

        def started(counts: dict[str, int]) -> bool:
            quarter = counts["flight"] > rows // 4 and counts["worked"] > 0
            return quarter and self.crew.gone("pika publisher") and (not self.spark or counts["spark"] > 0)

        def busy(counts: dict[str, int]) -> bool:
            working = self.eyes.count("work", "leased") > 0
            planned = not self.spark or self.eyes.count("to-spark", "leased") > 0
            return (working and planned) or counts["flight"] > rows * KILL_AT_LAST

        self.until(screen, started, "everybody at work", LONGEST_S)
        self.world.orders[ALLOWED] = rows
        self.until(screen, busy, "everybody busy", LONGEST_S)
        self.world.orders[RATE] = RATES[1]
        time.sleep(random.uniform(0.1, 0.5))
        before = screen.now
        pid = self.server.kill()
        screen.history.killed = before
        screen.say(f"[bold red]kill -9[/bold red] of the server, process {pid}")
        self.until(screen, lambda _: self.server.ready(other_than=pid) is not None, "the server back", START_S)
        screen.history.back = screen.now
        self.recovered = (self.server.ready() or {}).get("recovered", {})
        screen.say(
            f"server back {screen.now - before:.1f} s later: {self.recovered['records']:,} records read again in "
            f"{self.recovered['seconds']:.2f} s"
        )

    def _finish(self, screen: Screen) -> None:
        """Until nothing is left to do, and everybody has gone home."""

        def done(counts: dict[str, int]) -> bool:
            open_ = [queue for queue in self.eyes.queues if queue not in {"dead", "united", "ping"}]
            return (
                self.crew.gone("Flight publisher")
                and self.eyes.fresh
                and not any(self.eyes.count(queue, "ready", "leased", "delayed", "dying") for queue in open_)
            )

        self.until(screen, done, "all work done", LONGEST_S)
        self.world.orders[OVER] = 1
        self.crew.end(20.0)
        screen.show(self.counts())
        screen.say("all work done, everybody gone home")

    def _judge(self, screen: Screen) -> tuple[list[findings.Figure], Measured]:
        """Every figure beside its truth, with the server running and then without."""
        with self.console.status("comparing with the data set"), penstock.connect(self.server.url) as client:
            books = read_books(self.folder / "worked")
            figures = [
                *findings.published(client, self.truth),
                *findings.view_watched(self.world, self.truth),
                *findings.view_unread(client, self.truth),
                *findings.worked(books, self.truth),
                *findings.dead(client, self.truth),
            ]
            if self.spark:
                figures += findings.spark_groups(client, self.folder / "delays", self.truth)
            measured = measure(self.folder, books, read_books(self.folder / "late"))
            measured.commits = findings.commits(client) if self.spark else 0
            measured.quiet = ping(client)
            figures += findings.leftovers(client, self.spark)
        measured.recovered = self.recovered
        measured.outage = (screen.history.back or 0) - (screen.history.killed or 0)
        self.eyes.close()
        figures.append(findings.Figure("faults", "workers that crashed in mid-lease", len(WORKERS), self.crew.crashes))
        self.server.stop()
        import report

        with self.console.status("penstock audit"):
            measured.audit = report.audit(self.folder / "data")
        figures.append(findings.Figure("audit", "guarantees broken in the log", 0, measured.audit.broken))
        return figures, measured


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--flights", type=int, metavar="N", help="about so many flights instead of all")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave the Spark pipeline out")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder of the results")
    return parser.parse_args()


def main() -> int:
    """Run it; the exit status."""
    options = arguments()
    console = Console()
    _on_stop(_end)
    adopt()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(sweep)
        stack.callback(_on_stop, signal.SIG_IGN)  # a second Ctrl-C must not keep us from cleaning up
        try:
            return 0 if Demo(options, console, folder).run() else 1
        except (Failure, penstock.PenstockError) as error:
            console.print(f"demo: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
            return 2
        except KeyboardInterrupt:
            console.print("demo: stopped; its processes and its folder go now")
            return 130


def _on_stop(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
