"""Actions that are coroutines on the loop: a Flight thread begins one and waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import Unavailable

if TYPE_CHECKING:
    from penstock.server.flight.handover import Answer, Handover

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
