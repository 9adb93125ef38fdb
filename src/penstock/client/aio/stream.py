"""Consumers with their messages, and replays, as async iterators: opened when first used, waiting in threads of theirs.

One caller waits at a time, in one of two threads, so that settling always has the other; who comes meanwhile waits for
its turn.  A thread cannot be called back: what comes for a caller that was cancelled, or gave up, is the next one's.

They are not those of `concurrent.futures`, which are joined before anything is closed: a program that has left its
event loop with a consumer open, in which a thread waits for messages, would never end.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import pyarrow as pa

from penstock.client import batches, consumer, messages, replay, tracing
from penstock.client.arguments import arguments_checked
from penstock.client.forks import OfThisProcess, watch
from penstock.client.messages import B, Values
from penstock.client.waiting import Once
from penstock.errors import Unavailable
from penstock.units import Duration, left_of

T = TypeVar("T")
P = ParamSpec("P")


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of something blocking as a coroutine of what is made of that, whose `_off` calls it in a thread."""

    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self._off(method, *args, **kwargs)
        return found

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class Held(OfThisProcess):
    """What is held by a consumer; made of what the blocking one holds."""

    __slots__ = ()
    _inner: Any
    _run: Callable[[Callable[[], Any]], Awaitable[Any]]

    def _off(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return self._run(partial(method, self._inner, *args, **kwargs))


@arguments_checked
class Message(Values, Held, Generic[B]):
    """A message of an async consumer; settle it once."""

    __slots__ = ("_inner", "_run")
    _inner: messages.Message[B]

    def __init__(self, inner: messages.Message[B], run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        super().__init__(*inner.place)
        self._inner = inner
        self._run = run

    @property
    def outcome(self) -> str | None:
        """How this holder settled it: ack, release, retry or reject; None so far; lost, when that came too late."""
        return self._inner.outcome

    @property
    def value(self) -> B:
        """The body as the type that `consume` was asked for, as of `penstock.Message.value`."""
        return self._inner.value

    @property
    def fence(self) -> int:
        """As of `penstock.Message.fence`."""
        return self._inner.fence

    @property
    def blocking(self) -> messages.Message[B]:
        """The message of the blocking consumer, which this one is made of."""
        return self._inner

    ack = awaited(messages.Message.ack)
    release = awaited(messages.Message.release)
    retry = awaited(messages.Message.retry)
    reject = awaited(messages.Message.reject)
    cancel = retry
    expire = reject
    extend = awaited(messages.Message.extend)

    async def __aenter__(self) -> Self:
        self._inner.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ack; retry after an exception, release when the task is cancelled; nothing if it was settled within."""
        try:
            await self._run(partial(self._inner.leave, error))
        finally:
            self._inner.end(kind, error, trace)


@arguments_checked
class Batch(Held, Generic[B]):
    """What came together, as one Arrow batch; settled together or row by row, as `client.batches.Batch`."""

    __slots__ = ("_inner", "_run")
    _inner: batches.Batch[B]

    def __init__(self, inner: batches.Batch[B], run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._inner = inner
        self._run = run

    @property
    def arrow(self) -> pa.RecordBatch:
        """Its rows as an Arrow batch."""
        return self._inner.arrow

    @property
    def unsettled(self) -> list[int]:
        """The rows that nothing was said of so far."""
        return self._inner.unsettled

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getitem__(self, row: int) -> Message[B]:
        return Message(self._inner[row], self._run)

    def __iter__(self) -> Iterator[Message[B]]:
        return (self[row] for row in range(len(self)))

    ack = awaited(batches.Batch.ack)
    release = awaited(batches.Batch.release)
    retry = awaited(batches.Batch.retry)
    reject = awaited(batches.Batch.reject)
    extend = awaited(batches.Batch.extend)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Ack what is left, or retry it after an exception; release it when the task is cancelled."""
        await self._run(partial(self._inner.__exit__, kind, error, trace))


Blocking = TypeVar("Blocking", bound=consumer.Closing)
Found = TypeVar("Found")
Item = TypeVar("Item")


class Stream(OfThisProcess, ABC, Generic[Blocking, Found, Item]):
    """An async iterator of items, made of what a blocking one finds."""

    def __init__(self, start: Callable[[], Blocking], name: str) -> None:
        """start: opens the blocking one, in a thread.  name: of the threads."""
        self._start = start
        self._name = name
        self._opened: Blocking | None = None
        self._entered = False
        self._closed = False
        self.leave()
        watch(self)

    def leave(self) -> None:
        """Have threads of this process: after a fork those of its parent are not there.  (Forks call this.)"""
        self._pool = Threads(2, self._name)
        self._opening = Once[Blocking]()
        self._turn = asyncio.Lock()
        self._coming: asyncio.Future[Found | None] | None = None  # a thread waits for it; None: none does

    async def _run(self, work: Callable[[], T]) -> T:
        pool = None if self._closed else self._pool  # what comes too late is told so by the blocking one
        running = asyncio.get_running_loop().run_in_executor(pool, tracing.bound(work))
        return await asyncio.shield(running)  # a settle that was begun is done, whatever becomes of who waits for it

    def _begin(self) -> Blocking:
        opened = self._start()
        self._opened = opened
        if self._closed:
            opened.close()
        return opened

    async def _open(self) -> Blocking:
        if self._opened is not None:
            return self._opened
        opened = None if self._closed else await self._run(partial(self._opening.get, self._begin))
        if opened is None or self._closed:
            raise Unavailable("this was closed before it was opened")
        return opened

    async def _off(
        self, method: Callable[Concatenate[Blocking, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:  # fmt: skip
        return await self._run(partial(method, await self._open(), *args, **kwargs))

    @property
    def _idle(self) -> bool:
        """Whether no thread uses the blocking one, so that it may be asked here for what it has already."""
        return self._coming is None and not self._turn.locked() and not self._closed

    async def _next(self, wait: Callable[[float | None], Found | None], within: Duration | None = None) -> Found | None:
        """What `wait`, in a thread, finds within so long; None, too, when this is closed."""
        loop = asyncio.get_running_loop()
        until = None if within is None else loop.time() + left_of(within, "timeout")
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

    def __del__(self) -> None:
        """As of `client.consumer.Consumer`: a thread that waits in the blocking one would hold it for ever."""
        if self._opened is not None and not self._opened.over and not sys.is_finalizing():
            consumer.close_dropped(self._opened)

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@arguments_checked
class Consumer(Stream[consumer.Consumer[B], messages.Message[B], Message[B]], Generic[B]):
    """An async iterator of messages.  Made by `Client.consume`."""

    def __init__(self, start: Callable[[], consumer.Consumer[B]]) -> None:
        super().__init__(start, "penstock-aio-consumer")

    async def take(self, timeout: Duration | None = None) -> Message[B] | None:  # noqa: ASYNC109 - same name as in `Consumer`
        """The next message; None when none came for so long, or when the consumer is closed."""
        if self._closed:
            return None
        opened = await self._open()
        message = opened.take_ready() if self._idle else None
        if message is None:
            message = await self._next(opened.take, timeout)
        return None if message is None else Message(message, self._run)

    async def take_batch(self, timeout: Duration | None = None) -> Batch[B] | None:  # noqa: ASYNC109 - as of `take`
        """What came together, as one Arrow batch; None as of `take`."""
        message = await self.take(timeout)
        if message is None or self._opened is None:
            return None
        return Batch(self._opened.batch_of(message.blocking), self._run)

    async def batches(self) -> AsyncIterator[Batch[B]]:
        """What comes, as Arrow batches that are settled together or row by row."""
        try:
            while (batch := await self.take_batch()) is not None:
                yield batch
        finally:
            if not self._entered:
                await self.close()

    async def effective_backlog(self) -> int | None:
        """How many may be unsettled at once: what was asked for, or the limit of a queue; None: no limit."""
        return await self._off(lambda opened: opened.effective_backlog)

    async def queues(self) -> list[str]:
        """The queues it consumed from when it began or was replaced; a pattern may match more since."""
        return await self._off(lambda opened: opened.queues)

    async def lease_period(self) -> float | None:
        """Seconds after which a lease ends unless it is extended, the shortest of its queues; None: it does not."""
        return await self._off(lambda opened: opened.lease_period)

    async def tag(self) -> str:
        """What the server calls it."""
        return await self._off(lambda opened: opened.tag)

    @property
    def stale(self) -> int:
        """Settles that had no effect; complete after `flush` or `close`.  As `client.consumer.Consumer.stale`."""
        return 0 if self._opened is None else self._opened.stale

    replace = awaited(consumer.Consumer.replace)

    async def flush(self, timeout: Duration = consumer.CLOSE_S) -> None:  # noqa: ASYNC109 - same name as in `Consumer`
        """Wait until everything settled so far is durable.  As `client.consumer.Consumer.flush`."""
        if self._opened is not None:
            await self._run(partial(self._opened.flush, timeout))

    async def _end(self, opened: consumer.Consumer[B]) -> None:
        """Give back what is not settled, and wait until what is settled is durable."""
        came, self._coming = self._coming, None
        untaken = came.result() if came is not None and came.done() and came.exception() is None else None

        def close() -> None:
            if untaken is not None:  # it came for a caller that had gone
                opened.untake(untaken)
            opened.close()

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, close))


@arguments_checked
class Replay(Stream[replay.Replay, messages.Message, messages.Message]):
    """An async iterator of the messages of topics.  Made by `Client.replay`."""

    def __init__(self, start: Callable[[], replay.Replay]) -> None:
        super().__init__(start, "penstock-aio-replay")

    @property
    def completed(self) -> bool:
        """Whether the replay is over: the end of its range, or level with what is published."""
        return self._opened is not None and self._opened.completed

    @property
    def notice(self) -> str:
        """What there is to know: that the bookmark was not found, and where it reads from instead."""
        return "" if self._opened is None else self._opened.notice

    @property
    def restarts(self) -> int:
        """How often the connection was lost and is there again."""
        return 0 if self._opened is None else self._opened.restarts

    async def take(self, timeout: Duration | None = None) -> messages.Message | None:  # noqa: ASYNC109 - as of `Replay`
        """The next message; None at the end, and when none came for so long, as of `Replay.take`."""
        if self._closed:
            return None
        return await self._next((await self._open()).take, timeout)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._off(replay.Replay.begin)
        return self

    pause = awaited(replay.Replay.pause)
    resume = awaited(replay.Replay.resume)

    async def _end(self, opened: replay.Replay) -> None:
        opened.close()


Work = tuple["Future[Any]", Callable[[], Any]]


class Threads(Executor):
    """Threads, at most so many, made when they are needed, for which a process that ends does not wait."""

    def __init__(self, most: int, name: str) -> None:
        self._work = SimpleQueue[Work | None]()
        self._free = threading.Semaphore(0)  # threads that wait for work
        self._left = most  # that may still be made
        self._name = name
        self._most = most

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have one of them do it, in turn."""
        if not self._free.acquire(blocking=False) and self._left:
            threading.Thread(target=_serve, args=(self._work, self._free), name=self._name, daemon=True).start()
            self._left -= 1
        done = Future[T]()
        self._work.put((done, partial(fn, *args, **kwargs)))
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End them when all that was asked for is done; nobody waits for that."""
        for _ in range(self._most - self._left):
            self._work.put(None)

    def __del__(self) -> None:
        self.shutdown()


def _serve(work: SimpleQueue[Work | None], free: threading.Semaphore) -> None:
    while (found := work.get()) is not None:
        done, act = found
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(act())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
                done.set_exception(error)
        del found, done, act  # nothing of it is kept while there is nothing to do
        free.release()
