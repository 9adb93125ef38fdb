"""What is done for the caches beside the turns: heads of queues are read after a start, and once a second memory is
let go that nobody wants.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from penstock.core.queue.upcoming import Upcoming

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.server.runtime import Runtime

FILLED_MOST = 256
"""Queues whose heads are read after a start, the deepest."""

REMEMBER = 1000
"""Queues, gone ones among them, of which memory remembers something without being asked to forget."""


class Tending:
    """The care for an engine's caches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._remember_most = REMEMBER

    def takers(self, route: int) -> list[tuple[Queue, Upcoming]]:
        """The queues that a row's route names, each with what comes next in it."""
        return [(queue, Upcoming(queue, None)) for queue in self._runtime.core.takers(route)]

    def fill_heads(self) -> None:
        """After a start nobody consumes yet: have the heads of the deepest queues in memory when somebody comes."""
        runtime = self._runtime
        deepest = nlargest(FILLED_MOST, (queue for queue in runtime.core.queues() if queue.ready), key=_ready_of)
        runtime.loader.heads.fill(Upcoming(queue, None) for queue in deepest)
        runtime.arm()

    def beat(self) -> None:
        """Once a second: caches let go what nobody wants, and keep to the budget; who waits for room looks again."""
        runtime = self._runtime
        bodies = runtime.bodies
        bodies.sweep()
        bodies.keep_to_budget()
        if bodies.heads.remembered > self._remember_most:
            there = {queue.id for queue in runtime.core.queues()}
            bodies.heads.forget_all_but(there)
            self._remember_most = 2 * len(there) + REMEMBER
        if bodies.trimmed and runtime.loader.idle and -bodies.budget.over > bodies.budget.limit // 2:
            lines, bodies.trimmed = bodies.trimmed, {}
            runtime.loader.heads.fill(lines.values())
        runtime.look_for_room()
        runtime.arm()


def _ready_of(queue: Queue) -> int:
    return queue.ready
