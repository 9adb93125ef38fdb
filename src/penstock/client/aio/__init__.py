"""The same client for asyncio: every call of `penstock.Client` as a coroutine, consumers as async iterators.

    async with penstock.aio.connect("penstock://localhost") as client:
        async for message in client.consume("to-ship"):
            async with message:
                await ship(message.json())

Calls run in a few threads of the client's own, so the event loop never waits for the network.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from penstock.client import client as blocking
from penstock.client import consumer as blocking_consumer
from penstock.client import replay as blocking_replaying
from penstock.client import results as blocking_results
from penstock.client import tracing, transactions
from penstock.client.aio.stream import Batch, Consumer, Message, Replay, awaited
from penstock.client.arguments import arguments_checked
from penstock.client.client import CONNECT_TIMEOUT
from penstock.client.forks import OfThisProcess, watch
from penstock.client.messages import B, Receipt, Refusal, TableReceipt
from penstock.client.reading import Result
from penstock.client.replay import Bookmarks
from penstock.client.results import RESULTS
from penstock.client.urls import Address
from penstock.client.waiting import Once
from penstock.errors import NotFound, Unavailable
from penstock.units import Duration, seconds_of

__all__ = [
    "Batch", "Bookmarks", "Client", "Consumer", "Message", "Receipt", "Refusal", "Replay", "TableReceipt",
    "Task", "Transaction", "connect",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
"""Calls of one client that may wait for the server at once; further ones wait for these."""


def _replayed(
    method: Callable[Concatenate[blocking.Client, P], blocking_replaying.Replay],
) -> Callable[Concatenate[Client, P], Replay]:
    """A method of the blocking client that gives a replay."""

    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Replay:
        return Replay(lambda: method(self.connected(), *args, **kwargs))  # it asks with its first message

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


def _consumed(
    method: Callable[Concatenate[blocking.Client, P], blocking_consumer.Consumer[B]],
) -> Callable[Concatenate[Client, P], Consumer[B]]:
    """A method of the blocking client that gives a consumer, whose command goes out from a thread."""
    plain = inspect.unwrap(method)
    signature = inspect.signature(plain)

    @wraps(plain)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Consumer[B]:
        signature.bind(self, *args, **kwargs)  # what it does not take is told at once
        return Consumer(lambda: method(self.connected(), *args, **kwargs))

    return call


@arguments_checked
class Client(OfThisProcess):
    """An open connection, or one that opens at its first use.  Made by `connect`."""

    def __init__(self, open_: Callable[[], blocking.Client]) -> None:
        self._open = open_
        self._opening = Once[blocking.Client]()
        self._closed = False
        self.leave()
        watch(self)

    def leave(self) -> None:
        """Have threads of this process: after a fork those of its parent are not there.  (Forks call this.)"""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-aio")
        if self._opening.made is None:
            self._opening = Once[blocking.Client]()

    def __repr__(self) -> str:
        client = None if self._closed else self._opening.made
        return f"{type(self).__name__}(not connected)" if client is None else repr(client)

    delete = awaited(blocking.Client.delete)
    declare = awaited(blocking.Client.declare)
    alter = awaited(blocking.Client.alter)
    purge = awaited(blocking.Client.purge)
    ack = awaited(blocking.Client.ack)
    ack_filter = awaited(blocking.Client.ack_filter)
    pause = awaited(blocking.Client.pause)
    resume = awaited(blocking.Client.resume)
    cancel = awaited(blocking.Client.cancel)
    reschedule = awaited(blocking.Client.reschedule)
    explain = awaited(blocking.Client.explain)
    story = awaited(blocking.Client.story)
    redrive = awaited(blocking.Client.redrive)
    move = awaited(blocking.Client.move)
    declare_exchange = awaited(blocking.Client.declare_exchange)
    delete_exchange = awaited(blocking.Client.delete_exchange)
    declare_topic = awaited(blocking.Client.declare_topic)
    register_schema = awaited(blocking.Client.register_schema)
    delete_topic = awaited(blocking.Client.delete_topic)
    topics = awaited(blocking.Client.topics)
    topic = awaited(blocking.Client.topic)
    sow_delete = awaited(blocking.Client.sow_delete)
    last_sequence = awaited(blocking.Client.last_sequence)
    delta_publish = awaited(blocking.Client.delta_publish)
    bind = awaited(blocking.Client.bind)
    unbind = awaited(blocking.Client.unbind)
    exchanges = awaited(blocking.Client.exchanges)
    bindings = awaited(blocking.Client.bindings)
    bind_exchange = awaited(blocking.Client.bind_exchange)
    unbind_exchange = awaited(blocking.Client.unbind_exchange)
    connections = awaited(blocking.Client.connections)
    close_connection = awaited(blocking.Client.close_connection)
    policies = awaited(blocking.Client.policies)
    set_policy = awaited(blocking.Client.set_policy)
    delete_policy = awaited(blocking.Client.delete_policy)
    users = awaited(blocking.Client.users)
    add_user = awaited(blocking.Client.add_user)
    change_password = awaited(blocking.Client.change_password)
    set_user_tags = awaited(blocking.Client.set_user_tags)
    delete_user = awaited(blocking.Client.delete_user)
    permissions = awaited(blocking.Client.permissions)
    set_permissions = awaited(blocking.Client.set_permissions)
    clear_permissions = awaited(blocking.Client.clear_permissions)
    vhosts = awaited(blocking.Client.vhosts)
    add_vhost = awaited(blocking.Client.add_vhost)
    delete_vhost = awaited(blocking.Client.delete_vhost)
    limits = awaited(blocking.Client.limits)
    set_user_limit = awaited(blocking.Client.set_user_limit)
    trace_vhost = awaited(blocking.Client.trace_vhost)
    set_vhost_limit = awaited(blocking.Client.set_vhost_limit)
    tokens = awaited(blocking.Client.tokens)
    issue_token = awaited(blocking.Client.issue_token)
    renew_token = awaited(blocking.Client.renew_token)
    revoke_token = awaited(blocking.Client.revoke_token)
    overview = awaited(blocking.Client.overview)
    drain = awaited(blocking.Client.drain)
    details = awaited(blocking.Client.details)
    links = awaited(blocking.Client.links)
    pause_link = awaited(blocking.Client.pause_link)
    resume_link = awaited(blocking.Client.resume_link)
    proxy_transfer = awaited(blocking.Client.proxy_transfer)
    publish = awaited(blocking.Client.publish)
    publish_table = awaited(blocking.Client.publish_table)
    health = awaited(blocking.Client.health)
    queues = awaited(blocking.Client.queues)
    streams = awaited(blocking.Client.streams)
    release_stream = awaited(blocking.Client.release_stream)
    queue = awaited(blocking.Client.queue)
    stats = queue
    peek = awaited(blocking.Client.peek)

    async def submit(self, queue: str, body: object, *, results: str = RESULTS, **options: Any) -> Task:
        """Publish a message to a queue, and be able to wait for what its worker comes to."""
        return Task(self, await self._off(lambda client: client.submit(queue, body, results=results, **options)))

    async def task(self, id: str, *, results: str = RESULTS) -> Task:
        """One that was submitted by somebody, by its id."""
        return Task(self, (await self.blocking()).task(id, results=results))

    async def action(self, name: str, *, with_vhost: bool = True, **fields: object) -> dict[str, Any]:
        """The answer of a server action by its name; fields that are None are left out."""
        return await self._off(lambda client: client.action(name, with_vhost=with_vhost, **fields))

    async def address(self) -> Address:
        """Where the server of this connection is."""
        return (await self.blocking()).address

    async def vhost(self) -> str | None:
        """The vhost of this connection; None: the default one."""
        return (await self.blocking()).vhost

    async def origin(self) -> int:
        """The number that begins every bookmark of this server."""
        return await self._off(lambda client: client.origin)

    def transaction(self) -> Transaction:
        """Settle some messages and publish others, all or nothing."""
        return Transaction(self)

    async def query(self, sql: str) -> Result:
        """The result of a SELECT, as of the blocking client, with all its rows: reading them waits for nothing."""
        return await self._off(lambda client: client.query(sql).held())

    consume = _consumed(blocking.Client.consume)
    sow = _iterated(blocking.Client.sow, 1000)
    replay = _replayed(blocking.Client.replay)
    sow_and_subscribe = _replayed(blocking.Client.sow_and_subscribe)
    delta_subscribe = _replayed(blocking.Client.delta_subscribe)
    replay_batches = _iterated(blocking.Client.replay_batches, 1)
    queue_batches = _iterated(blocking.Client.queue_batches, 1)
    sow_batches = _iterated(blocking.Client.sow_batches, 1)
    log_batches = _iterated(blocking.Client.log_batches, 1)
    plan_batches = _iterated(blocking.Client.plan_batches, 1)
    stage = awaited(blocking.Client.stage)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` in a thread of this client."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, tracing.bound(work))

    async def _off(
        self, method: Callable[Concatenate[blocking.Client, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:  # fmt: skip
        return await self.run(partial(method, await self.blocking(), *args, **kwargs))

    def connected(self) -> blocking.Client:
        """The blocking client within, in a thread that may wait for it.  Unavailable once this is closed."""
        if self._closed:
            raise Unavailable("the connection is closed")
        return self._opening.get(self._connect)

    def _connect(self) -> blocking.Client:
        client = self._open()
        if self._closed:  # meanwhile
            client.close()
            raise Unavailable("the connection is closed")
        return client

    async def blocking(self) -> blocking.Client:
        """The blocking client within, connected.  Unavailable once this is closed."""
        if self._closed:
            raise Unavailable("the connection is closed")
        client = self._opening.made
        return await self.run(self.connected) if client is None else client

    async def close(self) -> None:
        """Close the consumers, which waits until what they settled is durable, then the connection."""
        self._closed = True
        client = self._opening.made
        if client is not None:
            await asyncio.get_running_loop().run_in_executor(None, client.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.blocking()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()


@arguments_checked
class Task:
    """What was submitted; as that of the blocking client.  A `get` waits in a thread of its own."""

    def __init__(self, client: Client, inner: blocking_results.Task) -> None:
        self._client, self._inner = client, inner
        self.id = inner.id

    async def record(self) -> dict[str, Any] | None:
        """What is kept of it now; None while it is not done."""
        return await self._client.run(self._inner.record)

    async def get(self, timeout: Duration = "30s") -> Any:  # noqa: ASYNC109 - same name as in the blocking one
        """What the function returned.  Raises TimeoutError, and WorkFailed when the message failed for good."""
        until = time.monotonic() + seconds_of(timeout, "timeout")
        while (found := await self.record() or await self._awaited(until)) is None:
            if time.monotonic() >= until:
                raise self._inner.late(timeout)
            await asyncio.sleep(blocking_results.LOOK_S)
        return blocking_results.value_of(found)

    async def _awaited(self, until: float) -> dict[str, Any] | None:
        if (left := until - time.monotonic()) <= 0:
            return None
        try:
            topic, terms = blocking_results.awaiting(self._inner, left)
            async with self._client.sow_and_subscribe(topic, **terms) as records:
                message = await records.take()
        except NotFound:
            return None
        return None if message is None else message.json()


@arguments_checked
class Transaction(transactions.Once, OfThisProcess):
    """Settle some messages and publish others, all or nothing.  Made by `Client.transaction`.

    async with client.transaction() as transaction:
        transaction.publish("invoices", invoice)
        transaction.ack(message)

    Its methods only gather; `commit`, or the end of the block, sends it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inner: transactions.Transaction | None = None
        self._asked: list[Callable[[transactions.Transaction], None]] = []

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """One for each message that was published, in order, once it is committed."""
        return () if self._inner is None else self._inner.receipts

    def publish(self, topic: str, body: object, **options: Any) -> None:
        """Publish a message with the commit; options as of `penstock.Client.publish`."""
        self._ask(lambda inner: inner.publish(topic, body, **options))

    def ack(self, message: Message) -> None:
        """Done: it will not come again."""
        self._ask(lambda inner: inner.ack(message.blocking))

    def release(self, message: Message) -> None:
        """Back to its place at once, not counted as a failure."""
        self._ask(lambda inner: inner.release(message.blocking))

    def retry(self, message: Message, *, delay: Duration | None = None, error: str | None = None) -> None:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        self._ask(lambda inner: inner.retry(message.blocking, delay=delay, error=error))

    def reject(self, message: Message, reason: str | None = None) -> None:
        """Refused for good: a dead letter, which is part of the transaction."""
        self._ask(lambda inner: inner.reject(message.blocking, reason=reason))

    cancel = retry
    expire = reject

    async def commit(self) -> tuple[Receipt, ...]:
        """Do all of it, and wait until it is durable; errors as of the blocking `Transaction.commit`."""
        asked = self._end()
        inner = self._inner = transactions.Transaction(await self._client.blocking())

        def work() -> tuple[Receipt, ...]:
            for one in asked:
                one(inner)
            return inner.commit()

        return await self._client.run(work)

    async def __aenter__(self) -> Self:
        return self

    async def rollback(self) -> None:
        """Forget it: nothing was sent, and the messages are held as before."""
        self._end()

    def _ask(self, one: Callable[[transactions.Transaction], None]) -> None:
        self._check()
        self._asked.append(one)

    def _end(self) -> list[Callable[[transactions.Transaction], None]]:
        """What was asked of it, which is over now."""
        self._finish()
        asked, self._asked = self._asked, []
        return asked

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit, unless it is over; forget it after an exception."""
        if not self._over:
            await (self.commit() if error is None else self.rollback())


@arguments_checked
def connect(
    url: str = "penstock://localhost",
    *,
    user: str | None = None,
    password: str | None = None,
    timeout: Duration | None = CONNECT_TIMEOUT,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    verify: bool | None = None,
) -> Client:
    """A client that connects when it is entered, awaited or first used; arguments and errors as `penstock.connect`."""
    return Client(
        lambda: blocking.connect(
            url, user=user, password=password, timeout=timeout, ca=ca, cert=cert, key=key, verify=verify
        )
    )
