"""Threads that wait for an event loop, and for which a process that ends does not wait.

Those of `concurrent.futures` are joined before anything is closed: a program that has left its event loop with a
consumer open, in which a thread waits for messages, would never end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Work = tuple["Future[Any]", Callable[[], Any]]


class Threads(Executor):
    """At most so many, made when they are needed."""

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
