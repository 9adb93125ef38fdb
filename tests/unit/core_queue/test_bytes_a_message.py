"""What a queue keeps in memory of each message that waits, whatever the size of its body."""

from __future__ import annotations

import tracemalloc

import pytest

from unit.core_queue.test_queue import Bench

COUNT = 50_000
EACH = 50


def filled(count: int, *, gap: int, body: bytes, deadlines: bool) -> Bench:
    """A queue with so many messages."""
    q = Bench()
    for number in range(count // EACH):
        columns = {"expires_at": [2_000 + number] * EACH} if deadlines else {}
        q.publish(EACH, gap=gap, body=body, **columns)
    q.sink.take_effects()
    q.sink.take_journal()
    assert q.queue.ready == count
    return q


def bytes_a_message(*, gap: int, body: bytes = b"", deadlines: bool = False) -> float:
    """Of so many messages, in batches; `gap` messages of other queues lie between two of them."""
    filled(10 * EACH, gap=gap, body=body, deadlines=deadlines)  # what a process keeps from its first queue on
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        q = filled(COUNT, gap=gap, body=body, deadlines=deadlines)
        return (tracemalloc.get_traced_memory()[0] - before) / q.queue.ready
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("body", [b"", b"x" * 10_000], ids=["small", "large"])
def test_a_message_that_waits_costs_its_place_whatever_its_size(body: bytes) -> None:
    assert bytes_a_message(gap=0, body=body) < 1
    assert 7 < bytes_a_message(gap=2, body=body) <= 12


def test_a_deadline_of_its_own_comes_on_top() -> None:
    assert 12 < bytes_a_message(gap=2, deadlines=True) <= 40
