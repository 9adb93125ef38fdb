"""`penstock.App`: functions and the queues they work on, and their common life: start, signals, stop; found by the name
that `penstock worker` is given.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from penstock.client.arguments import arguments_checked
from penstock.client.urls import parse_url
from penstock.errors import InvalidArgument
from penstock.units import Duration, seconds_of
from penstock.worker.running import Running
from penstock.worker.worker import Counts, Middleware, Results, Worker, declare

logger = logging.getLogger("penstock.worker")

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)


@arguments_checked
class App:
    """Workers of one server.

    url        of the server, penstock://user:password@host:port/vhost; `penstock worker --url` may name another
    name       of its consumers, for people; by default host and process
    grace      how long what runs may go on when the app stops; after that it is interrupted and its message given back
    lifespan   an async context manager, called with the app: entered before the first message, left after the last
    results    a topic that keeps what functions come to, for whoever has submitted their messages (`Client.submit`);
               it is declared at the start
    results_for   how long each result is kept
    """

    def __init__(
        self,
        url: str = "penstock://localhost",
        *,
        name: str = "",
        grace: Duration = "30s",
        lifespan: Callable[[App], AbstractAsyncContextManager[object]] | None = None,
        results: str | None = None,
        results_for: Duration = "1d",
    ) -> None:
        parse_url(url)  # what is no address is told here
        self.url = url
        self.name = name
        self.workers: tuple[Worker, ...] = ()
        self._grace = seconds_of(grace, "grace")
        self._lifespan = lifespan
        self._results = None if results is None else Results(results, results_for)
        self._running: tuple[Running, ...] = ()
        self._middlewares: tuple[Middleware, ...] = ()

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        backlog: int | None = None,
        filter: str | None = None,
        publish: str | None = None,
        mandatory: bool | None = None,
    ) -> Callable[[F], F]:
        """Give the messages of a queue to the decorated function, which stays as it is and may be called.

        queue        or a pattern of names
        concurrency  messages that are worked on at once: coroutines on one loop, other functions in threads
        timeout      how long one message may take; then it is retried with this as its reason.  A coroutine is
                     cancelled; a thread cannot be, and keeps its place until it ends
        backlog      messages that are leased at once, by default twice the concurrency
        filter       an expression: others get what it does not match
        publish      a topic, or exchange/key: what the function returns is published there in one step with the
                     acknowledgement, unless it is None
        mandatory    whether it is an error that nobody takes what is published, as for `Client.publish`; then the
                     message is retried, with that as its reason

        The function takes the body, the message (annotated `penstock.Message`), or both.  The body's annotation says
        what it becomes: bytes, str, or any type that pydantic makes of JSON; what does not fit is rejected, for it
        never will.  A return acknowledges, an exception is a retry with its text as the reason, and a function may
        settle the message itself.  Raises InvalidArgument for a function that cannot be called so.
        """

        def decorate(function: F) -> F:
            worker = declare(
                function, queue, concurrency=concurrency, backlog=backlog, timeout=timeout, filter=filter,
                publish=publish, mandatory=mandatory,
            )  # fmt: skip
            self.workers = (*self.workers, worker)
            return function

        return decorate

    def middleware(self, function: M) -> M:
        """Let the decorated coroutine surround the functions of all workers; the first one is outermost.

        @app.middleware
        async def timed(message, call_next):
            started = time.monotonic()
            try:
                return await call_next()        # the function's result, or its exception
            finally:
                logger.info("%s took %.1f s", message.bookmark, time.monotonic() - started)

        What it returns is taken for the function's result; what it raises is a retry, and it may settle the message
        and not call the function at all.  The message is one of `penstock.aio`.
        """
        given: object = function
        if not inspect.iscoroutinefunction(given):
            raise InvalidArgument(f"middleware {getattr(given, '__qualname__', given)!r} is no coroutine function")
        self._middlewares = (*self._middlewares, function)
        return function

    @property
    def counts(self) -> Mapping[str, Counts]:
        """What became of messages since the last start, by function, of whichever of its queues they were."""
        counts = dict[str, Counts]()
        for running in self._running:
            name = running.worker.name
            counts[name] = counts[name] + running.counts if name in counts else running.counts
        return counts

    def stop(self) -> None:
        """Take no more messages.  What runs may end within the grace.  From any thread."""
        for running in self._running:
            running.stop()

    async def serve(self, *, url: str | None = None, burst: bool = False) -> Mapping[str, Counts]:
        """Work until `stop`, or in a burst until no message is ready; what became of the messages.

        While the server is away it is waited for.  Raises what it says no with: NotFound for a queue that is not there,
        AccessRefused, ExpressionError for a filter; then all workers stop.
        """
        if not self.workers:
            raise InvalidArgument("the app has no workers: decorate a function with @app.worker(QUEUE)")
        name = self.name or f"{socket.gethostname()}:{os.getpid()}"
        chance = random.Random()
        self._running = tuple(
            Running(
                replace(worker, middlewares=self._middlewares, results=self._results),
                url or self.url,
                name=name,
                burst=burst,
                chance=chance,
            )
            for worker in self.workers
        )
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan(self))
            await self._all_run()
        return self.counts

    async def _all_run(self) -> None:
        """Until all have ended; the first failure stops the others and is raised when they have ended."""
        tasks = [asyncio.create_task(running.run(self._grace)) for running in self._running]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        failures = [error for task in tasks if (error := task.exception()) is not None]
        for error in failures[1:]:
            logger.error("%s", error)
        if failures:
            raise failures[0]

    def run(self, *, url: str | None = None, burst: bool = False) -> Mapping[str, Counts]:
        """`serve` in a loop of its own.  In the main thread SIGTERM and Ctrl-C stop it, a second one at once.

        In another thread `stop` does.
        """
        return asyncio.run(self._until_signal(url, burst))

    async def _until_signal(self, url: str | None, burst: bool) -> Mapping[str, Counts]:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        asked = 0

        def told() -> None:
            nonlocal asked
            asked += 1
            if asked > 1 and main is not None:
                main.cancel()
            self.stop()

        main_thread = threading.current_thread() is threading.main_thread()  # signals come to no other
        signals = (signal.SIGTERM, signal.SIGINT) if main_thread else ()
        for number in signals:
            loop.add_signal_handler(number, told)
        try:
            return await self.serve(url=url, burst=burst)
        except asyncio.CancelledError:
            if asked > 1:
                return self.counts
            raise
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def load(target: str, folder: Path) -> App:
    """The app that a target names; modules are looked for in `folder` first.  InvalidArgument says what is wrong.

    What the module itself raises when it is imported is raised.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name:
        raise InvalidArgument(f"{target!r} is no MODULE:APP, such as shop.workers:app")
    if module_name.endswith(".py"):
        raise InvalidArgument(f"{module_name!r} is a file: name the module, {module_name.removesuffix('.py')!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports what is not
        raise InvalidArgument(
            f"no module {module_name!r}: it was looked for in {folder} and where Python looks"
        ) from None
    return _app(module, target, name)


def _app(module: ModuleType, target: str, name: str) -> App:
    """What a module has under a name.  InvalidArgument where that is no app."""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    there = f"; it has {', '.join(apps)}" if apps else ""
    if found is None:
        raise InvalidArgument(f"{module.__name__} has no {name!r}{there}")
    raise InvalidArgument(f"{target} is a {type(found).__name__}, not a penstock.App{there}")
