"""The action `log_archive`: archive now what is due, a step a call, or say what that would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import PreconditionFailed
from penstock.server.flight.actions.awaiting import Awaiting
from penstock.server.flight.calls import Caller
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover


class ArchiveAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._awaiting = Awaiting(handover)
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
        return self._awaiting.call(lambda: archive.run_now(dry_run=dry_run), caller.gone)
