"""What the two async iterators share: opened when first used, its waiting done in a thread of its own.

One caller waits at a time, in one of two threads, so that settling always has the other; who comes meanwhile waits for
its turn.  A thread cannot be called back: what comes for a caller that was cancelled, or gave up, is the next one's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from penstock.errors import Unavailable

T = TypeVar("T")
Blocking = TypeVar("Blocking")
Found = TypeVar("Found")
Item = TypeVar("Item")


class Stream(ABC, Generic[Blocking, Found, Item]):
    """An async iterator of items, made of what a blocking one finds."""

    def __init__(self, start: Callable[[], Awaitable[Blocking]], name: str) -> None:
        """start: opens the blocking one.  name: of the threads."""
        self._start = start
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=name)
        self._opened: Blocking | None = None
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._coming: asyncio.Future[Found | None] | None = None  # a thread waits for it; None: none does
        self._entered = False
        self._closed = False

    async def _run(self, work: Callable[[], T]) -> T:
        pool = None if self._closed else self._pool  # what comes too late is told so by the blocking one
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def _open(self) -> Blocking:
        if self._opened is None:
            async with self._opening:
                if self._closed:
                    raise Unavailable("this was closed before it was opened")
                if self._opened is None:
                    self._opened = await self._start()
        return self._opened

    @property
    def _idle(self) -> bool:
        """Whether no thread uses the blocking one, so that it may be asked here for what it has already."""
        return self._coming is None and not self._turn.locked() and not self._closed

    async def _next(self, wait: Callable[[float | None], Found | None], within: float | None = None) -> Found | None:
        """What `wait`, in a thread, finds within so many seconds; None, too, when this is closed."""
        loop = asyncio.get_running_loop()
        until = None if within is None else loop.time() + within
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            return None
        try:
            while not self._closed:
                left = None if until is None else max(0.0, until - loop.time())
                coming, asked_before = self._coming, self._coming is not None
                if coming is None:
                    coming = self._coming = loop.run_in_executor(self._pool, partial(wait, left))
                done, _ = await asyncio.wait([coming], timeout=left if asked_before else None)
                if not done:
                    return None
                self._coming = None
                found = coming.result()
                if found is not None or not asked_before:
                    return found
            return None
        finally:
            self._turn.release()

    @abstractmethod
    async def take(self) -> Item | None:
        """The next one; None at the end, and once this is closed."""

    @abstractmethod
    async def _end(self, opened: Blocking) -> None:
        """Close the blocking one, which ends what waits in it."""

    async def close(self) -> None:
        """End it; twice does no harm."""
        self._closed = True
        if self._opened is not None:
            await self._end(self._opened)
        self._pool.shutdown(wait=False)

    async def __aiter__(self) -> AsyncIterator[Item]:
        try:
            while (item := await self.take()) is not None:
                yield item
        finally:
            if not self._entered:
                await self.close()

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
