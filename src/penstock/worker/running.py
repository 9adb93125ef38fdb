"""One worker at work: connect, take messages, hand them to the function, connect again when the server was away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.client import Client, connect, tracing
from penstock.client.consumer import Consumer
from penstock.client.link import Outage
from penstock.client.messages import Message
from penstock.errors import PenstockError
from penstock.worker.handling import give_back, handle
from penstock.worker.worker import Counts, Worker

PARTS = 3
"""A lease is extended after so great a part of its time: one extension that comes late does no harm."""


class Held:
    """Messages of one consumer that are waited with or worked on.  All methods belong to the loop."""

    def __init__(self, lease: float | None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """lease: seconds; None: leases do not end by time."""
        self._lease = lease
        self._sleep = sleep
        self._messages = set[Message]()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        self._messages.add(message)

    def forget(self, message: Message) -> None:
        """It is settled, or somebody else's."""
        self._messages.discard(message)

    async def keep(self, off: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Extend leases in time, until cancelled; `off` runs a piece of work in a thread."""
        if self._lease is None:
            return
        while True:
            await self._sleep(self._lease / PARTS)
            await off(self._extend_all)

    def _extend_all(self) -> None:
        """In a thread: what is settled meanwhile is not affected, for an extension of what is not held does nothing."""
        assert self._lease is not None
        for message in list(self._messages):
            try:
                if message.outcome is None:
                    message.extend(self._lease)
            except PenstockError as error:
                if message.outcome is None:  # else it was settled meanwhile
                    logger.debug("leases are not extended: %s", error)  # who settles it is told, too
                    return


logger = logging.getLogger("penstock.worker")

TAKE_S = 0.2
"""How long one look for messages waits: a stop is noticed so late, since nothing can wake what waits for the server."""

GIVEN_BACK_S = 5.0
"""For what was interrupted to be given back, however short the grace: a connection that ends before tells no result."""

AT_ONCE = 1000
"""Messages that one look brings."""


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Running:
    """A worker between its start and its end.  All methods but `stop` and `_take` belong to the loop."""

    def __init__(self, worker: Worker, url: str, *, name: str, burst: bool, chance: random.Random) -> None:
        """name: of the consumer, for people.  burst: end when nothing is ready any more that its filter matches."""
        self.worker = worker
        self.counts = Counts()
        self._url, self._name, self._burst, self._chance = url, name, burst, chance
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._room = asyncio.Semaphore(worker.concurrency)
        self._tasks = set[asyncio.Task[None]]()
        self._calls = ThreadPoolExecutor(worker.concurrency, thread_name_prefix=f"penstock-{worker.name}")
        self._settles = ThreadPoolExecutor(4, thread_name_prefix="penstock-worker")

    def stop(self) -> None:
        """Take no more.  What runs goes on.  From any thread, and when all is over."""
        if self._loop is _loop_here():
            self._stop.set()
        else:
            with suppress(RuntimeError):  # the loop has ended, and so has this
                self._loop.call_soon_threadsafe(self._stop.set)

    async def run(self, grace: float) -> None:
        """Until stopped, or in a burst until nothing is ready.

        grace: seconds for what runs when it ends; after that coroutines are cancelled and their messages released.
        Raises what the server says no with; when it is away, this waits for it.
        """
        away = Outage(None, chance=self._chance)
        try:
            while not self._stop.is_set():
                connections = self.counts.connections
                try:
                    await self._connected(grace)
                except PenstockError as error:
                    if self.counts.connections > connections:
                        away.over()
                    away.failed(error)
                    logger.warning("%s: %s; next try in about %.1f s", self.worker.name, error, away.pause)
                    await self._rest(away.pause)
        finally:
            await self._end(grace)
            self._calls.shutdown(wait=False)
            self._settles.shutdown(wait=False)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    async def _connected(self, grace: float) -> None:
        """One connection, until it breaks or the worker stops."""
        client = await self._off(lambda: connect(self._url))
        try:
            await self._consuming(client, grace)
        finally:
            await self._off(client.close)

    async def _consuming(self, client: Client, grace: float) -> None:
        worker = self.worker
        consumer = await self._off(
            lambda: client.consume(
                worker.queue,
                backlog=worker.backlog,
                filter=worker.filter,
                name=self._name,
                reconnect=0,
                type=worker.value,
            )
        )
        lease = await self._off(lambda: consumer.lease_period)
        results = worker.results
        if results is not None:
            await self._off(lambda: results.prepare(client, consumer.queues))
        self.counts.connections += 1
        logger.info("%s: takes from %s, %d at once", worker.name, worker.queue, worker.concurrency)
        held, inbox, over = Held(lease), asyncio.Queue[list[Message] | None](), asyncio.Event()
        waiting = deque[Message]()  # what came out of the inbox and is not begun
        keeper = asyncio.create_task(held.keep(self._off))
        taking = asyncio.create_task(self._take_all(client, consumer, inbox, over))
        try:
            try:
                await self._begin_all(inbox, waiting, held, taking)
            except asyncio.CancelledError:  # as a stop: what is not begun goes back uncounted, what runs has its grace
                self._stop.set()
                await self._begin_all(inbox, waiting, held, taking)
                await self._end(grace)
                raise
            await taking  # raises what ended it
            await self._end(grace)  # they are settled before the consumer closes
        finally:
            over.set()
            await asyncio.wait({taking})
            if not taking.cancelled():
                taking.exception()  # whoever is cancelled is told of no other end
            keeper.cancel()
            await self._off(consumer.close)

    async def _begin_all(
        self,
        inbox: asyncio.Queue[list[Message] | None],
        waiting: deque[Message],
        held: Held,
        taking: asyncio.Task[None],
    ) -> None:
        """Begin what waits and what comes, to the end of the inbox; cancelled, it can go on where it was."""
        while True:
            while waiting:
                if not taking.done() or self._stop.is_set():  # else the server has taken them back
                    await self._begin(waiting[0], held)
                waiting.popleft()
            some = await inbox.get()
            if some is None:
                return
            for message in some:
                held.add(message)
            waiting.extend(some)

    async def _begin(self, message: Message, held: Held) -> None:
        """Let one message be worked on as soon as there is room; give it back when the worker stops before."""
        if not await self._has_room():
            held.forget(message)
            await self._off(partial(give_back, message))
            self.counts.settled("release")
            return
        task = asyncio.create_task(handle(self.worker, message, self.counts, self._called, self._off))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, message, held))

    async def _has_room(self) -> bool:
        """Wait for room; False when the worker stops first."""
        if self._room.locked() and not self._stop.is_set():
            room, stop = asyncio.ensure_future(self._room.acquire()), asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({room, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not room.cancel():
                if not self._stop.is_set():
                    return True
                self._room.release()
        elif not self._stop.is_set():
            return await self._room.acquire()
        return False

    def _ended(self, task: asyncio.Task[None], message: Message, held: Held) -> None:
        self._tasks.discard(task)
        held.forget(message)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: a bug of Penstock's own", self.worker.name, exc_info=error)

    async def _take_all(
        self, client: Client, consumer: Consumer, inbox: asyncio.Queue[list[Message] | None], over: asyncio.Event
    ) -> None:
        """Fill the inbox until the worker stops or it is over with this consumer; None is the end of it."""
        try:
            while not self._stop.is_set() and not over.is_set():
                some = await self._off(lambda: _take(consumer))
                if some:
                    inbox.put_nowait(some)
                elif self._idle(inbox) and await self._off(partial(_empty, client, consumer, self.worker.filter)):
                    self._stop.set()
            if self._stop.is_set():
                await self._off(consumer.give_back)  # others may have them while we end what runs
        finally:
            inbox.put_nowait(None)

    def _idle(self, inbox: asyncio.Queue[list[Message] | None]) -> bool:
        """Whether it may be time to look for the end of a burst."""
        return self._burst and not self._tasks and inbox.empty()

    async def _end(self, grace: float) -> None:
        """Wait for what runs; cancel it when its time is over."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=grace)
        for task in late:
            task.cancel()
        if late:
            logger.warning("%s: %d interrupted: they did not end within %g s", self.worker.name, len(late), grace)
            await asyncio.wait(late, timeout=max(grace, GIVEN_BACK_S))

    async def _off(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._settles, _for_a_future(tracing.bound(work)))

    async def _called(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._calls, _for_a_future(tracing.bound(work)))


def _for_a_future(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same, as a coroutine would end: a future that is to raise StopIteration never ends."""

    def call() -> Any:
        try:
            return work()
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return call


def _take(consumer: Consumer) -> list[Message]:
    """What has come, or comes soon."""
    first = consumer.take(TAKE_S)
    if first is None:
        return []
    some = [first]
    while len(some) < AT_ONCE and (more := consumer.take_ready()) is not None:
        some.append(more)
    return some


def _empty(client: Client, consumer: Consumer, filter: str | None) -> bool:
    """Whether nothing that it wants is ready, once all that it settled is durable, and nothing is on its way here."""
    consumer.flush()
    return not any(_is_ready(client, name, filter) for name in consumer.queues) and not consumer.catch_up()


def _is_ready(client: Client, name: str, filter: str | None) -> bool:
    """Whether a queue has something ready that matches, and gives it out: what is paused waits for somebody's word."""
    queue = client.queue(name)
    if not queue["ready"] or queue["paused"]:
        return False
    return filter is None or bool(client.peek(name, 1, filter=filter))
