"""The action `compact`: have the keeper do now what it would do by and by, or say what that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import Unavailable
from penstock.server.flight.calls import Caller
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Answer, Handover
    from penstock.server.upkeep.keeper import Keeper


class CompactAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover, keeper: Keeper) -> None:
        self._handover = handover
        self._keeper = keeper
        self._running = set[asyncio.Future[dict[str, object]]]()  # the loop alone does not keep them alive
        self.table: dict[str, tuple[Callable[[Caller, Fields], Mapping[str, object]], str]] = {
            "compact": (self._compact, "dry_run: delete and rewrite closed segments, or say what would be done"),
        }

    def _compact(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        dry_run = f.flag("dry_run")
        f.finish()
        caller.administer("compact")

        def job(answer: Answer[dict[str, object]]) -> None:
            work = asyncio.ensure_future(self._keeper.compact(dry_run=dry_run))
            self._running.add(work)
            work.add_done_callback(partial(self._tell, answer))

        return self._handover.submit(job).wait(caller.gone)

    def _tell(self, answer: Answer[dict[str, object]], done: asyncio.Future[dict[str, object]]) -> None:
        self._running.discard(done)
        if done.cancelled():
            answer.fail(Unavailable("the server stops"))
        elif (error := done.exception()) is not None:
            answer.fail(error)  # what is not ours is logged and shown as internal where the call ends
        else:
            answer.give(done.result())
