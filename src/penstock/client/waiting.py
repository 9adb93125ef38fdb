"""Calls that another thread makes, so that who asked for them waits in Python: no longer than he likes, and he hears
signals.  gRPC's own wait is deaf to them, so Ctrl-C waited for the server.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from types import BuiltinFunctionType
from typing import Any, Generic, TypeVar

from penstock.errors import PreconditionFailed
from penstock.units import until_of

T = TypeVar("T")

LOOK_S = 0.2
"""A wait is begun anew so often: the signal may have come as it began, or have been given to another thread."""

IDLE_MOST = 8
"""Threads that wait for the next call; others end with theirs."""

_Asked = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]
_idle = list[_Asked]()
"""What those take their calls from."""


def check_running() -> None:
    """PreconditionFailed while Python ends: threads stand still then, and a `__del__` waited for one for ever."""
    if sys.is_finalizing():
        raise PreconditionFailed("Python ends, and nothing that a server sends is heard: wait for it before")


def check_threads() -> None:
    """PreconditionFailed while Python ends, and where threads are greenlets: one that waits in gRPC stops all."""
    check_running()
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        told = "gevent or eventlet has replaced the threads of this process, and who waits for messages would stop all"
        raise PreconditionFailed(f"{told}: wait for them in a process that is not patched, or over AMQP")


def begun(call: Callable[[], T]) -> Future[T]:
    """A call that is made from now on, by a thread that the process does not wait for.

    RuntimeError where no thread can be had, PreconditionFailed while Python ends.
    """
    check_running()
    try:
        asked = _idle.pop()
    except IndexError:
        asked = _Asked()
        threading.Thread(target=_make, args=(asked,), name="penstock-call", daemon=True).start()
    made = Future[T]()
    asked.put((made, call))
    return made


def come(made: Future[Any], seconds: float | None) -> bool:
    """Whether its end is there, after so many seconds at most; None: however long it takes."""
    until = until_of(time.monotonic(), seconds)
    while not made.done():
        left = LOOK_S if until is None else min(LOOK_S, until - time.monotonic())
        if left < 0:
            return False
        with suppress(TimeoutError):
            made.exception(left)
    return True


def attended(call: Callable[[], T]) -> T:
    """What a call gives.  A signal's handler that raises ends the wait, not the call, whose outcome nobody hears then.

    Only in the main thread, where handlers run; any other makes it itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        made = begun(call)
    except (RuntimeError, PreconditionFailed):  # there is no thread to be had, or Python ends
        return call()
    try:
        come(made, None)
        return made.result()
    finally:
        del made  # else an error, which knows this call, would keep itself and the call until it is looked for


class Once(Generic[T]):
    """What is made at its first use, by one thread, for all who wait for it, though who asked first is cancelled.

    A lock of asyncio belongs to the loop in which somebody first waited for it, and a program may have several: one
    after another by `asyncio.run`, or one in each thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coming: Future[T] | None = None

    @property
    def made(self) -> T | None:
        """It, where it is there."""
        coming = self._coming
        return coming.result() if coming is not None and coming.done() and coming.exception() is None else None

    def get(self, make: Callable[[], T]) -> T:
        """It, which `make` makes; waits for who makes it, so never in the thread of an event loop.

        What `make` raises those are told who wait; the next who asks tries anew.
        """
        with self._lock:
            coming, first = self._coming, self._coming is None
            if coming is None:
                coming = self._coming = Future[T]()
        try:
            if first:
                self._fill(coming, make)
            return coming.result()
        finally:
            del coming  # as in `attended`

    def _fill(self, coming: Future[T], make: Callable[[], T]) -> None:
        try:
            coming.set_result(make())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
            self._coming = None
            coming.set_exception(error)


def _make(asked: _Asked) -> None:
    stays = True
    while stays:
        made, call = asked.get()
        value, wrong = None, None
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            wrong = error
        stays = len(_idle) < IDLE_MOST
        if stays:
            _idle.append(asked)  # before who waits asks for the next one
        if wrong is None:
            made.set_result(value)
        else:
            made.set_exception(wrong)
        del made, call, value, wrong  # nobody keeps them while this waits


os.register_at_fork(after_in_child=_idle.clear)
