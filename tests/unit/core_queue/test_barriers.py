"""Barriers of a queue, one behaviour each."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.effects import Fetch, Purpose, Scan, Verb
from penstock.core.queue import expiry
from penstock.core.queue.queue import Queue
from penstock.core.queue.upcoming import Upcoming
from penstock.core.queue.whole import DISPATCH
from penstock.records.chunks import as_chunk
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings, Retry
from unit.core_queue.test_queue import Bench

HOUR = 3_600_000_000


class Fenced(Bench):
    """A queue whose barriers the test names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(barrier_expression="/barrier = 1", **settings)

    def take(self, *marks: int, **columns: Any) -> list[int]:
        """Publish as many messages as there are marks; 1 is a barrier."""
        first = self.sink.next_lsn
        self.publish(len(marks), barriers=[first + i for i, mark in enumerate(marks) if mark], **columns)
        self.queue.check()
        return list(range(first, first + len(marks)))

    def restarted(self) -> None:
        """The queue anew from what lasts of it, and a new outbox."""
        waiting, columns = self.queue.snapshot()
        self.queue = Queue(1, "/", "q", self.queue.settings)
        self.queue.load(waiting, columns)
        self.sink.take_effects()
        self.queue.tick(self.now, self.sink)
        self.queue.check()


def test_it_waits_for_all_before_it_holds_all_behind_and_goes_to_everybody() -> None:
    bench = Fenced()
    one, two, none = (bench.worker(max_backlog=n) for n in (1, 1, 0))
    a, b, barrier, c, d = bench.take(0, 0, 1, 0, 0)
    assert (bench.sent(one), bench.sent(two)) == ([a], [b])
    bench.settle(range(a, a + 1), by=one)
    assert bench.sent() == []  # one has room, but what is left stands behind the barrier
    bench.settle(range(b, b + 1), by=two)
    effects = bench.deliveries()
    assert [list(effect.chunk) for effect in effects if effect.barrier] == [[barrier]] * 3
    assert [effect.consumer for effect in effects if effect.barrier] == [one, two, none]
    assert sorted(lsn for effect in effects if not effect.barrier for lsn in effect.chunk) == [c, d]
    assert bench.queue.outstanding == 2  # the barrier takes no backlog
    assert (Kind.SETTLE, {"barrier": 3}, [barrier, barrier + 1]) in bench.log()
    assert bench.settle(range(barrier, barrier + 1), by=one) == 0  # an ack says nothing


def test_two_in_a_row_go_one_after_the_other() -> None:
    bench = Fenced()
    worker = bench.worker()
    first, second, a, third = bench.take(1, 1, 0, 1)
    assert bench.sent(worker) == [first, second, a]
    bench.settle(range(a, a + 1), by=worker)
    assert bench.sent(worker) == [third]


@pytest.mark.parametrize("way", ["cancel", "leave", "retry"])
def test_what_comes_back_holds_it_again(way: str) -> None:
    bench = Fenced(retry=Retry(initial=1_000, jitter=0) if way == "retry" else None)
    worker = bench.worker(max_backlog=1)
    a, barrier = bench.take(0, 1)
    assert bench.sent(worker) == [a]
    if way == "leave":
        bench.queue.unsubscribe(bench.now, [worker], bench.sink, requeue=True)
        worker = bench.worker(max_backlog=1)
    else:
        bench.settle(range(a, a + 1), Verb.CANCEL, by=worker)
    if way == "retry":
        assert bench.sent(worker) == []  # in back-off it is not done
        bench.advance(1_000)
    assert bench.sent(worker) == [a]
    bench.settle(range(a, a + 1), by=worker)
    assert bench.sent(worker) == [barrier]


def test_a_delayed_message_before_it_is_not_done_one_behind_it_does_not_matter() -> None:
    bench = Fenced()
    worker = bench.worker()
    a, barrier, c = bench.take(0, 1, 0, not_before=[bench.time + 500, 0, bench.time + 900])
    assert bench.sent(worker) == []
    bench.advance(500)
    assert bench.sent(worker) == [a]
    bench.settle(range(a, a + 1), by=worker)
    assert bench.sent(worker) == [barrier]
    bench.advance(400)
    assert bench.sent(worker) == [c]


