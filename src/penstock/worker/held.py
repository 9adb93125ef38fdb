"""The messages that a worker holds, and their leases, which are extended for as long as it holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.client.messages import Message
from penstock.errors import PenstockError

logger = logging.getLogger("penstock.worker")

PARTS = 3
"""A lease is extended after so great a part of its time: one extension that comes late does no harm."""


class Held:
    """Messages of one consumer that are waited with or worked on.  All methods belong to the loop."""

    def __init__(self, lease: float | None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """lease: seconds; None: leases do not end by time."""
        self._lease = lease
        self._sleep = sleep
        self._messages = set[Message]()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """One more to keep."""
        self._messages.add(message)

    def forget(self, message: Message) -> None:
        """It is settled, or somebody else's."""
        self._messages.discard(message)

    async def keep(self, off: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Extend leases in time, until cancelled; `off` runs a piece of work in a thread."""
        if self._lease is None:
            return
        while True:
            await self._sleep(self._lease / PARTS)
            await off(self._extend_all)

    def _extend_all(self) -> None:
        """In a thread: what is settled meanwhile is not affected, for an extension of what is not held does nothing."""
        assert self._lease is not None
        for message in list(self._messages):
            if message.outcome is None:
                try:
                    message.extend(self._lease)
                except PenstockError as error:
                    logger.debug("leases are not extended: %s", error)  # who settles it is told, too
                    return
