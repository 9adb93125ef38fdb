"""All actions that administer: the operations, over Flight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.operations import OPERATIONS
from penstock.server.flight.gatekeeper import Action, Awaiting, Table
from penstock.server.flight.handover import Aside
from penstock.server.operating import Operating

if TYPE_CHECKING:
    from penstock.operations.operation import Answer, Operation
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.handover import Handover
    from penstock.server.services import Server
    from penstock.wire.fields import Fields


def administration(server: Server, handover: Handover) -> Table:
    """Rows of the table of all actions."""
    house = _House(server, handover)
    return {one.name: Action(partial(house.run, one), one.text, one.right) for one in OPERATIONS.values() if one.action}


class _House:
    """Carries operations out for Flight's threads."""

    def __init__(self, server: Server, handover: Handover) -> None:
        self._house = Operating(server)
        self._handover = handover
        self._awaiting = Awaiting(handover)

    def run(self, operation: Operation, caller: Caller, f: Fields) -> Answer:
        """The answer of one.  Raises what it raises."""
        arguments = f.read(operation.fields)
        if operation.manner == "read":
            answer: Answer = operation.run(Aside(self._handover, caller.peer, caller.gone), caller.who, **arguments)
            return answer
        return self._awaiting.call(lambda: self._answered(operation, caller, arguments), caller.gone)

    async def _answered(self, operation: Operation, caller: Caller, arguments: Mapping[str, object]) -> Answer:
        answer = await self._house.operate(operation, caller.who, arguments)
        if operation.manner != "list":
            return answer  # type: ignore[no-any-return]
        from penstock.wire.http.lists import gathered  # heavy, and not loaded before somebody administers

        return {operation.key: await gathered(answer)}
