"""A target depth: what may be active, and that whatever leaves makes room at once."""

from __future__ import annotations

import numpy as np

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue import lasting
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings


def of_depth(depth: int, **settings: int) -> tuple[Queue, Outbox[Effect]]:
    return Queue(1, "/", "q", QueueSettings(target_queue_depth=depth, **settings)), Outbox(200)  # type: ignore[arg-type]


def inactive(queue: Queue) -> list[int]:
    return [lsn for chunk in queue.tail.chunks() for lsn in chunk]


def test_what_expires_as_it_arrives_makes_room_for_what_came_with_it() -> None:
    queue, sink = of_depth(1, expiration=0)
    queue.arrive(Now(1000, 1), range(100, 103), sink, expires_at=[0, 0, 1004])
    assert inactive(queue) == []
    assert queue.ready == 1


def test_after_a_pass_what_is_leased_counts_as_active() -> None:
    queue, sink = of_depth(2)
    now = Now(1000, 1)
    queue.subscribe(now, sink, tag="c", holder=None, max_backlog=1)
    queue.arrive(now, range(100, 104), sink)
    assert (queue.leased, queue.ready, inactive(queue)) == (1, 1, [102, 103])
    queue.older = lasting.Older()
    lasting.take_older(queue, np.array([50, 60], dtype=np.int64), None, None, ())
    lasting.put_in_order(queue, 200)
    assert queue.leased + queue.ready == 2
    assert inactive(queue) == [60, 101, 102, 103]
    queue.check()
