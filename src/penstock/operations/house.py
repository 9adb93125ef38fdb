"""What operations work on: the core, the accounts, and who is connected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.records.chunks import Now
    from penstock.server.accounts import Accounts
    from penstock.server.users import Users

T = TypeVar("T")


class House(Protocol):
    """A server, to its operations.  Everything here belongs to the loop."""

    @property
    def core(self) -> Core:
        """Raises Unavailable while the server starts."""
        ...

    @property
    def accounts(self) -> Accounts:
        """What is administered at run time beside the core."""
        ...

    @property
    def users(self) -> Users:
        """Who may log in, and what for."""
        ...

    def now(self) -> Now:
        """The instant of a decision."""
        ...

    async def change(self, work: Callable[[Accounts], T]) -> T:
        """The result of a change of accounts that is on disk now.  Raises what it raises, and nothing is changed."""
        ...

    async def decide(self, work: Callable[[], T]) -> T:
        """The result of a command of the core, when its records are durable.  Raises what the core refuses."""
        ...

    def hang_up(self, why: str, *, users: tuple[str, ...] = (), vhost: str | None = None) -> None:
        """Close the connections of these users, or those to this vhost, with code 320."""
        ...

    def connections(self, user: str | None) -> Iterator[dict[str, object]]:
        """Open AMQP connections in RabbitMQ's words, oldest first; user None: everybody's."""
        ...

    def close(self, connection: str, reason: str) -> None:
        """Close one with code 320; what it holds goes back to its queues.  NotFound."""
        ...

    @property
    def open_connections(self) -> int:
        """How many there are."""
        ...

    def unblock(self) -> None:
        """Publishes that waited may go on."""
        ...

    def overview(self) -> Mapping[str, object]:
        """The server as a whole, from the counters that `/metrics` has."""
        ...

    def renew(self, user: str) -> None:
        """Open connections of a user go on with the rights as they are now."""
        ...
