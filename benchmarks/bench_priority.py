"""A queue with priorities: what a message costs while 10 thousand, 100 thousand and a million others wait.

    PYTHONPATH=src python benchmarks/bench_priority.py [--quick] [--messages 1000000]

Microseconds of CPU a message, in the queue alone: to arrive, and to arrive, be granted and acknowledged while as many
wait as before.  With a few priorities, as many use, and with one of their own for each message.  The last figure for
each number waiting must not be above the first by more than the budget says, which is that of the smallest number.
Then bytes a waiting message, in order and with strangers' messages between.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable

from bench_queue import NOW, Bench, StartsWith
from harness import emit, parse, parser

from penstock.core.effects import Scan, Verb
from penstock.core.queue.order.ranks import rank_of
from penstock.records.chunks import Chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.queue_settings import QueueSettings

TOPIC = Topic("/", "", "q")
KINDS: dict[str, int] = {"few": 10, "many": 1 << 40}
"""How many priorities there are to choose from."""

GROWTH = 2.0
"""So many times the cost with the fewest waiting is still no growth: caches of the machine are part of it."""


class Prioritized(Bench):
    """A queue with priorities, and chance that chooses them."""

    def __init__(self, priorities: int) -> None:
        super().__init__(QueueSettings(fairness_model="round-robin", priority_expression="/priority"))
        self.priorities = priorities
        self.chance = random.Random(1)

    def ranks(self, n: int) -> list[int]:
        """Of new messages."""
        return [rank_of(self.chance.randrange(self.priorities)) for _ in range(n)]

    def arrive(self, chunk: Chunk, ranks: list[int], batch: Publishes | None = None) -> None:
        """Take messages."""
        self.queue.arrive(NOW, chunk, self.sink, ranks=ranks, batch=batch)

    def fill(self, waiting: int, gap: int = 0) -> None:
        """Have so many wait."""
        for start in range(0, waiting, 1000):
            n = min(1000, waiting - start)
            self.arrive(self.lsns(n, gap), self.ranks(n))
            self.sink.take_journal()


def arrival(priorities: int, waiting: int, n: int, rounds: int) -> float:
    """Microseconds a message: chunks of `n` arrive."""
    bench = Prioritized(priorities)
    bench.fill(waiting)
    chunks = [(bench.lsns(n), bench.ranks(n)) for _ in range(rounds)]
    start = time.process_time()
    for chunk, ranks in chunks:
        bench.arrive(chunk, ranks)
    return (time.process_time() - start) / rounds / n * 1e6


def life(priorities: int, waiting: int, n: int, rounds: int, *, filtered: bool = False) -> float:
    """Microseconds a message: chunks of `n` arrive; as many of the highest are granted and acknowledged."""
    bench = Prioritized(priorities)
    bench.fill(waiting)
    queue, sink = bench.queue, bench.sink
    filter = StartsWith(b"a") if filtered else None
    worker = queue.subscribe(NOW, sink, tag="c", holder=None, max_backlog=n, filter=filter)
    bodies = [b"a"] * n

    def scans() -> None:
        while asked := [effect for effect in sink.effects if isinstance(effect, Scan)]:
            sink.effects[:] = [effect for effect in sink.effects if not isinstance(effect, Scan)]
            for scan in asked:
                queue.scanned(NOW, scan.token, [scan.chunk], scan.chunk[-1], sink)

    scans()
    held = [deliver.chunk for deliver in bench.deliveries()]
    chunks = [(bench.lsns(n), bench.ranks(n)) for _ in range(rounds)]
    spent = 0.0
    for chunk, ranks in chunks:
        start = time.process_time()
        bench.arrive(chunk, ranks, Publishes(TOPIC, b"", bodies) if filtered else None)
        for one in held:
            queue.settle(NOW, [one], Verb.ACK, sink, by=worker)
        spent += time.process_time() - start
        scans()
        held = [deliver.chunk for deliver in bench.deliveries()]
    assert queue.ready + queue.leased == waiting
    return spent / rounds / n * 1e6


def room(priorities: int, waiting: int, gap: int) -> float:
    """Bytes a waiting message."""
    tracemalloc.start()
    bench = Prioritized(priorities)
    bench.fill(waiting, gap)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / waiting


def main() -> None:
    """Measure and print."""
    options = parse(parser(__doc__ or "", messages=1_000_000, quick=100_000))
    most = options.messages
    sizes = [size for size in (most // 100, most // 10, most) if size]

    def show(what: str, measure: Callable[[int], float], unit: str = "us/msg") -> None:
        budget: float | None = None
        for size in sizes:
            runs = [measure(size) for _ in range(options.repeat)]
            value = emit(f"priority: {what}, {size} waiting", runs, unit, budget=budget, settings={"waiting": size})
            if budget is None:
                budget = value * GROWTH

    for kind, number in KINDS.items():
        show(f"{kind}, chunk of 100 arrives", lambda size, p=number: arrival(p, size, 100, 200))
        show(f"{kind}, chunk of 1 arrives", lambda size, p=number: arrival(p, size, 1, 5000))
        show(f"{kind}, chunk of 100, arrival to ack", lambda size, p=number: life(p, size, 100, 200))
        show(f"{kind}, chunk of 1, arrival to ack", lambda size, p=number: life(p, size, 1, 5000))
        show(f"{kind}, with a filter, chunk of 100", lambda size, p=number: life(p, size, 100, 100, filtered=True))
    for kind, number in KINDS.items():
        for name, gap in (("in order", 0), ("interleaved", 3)):
            value = room(number, most // 10, gap)
            emit(
                f"priority: {kind}, waiting, {name}", [value], "bytes/msg", budget=40, settings={"waiting": most // 10}
            )


if __name__ == "__main__":
    main()
