"""The same client for asyncio: every call of `penstock.Client` as a coroutine, consumers as async iterators.

    async with penstock.aio.connect("penstock://localhost") as client:
        async for message in client.consume("to-ship"):
            async with message:
                await ship(message.json())

Calls run in a few threads of the client's own, so the event loop never waits for the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from penstock.client import client as blocking
from penstock.client import consumer as blocking_consumer
from penstock.client import messages as blocking_messages
from penstock.client import replaying as blocking_replaying
from penstock.client import transactions as blocking_transactions
from penstock.client.client import CONNECT_TIMEOUT
from penstock.client.durations import Duration
from penstock.client.messages import Following, Receipt, Refusal, TableReceipt, Values
from penstock.client.replaying import Bookmarks

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "Bookmarks", "Client", "Consumer", "Message", "Receipt", "Refusal", "Replay", "TableReceipt", "Transaction",
    "connect",
]  # fmt: skip

THREADS = 8
"""Calls of one client that may wait for the server at once; further ones wait for these."""


class Message(Values):
    """A message of an async consumer; settle it once."""

    __slots__ = ("_inner", "_run")

    def __init__(
        self, inner: blocking_messages.Message, run: Callable[[Callable[[], object]], Awaitable[object]]
    ) -> None:
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
    def blocking(self) -> blocking_messages.Message:
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


class Transaction:
    """Settle some messages and publish others, all or nothing.  Made by `Client.transaction`.

    async with client.transaction() as transaction:
        transaction.publish("invoices", invoice)
        transaction.ack(message)

    Its methods only gather; `commit`, or the end of the block, sends it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inner: blocking_transactions.Transaction | None = None
        self._asked: list[Callable[[blocking_transactions.Transaction], None]] = []

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
        inner = self._inner = self._inner or client.transaction()
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


class Replay:
    """An async iterator of the messages of topics.  Made by `Client.replay`."""

    def __init__(self, start: Callable[[], Awaitable[blocking_replaying.Replay]]) -> None:
        self._start = start
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="penstock-aio-replay")
        self._replay: blocking_replaying.Replay | None = None
        self._entered = False

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _open(self) -> blocking_replaying.Replay:
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

    async def __aiter__(self) -> AsyncIterator[blocking_messages.Message]:
        try:
            while (message := await self.take()) is not None:
                yield message
        finally:
            if not self._entered:
                await self.close()

    async def take(self) -> blocking_messages.Message | None:
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


class Consumer:
    """An async iterator of messages.  Made by `Client.consume`."""

    def __init__(self, start: Callable[[], Awaitable[blocking_consumer.Consumer]]) -> None:
        self._start = start
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="penstock-aio-consumer")
        self._consumer: blocking_consumer.Consumer | None = None
        self._entered = False

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _open(self) -> blocking_consumer.Consumer:
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


