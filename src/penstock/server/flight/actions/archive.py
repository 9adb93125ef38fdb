"""The action `log_archive`: archive now what is due, a step a call, or say what that would be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PreconditionFailed, Unavailable
from penstock.server.flight.calls import Caller
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Answer, Handover


class ArchiveAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._running = set[asyncio.Future[dict[str, object]]]()  # the loop alone does not keep them alive
        self.table: dict[str, tuple[Callable[[Caller, Fields], Mapping[str, object]], str]] = {
            "log_archive": (self._archive, "dry_run: archive the next closed segments, or say which ones are due"),
        }

    def _archive(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        dry_run = f.flag("dry_run")
        f.finish()
        caller.administer("log_archive")
        archive = self._handover.engine.archive
        if archive is None:
            raise PreconditionFailed("this server has no archive; [log] archive in its settings makes one")

        def job(answer: Answer[dict[str, object]]) -> None:
            work = asyncio.ensure_future(archive.run_now(dry_run=dry_run))
            self._running.add(work)
            work.add_done_callback(partial(self._tell, answer))

        return self._handover.submit(job).wait(caller.gone)

    def _tell(self, answer: Answer[dict[str, object]], done: asyncio.Future[dict[str, object]]) -> None:
        self._running.discard(done)
        if done.cancelled():
            answer.fail(Unavailable("the server stops"))
        elif (error := done.exception()) is not None:
            answer.fail(error)
        else:
            answer.give(done.result())
