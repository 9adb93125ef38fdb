"""How channels and connections end: what they held goes back by turns of the server, and the last word comes behind it.

One connection may consume from thousands of queues or have as many of its own, and thousands of connections end at once
where a machine or a network does.  To who is over nothing more is granted from the first moment on (`Channel.silence`);
what he had goes back as the turns have time for it, a few queues in a step, in the order in which they ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from penstock.core.queue.queue import Queue, queue_of

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.records.chunks import Now
    from penstock.server.amqp.channel import Channel
    from penstock.server.base.faults import Asker
    from penstock.server.engine import Engine


QUEUES = 16
"""So many queues a step."""

OVER = object()
"""There is no step any more."""


class Leaving:
    """What is left to do of one connection's channels that are over, and of itself."""

    __slots__ = ("_engine", "_left", "asker")

    def __init__(self, engine: Engine, asker: Asker) -> None:
        self._engine = engine
        self._left: deque[tuple[Iterator[None], Callable[[], object]]] | None = None  # an empty deque is large
        self.asker = asker

    def begin(self, steps: Iterator[None], then: Callable[[], object]) -> None:
        """Do these behind what is under way, as far as this turn has time, and the rest in the next ones; then that."""
        if self._left is not None:
            self._left.append((steps, then))
            return
        self._left = deque(((steps, then),))
        self._go_on()

    def finish(self) -> None:
        """All of it now."""
        while self._left:
            self._step(self._left)
        self._left = None

    def _go_on(self) -> None:
        left, turns = self._left, self._engine.turns
        try:
            while left and not turns.used_up:
                self._step(left)
        finally:  # also where a step failed: what is behind it is owed all the same
            if left:
                turns.wait(self._go_on)
            else:
                self._left = None
            self._engine.arm()

    def _step(self, left: deque[tuple[Iterator[None], Callable[[], object]]]) -> None:
        steps, then = left[0]
        if next(steps, OVER) is OVER:
            left.popleft()
            then()


def give_back(core: Core, now: Callable[[], Now], channels: Sequence[Channel], *, lost: bool) -> Iterator[None]:
    """Channels of one connection are over: what their consumers hold goes back to the queues, those of each together.

    lost: the connection broke.  Returns the steps of that; what nobody else can bring back is over at once.
    """
    for channel in channels:
        if channel.tx is not None:
            channel.tx.close()
    wishes = [wish for channel in channels for wish in channel.subscriptions.values()]
    consumers = [
        one
        for channel in channels
        for one in (*channel.consumers.values(), *channel.cancelled_consumers, *channel.getters.values())
    ]
    by_queue: dict[Queue, list[Consumer]] = {}
    for consumer in (*consumers, *core.closing(wishes)):
        by_queue.setdefault(queue_of(consumer), []).append(consumer)

    def steps() -> Iterator[None]:
        each = iter(by_queue.values())
        while some := [one for own in islice(each, QUEUES) for one in own]:
            core.unsubscribe_all(now(), some, requeue=True, lost=lost)
            yield
        core.close_all(now(), wishes, lost=lost)
        for channel in channels:
            channel.let_go()

    return steps()


def end_exclusive(core: Core, now: Callable[[], Now], holder: object) -> Iterator[None]:
    """The queues that are a connection's own go with it."""
    while core.end_exclusive(now(), holder, QUEUES):
        yield
