"""Clients that do not read: what waits for them is memory that publishers want.

While there is room a client may leave unread what it likes.  Where memory is short and no cache can give any up, the
link of one that has more than `SEND_FREE` bytes before it, and has taken none of them for `UNREAD_US`, is cut, the
fullest first, until there would be room: its messages go back to their queues, as when it dies.  Knows no queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.server.amqp.links import SEND_FREE

if TYPE_CHECKING:
    from penstock.server.amqp.connection import Connection
    from penstock.server.engine import Engine

UNREAD_US = 10_000_000


class Unread:
    """Who stands still.  For the loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stood: dict[Connection, tuple[int, int]] = {}  # most bytes that it had taken, and since when

    def beat(self, sessions: Iterable[Connection]) -> None:
        """Once a second, once what waits was counted."""
        bodies, before = self._engine.bodies, self._stood
        self._stood = {}
        if not bodies.tight:
            return
        now, still = self._engine.clock.mono(), list[tuple[int, "Connection"]]()
        for session in sessions:
            if (waiting := session.link.buffered()) > SEND_FREE:
                taken = session.outgoing.taken
                was, since = before.get(session, (taken - 1, now))
                self._stood[session] = (taken, now) if taken > was else (was, since)
                if taken <= was and now - since >= UNREAD_US:
                    still.append((waiting, session))
        over = bodies.budget.over
        for waiting, session in sorted(still, key=lambda one: one[0], reverse=True):
            if over <= 0:
                break
            over -= waiting
            session.link.abort()
