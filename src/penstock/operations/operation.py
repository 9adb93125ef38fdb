"""One administrative act, and what such acts work on: the core, the accounts, and who is connected; and for those that
read the log its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.records.rights import Right
from penstock.wire.fields import Field

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.log.log import Log
    from penstock.records.chunks import Now
    from penstock.replication.register import ClusterState
    from penstock.server.people.access import Who
    from penstock.server.people.accounts import Accounts
    from penstock.server.people.users import Users

T = TypeVar("T")


class Membership(Protocol):
    """A server's place in its cluster.  Belongs to the loop."""

    def switch(self, member: str | None) -> Mapping[str, object]:
        """Hand over to this one, or to any, soon after the answer.  PreconditionFailed."""
        ...

    async def change(self, work: Callable[[ClusterState], ClusterState]) -> ClusterState:
        """The register after a change.  Unavailable, and what `work` raises."""
        ...


class Sites(Protocol):
    """The links of a server to other sites.  Belongs to the loop."""

    def facts(self) -> Sequence[Mapping[str, object]]:
        """Those that lead away and those that come."""
        ...

    def pause(self, name: str, *, paused: bool) -> Mapping[str, object]:
        """Have one wait, or go on.  NotFound."""
        ...


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

    def forget_counts(self, vhost: str) -> None:
        """What was counted of a vhost's messages is not told of the next one of its name."""

    def connections(self, user: str | None) -> Iterator[dict[str, object]]:
        """Open AMQP connections in RabbitMQ's words, oldest first; user None: everybody's."""
        ...

    def close(self, connection: str, reason: str) -> None:
        """Close one with code 320; what it holds goes back to its queues.  NotFound."""

    @property
    def cluster(self) -> Membership:
        """NotFound for a server in none."""
        ...

    @property
    def sites(self) -> Sites:
        """Links to other sites; of a server without them there are none."""
        ...

    @property
    def open_connections(self) -> int:
        """How many AMQP connections there are, of all users."""
        ...

    def unblock(self) -> None:
        """Publishes that waited may go on."""

    def addresses(self) -> Mapping[str, str]:
        """Where the doors are, by their names in the settings."""
        ...

    async def overview(self, who: Who) -> Mapping[str, object]:
        """The server as a whole, from the counters that `/metrics` has; what somebody sees of them."""
        ...

    def renew(self, user: str) -> None:
        """Open connections of a user go on with the rights as they are now."""

    def streams(self) -> Sequence[Mapping[str, object]]:
        """Durable readers as facts, with what they hold and have not read yet."""
        ...

    def views(self, vhost: str) -> Iterator[Mapping[str, object]]:
        """Views and conflated topics of a vhost as facts, by name."""
        ...


class Reports(Protocol):
    """The last word of drivers about each Spark pipeline."""

    def tell(self, driver: str, host: str, pid: int, state: str, pipelines: Mapping[str, object]) -> None:
        """Take one.  InvalidArgument for names that no pipeline can have, and for too many of them."""

    def leave(self, names: Sequence[str]) -> None:
        """These have left the settings."""

    def all(self) -> Sequence[Mapping[str, object]]:
        """Of every pipeline that the settings name or a driver has told about, by name."""
        ...


class Reading(Protocol):
    """A server, to who reads its log in a thread, and hands to the loop what is the core's."""

    @property
    def core(self) -> Core:
        """The core, which belongs to the loop: nothing of it is read in this thread."""
        ...

    @property
    def log(self) -> Log:
        """Whose rows are read in this thread."""
        ...

    def now(self) -> Now:
        """The instant of a decision, on the loop."""
        ...

    def call(self, work: Callable[[], T], *, durable: bool = True) -> T:
        """The result of `work` on the loop, once what was decided is durable; False: it names nothing new."""
        ...

    def gone(self) -> bool:
        """Whether nobody waits any more."""
        ...


class Beside(Reading, Protocol):
    """The same to operations that run in such a thread."""

    @property
    def peer(self) -> str:
        """The client's name for people, as records of what it settles have it."""
        ...

    @property
    def pipelines(self) -> Reports:
        """What drivers have told of their pipelines; for any thread."""
        ...

    def usable(self) -> None:
        """LogBroken where nothing that is decided would last."""

    def decide(self, work: Callable[[], T]) -> T:
        """As `call`, of what writes records; dead letters of what it let die are waited for.  LogBroken."""
        ...

    def later(self, begin: Callable[[Callable[[Queue | None, T], None]], None]) -> T:
        """What the core tells by and by whom `begin` hands to it, on the loop; durable, and LogBroken, as `decide`.

        It is told with the queue of which some may have died: their dead letters are waited for.
        """
        ...

    def lsn_at(self, time: int) -> int:
        """The first LSN from a time on, in microseconds since the epoch; it reads the log."""
        ...


Answer: TypeAlias = Mapping[str, object]

Body: TypeAlias = Mapping[str, Any]

Manner: TypeAlias = Literal["look", "sum", "decide", "change", "list", "read"]
"""How a function is carried out; all but the last run on the loop, with a `House`.

look      it changes nothing and answers at once
sum       a coroutine, which changes nothing; others have their turn in between
decide    the core writes records: refused while the log is broken, answered when they are durable
change    a coroutine, which returns when what it changed is kept
list      it gives items one by one, as dicts; others have their turn in between
read      in a thread, with a `Beside`: it reads the log, and hands to the loop what is the core's
"""


RABBITMQ = "RabbitMQ's tools ask for it over HTTP"


class Path(NamedTuple):
    """Where HTTP has an operation as it is: `GET` with its arguments in the query, others with a JSON object of them.

    What RabbitMQ has in another shape is adapted in `server.http`.
    """

    method: str
    path: str  # "/api/queues/{vhost}/{name}/redrive"
    names: Mapping[str, str]  # which argument a variable is that has another name
    summary: str
    fields: str = ""  # the other arguments, with spaces between
    right: Right | None = None  # where what a row asks depends on what is not in this path


QUEUE_PATH, NAMED = "/api/queues/{vhost}/{name}", {"name": "queue"}
"""The path of a queue, and which argument its name is."""


class Operation(NamedTuple):
    """A row of the table.  `run(house, who, **arguments)` raises what is refused; house is as its manner says."""

    name: str  # of the Flight action, too
    run: Callable[..., Any]
    manner: Manner
    text: str  # a sentence: its arguments, and what it does
    right: Right | Callable[[Body], Right]  # of every request, or of this one
    fields: tuple[Field, ...] = ()
    key: str = ""  # of a list: under which key an answer has it
    sdk: str = ""  # the method of both clients
    cli: str = ""  # the command
    action: bool = True  # whether it is an action of Flight's
    missing: str = ""  # why it is not at every door
    path: Path | None = None

    def filled(self, given: Body) -> dict[str, Any]:
        """Arguments with those that nobody gave and that need not be given."""
        return {**{one.name: one.default for one in self.fields if not one.needed}, **given}

    def right_of(self, body: Body) -> Right:
        """The right that a request with these arguments asks for."""
        return self.right if isinstance(self.right, Right) else self.right(body)
