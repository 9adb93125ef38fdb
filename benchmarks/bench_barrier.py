"""Barriers: what one every 1,000 messages costs a message, while 10 thousand, 100 thousand and a million others wait.

    PYTHONPATH=src python benchmarks/bench_barrier.py [--quick] [--messages 1000000]

Microseconds of CPU a message, in the queue alone: as many arrive as are granted to ten consumers and acknowledged, so
that as many wait throughout.  Without barriers, with them, with filters on all consumers (bodies are looked through
again when a barrier lets them go), and as a chain of nothing but barriers.  The cost with the most waiting must not be
above that with the fewest by more than the budget says.  Then what the expression costs a publish, and bytes a message
that waits behind a barrier.
"""

from __future__ import annotations

import time
import tracemalloc

from bench_queue import NOW, Bench, StartsWith
from harness import emit, parse, parser

from penstock.core.broker import Core
from penstock.core.effects import Deliver, DeliverEach, Scan, Verb
from penstock.core.queue.whole import DISPATCH
from penstock.records.entries import Publishes, Topic
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings

TOPIC = Topic("/", "", "q")
CHUNK = 100
BACKLOG = 100
CONSUMERS = 10
GROWTH = 2.0
"""So many times the cost with the fewest waiting is still no growth: caches of the machine are part of it."""


class Fenced(Bench):
    """A queue with a barrier every so many messages; 0: none."""

    def __init__(self, every: int) -> None:
        super().__init__(QueueSettings(fairness_model="round-robin", barrier_expression="/b = 1"))
        self.every = every
        self.came = 0

    def arrive(self, n: int, body: bytes | None = None) -> None:
        """Take messages."""
        chunk = self.lsns(n)
        marked = [lsn for at, lsn in enumerate(chunk, self.came) if self.every and at % self.every == self.every - 1]
        batch = None if body is None else Publishes(TOPIC, b"", [body] * n)
        self.queue.arrive(NOW, chunk, self.sink, batch=batch, barriers=marked or None)
        self.came += n

    def fill(self, waiting: int) -> None:
        """Have so many wait."""
        for _ in range(0, waiting, CHUNK):
            self.arrive(CHUNK)
            self.sink.next_lsn += 1  # records of others lie between

    def settle(self) -> int:
        """Acknowledge what was delivered; how many."""
        done = 0
        queue, sink = self.queue, self.sink
        sink.take_journal()
        for effect in sink.take_effects():
            if isinstance(effect, Scan):
                found: list[list[int]] = [list(effect.chunk) for _ in effect.filters]
                queue.scanned(NOW, effect.token, found, effect.chunk[-1], sink)
            elif isinstance(effect, DeliverEach):
                done += queue.settle_each(NOW, effect.consumers, effect.chunk, sink)
            elif isinstance(effect, Deliver) and not effect.barrier:
                done += queue.settle(NOW, [effect.chunk], Verb.ACK, sink, by=effect.consumer)
            elif isinstance(effect, Deliver) and effect.others:
                done += 1
        while queue.agenda & DISPATCH:
            queue.tick(NOW, sink)
        return done


def life(every: int, waiting: int, rounds: int, *, filtered: bool = False) -> float:
    """Microseconds a message."""
    bench = Fenced(every)
    bench.fill(waiting)
    for at in range(CONSUMERS):
        one = StartsWith(b"a") if filtered else None
        bench.queue.subscribe(NOW, bench.sink, tag=f"c{at}", holder=None, max_backlog=BACKLOG, filter=one)
    body = b"a" if filtered else None
    wanted = rounds * CHUNK
    done = arrived = 0
    start = time.process_time()
    while done < wanted:
        done += bench.settle()
        for _ in range((done - arrived) // CHUNK):
            bench.arrive(CHUNK, body)
            arrived += CHUNK
    took = time.process_time() - start
    bench.queue.check()
    left = bench.queue.ready + bench.queue.held + bench.queue.leased
    assert abs(left - waiting) <= CHUNK + 1, f"{left} wait, not {waiting}"
    return took / done * 1e6


def chain(waiting: int) -> float:
    """Microseconds a barrier: so many in a row go to one consumer."""
    bench = Fenced(1)
    bench.fill(waiting)
    start = time.process_time()
    bench.worker("c")
    went = 0
    while bench.queue.held or bench.sink.effects:
        if bench.queue.agenda & DISPATCH:
            bench.queue.tick(NOW, bench.sink)
        went += len(bench.deliveries())
    took = time.process_time() - start
    assert went == waiting
    return took / waiting * 1e6


def published(expression: str | None, rounds: int) -> float:
    """Microseconds a message of 100 bytes of JSON, published in batches of 100; 1 in 1,000 is a barrier."""
    core = Core(1)
    core.boot(NOW, clean=True, next_lsn=1)
    core.declare_queue(NOW, "/", "q", QueueSettings(barrier_expression=expression))
    topic, header = core.topic("/", "", "q"), encode(Properties(delivery_mode=2))
    text = b'{"order": 1%07d, "customer": "c00001", "amount": 12.50, "currency": "EUR", "kind": "%s"}'
    batches = [
        [text % (n, b"barrier" if n % 1_000 == 999 else b"order") for n in range(at * CHUNK, (at + 1) * CHUNK)]
        for at in range(rounds)
    ]
    start = time.process_time()
    for bodies in batches:
        core.publish(NOW, Publishes(topic, header, bodies))
        core.take_journal()
    took = time.process_time() - start
    assert core.queue("/", "q").held == (rounds * CHUNK - 999 if expression else 0), core.queue("/", "q")
    return took / rounds / CHUNK * 1e6


def weight(waiting: int) -> float:
    """Bytes a message behind barriers, one every 1,000."""
    tracemalloc.start()
    bench = Fenced(1_000)
    bench.fill(waiting)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / waiting


def main() -> None:
    """Measure and print."""
    options = parse(parser(__doc__ or "", messages=1_000_000))
    rounds = 20 if options.quick else 1_000
    depths = [depth for depth in (10_000, 100_000, 1_000_000) if depth <= max(options.messages, 10_000)]
    life(1_000, depths[0], min(rounds, 100), filtered=True)  # what is slow the first time
    for name, every, filtered in (
        ("none", 0, False),
        ("1 in 1,000", 1_000, False),
        ("1 in 1,000, filters", 1_000, True),
    ):
        fewest: float | None = None
        for waiting in depths:
            runs = [life(every, waiting, rounds, filtered=filtered) for _ in range(options.repeat)]
            emit(
                f"barriers: {name}, {waiting:,} wait", runs, "us/msg",
                budget=None if fewest is None else GROWTH * fewest,
                settings={"consumers": CONSUMERS, "backlog": BACKLOG, "chunk": CHUNK},
            )  # fmt: skip
            fewest = fewest or min(runs)
    few, many = min(10_000, depths[-1]), min(100_000, depths[-1])
    shortest = [chain(few) for _ in range(options.repeat)]
    emit(f"barriers: {few:,} in a row", shortest, "us/msg", settings={})
    longest = [chain(many) for _ in range(options.repeat)]
    emit(f"barriers: {many:,} in a row", longest, "us/msg", budget=GROWTH * min(shortest), settings={})
    for name, expression in (("without an expression", None), ("with an expression", "/kind = 'barrier'")):
        runs = [published(expression, rounds) for _ in range(options.repeat)]
        emit(f"barriers: publish in batches of 100, {name}", runs, "us/msg", settings={"expression": expression})
    emit("barriers: a message that waits behind one", [weight(many)], "B/msg", settings={"waiting": many})


if __name__ == "__main__":
    main()
