"""Answers of one AMQP channel that could not be sent at once, in the order of what was asked.

What comes of a request without being its answer goes behind the answers that are owed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.wire.amqp.methods import Method


class Sender(Protocol):
    """A session."""

    def send(self, channel: int, method: Method, /) -> None:
        """A method frame, in order with what waits to be written."""
        ...


@dataclass(slots=True, eq=False)
class Answer:
    """An answer that waits: for what it promises, or for the answers before it."""

    method: Method | None  # None: `then` writes it
    then: Callable[[], None] | None = None  # run once it is on its way
    promise: bool = False  # it waits for the disk
    ready: bool = False
    lasts: bool = True  # it is owed also once the channel is over
    left: int = 0  # messages that were ready in its queue when a basic.get was granted its own


class Answers:
    """Those that could not be sent at once."""

    __slots__ = ("_number", "_session", "_waiting")

    def __init__(self, session: Sender, number: int) -> None:
        self._session = session
        self._number = number
        self._waiting: deque[Answer] | None = None  # an empty deque is large

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def promising(self) -> bool:
        """Whether one of them waits for the disk."""
        return any(one.promise and not one.ready for one in self._waiting or ())

    def add(self, method: Method, then: Callable[[], None] | None = None) -> Answer:
        """An answer that takes its place in the order now and leaves when it is `ready`."""
        answer = Answer(method, then)
        self._append(answer)
        return answer

    def _append(self, answer: Answer) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(answer)

    def tell(self, write: Callable[[], None]) -> None:
        """Say something that is no answer, behind all that are owed."""
        if self._waiting:
            self._append(Answer(None, write, ready=True))
        else:
            write()

    def ready(self, answer: Answer) -> None:
        """What an answer waited for has come."""
        answer.ready = True
        self._go_on()

    def close(self, last: Callable[[], None]) -> None:
        """The channel is over: of what is owed that goes out which can still come true, then the last word."""
        owed = [one for one in self._waiting or () if one.lasts and (one.ready or one.promise)]
        for one in owed:
            if one.method is not None:
                one.then = None
        self._waiting = deque([*owed, Answer(None, last, ready=True, lasts=False)])
        self._go_on()

    def break_promises(self) -> None:
        """What waits for the disk never comes true."""
        self._waiting = deque([one for one in self._waiting or () if one.ready or not one.promise])
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._waiting[0].ready:
            first = self._waiting.popleft()
            if first.method is not None:
                self._session.send(self._number, first.method)
            if first.then is not None:
                first.then()
        if not self._waiting:
            self._waiting = None
