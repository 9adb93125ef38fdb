"""A stop in its order: who is told, what is still done, what is dropped, and the log last.

    doors     nobody new comes in; AMQP's clients get 320, Flight's calls Unavailable, deadlines are looked at no more
    bulk      large reads end; Flight's and HTTP's answers that are under way have some seconds
    actions   what was set off has two seconds
    pools     nothing is handed over any more; what runs ends, and its result is dropped
    upkeep    ends at its next step; the state as of now is written
    engine    its last turn: from now on nothing is decided, logged or told
    log       on the loop, for nothing else is left: committed, marked as cleanly stopped, closed

A step begins when the one before is over, so none hands work to what has ended.  What is dropped was promised to
nobody: whoever waited was told by the doors, and what the log has not confirmed is for its publisher to send again.
After a bug memory is not trusted: no last turn, no checkpoint, and a log that a start checks as after a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.http.door import HttpDoor
    from penstock.server.services import Server

PATIENCE_S = 2.0
LOOK_S = 0.01
"""How often it looks: once in the life of a server, so no action tells of its end for this alone."""

REASON = "the server stops"


class Stopping:
    """The stop of one server.  For the loop's thread."""

    def __init__(self, server: Server, http: HttpDoor | None, end_timers: Callable[[], None]) -> None:
        self._server, self._http, self._end_timers = server, http, end_timers

    async def run(self) -> None:
        """All of it; what was taken and confirmed is durable when this returns."""
        self.close_doors()
        await self.end_calls()
        await end_actions(self._server.engine)
        await self.end_work()
        self.close_log()

    def close_doors(self) -> None:
        """Nobody new; everybody is told; nothing happens by time any more."""
        server = self._server
        server.serving = False
        server.amqp.stop_listening()
        server.amqp.close_all(REASON)
        server.flight.stop()
        server.keeper.stop()
        if server.tls is not None:
            server.tls.stop()
        if server.engine.archive is not None:
            server.engine.archive.stop()
        self._end_timers()
        server.pager.end()

    async def end_calls(self) -> None:
        """The bulk child, then who waits for it or for anything else."""
        server, loop = self._server, self._server.loop
        server.engine.ask_of(None)  # what it was asked for is done in our threads, or not at all
        await loop.run_in_executor(None, server.bulk.close)
        await loop.run_in_executor(None, server.flight.close)
        server.flight.shut()
        if self._http is not None:
            await self._http.close()
        server.logins.close()

    async def end_work(self) -> None:
        """Threads and upkeep, then the last checkpoint; nothing reads the log when this returns."""
        server, pools = self._server, self._server.pools
        pools.close()
        await pools.end(pools.scanning, pools.judging, pools.replaying, pools.acting, pools.querying)
        if server.engine.archive is not None:
            await server.engine.archive.rest()
        if server.failure is None:
            server.engine.finish_turn()
            await server.keeper.last_checkpoint()
        else:
            await server.keeper.give_up()
        await pools.end(pools.reading)

    def close_log(self) -> None:
        """Nobody but this touches it now."""
        clean = self._server.failure is None
        self._server.engine.end(last_turn=clean)
        self._server.log.close(clean=clean)


async def end_actions(engine: Engine) -> None:
    """Wait until nothing is under way, two seconds at most; then no program runs any more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while not engine.acts.idle and engine.broken is None and loop.time() < until:  # noqa: ASYNC110 - it is bounded
        await asyncio.sleep(LOOK_S)
    engine.acts.steps.programs.stop()
