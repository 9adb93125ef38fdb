"""A million delayed messages with mixed due times: what one costs to keep and to make ready, the CPU time of a step.

    PYTHONPATH=src python benchmarks/bench_delays.py [--quick] [--messages 1000000]

The queue alone, without sockets, log or bodies.  `mixed`: every message has a time of its own within ten days, in no
order; `minutes`: times are whole minutes; `fall due at once`: all of them are over after a pause.  A step is what the
loop stands still for; afterwards others have their turn.
"""

from __future__ import annotations

import gc
import random
import time
from array import array

from bench_queue import Bench
from harness import emit, parse, parser

from penstock.records.chunks import Now

BATCH = 1000
DAYS_US = 10 * 86_400_000_000
MINUTE_US = 60_000_000


def times_of(kind: str, n: int, dice: random.Random) -> list[int]:
    """When each message is due."""
    if kind == "minutes":
        return [1 + dice.randrange(DAYS_US // MINUTE_US) * MINUTE_US for _ in range(n)]
    return [1 + dice.randrange(DAYS_US) for _ in range(n)]


def run(kind: str, n: int, seed: int, *, at_once: bool) -> tuple[float, float, float, float, float]:
    """Bytes a message; microseconds to take one in, to make one ready; the longest step of each, milliseconds."""
    dice = random.Random(seed)
    due = times_of(kind, n, dice)
    bench = Bench()
    longest_in = 0.0
    taken = time.process_time()
    for start in range(0, n, BATCH):
        some = due[start : start + BATCH]
        step = time.thread_time()
        bench.queue.arrive(Now(0, 0), bench.lsns(len(some)), bench.sink, not_before=some)
        longest_in = max(longest_in, time.thread_time() - step)
    taken = time.process_time() - taken
    held = sum(block.lsns.itemsize * 2 * len(block.lsns) for block in bench.queue.delays.scheduled.blocks)
    assert bench.queue.delayed == n
    moments = array("q", [DAYS_US + 2]) if at_once else array("q", range(MINUTE_US, DAYS_US + 2 * MINUTE_US, MINUTE_US))
    longest_out = 0.0
    ready = time.process_time()
    for moment in moments:
        now = Now(moment, moment)
        while bench.queue.is_due(now):
            step = time.thread_time()
            bench.queue.tick(now, bench.sink)
            longest_out = max(longest_out, time.thread_time() - step)
            bench.sink.take_journal()
    ready = time.process_time() - ready
    assert bench.queue.ready == n
    return held / n, taken / n * 1e6, ready / n * 1e6, longest_in * 1e3, longest_out * 1e3


def main() -> None:
    """All of them."""
    gc.disable()  # a server collects seldom (`server/process.py`)
    given = parse(parser(__doc__ or "", messages=1_000_000))
    n: int = given.messages
    for kind, at_once in (("mixed", False), ("minutes", False), ("mixed", True)):
        found = [run(kind, n, seed, at_once=at_once) for seed in range(given.repeat)]
        settings = {"messages": n, "times": kind, "all at once": at_once}
        for i, (what, unit) in enumerate(
            (
                ("bytes of positions", "bytes/message"), ("taking one in", "us/message"),
                ("making one ready", "us/message"), ("longest step taking in", "ms"),
                ("longest step making ready", "ms"),
            )
        ):  # fmt: skip
            emit(f"delayed messages: {what}", [one[i] for one in found], unit, settings=settings)


if __name__ == "__main__":
    main()
