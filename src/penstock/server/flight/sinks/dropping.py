"""Records of a topic that go with a sink's commit: those of some keys, or all, in the same group as the batch.

A million keys are seconds of work.  Their numbers, and what is left of the index without them, are worked out in the
thread of the commit; the loop puts it in place.  What others have changed meanwhile is looked at again, the rest of it
by the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from penstock.core.sow.holding import Cut
from penstock.core.sow.index import Numbers
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.server.filters.evaluating import breathe
from penstock.server.sow.query import number_of_key

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Drop
    from penstock.core.sow.holding import Sow
    from penstock.server.engine import Engine

T = TypeVar("T")

KEYS_AT_ONCE = 500
LEAVES_AT_ONCE = 8
"""What is worked out between two breaths: about half a millisecond."""

LEFT = 100
"""Leaves that the loop works out itself: 5 ms."""

LOOKS = 8
"""How often it is looked again; a topic that many publish to all the while would let nobody end."""


class Call(Protocol):
    """Runs something on the loop."""

    def __call__(self, work: Callable[[], T]) -> T:
        """What it gives, or the error that it raises."""
        ...


class Dropping:
    """Belongs to the thread of the commit, but for `now` and `behind`."""

    def __init__(self, engine: Engine, call: Call, vhost: str, exchange: str, topic: str) -> None:
        self._engine = engine
        self._call = call
        self._name = vhost, exchange, topic
        self._looks = 0
        self._sow: Sow
        self._cut: Cut

    def find(self, keys: Iterable[Sequence[str]] | None) -> None:
        """Work it out.  keys: of the records, in portions; None: every record.

        Errors: NotFound or InvalidArgument for the topic, InvalidArgument for what is no key of it.
        """
        self._sow = self._call(lambda: self._engine.core.sow(*self._name))
        self._cut = Cut(None if keys is None else numbers_of(self._sow, keys))
        self.look()

    def look(self) -> None:
        """Again, for what others have changed since the last time."""
        index = self._sow.index
        while self._call(lambda: self.behind):
            self._looks += 1
            for step, _ in enumerate(self._cut.look(self._call(index.snapshot))):
                if step % LEAVES_AT_ONCE == 0:
                    breathe()

    # -- the loop

    @property
    def behind(self) -> bool:
        """Whether the loop would work on it for long, and another look may help."""
        return self._looks < LOOKS and self._cut.behind(self._sow.index) > LEFT

    def now(self) -> Drop:
        """For the core.  PreconditionFailed when the topic is not the one any more that it was."""
        if self._engine.core.sows.by_id.get(self._sow.id) is not self._sow:
            raise PreconditionFailed(
                f"topic '{self._name[2]}' in vhost '{self._name[0]}' was deleted or has another key since this commit "
                "began; ask again"
            )
        return self._sow, self._cut


def numbers_of(sow: Sow, keys: Iterable[Sequence[str]]) -> Numbers:
    """The numbers of keys, ascending, each once.  InvalidArgument for what is none."""
    out: list[Numbers] = [np.zeros(0, dtype=np.uint64)]
    for portion in keys:
        for at in range(0, len(portion), KEYS_AT_ONCE):
            some = [number_of_key(sow, key) for key in portion[at : at + KEYS_AT_ONCE]]
            out.append(np.array(some, dtype=np.uint64))
            breathe()
    numbers = np.concatenate(out)
    numbers.sort()  # without the interpreter, unlike `np.unique`
    return numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers


def texts(bodies: Sequence[bytes]) -> list[str]:
    """Rows of a stage that are keys.  InvalidArgument for one that is no text."""
    try:
        return [body.decode() for body in bodies]
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"sink_commit: a key of drop is no UTF-8 text: {error}") from None
