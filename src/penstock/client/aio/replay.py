"""A replay as an async iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from penstock.client import replaying as blocking
from penstock.client.messages import Message

T = TypeVar("T")


class Replay:
    """An async iterator of the messages of topics.  Made by `Client.replay`."""

    def __init__(self, start: Callable[[], Awaitable[blocking.Replay]]) -> None:
        self._start = start
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="penstock-aio-replay")
        self._replay: blocking.Replay | None = None
        self._entered = False

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _open(self) -> blocking.Replay:
        if self._replay is None:
            self._replay = await self._start()
        return self._replay

    @property
    def completed(self) -> bool:
        """Whether the replay is over: the end of its range, or level with what is published."""
        return self._replay is not None and self._replay.completed

    @property
    def notice(self) -> str:
        """What there is to know: that the bookmark was not found, and where it reads from instead."""
        return "" if self._replay is None else self._replay.notice

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while (message := await self.take()) is not None:
                yield message
        finally:
            if not self._entered:
                await self.close()

    async def take(self) -> Message | None:
        """The next message; None at the end, and when nothing came within `timeout`."""
        replay = await self._open()
        return await self._run(replay.take)

    async def pause(self) -> None:
        """Nothing more is sent until `resume`; what is under way still comes."""
        await self._run((await self._open()).pause)

    async def resume(self, rate: str | None = None) -> None:
        """Go on, from now on at this rate if one is given."""
        await self._run(partial((await self._open()).resume, rate))

    async def close(self) -> None:
        """End it; twice does no harm."""
        if self._replay is not None:
            self._replay.close()
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
