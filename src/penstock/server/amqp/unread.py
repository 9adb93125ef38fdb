"""Clients that do not read: what waits for them is memory that publishers want.

While there is room a client may leave unread what it likes.  Where memory is short and stays so, the link of one that
has taken nothing meanwhile is cut: its messages go back to their queues, as when it dies.  Knows no queue, and not when
that is (`penstock.memory.relief`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from penstock.memory.relief import Held

if TYPE_CHECKING:
    from penstock.errors import MemoryShort
    from penstock.server.amqp.connection import Connection


def unread(sessions: Collection[Connection]) -> Iterator[Held]:
    """What waits for each."""
    for session in list(sessions):
        if waiting := session.link.buffered():
            name = f"what {session.peer} does not read"
            yield Held(session, session.user, name, waiting, session.outgoing.taken, _cutting(session))


def _cutting(session: Connection) -> Callable[[MemoryShort], None]:
    """Who does not read cannot be told why."""
    return lambda _: session.link.abort()
