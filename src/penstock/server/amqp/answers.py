"""The answers of one channel leave in the order of their questions, also when one has to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.records.dataclass import dataclass
from penstock.wire.amqp.methods import Method

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel


@dataclass(slots=True, eq=False)
class Answer:
    """An answer that waits: for what it promises, or for the answers before it."""

    method: Method | None  # None: `then` writes it
    then: Callable[[], None] | None = None  # run once it is on its way
    promise: bool = False  # it waits for the disk
    ready: bool = False


class Answers:
    """Those that could not be sent at once."""

    __slots__ = ("_channel", "_waiting")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: deque[Answer] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def promising(self) -> bool:
        """Whether one of them waits for the disk."""
        return any(one.promise and not one.ready for one in self._waiting)

    def add(self, method: Method, then: Callable[[], None] | None = None) -> Answer:
        """An answer that takes its place in the order now and leaves when it is `ready`."""
        answer = Answer(method, then)
        self._waiting.append(answer)
        return answer

    def ready(self, answer: Answer) -> None:
        """What an answer waited for has come."""
        answer.ready = True
        channel, waiting = self._channel, self._waiting
        while waiting and waiting[0].ready and channel.open:
            first = waiting.popleft()
            if first.method is not None:
                channel.session.send(channel.number, first.method)
            if first.then is not None:
                first.then()
