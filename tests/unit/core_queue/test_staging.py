"""Messages that wait for their keys, in a queue without a world around it."""

from __future__ import annotations

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.view import Queue
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings


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
