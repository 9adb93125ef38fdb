"""Actions that list exchanges and bindings; those that change them are in `table`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import SEES
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.actions.desk import Commands, Desk

Reply = Mapping[str, object]


class TopologyActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.table: Table = {
            "exchanges": Action(self._exchanges, "the exchanges of a vhost, those that are always there first", SEES),
            "bindings": Action(
                self._bindings,
                "queue, source or destination: the bindings of a vhost, a queue or an exchange",
                SEES,
            ),
        }

    def _exchanges(self, caller: Caller, f: Fields) -> Reply:
        vhost = f.text("vhost", DEFAULT_VHOST)
        f.finish()
        found = self._desk.list(caller, lambda desk: desk.topology.exchanges(vhost), f"no vhost '{vhost}'")
        return {"exchanges": found}

    def _bindings(self, caller: Caller, f: Fields) -> Reply:
        vhost, queue = f.text("vhost", DEFAULT_VHOST), f.optional_text("queue")
        source, destination = f.optional_text("source"), f.optional_text("destination")
        if sum(one is not None for one in (queue, source, destination)) > 1:
            raise f.bad("queue", queue, "the only one of queue, source and destination")
        f.finish()

        def look(desk: Commands) -> Iterable[Mapping[str, object]]:
            if queue is not None:
                return desk.topology.bindings_to_queue(caller.user, vhost, queue)
            if source is not None:
                return desk.topology.bindings_of_exchange(vhost, source, as_source=True)
            if destination is not None:
                return desk.topology.bindings_of_exchange(vhost, destination, as_source=False)
            return desk.topology.bindings(vhost)

        what = f"no queue '{queue}'" if queue is not None else f"no exchange '{source or destination}'"
        missing = f"no vhost '{vhost}'" if queue is source is destination else f"{what} in vhost '{vhost}'"
        return {"bindings": self._desk.list(caller, look, missing)}
