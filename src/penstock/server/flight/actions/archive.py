"""The actions `log_archive` (archive now what is due, a step a call) and `log_archive_prune`, or what they would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.rights import ADMINISTERS
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.actions.awaiting import Awaiting
from penstock.server.flight.calls import Caller
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.upkeep.archive import Archiving


class ArchiveAction:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._awaiting = Awaiting(handover)
        self.table: Table = {
            "log_archive": Action(
                self._archive, "dry_run: archive the next closed segments, or say which ones are due", ADMINISTERS
            ),
            "log_archive_prune": Action(
                self._prune, "age, dry_run: remove archived days that are older, or say which ones", ADMINISTERS
            ),
        }

    def _archive(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        dry_run = f.flag("dry_run")
        f.finish()
        archive = self._there()
        return self._awaiting.call(lambda: archive.run_now(dry_run=dry_run), caller.gone)

    def _prune(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        age, dry_run = f.duration("age", -1), f.flag("dry_run")
        f.finish()
        if age < 0:
            raise InvalidArgument("log_archive_prune: age is missing; days that are older go")
        archive = self._there()
        return self._awaiting.call(lambda: archive.prune_now(age, dry_run=dry_run), caller.gone)

    def _there(self) -> Archiving:
        archive = self._handover.engine.archive
        if archive is None:
            raise PreconditionFailed("this server has no archive; [log] archive in its settings makes one")
        return archive
