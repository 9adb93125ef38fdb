"""One administrative act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.records.rights import Right
from penstock.wire.fields import Field

Answer: TypeAlias = Mapping[str, object]

Body: TypeAlias = Mapping[str, Any]

Manner: TypeAlias = Literal["look", "decide", "change", "list"]
"""How a function is carried out; all run on the loop.

look      it changes nothing and answers at once
decide    the core writes records: refused while the log is broken, answered when they are durable
change    a coroutine, which returns when what it changed is kept
list      it gives items one by one, as dicts; others have their turn in between
"""


RABBITMQ = "RabbitMQ's tools ask for it over HTTP"


class Operation(NamedTuple):
    """A row of the table.  `run(house, who, **arguments)` raises what is refused."""

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

    def right_of(self, body: Body) -> Right:
        """What a request asks."""
        return self.right if isinstance(self.right, Right) else self.right(body)