def _awaited(
    method: Callable[Concatenate[blocking.Client, P], T],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """A method of the blocking client as a coroutine."""

    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(partial(method, await self.blocking(), *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _replayed(
    method: Callable[Concatenate[blocking.Client, P], blocking_replaying.Replay],
) -> Callable[Concatenate[Client, P], Replay]:
    """A method of the blocking client that gives a replay."""

    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Replay:
        async def start() -> blocking_replaying.Replay:
            return method(await self.blocking(), *args, **kwargs)  # it asks the server with its first message

        return Replay(start)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _iterated(
    method: Callable[Concatenate[blocking.Client, P], Iterator[T]], at_once: int
) -> Callable[Concatenate[Client, P], AsyncIterator[T]]:
    """A method of the blocking client that gives an iterator with an end: so many at once come from a thread."""

    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        found = method(await self.blocking(), *args, **kwargs)
        while some := await self.run(lambda: list(islice(found, at_once))):
            for one in some:
                yield one

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class Client:
    """An open connection, or one that opens at its first use.  Made by `connect`."""

    def __init__(self, open_: Callable[[], blocking.Client]) -> None:
        self._open = open_
        self._client: blocking.Client | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-aio")
        self._opening = asyncio.Lock()

    delete = _awaited(blocking.Client.delete)
    purge = _awaited(blocking.Client.purge)
    ack = _awaited(blocking.Client.ack)
    ack_filter = _awaited(blocking.Client.ack_filter)
    pause = _awaited(blocking.Client.pause)
    resume = _awaited(blocking.Client.resume)
    cancel = _awaited(blocking.Client.cancel)
    reschedule = _awaited(blocking.Client.reschedule)
    explain = _awaited(blocking.Client.explain)
    story = _awaited(blocking.Client.story)
    redrive = _awaited(blocking.Client.redrive)
    move = _awaited(blocking.Client.move)
    declare_exchange = _awaited(blocking.Client.declare_exchange)
    delete_exchange = _awaited(blocking.Client.delete_exchange)
    declare_topic = _awaited(blocking.Client.declare_topic)
    delete_topic = _awaited(blocking.Client.delete_topic)
    topics = _awaited(blocking.Client.topics)
    topic = _awaited(blocking.Client.topic)
    sow_delete = _awaited(blocking.Client.sow_delete)
    last_sequence = _awaited(blocking.Client.last_sequence)
    delta_publish = _awaited(blocking.Client.delta_publish)
    bind = _awaited(blocking.Client.bind)
    unbind = _awaited(blocking.Client.unbind)
    publish = _awaited(blocking.Client.publish)
    publish_table = _awaited(blocking.Client.publish_table)
    health = _awaited(blocking.Client.health)
    queues = _awaited(blocking.Client.queues)
    queue = _awaited(blocking.Client.queue)
    stats = queue
    peek = _awaited(blocking.Client.peek)

    async def declare(
        self, queue: str, *, durable: bool = True, auto_delete: bool = False, passive: bool = False, **settings: object
    ) -> dict[str, Any]:
        """Make a queue, or find it as asked; as `penstock.Client.declare`."""
        client = await self.blocking()
        return await self.run(
            lambda: client.declare(queue, durable=durable, auto_delete=auto_delete, passive=passive, **settings)
        )

    async def alter(self, queue: str, **settings: object) -> None:
        """Change settings of a queue; those that are not named stay."""
        client = await self.blocking()
        await self.run(lambda: client.alter(queue, **settings))

    async def action(self, name: str, **fields: object) -> dict[str, Any]:
        """The answer of a server action by its name; fields that are None are left out."""
        client = await self.blocking()
        return await self.run(lambda: client.action(name, with_vhost=True, **fields))

    def transaction(self) -> Transaction:
        """Settle some messages and publish others, all or nothing."""
        return Transaction(self)

    def consume(
        self,
        queue: str,
        *,
        backlog: int = 32,
        prefetch: int | None = None,
        filter: str | None = None,
        name: str = "",
        no_ack: bool = False,
        priority: int = 0,
        timeout: Duration | None = None,
        heartbeat: Duration = "30s",
        max_backlog: int | None = None,
    ) -> Consumer:
        """Messages of a queue; the arguments are those of `penstock.Client.consume`."""

        async def start() -> blocking_consumer.Consumer:
            client = await self.blocking()
            return await self.run(
                lambda: client.consume(
                    queue,
                    backlog=backlog,
                    prefetch=prefetch,
                    filter=filter,
                    name=name,
                    no_ack=no_ack,
                    priority=priority,
                    timeout=timeout,
                    heartbeat=heartbeat,
                    max_backlog=max_backlog,
                )
            )

        return Consumer(start)

    sow = _iterated(blocking.Client.sow, 1000)
    replay = _replayed(blocking.Client.replay)
    sow_and_subscribe = _replayed(blocking.Client.sow_and_subscribe)
    delta_subscribe = _replayed(blocking.Client.delta_subscribe)
    replay_batches = _iterated(blocking.Client.replay_batches, 1)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` in a thread of this client."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def blocking(self) -> blocking.Client:
        """The blocking client within, connected."""
        async with self._opening:
            if self._client is None:
                self._client = await self.run(self._open)
            return self._client

    async def close(self) -> None:
        """Close the consumers, which waits until what they settled is durable, then the connection."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.get_running_loop().run_in_executor(None, client.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.blocking()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()


def connect(
    url: str = "penstock://localhost",
    *,
    user: str | None = None,
    password: str | None = None,
    timeout: Duration | None = CONNECT_TIMEOUT,
) -> Client:
    """A client that connects when it is entered, awaited or first used; arguments and errors as `penstock.connect`."""
    return Client(lambda: blocking.connect(url, user=user, password=password, timeout=timeout))
