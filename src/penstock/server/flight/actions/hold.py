"""The action `hold`: a reader that comes back part by part keeps what it is going to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import LOGIN
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.server.upkeep.retention import HOLD_US
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.upkeep.retention import Holds


class HoldAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, handover: Handover, holds: Holds) -> None:
        self._handover = handover
        self._holds = holds
        self.table: Table = {
            "hold": Action(
                self._hold, "read, start, release: keep the log from an LSN on for ten minutes; or no longer", LOGIN
            ),
        }

    def _hold(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        name, start, release = f.name("read"), f.count("start"), f.flag("release")
        f.finish()

        def work() -> Mapping[str, object]:
            if release:
                self._holds.drop(caller.user, name)
                return {"seconds": 0}
            kept = self._holds.put(caller.who, name, start)
            engine = self._handover.engine
            kept = kept or (engine.archive is not None and engine.archive.keeps(start))  # the rest is in the log
            first, floor = engine.log.first_lsn, engine.log.base_floor
            return {"seconds": HOLD_US // 1_000_000, "kept": kept, "first": first, "floor": floor}

        return self._handover.call(work, caller.gone, durable=False)
