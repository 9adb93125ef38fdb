"""One administrative act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.records.rights import Right
from penstock.wire.fields import Field

Answer: TypeAlias = Mapping[str, object]

Body: TypeAlias = Mapping[str, Any]

Manner: TypeAlias = Literal["look", "decide", "change", "list", "read"]
"""How a function is carried out; all but the last run on the loop, with a `House`.

look      it changes nothing and answers at once
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

    def right_of(self, body: Body) -> Right:
        """The right that a request with these arguments asks for."""
        return self.right if isinstance(self.right, Right) else self.right(body)
