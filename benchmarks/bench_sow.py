"""What a record of a SOW topic costs: a publish that replaces one of a million, memory, the fold, a query.

    PYTHONPATH=src python benchmarks/bench_sow.py [--quick] [--messages 1000000]

The core's part alone: bodies of 100 bytes with a JSON key, one topic without queues.  `messages` is the number of keys.
"""

from __future__ import annotations

import random
import time
from array import array

import numpy as np
from harness import emit, parse, parser

from penstock.core.broker import Core
from penstock.core.sow.holding import Sow, Sows, fold
from penstock.core.sow.index import Put, pack_put
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode

HEADER = encode(Properties(delivery_mode=2))
NOW = Now(1, 1)


def core(*, keyed: bool) -> Core:
    """An instance with one declared topic."""
    one = Core(1)
    one.declare_topic(NOW, "/", "", "t", {"key": ["/id"]} if keyed else {})
    return one


def batches(keys: int, rows: int, count: int) -> list[list[bytes]]:
    """Bodies with keys at random."""
    chance = random.Random(1)
    return [[b'{"id":%d,"pad":"%s"}' % (chance.randrange(keys), b"x" * 80) for _ in range(rows)] for _ in range(count)]


def filled(keys: int) -> tuple[Core, Sow]:
    """All keys have a record."""
    one = core(keyed=True)
    topic = one.topic("/", "", "t")
    for start in range(0, keys, 10_000):
        bodies = [b'{"id":%d}' % n for n in range(start, min(keys, start + 10_000))]
        one.publish(NOW, Publishes(topic, HEADER, bodies))
        one.take_journal()
    return one, one.sow("/", "", "t")


def published(one: Core, some: list[list[bytes]]) -> float:
    """Microseconds of CPU a message."""
    topic = one.topic("/", "", "t")
    start = time.process_time()
    for bodies in some:
        one.publish(NOW, Publishes(topic, HEADER, bodies))
    took = time.process_time() - start
    one.take_journal()
    return took / sum(map(len, some)) * 1e6


def folded(keys: int, rows: int) -> float:
    """Microseconds of CPU a message, of folding its SOW_PUT."""
    chance = np.random.default_rng(1)
    numbers = chance.integers(0, 2**63, keys).astype(np.uint64)
    values, offsets = array("q"), [0]
    for start in range(0, keys, rows):
        some = numbers[start : start + rows]
        values.frombytes(pack_put(Put(7, some, np.arange(start + 1, start + 1 + len(some), dtype=np.int64), None)))
        offsets.append(len(values))
    sows = Sows()
    sows.declared(7, ("/", "", "t"), {"key": ["/id"]})
    begin = time.process_time()
    fold(sows, np.ones(len(offsets) - 1, dtype=bool), np.frombuffer(values, np.int64), np.array(offsets))
    return (time.process_time() - begin) / keys * 1e6


def main() -> None:
    """Measure and print."""
    options = parse(parser(__doc__ or "", messages=1_000_000))
    keys = options.messages
    one, sow = filled(keys)
    assert sow.index.count == keys
    settings = {"keys": keys}
    emit("sow: bytes of memory a record", [sow.index.nbytes / keys], "bytes", settings=settings)
    for rows, count in ((10_000, 3), (100, 100), (1, 3_000)):
        some = batches(keys, rows, count)
        emit(f"sow: publish, batches of {rows:,}", [published(one, some) for _ in range(options.repeat)], "us/msg",
             settings=settings)  # fmt: skip
        without = core(keyed=False)
        emit(f"sow: the same without a key, batches of {rows:,}",
             [published(without, some) for _ in range(options.repeat)], "us/msg", settings=settings)  # fmt: skip
    for rows in (1, 1_000):
        emit(f"sow: fold, batches of {rows:,}", [folded(keys, rows) for _ in range(options.repeat)], "us/msg",
             settings=settings)  # fmt: skip
    runs = list[float]()
    for _ in range(options.repeat):
        begin = time.process_time()
        snapshot = sow.index.snapshot()
        runs.append((time.process_time() - begin) * 1e6)
        assert len(snapshot) == keys
    emit("sow: a snapshot of the index, on the loop", runs, "us", settings=settings)


if __name__ == "__main__":
    main()
