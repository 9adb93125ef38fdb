"""One message and one function: the arguments, the call, and what becomes of the message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.client.aio.stream import Message as AsyncMessage
from penstock.client.messages import Message
from penstock.errors import Fenced, NotFound, PenstockError, Refused, Unroutable
from penstock.worker.bodies import InvalidBody
from penstock.worker.worker import Counts, Worker

logger = logging.getLogger("penstock.worker")

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
        """One more to keep."""
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
            if message.outcome is None:
                try:
                    message.extend(self._lease)
                except PenstockError as error:
                    logger.debug("leases are not extended: %s", error)  # who settles it is told, too
                    return


logger = logging.getLogger("penstock.worker")

REASON_MOST = 500
"""Characters of an error that are kept with the message."""

Off = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a piece of work in a thread."""


async def handle(worker: Worker, message: Message, counts: Counts, calls: Off, settles: Off) -> None:
    """Give one message to the function and settle it.

    ack       the function returned; what it returned is published with the ack where the worker says so
    retry     it raised or took too long, or what it returned could not be published; the reason is kept
    reject    the body is not what it takes
    release   the worker stops and had to interrupt it
    What the function settled itself stays as it is.  calls, settles: threads for functions that are no coroutines, and
    for what waits for the server.  Never raises but CancelledError.
    """
    counts.running += 1
    late: asyncio.Future[Any] | None = None
    try:
        verb, details, result, late = await _called(worker, message, calls, settles)
        if message.outcome is None:
            await settles(partial(_settle, worker, message, verb, details, result))
        counts.settled(message.outcome or verb)
        if late is not None:
            await asyncio.wait({late})
    except asyncio.CancelledError:
        held = message.outcome is None
        if held:
            await asyncio.shield(asyncio.ensure_future(settles(partial(release, message))))
        if late is None:  # else it is counted
            counts.settled(message.outcome or "release")
        raise
    except PenstockError as error:  # of settling: what functions raise is an outcome
        counts.lost += 1
        logger.warning("%s: %r could not be settled and will come again: %s", worker.name, message, error)
    finally:
        counts.running -= 1


async def _called(
    worker: Worker, message: Message, calls: Off, settles: Off
) -> tuple[str, str, object, asyncio.Future[Any] | None]:
    """(verb, reason, result) of the call, and the call itself where it is a thread that did not end in time."""
    given = AsyncMessage(message, settles) if worker.is_async else message
    try:
        arguments = worker.arguments(given)
    except InvalidBody as error:
        logger.error("%s: %r: %s", worker.name, message, error)
        return "reject", str(error), None, None
    work = worker.function(*arguments) if worker.is_async else calls(partial(worker.function, *arguments))
    call = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({call}, timeout=worker.timeout)
    except asyncio.CancelledError:
        call.cancel()
        raise
    if not done:
        told = f"took longer than {worker.timeout:g} s"
        logger.error("%s: %r %s%s", worker.name, message, told, "" if worker.is_async else " and cannot be stopped")
        if worker.is_async:
            call.cancel()
        return "retry", told, None, call
    try:
        return "ack", "", call.result(), None
    except asyncio.CancelledError:
        return "release", "", None, None  # the function cancelled itself
    except Exception as error:
        logger.exception("%s: %r failed, attempt %d", worker.name, message, message.attempt)
        return "retry", f"{type(error).__name__}: {error}", None, None


def _settle(worker: Worker, message: Message, verb: str, reason: str, result: object) -> None:
    if verb == "ack" and worker.publish is not None and result is not None:
        _publish(worker, worker.publish, message, result)
    elif verb == "ack":
        message.ack()
    elif verb == "retry":
        message.retry(error=reason[:REASON_MOST])
    elif verb == "release":
        message.release()
    else:
        message.reject(reason=reason[:REASON_MOST])


def _publish(worker: Worker, place: str, message: Message, result: object) -> None:
    """Acknowledge and publish to `K`, or to `E/K` where there is an exchange E; retry what the server refuses."""
    exchange, _, key = place.partition("/")
    options = {"mandatory": worker.mandatory}
    try:
        if exchange and key:
            try:
                message.ack(publish=[(key, result, {**options, "exchange": exchange})])
                return
            except Unroutable:
                raise
            except NotFound:
                pass  # no exchange: a key of the default one may hold a slash
        message.ack(publish=[(place, result, options)])
    except Fenced:
        raise  # it is somebody else's by now
    except Refused as error:
        logger.error("%s: what %r came to is not published to %r: %s", worker.name, message, place, error)
        message.retry(error=f"{type(error).__name__}: {error}"[:REASON_MOST])


def give_back(message: Message) -> None:
    """Give back a message that the function was not called for: its delivery does not count."""
    try:
        message.holder.settle(message, "unseen", None, None)
    except PenstockError as error:
        logger.debug("%r is not given back, for the server has taken it back: %s", message, error)


def release(message: Message) -> None:
    """Give a message back, uncounted; one that the server has taken back is no matter."""
    try:
        message.release()
    except PenstockError as error:
        logger.debug("%r is not released, for the server has taken it back: %s", message, error)
