"""The action `drain`: let the server run empty of work before it is stopped, or take work again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import ADMINISTERS
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.wire.flight.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.services import Server


class DrainAction:
    """This action, as a row of the table of all actions."""

    def __init__(self, server: Server, handover: Handover) -> None:
        self._server = server
        self._handover = handover
        self.table: Table = {
            "drain": Action(
                self._drain,
                "undo, look: take no new messages and consumers, and grant nothing; what is left",
                ADMINISTERS,
            ),
        }

    def _drain(self, caller: Caller, f: Fields) -> Mapping[str, object]:
        undo, look = f.flag("undo"), f.flag("look")
        f.finish()

        def work() -> dict[str, object]:
            engine = self._handover.engine
            if not look and engine.core.draining == undo:
                engine.core.drain(engine.now(), not undo)
                self._server.amqp.publishers.alarm.look()  # publishes that waited
            return self._told()

        return self._handover.call(work, caller.gone)

    def _told(self) -> dict[str, object]:
        """What is still under way; on the loop."""
        engine = self._handover.engine
        queues = [queue for queue in engine.core.queues() if queue.leased]
        leased = sum(queue.leased for queue in queues)
        return {
            "draining": engine.core.draining,
            "empty": engine.core.draining and not leased,
            "leased": leased,
            "queues": len(queues),  # that have leases
            "connections": len(self._server.amqp.sessions),
        }