def test_one_that_sleeps_is_not_waited_for_whatever_else_is_delayed() -> None:
    bench = Fenced()
    worker = bench.worker()
    hour = bench.time + HOUR
    _, older, _, barrier, _ = bench.take(1, 0, 1, 1, 0, not_before=[hour, bench.time + 500, hour, 0, hour])
    assert bench.sent(worker) == []
    bench.advance(500)
    assert bench.sent(worker) == [older]
    bench.settle(range(older, older + 1), by=worker)
    assert bench.sent(worker) == [barrier]
    bench.queue.check()


def test_a_delayed_barrier_stands_where_it_becomes_due() -> None:
    bench = Fenced()
    worker = bench.worker(max_backlog=1)
    barrier, a = bench.take(1, 0, not_before=[bench.time + 500, 0])
    assert bench.sent(worker) == [a]
    (b,) = bench.take(0)
    bench.advance(500)
    (c,) = bench.take(0)
    bench.restarted()
    worker = bench.worker(max_backlog=1)
    got = bench.sent(worker)
    for lsn in (a, b):
        bench.settle(range(lsn, lsn + 1), by=worker)
        got += bench.sent(worker)
    assert got == [a, b, barrier, c]


@pytest.mark.parametrize("target", [None, "dlx"])
def test_what_expires_before_it_is_done(target: str | None) -> None:
    bench = Fenced(expiration=1_000, dead_letter_exchange=target)
    a, barrier = bench.take(0, 1, expires_at=[0, bench.time + HOUR])
    bench.time += 1_000
    worker = bench.worker()
    if target is not None:  # a dead letter is still to be written
        assert bench.sent(worker) == []
        [fetch] = [effect for effect in bench.sink.take_effects() if isinstance(effect, Fetch)]
        assert list(fetch.chunk) == [a]
        bench.queue.buried(fetch.token, bench.sink)
        assert bench.queue.next_deadline()[1] == 0
        bench.advance(0)
    assert bench.sent(worker) == [barrier]


def test_a_barrier_that_expires_holds_nothing_back() -> None:
    bench = Fenced(expiration=HOUR)
    worker = bench.worker(max_backlog=1)
    a, _, c = bench.take(0, 1, 0, expires_at=[0, bench.time + 1_000, 0])
    assert bench.sent(worker) == [a]
    bench.advance(1_000)
    assert (bench.queue.ready, bench.queue.held) == (1, 0)
    bench.settle(range(a, a + 1), by=worker)
    assert bench.sent(worker) == [c]


def test_of_an_at_most_once_queue_it_waits_for_the_ack_and_is_removed_before_it_is_sent() -> None:
    bench = Fenced(semantics="at-most-once", fairness_model="round-robin", deliver="durable")
    worker = bench.worker(max_backlog=5)
    a, barrier = bench.take(0, 1)
    assert bench.sent(worker) == [a]
    bench.settle(range(a, a + 1), by=worker)
    [delivery] = bench.deliveries()
    assert (list(delivery.chunk), delivery.after) == ([barrier], bench.sink.last_lsn)


@pytest.mark.parametrize("deliver", ["early", "durable"])
def test_of_an_at_least_once_queue_it_is_sent_before_its_removal_is_durable(deliver: str) -> None:
    bench = Fenced(deliver=deliver)
    bench.worker()
    (barrier,) = bench.take(1)
    [delivery] = bench.deliveries()
    assert delivery.after == (0 if deliver == "early" else barrier)
    assert delivery.after < bench.sink.last_lsn


@pytest.mark.parametrize("choice", ["hold", "drop"])
def test_without_subscribers_it_is_held_or_dropped(choice: str) -> None:
    bench = Fenced(barrier_without_subscribers=choice)
    getter = bench.worker(passive=True)  # basic.get is no subscription
    barrier, b = bench.take(1, 0)
    assert bench.queue.ready == (0 if choice == "hold" else 1)
    assert bench.queue.pull(bench.now, getter, 1, bench.sink) == (0 if choice == "hold" else 1)
    bench.sent()
    worker = bench.worker()
    assert bench.sent(worker) == ([barrier, b] if choice == "hold" else [])


