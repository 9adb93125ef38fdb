"""Scheduled messages of a queue with last values that expire, and a tick that comes late: as if it had come in time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.effects import Verb
from penstock.core.queue import delays, expiry
from penstock.core.queue.queue import Queue
from penstock.records.kinds import Kind
from unit.core_queue.test_queue import Bench

A, B = 1, 2
"""Keys."""


def bench(**settings: Any) -> Bench:
    return Bench(last_value_key="/key", **settings)


def publish(q: Bench, key: int, delay: int = 0, life: int = 0) -> int:
    """Its LSN; delay, life    from now; 0: none"""
    columns: dict[str, Any] = {"last_keys": [key]}
    if delay:
        columns["not_before"] = [q.time + delay]
    if life:
        columns["expires_at"] = [q.time + life]
    return q.publish(**columns)[0]


def ready(q: Bench) -> list[int]:
    """What waits, oldest first."""
    q.queue.check()
    waiting = [lsn for chunk in q.queue.main.chunks() for lsn in chunk]
    return waiting + [lsn for run in q.queue.returned.runs() for lsn in run.chunk]


LIMITS = [{}, {"max_length": 9}, {"ring_size": 9}]


@pytest.mark.parametrize("settings", LIMITS)
def test_what_expired_before_it_was_due_replaces_nothing(settings: dict[str, int]) -> None:
    q = bench(**settings)
    old = publish(q, A)
    publish(q, A, delay=6, life=4)
    q.advance(10)
    assert ready(q) == [old]
    assert q.queue.delayed == 0
    assert q.reasons() == ["time_limit"]


@pytest.mark.parametrize("settings", LIMITS)
@pytest.mark.parametrize("life", [6, 8])
def test_what_was_due_before_it_expired_has_replaced_the_older_one(settings: dict[str, int], life: int) -> None:
    q = bench(**settings)
    publish(q, A)
    other = publish(q, B)
    publish(q, A, delay=6, life=life)
    q.advance(10)
    assert ready(q) == [other]
    assert q.queue.delayed == 0


@pytest.mark.parametrize("settings", LIMITS)
def test_among_several_the_order_is_that_of_their_times(settings: dict[str, int]) -> None:
    q = bench(**settings)
    publish(q, A)
    publish(q, B)
    publish(q, A, delay=3)
    publish(q, A, delay=5, life=8)
    publish(q, B, delay=5, life=8)
    last = publish(q, B, delay=7)
    q.advance(10)
    assert ready(q) == [last]


def test_what_is_due_in_a_later_step_replaces_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "STEP_TIMES", 1)
    q = bench()
    publish(q, A)
    publish(q, B)
    publish(q, A, delay=3, life=8)
    publish(q, B, delay=5, life=8)
    q.advance(10)
    while q.queue.is_due(q.now):
        q.queue.tick(q.now, q.sink)
    assert ready(q) == []
    assert q.queue.delayed == 0


@pytest.mark.parametrize("settings", LIMITS)
def test_what_was_due_and_over_before_a_start_replaces_nothing(
    settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "STEP_TIMES", 1)
    q = bench(**settings)
    old = [publish(q, A), publish(q, B)]
    publish(q, A, delay=6, life=8)
    publish(q, B, delay=6, life=8)
    waiting, columns = q.queue.snapshot()
    q.queue = Queue(1, "/", "q", q.queue.settings)
    q.queue.load(waiting, columns)
    q.advance(10)
    assert ready(q) == old


def test_what_is_out_stays_out_and_comes_back_when_what_replaced_it_has_expired() -> None:
    q = bench()
    worker = q.worker(max_backlog=1)
    out = publish(q, A)
    assert q.sent() == [out]
    publish(q, A, delay=6, life=8)
    q.advance(10)
    q.settle(range(out, out + 1), Verb.RELEASE, by=worker)
    assert q.sent() == [out]


def test_of_those_that_are_due_while_an_older_one_comes_back_the_last_stays() -> None:
    q = bench(lease_period=5)
    worker = q.worker(max_backlog=1)
    publish(q, A)
    newer = publish(q, A)
    q.settle(range(newer, newer + 1))
    publish(q, A, delay=3)
    last = publish(q, A, delay=4)
    other = publish(q, B, delay=3)
    q.queue.choke(worker)
    q.advance(10)
    assert ready(q) == [other, last]


@pytest.mark.parametrize("moved", [False, True])
def test_what_comes_back_as_a_newer_one_is_due_is_replaced_though_that_has_expired_since(moved: bool) -> None:
    """Whether the newer one was published for later, or moved there."""
    q = bench(lease_period=5)
    worker = q.worker(max_backlog=1)
    publish(q, A)
    if moved:
        newer = publish(q, A, life=12)
        assert q.queue.reschedule(q.now, range(newer, newer + 1), q.time + 8, q.sink) == 1
    else:
        publish(q, A, delay=8, life=12)
    q.queue.choke(worker)
    q.advance(20)
    assert ready(q) == []
    assert q.queue.delayed == q.queue.leased == 0


@pytest.mark.parametrize("settings", LIMITS)
def test_what_is_over_and_goes_in_a_later_step_is_replaced_by_nobody(
    settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SPAN_MOST", 1)
    q = bench(expiration=5, **settings)
    for key in (A, B, A + B):
        publish(q, key)
    q.time += 5
    new = publish(q, A + B)
    assert q.queue.expiry.busy
    while q.queue.expiry.busy:
        q.advance(0)
    assert ready(q) == [new]
    assert q.reasons() == ["time_limit"] * 3


def test_what_a_newer_value_replaces_takes_no_place_of_a_ring_as_it_comes_back() -> None:
    """It goes before anybody gives way to it: the other that comes back with it has a place."""
    q = bench(ring_size=2)
    worker = q.worker(max_backlog=2)
    other, old = publish(q, B), publish(q, A)
    assert q.sent(worker) == [other, old]
    newer = publish(q, A)
    q.log()
    q.queue.unsubscribe(q.now, [worker], q.sink, requeue=True)
    assert sorted(ready(q)) == [other, newer]
    assert q.queue.leased == 0
    assert [(kind, pairs) for kind, _, pairs in q.log()] == [
        (Kind.RETURN, [other, other + 1, old, old + 1]),
        (Kind.DROP, [old, old + 1]),
    ]
