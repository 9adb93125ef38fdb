"""Consumers with one filter: several messages dealt at once go where one after the other would."""

from __future__ import annotations

import random

import pytest

from choices import spread
from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.takers import Takers
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now
from penstock.records.queue_settings import FairnessModel, QueueSettings

MODELS: tuple[FairnessModel, ...] = ("round-robin", "fast", "proportional")


def one_by_one(takers: Takers[Consumer], model: FairnessModel, turn: int, count: int) -> list[Consumer]:
    out: list[Consumer] = []
    while len(out) < count and (consumer := takers.next(model, turn)) is not None:
        out.append(consumer)
        if not consumer.no_ack:
            consumer.leases.count += 1
            takers.served(consumer)
        turn = consumer.serial
    return out


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", spread(range(20), 8))
def test_many_at_once_go_where_one_after_the_other_would(model: FairnessModel, seed: int) -> None:
    chance = random.Random(seed)
    sides: list[tuple[Takers[Consumer], list[Consumer]]] = []
    for _ in range(2):
        chance.seed(seed)
        queue = Queue(1, "/", "q", QueueSettings(fairness_model=model))
        takers = Takers[Consumer]()
        workers = [
            queue.subscribe(
                Now(1, 1), Outbox[Effect](10), tag=f"c{place}", holder=None, max_backlog=chance.choice([0, 1, 2, 5]),
                priority=chance.choice([0, 0, 1]), no_ack=chance.random() < 0.1, choked=chance.random() < 0.1,
            )
            for place in range(chance.randrange(1, 9))
        ]  # fmt: skip
        for worker in workers:
            takers.add(worker)
        sides.append((takers, workers))
    turn = 0
    for _ in range(30):
        count = chance.randrange(1, 12)
        used = model if chance.random() < 0.8 else chance.choice(MODELS)  # it may be changed while they live
        dealt = sides[0][0].deal(used, turn, count)
        singly = one_by_one(sides[1][0], used, turn, count)
        assert [one.serial for one in dealt] == [one.serial for one in singly]
        turn = dealt[-1].serial if dealt else turn
        for place in range(len(sides[0][1])):
            freed = chance.choice([0, 0, 1, 2])
            for takers, workers in sides:
                worker = workers[place]
                if freed and worker.leases.count:
                    worker.leases.count = max(worker.leases.count - freed, 0)
                    takers.add(worker)