def test_filters_say_who_sees_it_and_the_others_pause() -> None:
    bench = Fenced()
    wanting, other = (bench.worker(filter=One(text)) for text in ("a", "b"))
    barrier, _ = bench.take(1, 0)
    [ask] = [effect for effect in bench.sink.take_effects() if isinstance(effect, Scan)]
    assert (ask.token.purpose, list(ask.chunk)) == (Purpose.BARRIER, [barrier])
    late = bench.worker(filter=One("c"))  # has not been asked
    bench.queue.scanned(bench.now, ask.token, [[barrier], []], barrier, bench.sink)
    [ask] = [e for e in bench.sink.take_effects() if isinstance(e, Scan) and e.token.purpose is Purpose.BARRIER]
    assert [one.text for one in ask.filters] == ["c"]
    bench.queue.scanned(bench.now, ask.token, [[barrier]], barrier, bench.sink)
    assert [effect.consumer for effect in bench.deliveries()] == [wanting, late]
    assert other.outstanding == 0
    assert bench.queue.ready == 1


class One:
    """A filter that the test answers for."""

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, bodies: Any, properties: Any, topics: Any, lsns: Any = None, times: Any = None) -> list[bool]:
        return [False for _ in bodies]


def test_acked_by_its_bookmark_it_is_gone_and_what_it_held_goes_on() -> None:
    bench = Fenced()
    worker = bench.worker(max_backlog=2)
    a, first, b, second, c = bench.take(0, 1, 0, 1, 0)
    assert bench.sent(worker) == [a]
    assert bench.settle(range(second, second + 1)) == 1
    assert bench.settle(range(first, first + 1)) == 1
    assert bench.sent(worker) == [b]
    bench.settle(range(a, b + 1), by=worker)
    assert bench.sent(worker) == [c]
    bench.queue.check()


def test_purge_takes_what_is_held_and_delete_counts_it() -> None:
    bench = Fenced()
    worker = bench.worker(max_backlog=1)
    a, *_ = bench.take(0, 0, 1, 0, 1, 0)
    assert bench.queue.purge(bench.now, bench.sink) == 5
    assert [lsn for chunk in bench.queue.snapshot()[0] for lsn in chunk] == [a]
    bench.take(1, 0)
    bench.settle(range(a, a + 1), by=worker)
    assert len(bench.sent(worker)) == 3
    bench.take(0, 1, 0)
    assert bench.queue.delete(bench.now, bench.sink) == 3


def test_a_queue_without_the_expression_has_no_barriers_any_more() -> None:
    bench = Fenced()
    a, barrier, c = bench.take(0, 1, 0)
    bench.queue.alter(bench.now, QueueSettings(), bench.sink)
    bench.queue.check()
    worker = bench.worker(max_backlog=2)
    assert bench.sent(worker) == [a, barrier]
    bench.settle(range(barrier, barrier + 1), Verb.CANCEL, by=worker)
    assert bench.sent(worker) == [barrier]
    bench.settle(range(a, barrier + 1), by=worker)
    assert bench.sent(worker) == [c]


def test_what_was_delayed_behind_a_barrier_lies_between_others_afterwards() -> None:
    bench = Fenced()
    a, late = bench.take(1, 0, not_before=[0, bench.time + 500])
    bench.queue.alter(bench.now, QueueSettings(), bench.sink)
    (b,) = bench.publish(1)
    bench.queue.check()
    bench.queue.purge(bench.now, bench.sink)
    [(_, _, pairs)] = bench.log()
    assert pairs == [a, a + 1, b, b + 1]  # `late` stays
    assert late not in (a, b)


def test_another_expression_leaves_those_that_are_there() -> None:
    bench = Fenced()
    bench.take(1)
    bench.queue.alter(bench.now, QueueSettings(barrier_expression="/other = 1"), bench.sink)
    assert bench.queue.held == 1


def test_a_restart_knows_what_is_a_barrier() -> None:
    bench = Fenced()
    worker = bench.worker(max_backlog=1)
    a, first, b, second, later, c = bench.take(0, 1, 0, 1, 1, 0, not_before=[0, 0, 0, 0, bench.time + 500, 0])
    assert bench.sent(worker) == [a]
    bench.restarted()
    bench.advance(500)
    bench.restarted()
    worker = bench.worker(max_backlog=1)
    got = bench.sent(worker)
    for lsn in (a, b, c):
        bench.settle(range(lsn, lsn + 1), by=worker)
        got += bench.sent(worker)
    assert got == [a, first, b, second, c, later]


