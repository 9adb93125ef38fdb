"""The feed: the last few thousand things that have changed, in their order, each with a number.

Everybody who looks on reads the same ring from a place of his own, so a slow one costs nothing but his place: what he
has not read when the ring comes round is lost to him, and he is told.  It knows no socket and no user; an event says
what somebody must be allowed to see to be shown it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

from penstock.records.dataclass import dataclass
from penstock.records.rights import Level

RING_MOST = 4096
"""Events that are kept."""

TEXT_MOST = 1000
"""Characters of a text in an event; what is longer is cut."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event.  Its scope: who is shown it."""

    number: int  # 1, 2, ... in this run of the server
    name: str  # "queue.created"
    time: int  # microseconds since the epoch
    fields: Mapping[str, object]
    vhost: str | None = None  # None: it is of no vhost
    queue: str | None = None  # who sees this queue of the vhost
    user: str | None = None  # this user, and who sees the connections of others
    level: Level | None = None  # who has this tag


class Feed:
    """The ring.  Belongs to the loop's thread."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], most: int = RING_MOST) -> None:
        self._call_soon = call_soon
        self._ring: deque[Happened] = deque(maxlen=most)
        self.last = 0  # the number of the last event
        self.listeners: set[Callable[[], None]] = set()  # called once after a turn that brought events
        self._ringing = False

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept; the next one's where none is."""
        return self.last - len(self._ring) + 1

    def tell(
        self,
        name: str,
        time: int,
        fields: Mapping[str, object],
        *,
        vhost: str | None = None,
        queue: str | None = None,
        user: str | None = None,
        level: Level | None = None,
    ) -> None:
        """Something has changed; `fields` are JSON."""
        self.last += 1
        short = {key: clipped(value) for key, value in fields.items()}
        self._ring.append(Happened(self.last, name, time, short, vhost, queue, user, level))
        if self.listeners and not self._ringing:
            self._ringing = True
            self._call_soon(self._ring_out)

    def since(self, number: int, most: int) -> list[Happened]:
        """Up to `most` events after this one, oldest first; those that are kept."""
        skip = max(number + 1 - self.first, 0)
        if skip >= len(self._ring):
            return []
        if len(self._ring) - skip <= most:  # near the end, where readers are: a deque is walked from its nearer side
            tail = list(islice(reversed(self._ring), len(self._ring) - skip))
            tail.reverse()
            return tail
        return list(islice(self._ring, skip, skip + most))

    def _ring_out(self) -> None:
        self._ringing = False
        for listener in list(self.listeners):
            listener()


def clipped(value: object) -> object:
    """A value that is not too long for an event."""
    return value[:TEXT_MOST] + "…" if isinstance(value, str) and len(value) > TEXT_MOST else value
