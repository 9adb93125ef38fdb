"""The queue alone: what its part of a message's life costs, without sockets, log or bodies.

    PYTHONPATH=src python benchmarks/bench_queue.py [--quick] [--messages 200000]

Microseconds of CPU for a chunk that arrives, is granted and acknowledged in order, records written included; then what
consumers with filters, several consumers, acks out of order and backlogs add, a message; and bytes a waiting message.
Writing a control record (JSON header, LSN) is the outbox's part and counted with it.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from array import array
from collections.abc import Callable, Sequence

from harness import emit, parse, parser

from penstock.core.commands.deliveries import Delivery
from penstock.core.effects import Deliver, DeliverEach, Effect, Scan, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Publishes, Topic
from penstock.records.queue_settings import FairnessModel, QueueSettings

NOW = Now(1, 1)


class Bench:
    """A queue with its outbox, and LSNs for what arrives."""

    def __init__(self, settings: QueueSettings | None = None) -> None:
        self.sink: Outbox[Effect] = Outbox(10)
        self.queue = Queue(1, "/", "q", settings or QueueSettings(fairness_model="round-robin"))

    def lsns(self, n: int, gap: int = 0) -> Chunk:
        """Fresh ones: adjacent, or with strangers between."""
        first = self.sink.next_lsn
        self.sink.next_lsn += n * (gap + 1)
        return array("q", range(first, self.sink.next_lsn, gap + 1)) if gap else range(first, first + n)

    def worker(self, tag: str, backlog: int | None = None) -> Consumer:
        """A consumer."""
        return self.queue.subscribe(NOW, self.sink, tag=tag, holder=None, max_backlog=backlog)

    def deliveries(self) -> list[Delivery]:
        """What was delivered; the journal goes the way it goes in a server, at the end of the turn."""
        self.sink.take_journal()
        return [*delivered(self.sink.take_effects())]


class StartsWith:
    """A filter as cheap as one can be, so that the queue's own work shows."""

    def __init__(self, text: bytes) -> None:
        self.text = text.decode()
        self._start = text

    def matches(
        self, bodies: Sequence[bytes], properties: object, topics: object, lsns: object = None, times: object = None
    ) -> list[bool]:
        """One answer a body."""
        return [body.startswith(self._start) for body in bodies]


def round_trip(n: int, gap: int, rounds: int) -> float:
    """Microseconds a chunk: arrival, grant, one ack in order."""
    bench = Bench()
    queue, sink = bench.queue, bench.sink
    worker = bench.worker("c")
    chunks = [bench.lsns(n, gap) for _ in range(rounds)]
    start = time.process_time()
    for chunk in chunks:
        queue.arrive(NOW, chunk, sink)
        [deliver] = bench.deliveries()
        queue.settle(NOW, [deliver.chunk], Verb.ACK, sink, by=worker)
    return (time.process_time() - start) / rounds * 1e6


def dealt(model: FairnessModel, workers: int, n: int, rounds: int) -> float:
    """Microseconds a message: dealt to several consumers, each acks what it got."""
    bench = Bench(QueueSettings(fairness_model=model))
    queue, sink = bench.queue, bench.sink
    for i in range(workers):
        bench.worker(f"c{i}")
    start = time.process_time()
    for _ in range(rounds):
        queue.arrive(NOW, bench.lsns(n), sink)
        for deliver in bench.deliveries():
            queue.settle(NOW, [deliver.chunk], Verb.ACK, sink, by=deliver.consumer)
    return (time.process_time() - start) / rounds / n * 1e6


def acks(n: int, rounds: int, *, shuffled: bool) -> float:
    """Microseconds a message: acknowledged one by one, prefetch 100."""
    bench = Bench()
    queue, sink = bench.queue, bench.sink
    worker = bench.worker("c", 100)
    chance = random.Random(1)
    start = time.process_time()
    for _ in range(rounds):
        queue.arrive(NOW, bench.lsns(n), sink)
        held = [lsn for deliver in bench.deliveries() for lsn in deliver.chunk]
        while held:
            if shuffled:
                chance.shuffle(held)
            for lsn in held:
                queue.settle(NOW, [range(lsn, lsn + 1)], Verb.ACK, sink, by=worker)
            held = [lsn for deliver in bench.deliveries() for lsn in deliver.chunk]
    return (time.process_time() - start) / rounds / n * 1e6


