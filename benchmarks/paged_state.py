"""The state of one queue, on the heap and in a file: resident bytes a message, without server, log or bodies.

Every second message is another queue's.  All wait; then one consumer holds them all, and every third is acknowledged.
"""

from __future__ import annotations

import gc
from array import array
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.core.arena import Move
from penstock.core.effects import Effect, Verb
from penstock.core.effects import delivered as sent
from penstock.core.outbox import Outbox
from penstock.core.queue.lasting import page
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings
from penstock.server.base.allocator import give_back, resident_bytes
from penstock.server.scratch_pages import Arena, ScratchFile

NOW = Now(1, 1)
BATCH = 10_000


def resident() -> int:
    """Memory of this process that is in use."""
    gc.collect()
    give_back()
    return resident_bytes()


def measured(n: int, *, backed: bool) -> tuple[float, float]:
    """Bytes a message of n that wait, and of those that are leased."""
    with TemporaryDirectory() as folder:
        arena = Arena(ScratchFile(Path(folder) / "state"))

        def settled() -> float:
            """After all that may went to the file, and its pages left this process."""
            if backed:
                page(queue, Move(arena, 1 << 62, 1 << 30))
                arena.tidy()
            return (resident() - empty) / n

        queue, sink = Queue(1, "/", "q", QueueSettings(lease_period=10**12)), Outbox[Effect](10)
        end = 10 + 2 * n
        empty = resident()
        for first in range(10, end, 2 * BATCH):
            queue.arrive(NOW, array("q", range(first, min(first + 2 * BATCH, end), 2)), sink)
            sink.take_journal()
        sink.next_lsn = end
        waiting = settled()
        worker = queue.subscribe(NOW, sink, tag="c", holder=None, max_backlog=None)
        delivered = 0
        while queue.ready:
            queue.tick(NOW, sink)
            sink.take_journal()
            delivered += sum(len(effect.chunk) for effect in sent(sink.take_effects()))
        for first in range(10, end, 6 * BATCH):
            acked = array("q", range(first, min(first + 6 * BATCH, end), 6))
            queue.settle(NOW, [acked], Verb.ACK, sink, by=worker)
            sink.take_journal()
        leased = settled()
        delivered += sum(len(effect.chunk) for effect in sent(sink.take_effects()))
        assert delivered == n, f"{delivered} of {n} were delivered"
        assert queue.leased == n - len(range(10, end, 6)), f"{queue.leased} are leased"
        arena.close()
        return waiting, leased
