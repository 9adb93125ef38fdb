"""What carries out the management API over HTTP, for Flight's actions about the same things.

Made when it is first asked for: a server that nobody administers does not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import NotFound
from penstock.records.dataclass import dataclass
from penstock.records.rights import MONITORING
from penstock.server.flight.actions.awaiting import Awaiting
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.handover import Handover
    from penstock.server.http.links import Links
    from penstock.server.http.people import People
    from penstock.server.http.topology import Topology
    from penstock.server.services import Server

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Commands:
    """The nouns of the management API; their methods belong to the loop."""

    links: Links
    topology: Topology
    people: People


class Desk:
    """Methods belong to Flight's threads."""

    def __init__(self, server: Server, handover: Handover) -> None:
        self._server = server
        self._awaiting = Awaiting(handover)
        self._commands: Commands | None = None

    def _made(self) -> Commands:
        if self._commands is None:
            from penstock.server.http.commands import Waits
            from penstock.server.http.facts import Facts
            from penstock.server.http.links import Links
            from penstock.server.http.people import People
            from penstock.server.http.topology import Topology

            facts, waits = Facts(self._server, __version__), Waits()
            parts = self._server, facts, waits
            self._commands = Commands(Links(*parts), Topology(*parts), People(*parts))
        return self._commands

    def do(self, caller: Caller, work: Callable[[Commands], Coroutine[Any, Any, T]], missing: str | None = None) -> T:
        """The result of a command, once it is on disk.  Raises what it raises; `missing` says what was not found."""
        commands = self._made()
        try:
            return self._awaiting.call(lambda: work(commands), caller.gone)
        except NotFound as error:
            raise NotFound(missing if missing and str(error) == "Not Found" else str(error)) from None

    def list(self, caller: Caller, look: Callable[[Commands], Iterable[T]], missing: str | None = None) -> list[T]:
        """All of a list; others have their turn in between."""
        from penstock.wire.http.answers import gathered

        async def work(commands: Commands) -> list[T]:
            return await gathered(look(commands))

        return self.do(caller, work, missing)


def whose(caller: Caller) -> str | None:
    """Whose things a user sees: None is everybody's."""
    return None if MONITORING.holds(caller.who.tags) else caller.user
