"""Queues that hold messages back by their keys, against a plain one: CPU of the core per message, nothing else.

    python benchmarks/bench_shares.py [MESSAGES]

100,000 group keys and 10,000 tenants: messages arrive in batches of 1,000 with their keys worked out already, one
consumer takes them 1,000 at a time and acknowledges. `step` is the longest single command.
"""

from __future__ import annotations

import gc
import sys
import time

from penstock.core.effects import Effect, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings

BATCH = 1_000
CASES: dict[str, tuple[QueueSettings, int]] = {
    "plain": (QueueSettings(), 0),
    "100,000 group keys": (QueueSettings(group_key="/k"), 100_000),
    "10 group keys": (QueueSettings(group_key="/k"), 10),
    "10,000 tenants": (QueueSettings(fairness_key="/k"), 10_000),
    "10 tenants": (QueueSettings(fairness_key="/k"), 10),
}


def run(settings: QueueSettings, keys: int, total: int) -> tuple[float, float, float]:
    """Microseconds a message to arrive, and to be taken and acknowledged; the longest command in milliseconds."""
    sink: Outbox[Effect] = Outbox(1)
    queue = Queue(1, "/", "q", settings)
    now = Now(1, 1)
    longest = arrive = work = 0.0
    for start in range(0, total, BATCH):
        first = sink.next_lsn
        sink.next_lsn += BATCH
        told = [(f"key-{(start + n) * 7919 % keys}",) for n in range(BATCH)] if keys else None
        began = time.process_time()
        queue.arrive(now, range(first, first + BATCH), sink, keys=told)
        spent = time.process_time() - began
        arrive += spent
        longest = max(longest, spent)
    began = time.process_time()
    consumer = queue.subscribe(now, sink, tag="c", holder=None, max_backlog=BATCH)
    longest = max(longest, time.process_time() - began)
    done = 0
    while done < total:
        sink.take_journal()
        chunks = [effect.chunk for effect in delivered(sink.take_effects())]
        began = time.process_time()
        done += queue.settle(now, chunks, Verb.ACK, sink, by=consumer)
        spent = time.process_time() - began
        work += spent
        longest = max(longest, spent)
    return arrive / total * 1e6, work / total * 1e6, longest * 1e3


def main() -> None:
    """One line a case."""
    gc.disable()  # a server collects seldom (`server/process.py`)
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    for name, (settings, keys) in CASES.items():
        arrive, work, longest = run(settings, keys, total)
        print(f"{name:20} arrive {arrive:6.2f} us, take and ack {work:6.2f} us, step {longest:6.2f} ms", flush=True)


if __name__ == "__main__":
    main()
