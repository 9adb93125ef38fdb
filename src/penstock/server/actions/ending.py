"""The end of actions: a clean stop waits a moment for those that were set off, then ends the program that runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.engine import Engine

PATIENCE_S = 2.0
LOOK_S = 0.01
"""How often it looks: once in the life of a server, so no action tells of its end for this alone."""


async def end_actions(engine: Engine) -> None:
    """Wait until nothing is under way, two seconds at most; then no program runs any more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while not engine.acts.idle and engine.broken is None and loop.time() < until:  # noqa: ASYNC110 - it is bounded
        await asyncio.sleep(LOOK_S)
    engine.acts.steps.programs.stop()
