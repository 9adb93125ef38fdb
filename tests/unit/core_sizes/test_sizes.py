"""The store of sizes agrees with a dict, whatever came, was forgotten or came late."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest

from choices import stride
from penstock.core import sizes
from penstock.core.sizes import Sizes
from penstock.records.chunks import as_chunk, pairs_of
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import PackedBodies
from penstock.testing import Broker

TOPIC = Topic("/", "", "q")
KNOBS = {
    "BLOCK": (32, 8192),
    "LOOSE_MOST": (20, 256),
    "SLAB": (50, 1 << 20),
    "AS_BLOCK": (4, 64),
    "NEW_MOST": (1, 20, 4096),
}


def batch(*sizes: int) -> Publishes:
    return Publishes(TOPIC, b"", [bytes(size) for size in sizes])


def pairs(lsns: list[int]) -> Any:
    return np.array(pairs_of(as_chunk(sorted(lsns)), False), dtype=np.int64).reshape(-1, 2)


def test_of_nothing_nothing_is_known() -> None:
    sizes = Sizes()
    assert sizes.total(range(5, 9)) == 0
    assert sizes.of(array("q", [1, 5])).tolist() == [0, 0]
    assert sizes.total(range(0)) == 0
    assert not len(sizes.runs()[0])


def test_messages_of_one_size_cost_nothing_however_many_batches_and_records_lie_between() -> None:
    sizes = Sizes()
    for first in range(1, 1_000_000, 1000):
        sizes.add(first, batch(*[100] * 7))
    assert len(sizes) == 1
    assert sizes.nbytes < 100
    assert sizes.total(range(5001, 5008)) == 700
    assert sizes.total(array("q", [1, 2, 3001])) == 300


@pytest.mark.parametrize("count", [1, 3, 70, 20_000])
def test_messages_of_all_sizes_take_their_width(count: int) -> None:
    dice = Random(count)
    sizes, told = Sizes(), list[int]()
    while len(told) < 100_000:
        some = [dice.randrange(300) for _ in range(count)]
        sizes.add(1 + len(told), batch(*some))
        told += some
    assert sizes.nbytes < 2.6 * len(told)
    assert sizes.total(range(1, len(told) + 1)) == sum(told)
    assert sizes.total(range(777, 77_777)) == sum(told[776:77_776])
    chosen = sorted(dice.sample(range(1, len(told) + 1), 5000))
    assert sizes.of(array("q", chosen)).tolist() == [told[lsn - 1] for lsn in chosen]


def test_bodies_that_lie_side_by_side_are_measured_where_they_are() -> None:
    sizes = Sizes()
    told = [lsn % 90 for lsn in range(500)]
    sizes.add(1, Publishes(TOPIC, b"", PackedBodies.of([bytes(size) for size in told])))
    sizes.add(501, Publishes(TOPIC, b"", PackedBodies.of([b"abc", b"de"])))
    assert sizes.of(range(1, 503)).tolist() == [*told, 3, 2]


def test_sums_are_exact_across_the_gap_that_a_crash_leaves_between_lsns() -> None:
    sizes = Sizes()
    first = 1
    for size in (1 << 27, 3, 1 << 27, 5):
        sizes.add(first, batch(size, size))
        assert sizes.total(range(first, first + 2)) == 2 * size
        first += 1 << 50
    assert sizes.total(array("q", [1, 2, 1 + (1 << 50), 1 + (1 << 51)])) == 3 * (1 << 27) + 3


def test_one_stuck_message_does_not_keep_the_sizes_of_millions() -> None:
    sizes = Sizes()
    dice = Random(1)
    for first in range(1, 200_000, 1000):
        sizes.add(first, batch(*(dice.randrange(1000) for _ in range(1000))))
    stuck, last = sizes.total(range(4, 5)), sizes.of(range(199_000, 200_001)).tolist()
    sizes.forget(4)
    assert sizes.nbytes > 300_000
    kept = sizes.only(pairs([4, *range(199_000, 200_001)]))
    assert kept.nbytes < 4000
    assert kept.of(array("q", [4, *range(199_000, 200_001)])).tolist() == [stuck, *last]


def test_a_copy_stays_as_it_is() -> None:
    sizes = Sizes()
    sizes.add(1, batch(5, 6))
    copy = sizes.copy()
    sizes.add(3, batch(7, 8, 9))
    sizes.forget(4)
    assert copy.of(range(1, 3)).tolist() == [5, 6]
    assert copy != sizes
    assert copy == copy.copy()
    assert sizes.of(range(4, 6)).tolist() == [8, 9]


@dataclass
class Walk:
    """Any history, beside a dict."""

    dice: Random
    sizes: Sizes = field(default_factory=Sizes)
    told: dict[int, int] = field(default_factory=dict[int, int])
    next: int = 1

    def some(self, count: int) -> list[int]:
        one = self.dice.choice((None, None, 5, 6, 300, 70_000))
        if one is not None:
            return [one] * count
        return [self.dice.choice((0, 1, 5, 6, 7, 300, 70_000)) for _ in range(count)]

    def add(self) -> None:
        some = self.some(self.dice.choice((1, 1, 1, 2, 5, 70, 300)))
        self.sizes.add(self.next, batch(*some))
        self.told.update(enumerate(some, self.next))
        self.next += len(some) + self.dice.choice((0, 0, 1, 3, 20, 1 << 32))

    def add_rows(self) -> None:
        some = self.some(self.dice.choice((1, 5, 300)))
        lsns = self.next + np.cumsum([self.dice.choice((1, 1, 1, 2, 40)) for _ in some])
        self.sizes.add_rows(lsns, np.array(some))
        self.told.update(zip(lsns.tolist(), some, strict=True))
        self.next = int(lsns[-1]) + 1

    def add_older(self) -> None:
        lsns = sorted(self.dice.sample(range(1, max(min(self.next, 2000), 2)), 1))
        lsns += [lsn for lsn in range(lsns[0] + 1, min(self.next, lsns[0] + 150)) if self.dice.random() < 0.3][:40]
        some = [self.told.get(lsn, size) for lsn, size in zip(lsns, self.some(len(lsns)), strict=True)]
        self.sizes.add_older(np.array(lsns), np.array(some))
        self.told.update(zip(lsns, some, strict=True))
        self.next = max(self.next, lsns[-1] + 1)

    def forget(self) -> None:
        self.told = {lsn: size for lsn, size in self.told.items() if self.dice.random() < 0.5}
        if not self.told:
            return
        if self.dice.random() < 0.5:
            self.sizes.forget(min(self.told))
        else:
            self.sizes = self.sizes.only(pairs(list(self.told)))

    def same(self) -> None:
        lsns = sorted(self.told)
        if not lsns:
            return
        assert self.sizes.of(array("q", lsns)).tolist() == [self.told[lsn] for lsn in lsns]
        assert self.sizes.total(array("q", lsns)) == sum(self.told.values())
        some = [lsn for lsn in lsns[self.dice.randrange(len(lsns)) :] if self.dice.random() < 0.8]
        assert self.sizes.total(array("q", some)) == sum(self.told[lsn] for lsn in some)
        for _ in range(4):
            first = last = self.dice.choice(lsns)
            while last + 1 in self.told and self.dice.random() < 0.98:
                last += 1
            chunk = range(first, last + 1)
            assert self.sizes.of(chunk).tolist() == [self.told[lsn] for lsn in chunk]
            assert self.sizes.total(chunk) == sum(self.told[lsn] for lsn in chunk)


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_any_history_agrees_with_a_dict(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(start, start + 50, stride(6)):
        dice = Random(seed)
        for name, values in KNOBS.items():
            monkeypatch.setattr(sizes, name, dice.choice(values))
        walk = Walk(dice)
        for _ in range(dice.randrange(50)):
            dice.choice((walk.add, walk.add, walk.add, walk.add, walk.add_rows, walk.add_older, walk.forget))()
            walk.same()


def test_bytes_of_what_stands_scattered_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank went over all between its ends: to look at a queue of 300,000 took the loop 0.8 s."""
    asked, total = list[int](), Sizes.total
    bodies = [b'{"p":%d}' % (n * n % 1000) + b" " * (n % 7) for n in range(20_000)]
    with Broker({"queue": [{"name": "q", "priority_expression": "/p"}]}) as broker:
        batch = Publishes(Topic("/", "", "q"), b"\0\0", bodies)
        broker.command(lambda one: one.core.publish(one.engine.now(), batch))
        monkeypatch.setattr(Sizes, "total", lambda sizes, chunk: asked.append(len(chunk)) or total(sizes, chunk))
        assert broker.stats("q")["ready_bytes"] == sum(map(len, bodies))
    assert len(asked) < 10
