"""A replay as an async iterator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from penstock.client import replaying as blocking
from penstock.client.aio.stream import Stream
from penstock.client.messages import Message


class Replay(Stream[blocking.Replay, Message, Message]):
    """An async iterator of the messages of topics.  Made by `Client.replay`."""

    def __init__(self, start: Callable[[], Awaitable[blocking.Replay]]) -> None:
        super().__init__(start, "penstock-aio-replay")

    @property
    def completed(self) -> bool:
        """Whether the replay is over: the end of its range, or level with what is published."""
        return self._opened is not None and self._opened.completed

    @property
    def notice(self) -> str:
        """What there is to know: that the bookmark was not found, and where it reads from instead."""
        return "" if self._opened is None else self._opened.notice

    async def take(self) -> Message | None:
        """The next message; None at the end, and when nothing came within `timeout`."""
        if self._closed:
            return None
        replay = await self._open()
        return await self._next(lambda _: replay.take())

    async def pause(self) -> None:
        """Nothing more is sent until `resume`; what is under way still comes."""
        await self._run((await self._open()).pause)

    async def resume(self, rate: str | None = None) -> None:
        """Go on, from now on at this rate if one is given."""
        await self._run(partial((await self._open()).resume, rate))

    async def _end(self, opened: blocking.Replay) -> None:
        opened.close()
