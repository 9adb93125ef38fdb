"""The action `compact`: have the keeper do now what it would do by and by, or say what that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import ADMINISTERS
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.actions.awaiting import Awaiting
from penstock.server.flight.calls import Caller
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.upkeep.keeper import Keeper


class CompactAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover, keeper: Keeper) -> None:
        self._awaiting = Awaiting(handover)
        self._keeper = keeper
        self.table: Table = {
            "compact": Action(
                self._compact, "dry_run: delete and rewrite closed segments, or say what would be done", ADMINISTERS
            ),
        }

    def _compact(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        dry_run = f.flag("dry_run")
        f.finish()
        return self._awaiting.call(lambda: self._keeper.compact(dry_run=dry_run), caller.gone)
