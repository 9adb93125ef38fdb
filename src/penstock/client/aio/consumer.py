"""A consumer as an async iterator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from penstock.client import consumer as blocking
from penstock.client import messages as blocking_messages
from penstock.client.aio.message import Message
from penstock.client.aio.stream import Stream
from penstock.errors import PenstockError


class Consumer(Stream[blocking.Consumer, blocking_messages.Message, Message]):
    """An async iterator of messages.  Made by `Client.consume`."""

    def __init__(self, start: Callable[[], Awaitable[blocking.Consumer]]) -> None:
        super().__init__(start, "penstock-aio-consumer")

    async def take(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 - same name as in `Consumer`
        """The next message; None when none came for so many seconds, or when the consumer is closed."""
        if self._closed:
            return None
        consumer = await self._open()
        message = consumer.take_ready() if self._idle else None
        if message is None:
            message = await self._next(consumer.take, timeout)
        return None if message is None else Message(message, self._run)

    async def effective_backlog(self) -> int | None:
        """How many may be unsettled at once: what was asked for, or the limit of a queue; None: no limit."""
        consumer = await self._open()
        return await self._run(lambda: consumer.effective_backlog)

    async def replace(
        self, *, filter: str | None = None, max_backlog: int | None = None, queue: str | None = None
    ) -> None:
        """Change the terms in one step; what is not named stays.  As `penstock.client.Consumer.replace`."""
        consumer = await self._open()
        await self._run(partial(consumer.replace, filter=filter, max_backlog=max_backlog, queue=queue))

    async def flush(self) -> None:
        """Wait until everything settled so far is durable."""
        if self._opened is not None:
            await self._run(self._opened.flush)

    async def _end(self, opened: blocking.Consumer) -> None:
        """Give back what is not settled, and wait until what is settled is durable."""
        came, self._coming = self._coming, None
        untaken = came.result() if came is not None and came.done() and came.exception() is None else None

        def close() -> None:
            if untaken is not None:  # it came for a caller that had gone
                with suppress(PenstockError):
                    opened.settle(untaken, "unseen", None, None)
            opened.close()

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, close))
