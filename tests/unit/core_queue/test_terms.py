"""Consumers whose terms change, and what random walks of the queue model found."""

from __future__ import annotations

from array import array

from penstock.core.effects import Verb
from penstock.core.queue.dispatching.consumers import Credit
from penstock.core.queue.dispatching.joining import reopen, replace
from penstock.core.queue.settling.settle import extend
from penstock.records.chunks import as_chunk
from unit.core_queue.test_queue import Bench, First


def test_a_lease_that_is_lengthened_stays_the_oldest() -> None:
    q = Bench(lease_period=10, max_deliveries=9)
    worker = q.worker(max_backlog=3)
    lsns = q.publish(3)
    q.time += 5
    assert extend(q.queue, worker, lsns[:1], q.time + 20) == 1
    assert list(worker.leases.oldest()) == [lsns[0]]  # what its holder works on, and what failed if it is lost
    q.queue.unsubscribe(q.now, [worker], q.sink, requeue=True, lost=True)
    failed = [pairs for _, header, pairs in q.log() if header.get("failed")]
    assert failed == [[lsns[0], lsns[0] + 1]]


def test_some_of_a_grant_can_be_lengthened() -> None:
    q = Bench(lease_period=10)
    worker = q.worker()
    lsns = q.publish(6)
    q.sent()
    assert extend(q.queue, worker, array("q", [lsns[1], lsns[4], lsns[5] + 7]), q.time + 30) == 2
    q.time += 10
    q.queue.tick(q.now, q.sink)
    assert q.sent() == [lsn for lsn in lsns if lsn not in (lsns[1], lsns[4])]
    q.time += 20
    q.queue.tick(q.now, q.sink)
    assert set(q.sent()) == set(lsns)
    q.queue.check()


def test_a_pull_counts_what_it_grants_though_leases_join() -> None:
    q = Bench(semantics="at-most-once", fairness_model="round-robin")
    worker = q.worker(passive=True)
    q.publish(2)
    q.publish(1, not_before=[q.time + 50])  # keeps the others apart
    q.publish(2)
    assert q.queue.pull(q.now, worker, 100, q.sink) == 4


def test_what_is_due_at_a_resume_goes_to_those_who_were_there() -> None:
    q = Bench(fairness_model="fast")
    first = q.worker()
    second = q.worker(max_backlog=1)
    q.queue.choke(first)
    lsns = q.publish(1, not_before=[q.time + 5])
    q.time += 5
    q.queue.unchoke(q.now, first, q.sink)
    assert (q.sent(to=first), q.sent(to=second)) == ([], list(lsns))


def test_what_was_granted_again_is_taken_from_its_newest_lease() -> None:
    q = Bench(lease_period=100)
    worker = q.worker()
    first = q.publish(2, gap=1)
    q.time += 1
    again = q.publish(2, gap=1)
    q.time += 1
    last = q.publish(2, gap=1)
    q.settle(again, Verb.RELEASE, by=worker)  # out of order: what is left of that lease is a shell
    q.sent()
    assert q.settle(as_chunk([*first, *again, *last]), Verb.RELEASE, by=worker) == 6
    attempts = {lsn: one.attempt for one in q.deliveries() for lsn in one.chunk}
    assert attempts == {**dict.fromkeys([*first, *last], 2), **dict.fromkeys(again, 3)}
    q.queue.check()


def test_a_share_in_credit_leaves_nobody_waiting_when_it_ends() -> None:
    q = Bench(fairness_model="proportional")
    waiter = q.worker(filter=First("a"), max_backlog=8)
    q.publish(1, body=b"a")
    other = q.worker(filter=First("b"), shared=Credit(5))
    q.publish(2, body=b"a")
    q.queue.unsubscribe(q.now, [other], q.sink, requeue=True)
    [lsn] = q.publish(1, body=b"a")
    assert q.sent(to=waiter)[-1] == lsn


def test_the_same_filter_again_looks_at_nothing_again() -> None:
    q = Bench()
    filter = First("a")
    worker = q.worker(filter=filter, max_backlog=0)
    q.publish(3, body=b"a")
    asked = filter.asked
    replace(q.queue, q.now, worker, q.sink, filter=First("a"), max_backlog=2)
    assert len(q.sent(to=worker)) == 2
    assert filter.asked == asked
    assert not q.sink.take_effects()


def test_a_closed_consumer_opens_again_with_what_it_holds() -> None:
    q = Bench()
    worker = q.worker(max_backlog=2)
    lsns = q.publish(3)
    q.queue.unsubscribe(q.now, [worker], q.sink, requeue=False)
    q.settle(lsns[:1], by=worker)
    assert q.sent() == list(lsns[:2])
    reopen(q.queue, q.now, worker, q.sink, filter=None)
    assert q.sent() == list(lsns[2:])
    q.queue.check()
