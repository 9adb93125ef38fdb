"""A transaction of an async client: what it asks for is gathered, and sent with the commit."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from penstock.client import transactions as blocking
from penstock.client.aio.message import Message
from penstock.client.durations import Duration
from penstock.client.messages import Receipt

T = TypeVar("T")


class Running(Protocol):
    """The client, as its transactions know it."""

    async def blocking(self) -> blocking.Opening: ...

    async def run(self, work: Callable[[], T], /) -> T:
        """What work in a thread gives."""
        ...


class Transaction:
    """Settle some messages and publish others, all or nothing.  Made by `Client.transaction`.

    async with client.transaction() as transaction:
        transaction.publish("invoices", invoice)
        transaction.ack(message)

    Its methods only gather; `commit`, or the end of the block, sends it.
    """

    def __init__(self, client: Running) -> None:
        self._client = client
        self._inner: blocking.Transaction | None = None
        self._asked: list[Callable[[blocking.Transaction], None]] = []

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """One for each message that was published, in order, once it is committed."""
        return () if self._inner is None else self._inner.receipts

    def publish(self, topic: str, body: object, **options: Any) -> None:
        """Publish a message with the commit; options as of `penstock.Client.publish`."""
        self._asked.append(lambda inner: inner.publish(topic, body, **options))

    def ack(self, message: Message) -> None:
        """Done: it will not come again."""
        self._asked.append(lambda inner: inner.ack(message.blocking))

    def release(self, message: Message) -> None:
        """Back to its place at once, not counted as a failure."""
        self._asked.append(lambda inner: inner.release(message.blocking))

    def retry(self, message: Message, *, delay: Duration | None = None, error: str | None = None) -> None:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        self._asked.append(lambda inner: inner.retry(message.blocking, delay=delay, error=error))

    def reject(self, message: Message, *, reason: str | None = None) -> None:
        """Refused for good: a dead letter, which is part of the transaction."""
        self._asked.append(lambda inner: inner.reject(message.blocking, reason=reason))

    cancel = retry
    expire = reject

    async def commit(self) -> tuple[Receipt, ...]:
        """Do all of it, and wait until it is durable; errors as of the blocking `Transaction.commit`."""
        client = await self._client.blocking()
        inner = self._inner = self._inner or blocking.Transaction(client)
        asked, self._asked = self._asked, []

        def work() -> tuple[Receipt, ...]:
            for one in asked:
                one(inner)
            return inner.commit()

        return await self._client.run(work)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, unless that was done; forget it after an exception."""
        if error is None and self._inner is None:
            await self.commit()
