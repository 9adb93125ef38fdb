"""A message that is all its consumer holds is kept without a run of its own; the answers are those of one."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import pytest

from choices import spread
from penstock.core.effects import DeliverEach, Effect, delivered
from penstock.core.outbox import Outbox
from penstock.core.queue.order.runs import Lane, Run
from penstock.core.queue.settling.attempts import ONCE
from penstock.core.queue.settling.leases import Leases
from penstock.expr import compile_filter
from unit.core.world import World


def shown(runs: list[Run]) -> list[tuple[list[int], object, int, int, int]]:
    return [(list(run.chunk), run.tally, run.place, run.deadline, run.granted) for run in runs]


def asked(leases: Leases, chance: random.Random, lsn: int, mono: int) -> object:
    """One thing that can be done with what is held, or asked about it."""
    what, some = chance.randrange(12), range(max(lsn - chance.randrange(1, 5), 1), lsn + chance.randrange(2))
    match what:
        case 0 | 1 | 2:
            taken, missing = leases.take(some)
            return shown(taken), [list(chunk) for chunk in missing]
        case 3:
            first = leases.take_first(some)
            return None if first is None else shown([first])
        case 4:
            return shown(leases.ended(mono, in_order=chance.random() < 0.5))
        case 5:
            return shown(leases.granted_until(mono - chance.randrange(9)))
        case 6:
            return shown(leases.oldest_grants(1))
        case 7:
            return leases.extend(some, mono + 30)
        case 8:
            return list(leases.holding(some, sends=1))
        case 9:
            return list(leases.oldest()), leases.oldest_grant(), leases.next_deadline(chance.random() < 0.5)
        case 10:
            leases.loosen()
            return leases.reach_before(lsn), leases.lowest()
        case _:
            return shown(leases.clear())


@pytest.mark.parametrize("seed", spread(range(60), 20))
def test_one_message_alone_is_as_good_as_a_run(seed: int) -> None:
    both = Leases(), Leases()
    dice = random.Random(seed)
    for leases in both:
        leases.timed = seed % 2 > 0
    lsn, mono = 5, 0
    lone = 0
    for step in range(120):
        mono += dice.randrange(3)
        if dice.random() < 0.35:
            lsn += dice.randrange(1, 3)
            terms = Run(range(0), True, ONCE, 0, dice.choice([0, mono + 5]))
            terms.granted = mono + 1
            both[0].count += 1
            both[0].add_lone(lsn, terms)
            both[1].add(terms.part(range(lsn, lsn + 1), True))
            lone += both[0].lone > 0
        else:
            told = [asked(leases, random.Random(1000 * seed + step), lsn + 1, mono) for leases in both]
            assert told[0] == told[1]
        assert both[0].count == both[1].count
        if dice.random() < 0.2:
            assert shown(list(both[0].held())) == shown(list(both[1].held()))
    assert lone > 3


@pytest.mark.parametrize("settled", [False, True])
def test_whether_a_delivery_is_held_costs_no_look_at_all_others(settled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by 48,000 messages of tenants that waited for their bodies: half a second of numpy for 256 deliveries."""
    tenants, leases = 40, Leases()
    runs = [array("q", range(5 + tenant, 5 + 100 * tenants, tenants)) for tenant in range(tenants)]
    for chunk in runs:
        leases.add(Run(chunk, False, ONCE, 0, 0))
    gone = array("q", [runs[tenant][0] for tenant in range(0, tenants, 2)]) if settled else array("q")
    if settled:
        leases.take(gone)
    looks = [0]
    isin = np.isin

    def counted(*columns: Any, **how: Any) -> Any:
        looks[0] += 1
        return isin(*columns, **how)

    monkeypatch.setattr(np, "isin", counted)
    for chunk in runs:
        assert list(leases.holding(chunk[1:7], sends=1)) == list(chunk[1:7])
        assert not len(leases.holding(chunk[:7], sends=2))
    assert not looks[0]
    for chunk in runs:
        assert list(leases.holding(chunk[:7], sends=1)) == [lsn for lsn in chunk[:7] if lsn not in gone]


