"""Streams that one query reads side by side: one that is idle does not keep its siblings waiting.

Spark asks the sources of a query in turn, and a source without news waits for some before it says so.  While a sibling
is busy that wait is none, and it ends soon after something may have come for one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.engine import Engine

SOON_S = 0.05
"""How long a wait lasts at least while something may have come for a sibling: ready messages that nobody may take now,
and records that it does not read, would else have a query ask without a pause."""

TURNS_MOST = 10_000
"""Streams whose last turns are remembered."""


class Siblings:
    """When each stream was asked, and when it had something.  `busy` and `turn` may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: dict[str, float] = {}
        self._had: dict[str, float] = {}

    def turn(self, name: str, among: Sequence[str]) -> bool:
        """A stream is asked; whether one of the others has had something since it was asked before."""
        before = self._asked.get(name)
        if len(self._asked) > TURNS_MOST:
            self._asked.clear()
            self._had.clear()
        self._asked[name] = time.monotonic()
        return before is not None and any(self._had.get(one, 0.0) > before for one in among)

    def had(self, name: str) -> None:
        """A stream was given a batch."""
        self._had[name] = time.monotonic()

    def may_have(self, among: Sequence[str]) -> bool:
        """Whether something may have come for one of these.  On the loop."""
        core, durable = self._engine.core, self._engine.log.durable
        for name in among:
            state = core.streams.states.get(name)
            if state is None:
                continue
            if state.mode == "log":
                at = state.position
                if at is not None and self._engine.walked.begin(name, at) <= durable:
                    return True
            elif any(queue.ready for queue in core.queues() if queue.id == state.queue):
                return True
        return False
