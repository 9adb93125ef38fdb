"""Deliveries whose header no frame of their connection carries: how they end, and who hears of it.

    its channel          is closed with 311, which names the message and both sizes (`Channel`)
    the delivery         has failed: back to the queue, for others with larger frames, or until the queue's limit
    without such a limit  after `TRIES` it is a dead letter, where the queue has a place for these; else it stays
    the log              a line for each queue, then once in a while how many more there were

So a client that comes again and again is ended as often as it comes, but a queue that has told where its failures go is
not held up for ever.  Where it has not, nothing that was confirmed is given up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.records.remembered import Remembered

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.core.queue.queue import Queue
    from penstock.errors import ProtocolError
    from penstock.server.amqp.session import Session

logger = logging.getLogger("penstock.server")

TRIES = 20
"""Deliveries of a message, sendable or not, as many as RabbitMQ's quorum queues make without a setting."""

AGAIN_S = 60.0
QUEUES_MOST = 512


class Told:
    """What the log has said of each queue."""

    def __init__(self) -> None:
        self._queues: Remembered[tuple[str, str], list[int]] = Remembered(QUEUES_MOST)  # -> told at, more since then

    def more(self, queue: Queue, now: int) -> int | None:
        """How many there were since it was told last, if it is to be told again; None: not now."""
        key = queue.vhost, queue.name
        known = self._queues.get(key)
        if known is None:
            self._queues.keep(key, [now, 0])
            return 0
        if now - known[0] < AGAIN_S * 1e6:
            known[1] += 1
            return None
        more, known[:] = known[1], (now, 0)
        return more


told = Told()


def tell(session: Session, queue: Queue, error: ProtocolError) -> None:
    """A line in the log, unless there was one of this queue a moment ago."""
    more = told.more(queue, session.engine.clock.mono())
    if more is not None:
        before = f"; {more} more of this queue since the last such line" if more else ""
        logger.warning("a channel of %s, user %r, was closed: %s%s", session.peer, session.user, error, before)


def ending(effect: Delivery) -> Verb:
    """How the core is to take them back."""
    settings = effect.queue.settings
    if effect.attempt >= TRIES and settings.dead_letter_exchange is not None:
        return Verb.EXPIRE
    return Verb.CANCEL
