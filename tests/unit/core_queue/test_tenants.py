"""The ring of tenants against its definition, one message at a time; buckets."""

from __future__ import annotations

from random import Random

import pytest

from choices import spread
from penstock.core.effects import Effect, Verb, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.limits import Pace
from penstock.core.queue.order.runs import Run
from penstock.core.queue.queue import Queue
from penstock.core.queue.tenants import Tenants
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings

S = 1_000_000


class Ring:
    """Weighted deficit round robin, one message at a time."""

    def __init__(self, weights: dict[str, float], most: int) -> None:
        self.weights = weights
        self.most = most or 1 << 60
        self.waiting: dict[str, list[int]] = {}
        self.leased: dict[str, int] = {}
        self.ring: list[str] = []
        self.deficit: dict[str, float] = {}

    def open(self, tenant: str) -> bool:
        return bool(self.waiting.get(tenant)) and self.leased.get(tenant, 0) < self.most

    def take(self) -> int | None:
        new = [tenant for tenant in self.waiting if self.open(tenant) and tenant not in self.ring]
        self.ring += sorted(new, key=lambda tenant: self.waiting[tenant][0])
        while self.ring:
            tenant = self.ring[0]
            if self.deficit.setdefault(tenant, 0.0) < 1:
                self.deficit[tenant] += self.weights.get(tenant, 1.0)
            if self.deficit[tenant] < 1:
                self.ring.append(self.ring.pop(0))
                continue
            self.deficit[tenant] -= 1
            self.leased[tenant] = self.leased.get(tenant, 0) + 1
            lsn = self.waiting[tenant].pop(0)
            if not self.open(tenant):
                self.ring.pop(0)
                del self.deficit[tenant]
            elif self.deficit[tenant] < 1:
                self.ring.append(self.ring.pop(0))
            return lsn
        return None


@pytest.mark.parametrize("seed", spread(range(40), 14))
def test_the_ring_agrees_with_its_definition(seed: int) -> None:
    dice = Random(seed)
    weights = {"a": dice.choice((1.0, 2.0, 0.3)), "b": dice.choice((1.0, 3.5))}
    most = dice.choice((0, 0, 1, 3))
    tenants = Tenants(QueueSettings(fairness_key="/t", weights=tuple(weights.items()), max_leased=(0, most)))
    model = Ring(weights, most)
    owner: dict[int, str] = {}
    out: list[int] = []
    lsn = 0
    for _ in range(300):
        match dice.randrange(4):
            case 0:
                lsns = [lsn + n + 1 for n in range(dice.randint(1, 8))]
                lsn = lsns[-1]
                keys = [dice.choice("aaabbcde") for _ in lsns]
                numbers = tenants.keys.add(range(lsns[0], lsn + 1), keys)
                tenants.arrive(lsns, numbers, 0, 0)
                for one, key in zip(lsns, keys, strict=True):
                    owner[one] = key
                    model.waiting.setdefault(key, []).append(one)
            case 1 | 2:
                taken = [one for run in tenants.take(dice.randint(1, 9), 0) for one in run.chunk]
                assert taken == [model.take() for _ in taken]
                out += taken
            case _:
                dice.shuffle(out)
                back, out = out[: len(out) // 2], out[len(out) // 2 :]
                for one in sorted(back):
                    tenants.freed([one])
                    key = owner[one]
                    model.leased[key] -= 1
                    if dice.random() < 0.4:
                        tenants.put(Run(range(one, one + 1), True))
                        model.waiting[key] = sorted([*model.waiting[key], one])
                    else:
                        tenants.leave(one, 0)
        tenants.check(out)
    while True:
        taken = [one for run in tenants.take(5, 0) for one in run.chunk]
        if not taken:
            assert model.take() is None
            break
        assert taken == [model.take() for _ in taken]
        tenants.freed(taken)
        for one in taken:
            model.leased[owner[one]] -= 1
            tenants.leave(one, 0)


def test_what_was_let_through_and_not_taken_waits_again() -> None:
    tenants = Tenants(QueueSettings(fairness_key="/t"))
    numbers = tenants.keys.add(range(1, 5), ["a", "a", "b", "a"])
    tenants.arrive([1, 2, 3, 4], numbers, 3, 0)
    assert [lsn for run in tenants.take(2, 0) for lsn in run.chunk] == [1, 2]
    tenants.come_again()
    tenants.check([1, 2])
    assert [lsn for run in tenants.take(9, 0) for lsn in run.chunk] == [3, 4]


def test_who_had_all_it_could_deliver_settled_by_others_leaves_the_ring() -> None:
    """It enters again with others, in the order of their first messages, even where the queue is empty meanwhile."""
    sink, now = Outbox[Effect](100), Now(1, 1)
    queue = Queue(1, "/", "q", QueueSettings(fairness_key="/t", max_leased=(2, 0)))
    queue.arrive(now, range(100, 103), sink, keys=[("a",), ("b",), ("b",)])
    one = queue.subscribe(now, sink, tag="one", holder=None)
    sink.take_effects()
    queue.settle(now, [range(102, 103)], Verb.ACK, sink)
    queue.settle(now, [range(100, 102)], Verb.RELEASE, sink, by=one)
    queue.check()
    assert [lsn for one in delivered(sink.take_effects()) for lsn in one.chunk] == [100, 101]


def test_a_bucket_fills_evenly_and_holds_one_period() -> None:
    pace = Pace(10, S)
    assert pace.allowed(0) == 10
    pace.spend(10)
    assert pace.allowed(0) == 0
    assert pace.due == S // 10
    assert pace.allowed(S // 10 - 1) == 0
    assert pace.allowed(S // 10) == 1
    assert pace.allowed(100 * S) == 10
    third = Pace(3, S)
    third.spend(3)
    assert sum(_spent(third, at) for at in range(0, 10 * S + 1, S // 10)) == 30


def _spent(pace: Pace, at: int) -> int:
    count = pace.allowed(at)
    pace.spend(count)
    return count
