"""What one channel is told leaves in the order of what it asked, also when an answer has to wait.

What comes of a request without being its answer (a consumer's end, a returned message, the close for a refusal) goes
behind the answers that are owed: clients match answers with questions by their order.  Deliveries are no answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.records.dataclass import dataclass
from penstock.wire.amqp.methods import Method


@dataclass(slots=True, eq=False)
class Answer:
    """An answer that waits: for what it promises, or for the answers before it."""

    method: Method | None  # None: `then` writes it
    then: Callable[[], None] | None = None  # run once it is on its way
    promise: bool = False  # it waits for the disk
    ready: bool = False
    lasts: bool = True  # it is owed also once the channel is over


class Answers:
    """Those that could not be sent at once."""

    __slots__ = ("_send", "_waiting")

    def __init__(self, send: Callable[[Method], None]) -> None:
        self._send = send
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

    def tell(self, write: Callable[[], None]) -> None:
        """Say something that is no answer, behind all that are owed."""
        if self._waiting:
            self._waiting.append(Answer(None, write, ready=True))
        else:
            write()

    def ready(self, answer: Answer) -> None:
        """What an answer waited for has come."""
        answer.ready = True
        self._go_on()

    def close(self, last: Callable[[], None]) -> None:
        """The channel is over: of what is owed that goes out which can still come true, then the last word."""
        owed = [one for one in self._waiting if one.lasts and (one.ready or one.promise)]
        for one in owed:
            if one.method is not None:
                one.then = None
        self._waiting = deque([*owed, Answer(None, last, ready=True, lasts=False)])
        self._go_on()

    def break_promises(self) -> None:
        """What waits for the disk never comes true."""
        self._waiting = deque([one for one in self._waiting if one.ready or not one.promise])
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._waiting[0].ready:
            first = self._waiting.popleft()
            if first.method is not None:
                self._send(first.method)
            if first.then is not None:
                first.then()
