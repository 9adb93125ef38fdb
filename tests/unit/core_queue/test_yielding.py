"""Who gives way first, where what is ready stands in several orders: all are looked at seldom, and they go in order."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from choices import EFFORT
from penstock.core.queue import yielding
from penstock.core.queue.order.ranks import Ranks, rank_of
from penstock.core.queue.order.runs import Run
from penstock.core.queue.queue import Queue
from penstock.core.queue.yielding import Yielding
from penstock.testing import Broker

DEPTH, MORE = (50, 25) if EFFORT == 1 else (200, 100)

KEYS = ({"fairness_key": "/k"}, {"group_key": "/k"}, {"group_key": "/k", "fairness_key": "/k"})
ORDERS: tuple[dict[str, Any], ...] = ({}, {"priority_expression": "/p"}, {"max_priority": 9})
LIMITS: tuple[dict[str, Any], ...] = ({"max_length": DEPTH}, {"ring_size": DEPTH})


def body(n: int) -> bytes:
    return orjson.dumps({"n": n, "k": n % 7, "p": n % 5})


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each look from now on has been at."""
    looked = list[int]()
    keys_of = yielding.keys_of

    def seen(*asked: Any) -> Any:
        found = keys_of(*asked)
        looked.append(found.shape[1])
        return found

    monkeypatch.setattr(yielding, "keys_of", seen)
    return looked


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_a_limit_that_is_set_far_below_looks_once_however_many_steps_it_takes(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = counted(monkeypatch)
    monkeypatch.setattr(yielding, "PORTION", 8)
    monkeypatch.setattr(Queue, "step_most", 10)
    with Broker({"queue": [{"name": "q", **keys}]}) as broker:
        for n in range(DEPTH + MORE):
            broker.publish("q", body(n))
        broker.alter("q", max_length=MORE)
        broker.advance(1)
        assert broker.stats("q")["ready"] == MORE
    assert looked == [DEPTH + MORE]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_a_full_queue_is_not_looked_through_for_each_message_that_comes(
    keys: dict[str, Any], order: dict[str, Any], limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = counted(monkeypatch)
    monkeypatch.setattr(yielding, "PORTION", MORE)
    with Broker({"queue": [{"name": "q", **keys, **order, **limit}]}) as broker:
        for n in range(DEPTH + MORE):
            broker.publish("q", body(n), priority=n % 5 if "max_priority" in order else None)
        assert broker.stats("q")["ready"] == DEPTH
        assert sum(looked) < 2 * DEPTH  # one look, and each that came since
        subscriber, left = broker.subscribe("q", max_backlog=DEPTH), set[int]()
        while some := subscriber.take():
            left.update(orjson.loads(message.body)["n"] for message in some if message.ack())
    assert left == expected(bool(order))


def expected(ranked: bool) -> set[int]:
    """What stays when the oldest of the least urgent go, one for each that comes."""
    stays = list[int]()
    for n in range(DEPTH + MORE):
        stays.append(n)
        if len(stays) > DEPTH:
            stays.remove(min(stays, key=lambda one: (one % 5, one) if ranked else (0, one)))
    return set(stays)


def told(one: Yielding) -> list[int]:
    return one.next(100)


def test_whoever_became_ready_since_goes_at_its_place() -> None:
    one = Yielding()
    one.look([Run(range(10, 20), False)], None)
    one.came_back(Run(range(5, 7), False), None)
    one.entered(Run(range(30, 32), False), None)  # behind all that are known
    assert told(one) == [5, 6, *range(10, 20)]
    assert told(one) == []


def test_whoever_came_back_to_another_place_goes_there() -> None:
    one = Yielding()
    one.look([Run(range(10, 14), False)], None)
    one.came_back(Run(range(10, 11), False, place=12), None)
    one.came_back(Run(range(11, 12), False, place=50), None)  # behind all that are known
    assert told(one) == [10, 12, 13]


def test_the_least_urgent_go_first_however_late_they_came() -> None:
    ranks, one = Ranks(), Yielding()
    ranks.add(range(1, 5), [rank_of(n) for n in (1, 9, 1, 3)])
    one.look([Run(range(1, 5), False)], ranks)
    ranks.add(range(5, 7), [rank_of(2), rank_of(9)])
    one.entered(Run(range(5, 7), False), ranks)
    assert told(one) == [1, 3, 5, 4, 2]  # 6 is behind the last that is known


def test_much_that_came_since_is_looked_at_again() -> None:
    one = Yielding()
    one.look([Run(range(10_000, 10_010), False)], None)
    for lsn in range(1, yielding.PORTION):
        one.came_back(Run(range(lsn, lsn + 1), False), None)
    assert told(one) == []


def test_a_part_of_very_many_is_kept() -> None:
    one = Yielding()
    one.look([Run(range(1, 64 * yielding.PORTION + 1), False)], None)
    first = one.next(10 * yielding.PORTION)
    assert first == list(range(1, 4 * yielding.PORTION + 1))
    assert told(one) == []


def test_as_many_are_kept_of_a_look_as_are_wanted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is set far below what waits has all looked at once a step, not once for a part of it."""
    monkeypatch.setattr(yielding, "PORTION", 4)
    looks = list[int]()
    look = Yielding.look

    def counted(self: Yielding, runs: Any, ranks: Any, count: int = 0) -> None:
        looks.append(count)
        look(self, runs, ranks, count)

    monkeypatch.setattr(Yielding, "look", counted)
    with Broker({"queue": [{"name": "q", "fairness_key": "/k"}]}) as broker:
        for n in range(DEPTH):
            broker.publish("q", body(n))
        broker.alter("q", max_length=5)
        assert broker.stats("q")["ready"] == 5
        left = {orjson.loads(message.body)["n"] for message in broker.subscribe("q", max_backlog=9).take()}
    assert left == set(range(DEPTH - 5, DEPTH))
    assert looks == [DEPTH - 5]
