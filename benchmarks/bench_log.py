"""What the log costs: encoding, commits beside an idle and a busy loop, replay, reading back.

Each figure is one line of JSON on standard output, as `harness.emit` prints it.  `--fast` takes a second or two, for
the tests.  Nothing here is judged by time alone; budgets are printed beside the values.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import emit

from penstock.log.disk import OsDisk
from penstock.log.encode import Encoder
from penstock.log.log import Log
from penstock.log.writer import LogSettings
from penstock.records.entries import Publishes, Topic

ORDERS = Topic("/", "", "orders")
TOPICS = [Topic("/", "", f"orders.{n}") for n in range(50)]


class RealClock:
    """The system's clocks."""

    def wall(self) -> int:
        return time.time_ns() // 1000

    def mono(self) -> int:
        return time.monotonic_ns() // 1000


def tell(name: str, value: float, unit: str, budget: float | None = None, **more: object) -> None:
    """One figure."""
    emit(f"log: {name}", [value], unit, budget=budget, settings=more)


def uniform(first: int, rows: int, size: int = 100) -> Publishes:
    """Messages of one topic and header."""
    return Publishes(ORDERS, b"\x10\0\x02", [os.urandom(size) for _ in range(rows)], first, time.time_ns() // 1000, 3)


def varied(first: int, rows: int) -> Publishes:
    """Messages over 50 topics, sizes 50 to 150."""
    pick = random.Random(rows)
    topics = [pick.choice(TOPICS) for _ in range(rows)]
    bodies = [os.urandom(pick.randint(50, 150)) for _ in range(rows)]
    routes = [pick.randint(1, 50) for _ in range(rows)]
    return Publishes(topics, [b"\x10\0\x02"] * rows, bodies, first, time.time_ns() // 1000, routes)


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the quickest of several runs."""
    times = list[float]()
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def encoding(fast: bool) -> None:
    """Entries to bytes."""
    encoder = Encoder()
    tell("template in use", encoder.uses_template, "bool")
    for rows in (1, 10, 100, 1_000, 10_000):
        for kind, batch in (("uniform", uniform(1, rows)), ("varied", varied(1, rows))):
            seconds = best(partial(encoder.encode, [batch], 0), 20 if fast else 300)
            budget = {1: 20.0, 1_000: 200.0}.get(rows)
            tell(f"encode {rows} {kind}", seconds * 1e6, "us a batch", budget, row_us=round(seconds * 1e6 / rows, 3))
    size = len(encoder.encode([uniform(1, 1_000)], 0).data) / 1_000
    tell("bytes a message, 1000-row batches of 100 B", size, "B", 180)


def raw_sync(folder: Path, count: int) -> float:
    """p50 of writing 1 KB over zeros and fdatasync, in microseconds."""
    fd = os.open(folder / "raw", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, bytes(1 << 20), 0)
    os.fsync(fd)
    times = list[float]()
    for at in range(count):
        start = time.perf_counter()
        os.pwrite(fd, b"x" * 1096, 1096 * at)
        os.fdatasync(fd)
        times.append(time.perf_counter() - start)
    os.close(fd)
    return sorted(times)[count // 2] * 1e6


async def commits(folder: Path, fast: bool) -> None:
    """One message at a time, then a loop that is never idle, with and without a guard."""
    count = 50 if fast else 500
    sync = raw_sync(folder, count)
    tell("raw pwrite + fdatasync p50", sync, "us")
    log = Log.open(OsDisk(folder / "commit"), RealClock(), LogSettings())
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    log.on_durable = lambda _: event.set()
    log.start_thread(loop.call_soon_threadsafe, loop.call_later)
    times = list[float]()
    for _ in range(count):
        event.clear()
        start = time.perf_counter()
        log.append([uniform(log.appended + 1, 1)])
        await event.wait()
        times.append(time.perf_counter() - start)
    times.sort()
    tell(
        "confirm p50, idle loop",
        times[count // 2] * 1e6,
        "us",
        sync + 200,
        p99=round(times[count * 99 // 100] * 1e6, 1),
    )
    for guard in (0, 500, 2_000):
        await _busy(log, guard, 0.5 if fast else 3.0)
    log.close()


async def _busy(log: Log, guard_us: int, seconds: float) -> None:
    """A loop of 0.2 ms slices without a pause; `guard_us`: sleep 20 us when a commit has waited so long."""
    body = [os.urandom(100) for _ in range(100)]
    waits, handed = list[float](), dict[int, float]()

    def heard(lsn: int) -> None:
        now = time.perf_counter()
        for key in [key for key in handed if key <= lsn]:
            waits.append(now - handed.pop(key))

    log.on_durable = heard
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        stop = time.perf_counter() + 0.0002
        if log.pending.bytes < 16 << 20:
            log.append([Publishes(ORDERS, b"\x10\0\x02", body, log.appended + 1, 0, 3)])
            handed[log.appended] = time.perf_counter()
        while time.perf_counter() < stop:
            pass
        if guard_us and log.waiting_since and time.monotonic_ns() // 1000 - log.waiting_since > guard_us:
            time.sleep(20e-6)  # noqa: ASYNC251  the guard itself: only a real sleep lets the writer have the GIL
        await asyncio.sleep(0)
    log.flush()
    waits.sort()
    p50, p99 = (waits[len(waits) * part // 100] * 1e3 if waits else float("nan") for part in (50, 99))
    tell(f"confirm p50, busy loop, guard {guard_us} us", p50, "ms", p99=round(p99, 2), commits=len(waits))


def replay(folder: Path, fast: bool) -> None:
    """A log of live commits of mixed sizes, opened again after a kill."""
    total = 50_000 if fast else 5_000_000
    for rows in (50, 1_000):
        wanted = total if rows == 1_000 else total // 5
        place = folder / f"replay{rows}"
        log = Log.open(OsDisk(place), RealClock(), replace(LogSettings(), sync="interval"))
        batch = varied(1, rows)
        start, cpu = time.perf_counter(), time.process_time()
        for first in range(1, wanted, rows):
            batch.first = first
            log.append([batch])
            log.flush()
        tell(
            f"append {rows}-row commits, sync interval", (time.process_time() - cpu) * 1e6 / wanted, "us CPU a row",
            seconds=round(time.perf_counter() - start, 2),
        )  # fmt: skip
        log.close(clean=False)
        start = time.perf_counter()
        log = Log.open(OsDisk(place), RealClock(), LogSettings())
        opened = time.perf_counter() - start
        got = sum(table.num_rows for table in log.replay())
        seconds = time.perf_counter() - start
        assert got == wanted
        tell(f"open and replay {wanted} rows of {rows}-row batches", seconds, "s", open=round(opened, 3),
             rows_a_second=round(wanted / seconds))  # fmt: skip
        at = min(20_000, wanted // 2)
        for run in (1, 50, 1_000):
            seconds = best(partial(log.read, range(at, at + run)), 200)
            tell(f"read {run} of {rows}-row batches, warm", seconds * 1e6 / run, "us a message")
        span = wanted // 5
        start = time.perf_counter()
        for a in range(1, span, 500):
            log.read(range(a, a + 500))
        tell(f"read all in runs of 500, {rows}-row batches", (time.perf_counter() - start) * 1e6 / span, "us a message")
        log.close()


def main() -> None:
    """Take the figures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a second or two, for the tests")
    parser.add_argument("--only", choices=["encode", "commit", "replay"], help="one part alone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-log-") as name:
        folder = Path(name)
        if asked.only in (None, "encode"):
            encoding(asked.fast)
        if asked.only in (None, "commit"):
            asyncio.run(commits(folder, asked.fast))
        if asked.only in (None, "replay"):
            replay(folder, asked.fast)


if __name__ == "__main__":
    main()
