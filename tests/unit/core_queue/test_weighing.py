"""A queue that is given a limit of bytes is weighed then, and nothing is miscounted from then on."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from choices import spread
from penstock.core.effects import Effect, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.queue import Queue
from penstock.core.sizes import Sizes
from penstock.records.chunks import Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.queue_settings import QueueSettings

TOPIC = Topic("/", "", "q")


class Bench:
    """A queue whose messages have bodies of different lengths, some between messages of others."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.dice = Random(seed)
        self.sizes = Sizes()
        self.queue = Queue(1, "/", "q", QueueSettings(**settings), sizes=self.sizes)
        self.sink = Outbox[Effect](100)
        self.time = 1_000

    @property
    def now(self) -> Now:
        return Now(self.time, self.time)

    def publish(self, count: int) -> None:
        bodies = [b"x" * self.dice.choice((0, 1, 7, 30)) for _ in range(count)]
        first, batch = self.sink.next_lsn, Publishes(TOPIC, b"", bodies)
        self.sizes.add(first, batch)
        self.sink.next_lsn += count
        rows = [n for n in range(count) if self.dice.random() < 0.7]
        if rows:
            lsns = as_chunk([first + n for n in rows])
            keys = None if self.queue.shares is None else [(self.dice.choice("abc"),) for _ in rows]
            self.queue.arrive(self.now, lsns, self.sink, batch=batch, rows=rows, keys=keys)

    def limit(self, size: int | None, **more: Any) -> None:
        self.queue.alter(self.now, replace(self.queue.settings, max_length_bytes=size, **more), self.sink)

    def forget_sizes(self) -> None:
        """As the server does: those of messages that have gone."""
        living = sorted(lsn for chunk in self.queue.living_pieces() for lsn in chunk)
        pairs = np.array([(lsn, lsn + 1) for lsn in living], dtype=np.int64).reshape(-1, 2)
        self.sizes.replace_upto(self.sink.next_lsn - 1, self.sizes.only(pairs))


def test_a_limit_holds_at_once() -> None:
    bench = Bench(1)
    bench.publish(60)
    before = bench.queue.ready_bytes
    bench.limit(100)
    assert bench.queue.weight == bench.queue.ready_bytes <= 100 < before
    bench.limit(None)
    assert bench.queue.weight == -1
    bench.queue.check()


def test_a_limit_that_is_changed_needs_no_other_weighing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(2)
    bench.publish(60)
    bench.limit(10_000)
    monkeypatch.setattr(Queue, "weigh", None)
    bench.limit(9_000)
    assert bench.queue.weight == bench.queue.ready_bytes > 0
    bench.queue.purge(bench.now, bench.sink)
    assert bench.queue.weight == 0


@pytest.mark.parametrize("seed", spread(range(60), 20))
def test_whatever_comes_and_goes_is_counted_once(seed: int) -> None:
    more: list[dict[str, Any]] = [{}, {"max_priority": 3}, {"group_key": "/a"}, {"fairness_key": "/a"}]
    bench = Bench(seed, **more[seed % 4])
    dice, queue = bench.dice, bench.queue
    one = queue.subscribe(bench.now, bench.sink, tag="c", holder=bench, max_backlog=7)
    bench.publish(40)
    bench.limit(100_000, overflow=dice.choice(("drop-head", "reject-publish")))
    for _ in range(30):
        what = dice.randrange(6)
        if what == 0:
            bench.publish(dice.randrange(1, 6))
        elif what in (1, 2):
            held = sorted(lsn for run in one.leases.held() for lsn in run.chunk)
            some = [lsn for lsn in held if dice.random() < 0.5]
            if some:
                queue.settle(bench.now, [as_chunk(some)], dice.choice((Verb.ACK, Verb.RELEASE)), bench.sink, by=one)
        elif what == 3:
            gone = sorted(lsn for chunk in queue.main.chunks() for lsn in chunk if dice.random() < 0.1)
            if gone:
                queue.forget(as_chunk(gone))
        elif what == 4:
            bench.forget_sizes()
        elif dice.random() < 0.2:
            bench.limit(dice.choice((None, 90_000)))
        queue.check()
    queue.check()
    assert queue.weight == (queue.ready_bytes if queue.settings.max_length_bytes is not None else -1)
