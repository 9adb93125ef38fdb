"""What a pass over the log finds for a queue: it may lie between messages that the queue has had for long."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from penstock.core.effects import Scan, Verb
from penstock.core.queue import lasting
from penstock.core.queue.administering import pause
from penstock.core.queue.order.runs import NEVER
from penstock.records.chunks import as_chunk
from penstock.records.kinds import Kind
from unit.core_queue.test_queue import Bench, First


def found(bench: Bench, *lsns: int, barriers: tuple[int, ...] = ()) -> None:
    """A step of a pass brings these."""
    if lasting.waits(bench.queue) and bench.queue.older is None:
        bench.queue.older = lasting.Older()
    lasting.take_older(bench.queue, np.array(lsns, dtype=np.int64), None, None, barriers)
    bench.queue.check()


@pytest.mark.parametrize("out_of_order", [False, True])
def test_records_of_what_is_leased_leave_out_what_was_found_between(out_of_order: bool) -> None:
    bench = Bench()
    worker = bench.worker(max_backlog=1000)
    lsns = array("q", [*range(100, 200, 2), *range(201, 300, 2)])
    bench.queue.arrive(bench.now, lsns, bench.sink)
    bench.queue.arrive(bench.now, range(400, 500), bench.sink)
    if out_of_order:  # leases are found by LSN from now on
        bench.settle(range(410, 411), by=worker)
    bench.sink.next_lsn = 500
    found(bench, 200)
    bench.log()
    assert bench.settle(lsns, by=worker) == len(lsns)
    named = [
        range(a, b)
        for kind, _, pairs in bench.log()
        if kind is Kind.SETTLE
        for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    assert not any(200 in span for span in named)
    bench.queue.check()


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.EXPIRE])
def test_records_of_what_a_barrier_holds_back_leave_out_what_was_found_between(verb: Verb) -> None:
    bench = Bench(barrier_expression="/barrier = 1")
    bench.queue.arrive(bench.now, array("q", [100, 101, 110]), bench.sink, barriers=[100])
    found(bench, 105, 112)
    bench.queue.arrive(bench.now, range(115, 116), bench.sink)
    bench.log()
    assert bench.settle(array("q", [101, 110, 115]), verb) == 3
    assert [pairs for _, _, pairs in bench.log()] == [[101, 102, 110, 111, 115, 116]]
    bench.queue.check()


def test_records_of_what_came_back_behind_a_barrier_leave_out_what_was_found_between() -> None:
    bench = Bench(barrier_expression="/barrier = 1")
    worker = bench.worker(max_backlog=100)
    lsns = array("q", [101, 110])
    bench.queue.arrive(bench.now, lsns, bench.sink)
    found(bench, 90, barriers=(90,))
    lasting.put_in_order(bench.queue, 119)
    bench.queue.unsubscribe(bench.now, [worker], bench.sink, requeue=True)
    found(bench, 105)
    bench.log()
    assert bench.settle(lsns) == 2
    assert [pairs for _, _, pairs in bench.log()] == [[101, 102, 110, 111]]
    bench.queue.check()


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_a_barrier_does_not_wait_for_what_is_leased_behind_it(semantics: str) -> None:
    bench = Bench(barrier_expression="/barrier = 1", semantics=semantics)
    worker = bench.worker(max_backlog=2)
    bench.queue.arrive(bench.now, as_chunk([101, 110]), bench.sink)
    assert bench.sent(worker) == [101, 110]
    bench.sink.next_lsn = 120
    found(bench, 90, 95, 105, barriers=(95, 105))
    lasting.put_in_order(bench.queue, 119)
    bench.settle(range(110, 111), by=worker)
    assert bench.sent(worker) == [90]
    bench.settle(range(90, 91), by=worker)
    assert bench.sent(worker) == [95]  # 105 waits for 101
    bench.settle(range(101, 102), by=worker)
    assert bench.sent(worker) == [105]
    bench.queue.check()


def test_what_arrives_behind_what_was_found_alone_leaves_out_what_is_leased_between() -> None:
    bench = Bench()
    bench.worker(max_backlog=2)
    bench.queue.arrive(bench.now, array("q", [101, 103]), bench.sink)
    found(bench, 102)
    bench.queue.arrive(bench.now, array("q", [113, 115]), bench.sink)
    bench.queue.check()
    bench.log()
    assert bench.settle(array("q", [102, 113, 115])) == 3
    named = [range(a, b) for _, _, pairs in bench.log() for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    assert not any(103 in span for span in named)


@pytest.mark.parametrize("newer", [0, 1, 2, 5])
def test_filters_look_at_what_was_found_alone_after_newer_ones_came_and_went(newer: int) -> None:
    """A list that was full by then stood behind it, and nobody who has that filter was given it."""
    bench = Bench()
    worker = bench.worker(filter=First("x"))
    bench.queue.targets.most = 2
    pause(bench.queue, bench.now, NEVER, bench.sink)
    if newer:
        bench.settle(bench.publish(newer, body=b"x"))
    found(bench, 90, 91)
    bench.queue.tick(bench.now, bench.sink)
    [scan] = [effect for effect in bench.sink.take_effects() if isinstance(effect, Scan)]
    assert list(scan.chunk) == [90, 91]
    bench.queue.scanned(bench.now, scan.token, [[91]], 91, bench.sink)
    pause(bench.queue, bench.now, 0, bench.sink)
    assert bench.sent(worker) == [91]
    bench.queue.check()
