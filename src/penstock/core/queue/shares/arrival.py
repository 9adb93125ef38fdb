"""Newcomers of a queue whose messages have keys: in line, to their tenant, or where their keys are worked out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH
from penstock.core.queue.dispatching.dispatch import room_now
from penstock.core.queue.stages import Newcomers, Stage
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.order.runs import Run
    from penstock.core.queue.view import Queue


class _Shared(Stage):
    """Some are offered, some wait for others of their keys."""

    def present(self, queue: Queue) -> bool:
        return queue.shares is not None

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        shares = queue.shares
        if shares is None:
            return
        shares.mono = now.mono
        room = 0 if shares.tenants is None else room_now(queue, now)
        new.taken = shares.arrive(queue, new.chunk, new.keys, new.delayed, new.dead, room)
        if new.taken is None:
            return
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(new.taken)
        if queue.targets.lists:
            queue.targets.foreseen.look(queue.targets, new.taken, new.chunk, new.batch, new.rows)

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        offered = run if queue.shares is None else queue.shares.come_back(queue, run)
        return [] if offered is None else [offered]

    def left(self, queue: Contents, runs: Sequence[Run]) -> bool:
        return queue.shares is not None and queue.shares.left(queue, runs)

    def prepare(self, queue: Queue, sink: Sink) -> None:
        if queue.shares is not None:
            queue.shares.ask(queue, sink)

    def offered(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.shares is not None:
            if queue.shares.tenants is not None and not queue.agenda & DISPATCH:
                queue.shares.tenants.come_again()
            queue.shares.ask(queue, sink)


SHARED = _Shared()
