"""What is done for the caches beside the turns: heads of queues are read after a start, and once a second memory is
let go that nobody wants.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from penstock.core.queue.upcoming import Upcoming

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.server.engine import Engine

FILLED_MOST = 256
"""Queues whose heads are read after a start, the deepest."""

REMEMBER = 1000
"""Queues, gone ones among them, of which memory remembers something without being asked to forget."""


class Tending:
    """The care for an engine's caches."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._remember_most = REMEMBER

    def takers(self, route: int) -> list[tuple[Queue, Upcoming]]:
        """The queues that a row's route names, each with what comes next in it."""
        return [(queue, Upcoming(queue, None)) for queue in self._engine.core.takers(route)]

    def fill_heads(self) -> None:
        """After a start nobody consumes yet: have the heads of the deepest queues in memory when somebody comes."""
        engine = self._engine
        deepest = nlargest(FILLED_MOST, (queue for queue in engine.core.queues() if queue.ready), key=_ready_of)
        engine.loader.heads.fill(Upcoming(queue, None) for queue in deepest)
        engine.arm()

    def beat(self) -> None:
        """Once a second: caches let go what nobody wants, and keep to the budget; who waits for room looks again."""
        engine = self._engine
        bodies = engine.bodies
        bodies.sweep()
        bodies.keep_to_budget()
        if bodies.heads.remembered > self._remember_most:
            there = {queue.id for queue in engine.core.queues()}
            bodies.heads.forget_all_but(there)
            self._remember_most = 2 * len(there) + REMEMBER
        if bodies.trimmed and engine.loader.idle and -bodies.budget.over > bodies.budget.limit // 2:
            lines, bodies.trimmed = bodies.trimmed, {}
            engine.loader.heads.fill(lines.values())
        engine.look_for_room()
        engine.arm()


def _ready_of(queue: Queue) -> int:
    return queue.ready
