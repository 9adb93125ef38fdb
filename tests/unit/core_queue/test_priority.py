"""Queues with priorities: values, places, lists of filters that are bounded, many priorities and few."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import pytest

from choices import spread
from penstock.core.effects import Deliver, DeliverEach, Effect, Scan, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching import filtering
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order import priority as priority_order
from penstock.core.queue.order import ranks
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.ranks import HIGHEST, LOWEST, Ranks, priority_of, rank_of
from penstock.core.queue.queue import Queue
from penstock.core.queue.upcoming import Upcoming
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.queue_settings import QueueSettings

NOW = Now(1, 1)
TOPIC = Topic("/", "", "q")


class Bench:
    """A queue with priorities and its outbox."""

    def __init__(self, **settings: Any) -> None:
        self.sink: Outbox[Effect] = Outbox(10)
        self.queue = Queue(1, "/", "q", QueueSettings(priority_expression="/p", **settings))
        self.bodies: dict[int, bytes] = {}
        self.priorities: dict[int, int] = {}

    def arrive(self, *priorities: int, body: bytes = b"x", **rest: Any) -> Chunk:
        first = self.sink.next_lsn
        self.sink.next_lsn += 2 * len(priorities)  # strangers between
        chunk = as_chunk(array("q", range(first, self.sink.next_lsn, 2)))
        self.bodies.update(dict.fromkeys(chunk, body))
        self.priorities.update(zip(chunk, priorities, strict=True))
        batch = Publishes(TOPIC, b"", [body] * len(priorities))
        self.queue.arrive(NOW, chunk, self.sink, batch=batch, ranks=[rank_of(one) for one in priorities], **rest)
        return chunk

    def worker(self, backlog: int | None = None, filter: Any = None) -> Consumer:
        return self.queue.subscribe(
            NOW, self.sink, tag=f"c{id(filter)}", holder=None, max_backlog=backlog, filter=filter
        )

    def sent(self) -> list[int]:
        """What was delivered; scans are answered, each for a part."""
        out = list[int]()
        while self.sink.effects:
            for effect in self.sink.take_effects():
                if isinstance(effect, Deliver | DeliverEach):
                    out += effect.chunk
                elif isinstance(effect, Scan):
                    seen = effect.chunk[: max(1, len(effect.chunk) // 2)]
                    found = [[lsn for lsn in seen if self.bodies[lsn] == b"x"] for _ in effect.filters]
                    self.queue.scanned(NOW, effect.token, found, seen[-1], self.sink)
        return out


class IsX:
    """Matches the body x."""

    text = "x"

    def matches(self, bodies: Any, properties: Any, topics: Any, lsns: Any = None, times: Any = None) -> list[bool]:
        return [body == b"x" for body in bodies]


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (0, 0), (7, 7), (7.9, 7), ("7", 7), ("1e3", 1000), (True, 1), (2**63, 2**63), (HIGHEST, HIGHEST),
        (2**64 - 1, HIGHEST), (1e300, HIGHEST), (float("inf"), HIGHEST), (-1, None), (-0.5, None), (None, None),
        ("soon", None), ("", None), (float("nan"), None),
    ],
)  # fmt: skip
def test_values_are_unsigned_whole_numbers(value: object, priority: int | None) -> None:
    assert priority_of(rank_of(value)) == priority


def test_ranks_ascend_as_priorities_descend() -> None:
    told = [HIGHEST, 2**63 + 1, 2**63, 2**63 - 1, 2**63 - 2, 2**53, 1, 0, None]
    found = [rank_of(value) for value in told]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert 0 not in found
    assert found[-1] == LOWEST


@pytest.mark.parametrize("levels", [256, 2])
def test_the_highest_goes_first_and_of_equals_the_oldest(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_order, "LEVELS_MOST", levels)
    bench = Bench()
    chunk = bench.arrive(1, 5, 3, 5, 0, 1)
    bench.worker()
    assert bench.sent() == [chunk[1], chunk[3], chunk[2], chunk[0], chunk[5], chunk[4]]


def test_what_comes_back_has_its_own_place() -> None:
    bench = Bench()
    chunk = bench.arrive(1, 5, 5, 5)
    worker = bench.worker(2)
    assert bench.sent() == [chunk[1], chunk[2]]
    bench.queue.settle(NOW, [chunk[1:2]], Verb.RELEASE, bench.sink, by=worker)
    assert bench.sent() == [chunk[1]]  # before chunk[3], which is as high and younger


def test_who_has_room_gets_what_arrives_first() -> None:
    bench = Bench()
    bench.worker(2)
    chunk = bench.arrive(1, 2, 9)
    assert bench.sent() == [chunk[0], chunk[1]]


def test_a_due_message_takes_its_place_within_its_priority() -> None:
    bench = Bench()
    late = bench.arrive(5, 1, not_before=[1_000, 1_000])
    chunk = bench.arrive(5, 1)
    bench.queue.tick(Now(2_000, 1), bench.sink)
    assert bench.queue.delayed == 0
    bench.worker()
    assert bench.sent() == [chunk[0], late[0], chunk[1], late[1]]


@pytest.mark.parametrize("seed", spread(range(8), 4))
def test_a_bounded_list_tells_the_first_of_its_matches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "WALK_FIRST", 4)
    monkeypatch.setattr(priority_order, "LEVELS_MOST", 4 if seed % 2 else 256)
    chance = random.Random(seed)
    bench = Bench()
    bench.queue.ensure_targets().most = 5
    number = 4 if seed % 3 else 1000
    for _ in range(20):
        bench.arrive(*(chance.randrange(number) for _ in range(10)), body=chance.choice([b"x", b"y"]))
    worker = bench.worker(1, IsX())
    living = {lsn for lsn, body in bench.bodies.items() if body == b"x"}
    held = bench.sent()
    while living:
        [lsn] = held
        assert lsn == min(living, key=lambda one: (-bench.priorities[one], one))
        if chance.random() < 0.3:  # while nobody has room
            bench.arrive(*(chance.randrange(number) for _ in range(3)), body=b"x")
            living = {lsn for lsn, body in bench.bodies.items() if body == b"x"}
        bench.queue.settle(NOW, [range(lsn, lsn + 1)], Verb.ACK, bench.sink, by=worker)
        living.discard(lsn)
        bench.bodies[lsn] = b"gone"
        held = bench.sent()
    assert held == []


def test_what_cannot_be_looked_at_as_it_arrives_is_looked_at_later() -> None:
    bench = Bench()
    worker = bench.worker(1, IsX())
    bench.sent()
    first = bench.arrive(3, 1)
    assert bench.sent() == [first[0]]
    late = bench.sink.next_lsn
    bench.sink.next_lsn += 1
    bench.bodies[late] = b"x"
    bench.queue.arrive(NOW, range(late, late + 1), bench.sink, ranks=[rank_of(2)])  # without its body
    bench.queue.settle(NOW, [first[:1]], Verb.ACK, bench.sink, by=worker)
    assert bench.sent() == [late]
    bench.queue.settle(NOW, [range(late, late + 1)], Verb.ACK, bench.sink, by=worker)
    assert bench.sent() == [first[1]]


def test_ranks_of_what_is_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "DEAD_MOST", 100)
    bench = Bench()
    worker = bench.worker()
    stuck = bench.arrive(3)
    bench.sent()
    for _ in range(100):
        chunk = bench.arrive(*range(20))
        bench.sent()
        bench.queue.settle(NOW, [chunk], Verb.ACK, bench.sink, by=worker)
    assert bench.queue.ranks is not None
    assert bench.queue.ranks.count < 200
    assert bench.queue.ranks.of(stuck[0]) == rank_of(3)


@pytest.mark.parametrize("many", [False, True])
def test_memory_is_told_what_is_dispatched_next(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_order, "LEVELS_MOST", 2 if many else 256)
    bench = Bench()
    chunk = bench.arrive(1, 9, 5, 9, 7)
    line = Upcoming(bench.queue, None)
    assert list(line.returned(3)) == sorted([chunk[1], chunk[3], chunk[4]])
    assert line.head() == chunk[0]
    assert not len(line.after(0, 10))
    assert list(line.between(chunk[1], chunk[3])) == [chunk[1], chunk[2]]
    bench.worker(2)
    assert bench.sent() == [chunk[1], chunk[3]]
    assert list(line.returned(1)) == [chunk[4]]


def test_a_column_of_ranks_is_small_where_priorities_are_few() -> None:
    column = Ranks()
    lsns = np.arange(100_000, dtype=np.int64)
    column.load(lsns, 1 + lsns % 7)
    assert column.each(range(5, 9)).tolist() == [6, 7, 1, 2]
    assert column.of(99_999) == 1 + 99_999 % 7
    assert column.knows(99_999)
    assert not column.knows(100_000)
    column.replace(array("q", [6, 50_000]), [70, 71])
    assert column.each(array("q", [5, 6, 7, 50_000])).tolist() == [6, 70, 1, 71]
    column.forget_if_many(lambda: 0, lambda: [array("q", [50_000, 6]), array("q", [50_001])])
    column.add(range(200_000, 200_003), [9, 9, 9])
    while column.forget_some():
        assert column.forgetting
    assert column.count == 6
    assert column.each(range(200_000, 200_003)).tolist() == [9, 9, 9]
    assert column.each(array("q", [6, 50_000, 50_001])).tolist() == [70, 71, 1 + 50_001 % 7]
    assert list(column.among(range(10))) == [6]
    column.mix(np.array([3, 6, 60_000], dtype=np.int64), LOWEST)
    assert column.each(array("q", [3, 6, 50_000, 60_000])).tolist() == [LOWEST, 70, 71, LOWEST]
    assert ranks.PIECE == 8192


def test_from_few_priorities_to_many_and_back() -> None:
    bench = Bench()
    chance = random.Random(2)
    few = bench.arrive(*(chance.randrange(5) for _ in range(500)))
    order = bench.queue.main
    assert isinstance(order, PriorityOrder)
    many = bench.arrive(*(chance.randrange(10_000) for _ in range(500)))
    lsns = sorted([*few, *many], key=lambda one: (-bench.priorities[one], one))
    assert bench.queue.settle(NOW, [range(few[100], few[300])], Verb.ACK, bench.sink) == 200
    gone = set(range(few[100], few[300]))
    bench.worker()
    assert bench.sent() == [lsn for lsn in lsns if lsn not in gone]
    bench.queue.check()
    bench.queue.purge(NOW, bench.sink)
    assert bench.queue.ready == 0


@pytest.mark.parametrize("seed", spread(range(12), 5))
def test_ranks_are_the_same_however_many_were_forgotten_before_more_came(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all of the newest are gone, and what is left of older ones is the last block."""
    for name, value in (("PIECE", 4), ("DEAD_MOST", 0)):
        monkeypatch.setattr(ranks, name, value)
    dice = random.Random(seed)
    column, model, last, saved = Ranks(), dict[int, int](), 0, list[tuple[Ranks, dict[int, int]]]()
    for _ in range(60):
        new = sorted(dice.sample(range(last + 1, last + 12), dice.randint(1, 6)))
        last = new[-1]
        told = [1 + dice.randrange(dice.choice((1, 500))) for _ in new]
        column.add(array("q", new), told)
        model.update(zip(new, told, strict=True))
        if dice.random() < 0.3:
            saved.append((column.copy(), dict(model)))
        if dice.random() < 0.4:
            edge, share = dice.choice(list(model)), dice.choice((0.8, 1))
            model = {lsn: rank for lsn, rank in model.items() if lsn < edge and dice.random() < share}
            living = [array("q", model)]
            column.forget_if_many(lambda: 0, living.copy)
            while column.forget_some():
                pass
        for known, ranked in ((column, model), *saved):
            assert [known.of(lsn) for lsn in ranked] == list(ranked.values())
        assert column.count == len(model)
