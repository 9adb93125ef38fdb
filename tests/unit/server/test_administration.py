"""Actions on the whole log: what becomes of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.core.state.pending import DecidedPart, DecidedState
from penstock.errors import LogDamaged, Unavailable
from penstock.operations.vhosts import SET_VHOST, empty
from penstock.server.counters import Counters
from penstock.server.flight.calls import Caller
from penstock.server.flight.handover import Answer
from penstock.server.flight.operation_actions import keeping_actions
from penstock.server.operating import Operating
from penstock.server.people.access import Who
from penstock.server.people.accounts import Accounts
from unit.core.world import World


class Keeper:
    """Compacting ends in an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def compact(self, *, dry_run: bool) -> dict[str, object]:
        raise self.error


class Handover:
    """Runs a job on a loop until nothing is left to do there."""

    def submit(self, job: Any) -> Answer[object]:
        answer: Answer[object] = Answer()

        async def turn() -> None:
            job(answer)
            await asyncio.wait(asyncio.all_tasks() - {cast("asyncio.Task[object]", asyncio.current_task())}, timeout=20)
            await asyncio.sleep(0)  # what was to be called when it ended

        asyncio.run(turn())
        return answer


@pytest.mark.parametrize(
    ("error", "told"),
    [(asyncio.CancelledError(), Unavailable), (LogDamaged("log/1"), LogDamaged), (OSError(5), OSError)],
)
def test_who_asked_for_a_compaction_learns_how_it_ended(error: BaseException, told: type[Exception]) -> None:
    action = keeping_actions(cast("Any", Handover()), cast("Any", Keeper(error)))
    caller = Caller(Who("ann"), "", lambda: False)
    with pytest.raises(told) as raised:
        action["compact"].answer(caller, "compact", {})
    assert raised.value is error or isinstance(raised.value, Unavailable)


def test_a_vhost_is_empty_when_what_is_decided_for_it_has_come() -> None:
    """Rows of a large commit, of which some were still to be copied, would come to whoever has the name next."""
    world = World()
    decided = {"q": DecidedState(1, 0, (DecidedPart("stage", 5, 100, 0, "t", "", "gone", False),))}
    core = Copying(world.core, decided)
    asked = list[int]()

    async def decide(work: Callable[[], int]) -> int:
        asked.append(work())
        if len(asked) == 3:
            decided.clear()
        return asked[-1]

    forgotten = list[str]()
    house = SimpleNamespace(
        accounts=Accounts(), core=core, now=lambda: world.now, decide=decide, forget_counts=forgotten.append
    )
    asyncio.run(empty(cast("Any", house), "gone"))
    assert asked == [-1, -1, -1, 0]
    assert forgotten == ["gone"]


class Copying:
    """A core that has decided something."""

    def __init__(self, core: Any, decided: dict[str, DecidedState]) -> None:
        self._core, self.decided = core, decided

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def test_changes_of_accounts_from_two_doors_come_one_after_another() -> None:
    """One that cannot be kept takes back itself alone."""

    class Kept(Accounts):
        async def save(self) -> None:
            await asyncio.sleep(0)  # the other door has its turn
            if "bad" in self.vhosts:
                raise OSError(28, "no room")

    class Door(Operating):
        async def decide(self, work: Any, *, wait: bool = True) -> Any:
            return 0  # nothing is left of vhosts of these names

    accounts, told = Kept(), list[tuple[str, object]]()
    notices = SimpleNamespace(accounts=told.extend)
    server = SimpleNamespace(accounts=accounts, counters=Counters(), engine=SimpleNamespace(notices=notices))
    doors = [Door(cast("Any", server)) for _ in range(2)]

    async def work() -> list[object]:
        more = {one.name: one.default for one in SET_VHOST.fields if one.name != "vhost"}
        asked = [
            door.operate(SET_VHOST, Who("root"), {"vhost": name, **more})
            for door, name in zip(doors, ("bad", "good"), strict=True)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    [bad, good] = asyncio.run(work())
    assert isinstance(bad, Unavailable)
    assert good == {"vhost": "good", "new": True}
    assert list(accounts.vhosts) == ["/", "good"]
    assert [(event, of["name"]) for event, of in cast("Any", told)] == [("vhost.created", "good")]
