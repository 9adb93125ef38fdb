"""One action: what carries it out, its sentence, and what it asks of who wants it; and the wait for a coroutine.

Every action says its right where it is registered; there is none without.  What cannot be said as data, for it is about
the topology that a name leads to, is a method of `Gatekeeper`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from penstock.errors import Unavailable
from penstock.records.rights import Right

if TYPE_CHECKING:
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.entitled import Asks, Body
    from penstock.server.flight.handover import Answer, Handover
    from penstock.wire.fields import Fields


Reply = Mapping[str, object]


class Action(NamedTuple):
    """One row of the table of all actions."""

    run: Callable[[Caller, Fields], Reply]
    text: str
    right: Right | Callable[[Body], Right]  # of every request, or of this one
    asks: Asks | None = None  # not asked where nothing is limited

    def right_of(self, body: Body) -> Right:
        return self.right if isinstance(self.right, Right) else self.right(body)


Table: TypeAlias = "dict[str, Action]"


T = TypeVar("T")


class Awaiting:
    """What runs for Flight's threads at present.  `call` is theirs, the rest is the loop's."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._running = set[asyncio.Future[Any]]()  # the loop alone does not keep them alive

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], gone: Callable[[], bool] | None) -> T:
        """The result of a coroutine, which goes on when its caller is gone.  Raises what it raises, and Unavailable."""

        def job(answer: Answer[T]) -> None:
            task = asyncio.ensure_future(work())
            self._running.add(task)
            task.add_done_callback(partial(self._tell, answer))

        return self._handover.submit(job).wait(gone)

    def _tell(self, answer: Answer[T], done: asyncio.Future[T]) -> None:
        self._running.discard(done)
        if done.cancelled():
            answer.fail(Unavailable("the server stops"))
        elif (error := done.exception()) is not None:
            answer.fail(error)  # what is not ours is logged and shown as internal where the call ends
        else:
            answer.give(done.result())