def test_what_many_were_given_one_each_lasts_and_ends() -> None:
    world = World()
    queue = world.declare("q", lease_period=5_000_000, fairness_model="round-robin")
    workers = [
        world.subscribe(queue, f"c{n}", filter=compile_filter("/g = 0"), client="peer/1", max_backlog=2)
        for n in range(6)
    ]
    start = world.publish("q", *[b'{"g": 0}'] * 6).first
    assert [worker.leases.lone for worker in workers] == [*range(start, start + 6)]
    queue.check()
    first = [lsn for worker in workers for lsn in world.inbox[worker]]
    assert sorted(first) == [*range(start, start + 6)]
    world.core.settle_each(world.now, queue, workers[:2], range(start, start + 2))
    world.turn()
    assert (queue.leased, queue.outstanding, queue.so_far.acked) == (4, 4, 2)
    queue.check()
    world.advance(6)
    world.core.tick(world.now)
    world.turn()
    assert queue.so_far.expired_leases == 4
    assert queue.leased == 4
    again = [lsn for worker in workers for lsn in world.inbox[worker]]
    for lsn in first:
        again.remove(lsn)
    assert sorted(again) == [*range(start + 2, start + 6)]
    queue.check()
    world.restart(clean=False)
    queue = world.core.queue("/", "q")
    assert queue.ready == 4
    assert queue.so_far.acked == 0


def test_nobody_gets_a_newer_message_before_an_older_one() -> None:
    """The oldest goes to one who wants it with others; the rest of the step is one each of those who want all."""
    world = World()
    queue = world.declare("q", fairness_model="round-robin")
    texts = ["/g < 9"] * 8 + ["/g = 1"]
    workers = [world.subscribe(queue, f"c{n}", filter=compile_filter(text)) for n, text in enumerate(texts)]
    for worker in workers:
        queue.choke(worker)
    first = world.publish("q", b'{"g": 1}', *[b'{"g": 2}'] * 6, b'{"g": 1}', *[b'{"g": 2}'] * 9).first
    for worker in workers:
        worker.choked = False
        assert worker.targets is not None
        worker.targets.wake(worker)
    sink = Outbox[Effect](world.core.next_lsn)
    queue.carry_on(world.now, sink)
    assert sum(isinstance(effect, DeliverEach) for effect in sink.effects) > 0
    got: dict[object, list[int]] = {}
    for effect in delivered(sink.effects):
        got.setdefault(effect.consumer, []).extend(effect.chunk)
    assert sorted(lsn for lsns in got.values() for lsn in lsns) == [*range(first, first + 17)]
    assert all(lsns == sorted(lsns) for lsns in got.values())
    queue.check()


@pytest.mark.parametrize("scattered", [False, True])
def test_what_failed_to_be_added_does_not_count(scattered: bool) -> None:
    leases = Leases()
    leases.add(Run(range(1, 200), True))
    if scattered:
        leases.take(range(50, 60))  # out of the middle: its runs are found by LSN from now on
    broken = Run(range(300, 310), True)
    del broken.deadline
    with pytest.raises(AttributeError):
        leases.add(broken)
    taken, missing = leases.take(range(1, 50))
    more, left = leases.take(range(60, 200) if scattered else range(50, 200))
    assert [list(run.chunk) for run in taken + more] == [[*range(1, 50)], [*range(60 if scattered else 50, 200)]]
    assert not missing
    assert not left
    assert leases.count == 0


@pytest.mark.parametrize("length", [1, 2, 5, 80])
def test_an_ack_finds_its_lease_at_once_in_whatever_order_they_were_granted(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As priorities give them out: each grant lies before, or around, those of before."""
    looked, take, add = list[object](), Lane.take, Lane.add
    monkeypatch.setattr(Lane, "take", lambda *given: looked.append(0) or take(*given))
    monkeypatch.setattr(Lane, "add", lambda *given: looked.append(0) or add(*given))
    leases, count = Leases(), 2000 if length < 10 else 300
    for at in reversed(range(count)):
        lsns = array("q", [at + 1 + part * count for part in range(length)])
        leases.add(Run(lsns, False, ONCE, place=at + 1, deadline=7))
    for lsn in random.Random(1).sample(range(1, length * count + 1), length * count):
        (run,), missing = leases.take(range(lsn, lsn + 1))
        assert list(run.chunk) == [lsn]
        assert not missing
        assert run.place == (lsn - 1) % count + 1
    assert not leases.count
    assert len(looked) < length * count
