"""A consumer as an async iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from penstock.client import consumer as blocking
from penstock.client.aio.message import Message

T = TypeVar("T")


class Consumer:
    """An async iterator of messages.  Made by `Client.consume`."""

    def __init__(self, start: Callable[[], Awaitable[blocking.Consumer]]) -> None:
        self._start = start
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="penstock-aio-consumer")
        self._consumer: blocking.Consumer | None = None
        self._entered = False

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _open(self) -> blocking.Consumer:
        if self._consumer is None:
            self._consumer = await self._start()
        return self._consumer

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while (message := await self.take()) is not None:
                yield message
        finally:
            if not self._entered:
                await self.close()

    async def take(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 - same name as in `Consumer`
        """The next message; None when none came for so many seconds, or when the consumer is closed."""
        consumer = await self._open()
        message = consumer.take_ready()
        if message is None:
            message = await self._run(partial(consumer.take, timeout))
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
        if self._consumer is not None:
            await self._run(self._consumer.flush)

    async def close(self) -> None:
        """Give back what is not settled, and wait until what is settled is durable."""
        if self._consumer is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._consumer.close))
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
