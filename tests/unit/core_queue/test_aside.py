"""What cannot be read is held by nobody: not lost, not settled, and in nobody's way."""

from __future__ import annotations

from array import array

from penstock.core.effects import Verb
from penstock.core.queue.dispatching.attendance import count_aside
from penstock.core.queue.dispatching.consumers import Credit
from unit.core_queue.test_queue import Bench


def test_what_is_set_aside_frees_its_consumer_and_stays_in_the_queue() -> None:
    bench = Bench(max_backlog=3, lease_period=100)
    lsns = bench.publish(6)
    worker = bench.worker(max_backlog=3)
    assert bench.sent(worker) == list(lsns[:3])
    assert bench.queue.set_aside(bench.now, worker, lsns[1:3], bench.sink) == 2
    assert bench.sent(worker) == list(lsns[3:5]), "the damaged ones take no credit"
    assert (bench.queue.leased, bench.queue.outstanding, bench.queue.ready) == (5, 3, 1)
    assert count_aside(bench.queue) == 2
    assert bench.queue.floor() == lsns[0]
    bench.queue.check()
    bench.settle(lsns[:1], by=worker)
    bench.settle(lsns[3:], by=worker)
    bench.advance(1_000_000)
    assert bench.queue.floor() == lsns[1], "its lease has no end"
    assert bench.sent() == [lsns[5]]
    bench.queue.check()


def test_a_snapshot_has_it_as_waiting() -> None:
    bench = Bench()
    lsns = bench.publish(3)
    worker = bench.worker()
    bench.queue.set_aside(bench.now, worker, lsns[1:2], bench.sink)
    bench.queue.unsubscribe(bench.now, [worker], bench.sink, requeue=True)
    assert bench.queue.ready == 2
    assert sorted(lsn for chunk in bench.queue.snapshot()[0] for lsn in chunk) == list(lsns)
    bench.queue.check()


def test_whoever_settles_what_others_hold_can_settle_it() -> None:
    bench = Bench()
    lsns = bench.publish(4)
    worker = bench.worker()
    bench.queue.set_aside(bench.now, worker, array("q", [lsns[0], lsns[3]]), bench.sink)
    assert bench.settle(range(lsns[0], lsns[0] + 1), Verb.ACK) == 1
    assert count_aside(bench.queue) == 1
    bench.queue.check()
    bench.queue.delete(bench.now, bench.sink)
    assert (bench.queue.leased, bench.queue.outstanding) == (0, 0)


def test_only_what_the_consumer_holds_is_taken_from_it() -> None:
    bench = Bench()
    credit = Credit(2)
    lsns = bench.publish(4)
    worker = bench.worker(shared=credit)
    assert bench.queue.set_aside(bench.now, worker, lsns[2:], bench.sink) == 0
    assert bench.queue.set_aside(bench.now, worker, lsns[:1], bench.sink) == 1
    assert credit.used == 2
    assert bench.sent(worker) == [lsns[0], lsns[1], lsns[2]]
    bench.queue.check()
