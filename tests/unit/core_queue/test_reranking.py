"""Queues whose order changes while very much waits: in steps, and everything can be done to them in between."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from penstock.core.effects import Deliver, Effect, Rate, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.order import pool, ranking, ranks
from penstock.core.queue.order.ranks import rank_of
from penstock.core.queue.queue import Queue
from penstock.core.queue.upcoming import Upcoming
from penstock.records.chunks import Now, as_chunk
from penstock.records.queue_settings import QueueSettings

NOW = Now(1, 1)
COUNT = 200


def first(lsn: int) -> int:
    return lsn * 7919 % 101


def second(lsn: int) -> int:
    return lsn * 104_729 % 97


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STEP", 16)
    monkeypatch.setattr(ranking, "STEP", 8)
    monkeypatch.setattr(ranks, "PIECE", 32)


def filled(expression: str | None = "/a") -> tuple[Queue, Outbox[Effect]]:
    queue, sink = Queue(1, "/", "q", QueueSettings(priority_expression=expression)), Outbox[Effect](1000)
    lsns = as_chunk(array("q", range(100, 100 + 2 * COUNT, 2)))
    told = [rank_of(first(lsn)) for lsn in lsns] if expression else None
    queue.arrive(NOW, lsns, sink, ranks=told)
    return queue, sink


def answer(queue: Queue, sink: Outbox[Effect]) -> int:
    """Answer what is asked; how many questions there were."""
    asked = [effect for effect in sink.take_effects() if isinstance(effect, Rate)]
    for one in asked:
        queue.rated(NOW, one.token, one.chunk, [rank_of(second(lsn)) for lsn in one.chunk], sink)
    return len(asked)


def to_the_end(queue: Queue, sink: Outbox[Effect]) -> int:
    """All steps; how many there were."""
    steps = 0
    while sink.effects or queue.is_due(NOW):
        if not answer(queue, sink):
            queue.tick(NOW, sink)
        queue.check()
        steps += 1
    return steps


def alter(queue: Queue, sink: Outbox[Effect], expression: str | None) -> None:
    queue.alter(NOW, replace(queue.settings, priority_expression=expression), sink)


def delivered(queue: Queue, sink: Outbox[Effect]) -> list[int]:
    queue.subscribe(NOW, sink, tag="c", holder=None)
    while queue.is_due(NOW):
        queue.tick(NOW, sink)
    return [lsn for effect in sink.take_effects() if isinstance(effect, Deliver) for lsn in effect.chunk]


@pytest.mark.parametrize("before", ["/a", None])
@pytest.mark.parametrize("after", ["/b", None])
@pytest.mark.parametrize("steps", range(0, 60, 4))
def test_between_any_two_steps_all_is_there_and_may_go(before: str | None, after: str | None, steps: int) -> None:
    if before == after:
        return
    queue, sink = filled(before)
    alter(queue, sink, after)
    for _ in range(steps):
        if not answer(queue, sink) and queue.is_due(NOW):
            queue.tick(NOW, sink)
    living = set(range(100, 100 + 2 * COUNT, 2))
    assert {lsn for chunk in queue.snapshot()[0] for lsn in chunk} == living
    assert list(Upcoming(queue, None).returned(3)) is not None
    for gone in (range(130, 180), as_chunk(array("q", [102, 200, 202, 300]))):
        expected = living.intersection(gone)
        assert queue.settle(NOW, [gone], Verb.ACK, sink) == len(expected)
        living -= expected
        queue.check()
    told = [rank_of(second(lsn)) for lsn in (900, 901)] if after else None
    queue.arrive(NOW, range(900, 902), sink, ranks=told)
    living |= {900, 901}
    assert {lsn for chunk in queue.snapshot()[0] for lsn in chunk} == living
    assert queue.floor() <= min(living)
    to_the_end(queue, sink)
    assert queue.floor() == min(living)
    expected_order = sorted(living, key=(lambda lsn: (-second(lsn), lsn)) if after else None)
    assert delivered(queue, sink) == expected_order


def test_it_may_change_again_before_it_is_done() -> None:
    queue, sink = filled()
    for expression in ("/b", None, "/c", "/b"):
        alter(queue, sink, expression)
        answer(queue, sink)
        queue.tick(NOW, sink)
        queue.check()
    assert to_the_end(queue, sink) > 10
    assert delivered(queue, sink) == sorted(range(100, 100 + 2 * COUNT, 2), key=lambda lsn: (-second(lsn), lsn))


def test_what_is_purged_or_deleted_on_the_way_is_gone() -> None:
    for way in ("purge", "delete"):
        queue, sink = filled()
        alter(queue, sink, "/b")
        answer(queue, sink)
        assert getattr(queue, way)(NOW, sink) == COUNT
        to_the_end(queue, sink)
        assert queue.ready == 0
        assert queue.capture() is None


def test_one_step_looks_at_few_messages() -> None:
    queue, sink = filled()
    alter(queue, sink, "/b")
    assert queue.main.pool.count == COUNT  # type: ignore[attr-defined]
    assert to_the_end(queue, sink) >= COUNT // 16 + COUNT // 8


def test_a_saved_state_knows_what_is_ranked_and_what_is_not() -> None:
    queue, sink = filled()
    alter(queue, sink, "/b")
    for _ in range(25):
        if not answer(queue, sink):
            queue.tick(NOW, sink)
    assert 0 < queue.ranking.left(queue.main) < COUNT  # type: ignore[union-attr]
    again = Queue(1, "/", "q", queue.settings)
    again.load(*queue.snapshot())
    again.check()
    again.tick(NOW, sink)
    asked = 0
    while sink.effects or again.is_due(NOW):
        asked += sum(len(effect.chunk) for effect in sink.effects if isinstance(effect, Rate))
        if not answer(again, sink):
            again.tick(NOW, sink)
    assert 0 < asked < COUNT
    assert delivered(again, sink) == sorted(range(100, 100 + 2 * COUNT, 2), key=lambda lsn: (-second(lsn), lsn))
