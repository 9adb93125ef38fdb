"""A message of an async consumer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self

from penstock.client import messages as blocking
from penstock.client.durations import Duration
from penstock.client.messages import Following, Values


class Message(Values):
    """A message of an async consumer; settle it once."""

    __slots__ = ("_inner", "_run")

    def __init__(self, inner: blocking.Message, run: Callable[[Callable[[], object]], Awaitable[object]]) -> None:
        super().__init__(*inner.place)
        self._inner = inner
        self._run = run

    @property
    def outcome(self) -> str | None:
        """How this holder settled it: ack, release, retry or reject; None so far."""
        return self._inner.outcome

    async def ack(self, *, publish: Iterable[Following] = ()) -> None:
        """Done: it will not come again.  publish: as for `penstock.Message.ack`."""
        await self._run(partial(self._inner.ack, publish=list(publish)))

    @property
    def blocking(self) -> blocking.Message:
        """The message within."""
        return self._inner

    async def release(self) -> None:
        """Back to its place at once, not counted as a failure."""
        await self._run(self._inner.release)

    async def retry(self, *, delay: Duration | None = None, error: str | None = None) -> None:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        await self._run(partial(self._inner.retry, delay=delay, error=error))

    async def reject(self, *, reason: str | None = None) -> None:
        """Refused for good: a dead letter, where the queue has a place for them."""
        await self._run(partial(self._inner.reject, reason=reason))

    cancel = retry
    expire = reject

    async def extend(self, period: Duration) -> None:
        """Hold it until `period` from now at least."""
        await self._run(partial(self._inner.extend, period))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ack; retry after an exception, release when the task is cancelled; nothing if it was settled within."""
        await self._run(partial(self._inner.__exit__, kind, error, trace))