def filtered(n: int, rounds: int) -> float:
    """Microseconds a message: two filters share the messages, a message that nobody wants is stuck at the head."""
    bench = Bench()
    queue, sink = bench.queue, bench.sink
    topic = Topic("/", "", "q")
    queue.arrive(NOW, bench.lsns(1), sink, batch=Publishes(topic, b"", [b"stuck"]))
    for text in (b"a", b"b"):
        queue.subscribe(NOW, sink, tag=text.decode(), holder=None, filter=StartsWith(text))
    while sink.effects:  # an answer may bring the next question
        for effect in sink.take_effects():
            assert isinstance(effect, Scan)
            queue.scanned(NOW, effect.token, [[] for _ in effect.filters], effect.chunk[-1], sink)
    bodies = [b"a", b"b"] * (n // 2)
    start = time.process_time()
    for _ in range(rounds):
        queue.arrive(NOW, bench.lsns(n), sink, batch=Publishes(topic, b"", bodies))
        for deliver in bench.deliveries():
            queue.settle(NOW, [deliver.chunk], Verb.ACK, sink, by=deliver.consumer)
    assert queue.ready == 1
    return (time.process_time() - start) / rounds / n * 1e6


def alike(workers: int, n: int, rounds: int) -> float:
    """Microseconds a message: a few at a time for consumers of one channel that share a filter, one ack for all."""
    bench = Bench()
    queue, sink = bench.queue, bench.sink
    for i in range(workers):
        queue.subscribe(NOW, sink, tag=f"c{i}", holder=bench, client="peer", max_backlog=1000, filter=StartsWith(b""))
    topic, bodies = Topic("/", "", "q"), [b"body"] * n
    start = time.process_time()
    for _ in range(rounds):
        queue.arrive(NOW, bench.lsns(n), sink, batch=Publishes(topic, b"", bodies))
        sink.take_journal()
        for effect in sink.take_effects():
            if isinstance(effect, DeliverEach):
                queue.settle_each(NOW, effect.consumers, effect.chunk, sink)
            elif isinstance(effect, Deliver):
                queue.settle(NOW, [effect.chunk], Verb.ACK, sink, by=effect.consumer)
    assert queue.so_far.acked == rounds * n
    return (time.process_time() - start) / rounds / n * 1e6


def waiting(n: int, gap: int) -> float:
    """Bytes a waiting message, in chunks of 20."""
    tracemalloc.start()
    bench = Bench()
    for _ in range(n // 20):
        bench.queue.arrive(NOW, bench.lsns(20, gap), bench.sink)
        bench.sink.next_lsn += 1
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / n


def main() -> None:
    """Measure and print."""
    options = parse(parser(__doc__ or "", messages=200_000))
    size = options.messages

    def show(what: str, budget: float | None, unit: str, measure: Callable[[], float]) -> None:
        runs = [measure() for _ in range(options.repeat)]
        emit(what, runs, unit, budget=budget, settings={"messages": size})

    rounds = max(size // 100, 40)
    show("queue: chunk of 500, arrival to ack", 15, "us/chunk", lambda: round_trip(500, 0, rounds))
    show("queue: chunk of 500 interleaved, arrival to ack", 30, "us/chunk", lambda: round_trip(500, 3, rounds))
    show("queue: chunk of 1, arrival to ack", 10, "us/chunk", lambda: round_trip(1, 0, rounds))
    for model in ("fast", "round-robin", "proportional"):
        show(f"queue: 500 to 4 consumers, {model}", None, "us/msg", lambda m=model: dealt(m, 4, 500, rounds // 4))
    show("queue: acks one by one, in order", None, "us/msg", lambda: acks(1_000, rounds // 40, shuffled=False))
    show("queue: acks one by one, any order", None, "us/msg", lambda: acks(1_000, rounds // 40, shuffled=True))
    show("queue: two filtered consumers", None, "us/msg", lambda: filtered(500, rounds // 40))
    for workers in (1, 1_000):
        show(f"queue: 20 to {workers:,} of one filter", None, "us/msg", lambda w=workers: alike(w, 20, rounds // 4))
    show("queue: waiting, in order", 10, "bytes/msg", lambda: waiting(size, 0))
    show("queue: waiting, interleaved", 16, "bytes/msg", lambda: waiting(size, 3))


if __name__ == "__main__":
    main()
