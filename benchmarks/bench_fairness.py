"""What fairness among a thousand subscriptions costs a message, and whether that grows with what waits.

    PYTHONPATH=src python benchmarks/bench_fairness.py [--quick] [--messages 1000000]

A thousand subscriptions hold ten messages each, all they may; then each ack frees a place and the model fills it.  Told
is the CPU of an ack and the grant that follows, with few messages waiting and with many, acks one by one in any
order and in lists of a hundred from a hundred subscriptions.  The core's part alone, as in `bench_queue.py`.
"""

from __future__ import annotations

import random
import time

from bench_queue import NOW, Bench
from harness import emit, parse, parser

from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.whole import DISPATCH
from penstock.records.queue_settings import FairnessModel, QueueSettings

SUBSCRIPTIONS = 1_000
BACKLOG = 10
FEW = 20_000


def acked(model: FairnessModel, waiting: int, acks: int, together: int) -> float:
    """Microseconds of CPU an ack with its grant."""
    bench = Bench(QueueSettings(fairness_model=model))
    queue, sink = bench.queue, bench.sink
    for at in range(SUBSCRIPTIONS):
        bench.worker(f"c{at}", BACKLOG)
    for _ in range(0, waiting + SUBSCRIPTIONS * BACKLOG, 10_000):
        queue.arrive(NOW, bench.lsns(10_000), sink)
        while queue.agenda & DISPATCH:
            dispatch(queue, NOW, sink)
    held = [(lsn, deliver.consumer) for deliver in bench.deliveries() for lsn in deliver.chunk]
    assert len(held) == SUBSCRIPTIONS * BACKLOG
    chance = random.Random(1)
    chance.shuffle(held)
    got = 0
    start = time.process_time()
    for first in range(0, acks, together):
        for lsn, consumer in held[first : first + together]:
            assert isinstance(consumer, Consumer)
            queue.settle(NOW, [range(lsn, lsn + 1)], Verb.ACK, sink, by=consumer)
        for deliver in bench.deliveries():
            got += len(deliver.chunk)
    took = time.process_time() - start
    assert got == acks  # every place that an ack freed was filled
    return took / acks * 1e6


def main() -> None:
    """Measure and print."""
    options = parse(parser(__doc__ or "", messages=1_000_000))
    acks = min(10_000, options.messages // 100 * 100)
    for model in ("fast", "round-robin", "proportional"):
        for waiting in (FEW, options.messages):
            for together, form in ((1, "acks one by one"), (100, "acks in lists of 100")):
                runs = [acked(model, waiting, acks, together) for _ in range(options.repeat)]
                what = f"fairness: 1,000 subscriptions, {model}, {waiting:,} wait, {form}"
                emit(what, runs, "us/msg", settings={"waiting": waiting, "acks": acks})


if __name__ == "__main__":
    main()