def test_memory_is_told_of_barriers_and_what_follows_them() -> None:
    bench = Fenced()
    lsns = bench.take(0, 1, 0, 0, 1, 0)
    line = Upcoming(bench.queue, None)
    assert list(line.after(0, 10)) == lsns
    assert list(line.after(lsns[1], 2)) == lsns[2:4]
    assert list(line.between(lsns[3], lsns[5])) == lsns[3:5]
    assert line.head() == lsns[0]
    bench.settle(range(lsns[0], lsns[0] + 1))
    assert line.head() == lsns[1]
    assert bench.queue.floor() == lsns[1]


def test_very_many_go_in_steps() -> None:
    bench = Fenced()
    lsns = bench.take(*[1] * 1_000)
    worker = bench.worker()
    assert bench.queue.agenda & DISPATCH
    while bench.queue.agenda & DISPATCH:
        bench.queue.tick(bench.now, bench.sink)
    assert bench.sent(worker) == lsns


@pytest.mark.parametrize("delay", [0, 500])
def test_what_expires_as_it_arrives_is_done_at_once(delay: int) -> None:
    bench = Fenced()
    worker = bench.worker(max_backlog=0)
    later = bench.time + delay if delay else 0
    _, barrier = bench.take(0, 1, expires_at=[bench.time - delay, 0], not_before=[later, 0])
    assert bench.sent(worker) == [barrier]
    assert bench.reasons() == ["time_limit"]


def test_a_pull_without_ack_lets_it_go_and_what_it_held() -> None:
    bench = Fenced()
    getter = bench.worker(passive=True, no_ack=True)
    a, barrier, _ = bench.take(0, 1, 0)
    one = bench.worker(max_backlog=0)
    assert bench.queue.pull(bench.now, getter, 5, bench.sink) == 1  # what was ready when it was asked for
    assert bench.sent() == [a, barrier]
    assert (one.outstanding, bench.queue.ready, bench.queue.held) == (0, 1, 0)


def test_it_does_not_go_while_a_step_of_many_that_expire_may_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SPAN_MOST", 1)
    bench = Fenced(expiration=1_000)
    worker = bench.worker(max_backlog=0)
    a, barrier, c = bench.take(0, 1, 0)
    bench.time += 1_000
    while bench.queue.is_due(bench.now):
        bench.queue.tick(bench.now, bench.sink)
    assert bench.sent(worker) == []
    gone = [pairs for kind, _, pairs in bench.log() if kind is Kind.EXPIRE]
    assert [lsn for pairs in gone for lsn in range(pairs[0], pairs[1])] == [a, barrier, c]


def test_after_a_restart_a_delayed_barrier_is_remembered_between_what_arrives() -> None:
    bench = Fenced()
    a, late, _ = bench.take(0, 1, 1, not_before=[0, bench.time + 500, 0])
    bench.restarted()
    bench.settle(range(late + 1, late + 2))  # the other barrier
    (b,) = bench.take(0)
    bench.log()
    bench.queue.purge(bench.now, bench.sink)
    [(_, _, pairs)] = bench.log()
    assert pairs == [a, a + 1, b, b + 1]  # `late` stays


def test_after_a_restart_a_barrier_that_became_due_is_not_taken_for_one_of_its_neighbours() -> None:
    bench = Fenced()
    a, late, b = bench.take(0, 1, 0, not_before=[0, bench.time + 500, 0])
    bench.advance(500)
    bench.restarted()
    bench.queue.check()
    bench.log()
    worker = bench.worker()
    bench.settle(as_chunk([a, b]), by=worker)
    bench.queue.check()
    grants = [pairs for kind, _, pairs in bench.log() if kind in (Kind.GRANT, Kind.SETTLE)]
    assert grants == [[a, a + 1, b, b + 1], [a, a + 1, b, b + 1], [late, late + 1]]


def test_after_a_restart_nobody_has_backlog_that_holds_it() -> None:
    bench = Fenced(semantics="at-most-once", fairness_model="round-robin", barrier_without_subscribers="drop")
    bench.worker(max_backlog=1)
    bench.take(0, 1, 0)
    waiting, columns = bench.queue.snapshot()
    queue = Queue(1, "/", "q", bench.queue.settings)
    queue.load(waiting, columns)
    assert queue.next_deadline()[1] == 0
    queue.tick(bench.now, bench.sink)
    assert (queue.ready, queue.held, queue.next_deadline()) == (1, 0, (None, None))
