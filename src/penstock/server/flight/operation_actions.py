"""All actions that administer: the operations, over Flight, and what the keeper and the archive do.

compact                             the keeper does now what it would do by and by, or says what that is
log_archive, log_archive_prune      what is due now, a step a call, or what they would do
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.operations import OPERATIONS
from penstock.records.rights import ADMINISTERS
from penstock.server.flight.gatekeeper import Action, Awaiting, Reply, Table
from penstock.server.flight.handover import Aside, Handover
from penstock.server.operating import Operating
from penstock.server.people.access import ACTING
from penstock.wire.fields import duration, flag

if TYPE_CHECKING:
    from penstock.operations.operation import Operation
    from penstock.server.flight.calls import Caller
    from penstock.server.services import Server
    from penstock.server.upkeep.archive import Archiving
    from penstock.server.upkeep.keeper import Keeper


def administration(server: Server, handover: Handover) -> Table:
    """All actions that administer."""
    house = _House(server, handover)
    some = (one for one in OPERATIONS.values() if one.action)
    return {one.name: Action(partial(house.run, one), one.text, one.right, one.fields) for one in some}


class _House:
    """Carries operations out for Flight's threads."""

    def __init__(self, server: Server, handover: Handover) -> None:
        self._house = Operating(server)
        self._handover = handover
        self._awaiting = Awaiting(handover)

    def run(self, operation: Operation, caller: Caller, **arguments: object) -> Reply:
        """The answer of one.  Raises what it raises."""
        if operation.manner == "read":
            answer: Reply = operation.run(Aside(self._handover, caller.peer, caller.gone), caller.who, **arguments)
            return answer
        return self._awaiting.call(lambda: self._answered(operation, caller, arguments), caller.gone)

    async def _answered(self, operation: Operation, caller: Caller, arguments: Mapping[str, object]) -> Reply:
        ACTING.set(caller.who.user)  # of this task
        answer = await self._house.operate(operation, caller.who, arguments)
        if operation.manner != "list":
            return answer  # type: ignore[no-any-return]
        from penstock.wire.http.lists import gathered  # heavy, and not loaded before somebody administers

        return {operation.key: await gathered(answer)}


_DRY = flag("dry_run")


def keeping_actions(handover: Handover, keeper: Keeper) -> Table:
    """What the keeper and the archive would do by and by, now."""
    awaiting = Awaiting(handover)

    def archive() -> Archiving:
        if (there := handover.engine.archive) is None:
            raise PreconditionFailed("this server has no archive; [log] archive in its settings makes one")
        return there

    def compact(caller: Caller, dry_run: bool) -> Reply:
        return awaiting.call(lambda: keeper.compact(dry_run=dry_run), caller.gone)

    def store(caller: Caller, dry_run: bool) -> Reply:
        there = archive()
        return awaiting.call(lambda: there.run_now(dry_run=dry_run), caller.gone)

    def prune(caller: Caller, age: int | None, dry_run: bool) -> Reply:
        if age is None:
            raise InvalidArgument("log_archive_prune: age is missing; days that are older go")
        there = archive()
        return awaiting.call(lambda: there.prune_now(age, dry_run=dry_run), caller.gone)

    return {
        "compact": Action(
            compact, "dry_run: delete and rewrite closed segments, or say what would be done", ADMINISTERS, (_DRY,)
        ),
        "log_archive": Action(
            store, "dry_run: archive the next closed segments, or say which ones are due", ADMINISTERS, (_DRY,)
        ),
        "log_archive_prune": Action(
            prune, "age, dry_run: remove archived days that are older, or say which ones", ADMINISTERS,
            (duration("age"), _DRY),
        ),
    }  # fmt: skip
