"""Messages that wait for their keys, in a queue without a world around it."""

from __future__ import annotations

import pytest

from penstock.core.effects import Effect, Key
from penstock.core.outbox import Outbox
from penstock.core.queue import shares, staging
from penstock.core.queue.order.runs import Run
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.attempts import ONCE
from penstock.core.queue.staging import Staging
from penstock.expr import compile_filter
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings
from unit.core.world import World
from unit.core_queue.test_queue import Bench


def test_a_purge_forgets_the_keys_of_what_became_due_behind_messages_without_keys() -> None:
    sink = Outbox[Effect](200)
    queue = Queue(1, "/", "q", QueueSettings(group_key="/key"))
    queue.arrive(Now(10, 10), range(100, 101), sink, not_before=[15], keys=[("a",)])
    queue.arrive(Now(10, 10), range(101, 102), sink)  # its key is worked out later
    queue.tick(Now(15, 15), sink)
    shares = queue.shares
    assert shares is not None
    assert (shares.staging.count, len(shares.keys)) == (2, 1)
    assert queue.purge(Now(15, 15), sink) == 2
    queue.check()
    assert len(shares.keys) == 0


def test_what_is_asked_about_is_told_by_whoever_looks_for_what_waits() -> None:
    """Some are asked about, some came back and some never went out: all stand in each answer."""
    staging = Staging()
    staging.main.append(range(10, 20))
    staging.returned.push(Run(range(3, 6), False, ONCE))
    staging.returned.push(Run(range(25, 26), False, ONCE, place=30))
    assert len(staging.question(out_alone=False)) == staging.count == 14
    staging.main.append(range(31, 33))
    there = sorted(lsn for chunk in (*staging.chunks(), *(run.chunk for run in staging.runs())) for lsn in chunk)
    assert len(there) == staging.count == 16
    assert sorted(lsn for chunk in staging.pieces() for lsn in chunk) == there
    for first, stop in ((1, 100), (4, 11), (20, 31), (26, 27)):
        assert list(staging.between(first, stop)) == [lsn for lsn in there if first <= lsn < stop]


def test_a_key_is_in_use_while_one_that_was_delivered_waits_for_another_time_wherever_it_stood() -> None:
    """As after a start, where nobody knows any more that an older one of its key stood before it."""
    q = Bench()
    worker = q.worker()
    older, moved = q.publish(2)
    q.queue.choke(worker)
    q.queue.unsubscribe(q.now, [worker], q.sink, requeue=True)
    q.sink.take_effects()
    q.queue.alter(q.now, QueueSettings(group_key="/key"), q.sink)
    (asked,) = q.sink.take_effects()
    assert isinstance(asked, Key)
    q.queue.keyed(q.now, asked.token, asked.chunk, [("a",)] * 2, q.sink)
    assert q.queue.reschedule(q.now, range(moved, moved + 1), q.time + 5, q.sink) == 1
    q.queue.check()
    again = q.worker()
    assert q.sent() == []
    q.advance(5)
    assert q.sent() == [older]
    q.settle(range(older, older + 1), by=again)
    assert q.sent() == [moved]
    q.queue.check()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> World:
    """A server that started with a queue of six messages, more than are offered before the others have keys."""
    monkeypatch.setattr(shares, "WINDOW", 2)
    monkeypatch.setattr(staging, "STEP", 2)
    return World()


def test_who_asks_and_acknowledges_nothing_gets_more_than_the_first_messages_after_a_start(started: World) -> None:
    started.declare("q", group_key="/g")
    started.publish("q", *[b'{"g": %d}' % n for n in range(6)])
    started.restart(clean=True)
    queue = started.core.queue("/", "q")
    consumer = started.subscribe(queue, passive=True, no_ack=True)
    given = list[int]()
    for _ in range(6):
        given.append(started.core.pull(started.now, consumer, 1))
        started.turn()
    assert given == [1] * 6


def test_what_a_filter_does_not_want_blocks_nobody_after_a_start(started: World) -> None:
    started.declare("q", group_key="/g")
    started.publish("q", *[b'{"g": %d, "n": %d}' % (n, n > 4) for n in range(6)])
    started.restart(clean=True)
    queue = started.core.queue("/", "q")
    consumer = started.subscribe(queue, filter=compile_filter("/n = 1"))
    assert len(started.inbox[consumer]) == 1


def test_a_tenant_who_may_have_no_more_out_blocks_nobody_after_a_start(started: World) -> None:
    started.declare("q", fairness_key="/t", max_leased=(0, 1))
    started.publish("q", *[b'{"t": %d}' % (n > 4) for n in range(6)])
    started.restart(clean=True)
    queue = started.core.queue("/", "q")
    consumer = started.subscribe(queue)
    assert len(started.inbox[consumer]) == 2
