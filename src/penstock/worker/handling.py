"""One message with its function: the arguments, the call, and what becomes of the message."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

from penstock.client import Client, tracing
from penstock.client.aio.stream import Message as AsyncMessage
from penstock.client.messages import Message, reason_of
from penstock.errors import Fenced, InvalidBody, NotFound, PenstockError, Refused, Unroutable
from penstock.worker.worker import Counts, Depends, Made, Off, Worker, is_message, surrounded

logger = logging.getLogger("penstock.worker")

AT_ONCE_MOST = 5
"""So often a message fails and comes again at once; from then on it waits, for else a mistake would keep all busy."""

PAUSE_S, PAUSE_MOST_S = 0.1, 60.0
"""Before the next try then: about so long at first, doubled each time, and at most."""


async def handle(worker: Worker, message: Message, counts: Counts, calls: Off, settles: Off) -> None:
    """Give one message to the function and settle it.

    ack       the function returned; what it returned is published with the ack where the worker says so
    retry     it raised or took too long, or what it returned could not be published; the reason is kept
    reject    the body is not what it takes
    release   the worker stops and had to interrupt it; where that was the last delivery its result says so
    What the function settled itself stays as it is.  calls, settles: threads for functions that are no coroutines, and
    for what waits for the server.  Never raises but CancelledError.
    """
    if tracing.active is None:
        await _handled(worker, message, counts, calls, settles)
        return
    with tracing.active.process(message, message.queue or worker.queue, worker.name):
        await _handled(worker, message, counts, calls, settles)


async def _handled(worker: Worker, message: Message, counts: Counts, calls: Off, settles: Off) -> None:
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
            await asyncio.shield(asyncio.ensure_future(settles(partial(_interrupted, worker, message))))
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
    call = asyncio.ensure_future(_ended(worker, message, calls, settles))
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
        result, error = call.result()
    except asyncio.CancelledError as cancelled:  # by what it waits for itself: a stop ended above
        result, error = None, cancelled
    if error is None:
        return "ack", "", result, None
    if isinstance(error, InvalidBody):
        logger.error("%s: %r: %s", worker.name, message, error)
        return "reject", reason_of(str(error)), None, None
    logger.error("%s: %r failed, attempt %d", worker.name, message, message.attempt, exc_info=error)
    if tracing.active is not None:
        tracing.active.failed(error)
    return "retry", reason_of(error), None, None


async def _ended(worker: Worker, message: Message, calls: Off, settles: Off) -> tuple[object, BaseException | None]:
    """What the function came to, or what it raised: SystemExit, too, is its failure, and not the end of the loop."""
    try:
        arguments = worker.arguments(AsyncMessage(message, settles) if worker.is_async else message)
        return await _work(worker, message, arguments, calls, settles), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - the border of what is not ours
        return None, error


def _work(worker: Worker, message: Message, arguments: Sequence[object], calls: Off, settles: Off) -> Awaitable[object]:
    """The call of the function, with what surrounds it."""
    if worker.is_plain:
        return _begun(worker, arguments, calls)
    theirs = AsyncMessage(message, settles)

    async def call() -> object:
        async with AsyncExitStack() as stack:
            made = Made(theirs if worker.is_async else message, stack, settles)
            given = [await made.of(one, is_message) if isinstance(one, Depends) else one for one in arguments]
            try:
                return await _begun(worker, given, calls)
            except BaseException as error:
                failure = error
                raise
        raise failure  # however a dependency took it

    return surrounded(call, worker.middlewares, theirs)()


def _begun(worker: Worker, arguments: Sequence[object], calls: Off) -> Awaitable[object]:
    work: Awaitable[object] = worker.function(*arguments) if worker.is_async else _in_thread(worker, arguments, calls)
    return work


async def _in_thread(worker: Worker, arguments: Sequence[object], calls: Off) -> object:
    """What a function came to in a thread, and on the loop where that is a coroutine, as of one that is decorated."""
    result = await calls(partial(worker.function, *arguments))
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"{worker.name} gave back a generator, which nobody runs: it has to do its work itself")
    return await result if inspect.isawaitable(result) else result


def _settle(worker: Worker, message: Message, verb: str, reason: str, result: object) -> None:
    results = worker.results
    id = None if results is None else results.id_of(message)
    place = worker.publish if result is not None else None
    if verb == "ack" and (place is not None or id is not None):
        also = [] if results is None or id is None else [results.done(id, result)]
        _publish(worker, place, message, result, also)
    elif (
        results is not None
        and id is not None
        and (verb == "reject" or results.is_last(message, worker.queue, failed=verb == "retry"))
    ):
        results.failed(id, message, verb, reason)
    else:
        _settle_alone(worker, message, verb, reason)


def _settle_alone(worker: Worker, message: Message, verb: str, reason: str) -> None:
    """Settle it where nothing is published with that."""
    if verb == "ack":
        message.ack()
    elif verb == "retry":
        message.retry(delay=_pause(worker, message), error=reason)
    elif verb == "release":
        message.release()
    else:
        message.reject(reason=reason)


def _pause(worker: Worker, message: Message) -> float | None:
    """Seconds before a message that goes on failing comes again, where its queue says none; None: as that says."""
    times = message.attempt - AT_ONCE_MOST
    if times <= 0:
        return None
    try:
        settings = cast("Client", message.holder.client).queue(message.queue or worker.queue)["settings"]
    except PenstockError:
        return None  # it may not be looked at, or a pattern stands for it
    return None if "retry" in settings else min(PAUSE_S * 2 ** min(times - 1, 30), PAUSE_MOST_S)


def _publish(
    worker: Worker, place: str | None, message: Message, result: object, also: Sequence[tuple[str, object]]
) -> None:
    """Acknowledge and publish to `K`, or to `E/K` where there is an exchange E; retry what the server refuses."""
    exchange, _, key = (place or "").partition("/")
    options = {"mandatory": worker.mandatory}
    try:
        if place is None:
            message.ack(publish=also)
            return
        if exchange and key:
            try:
                message.ack(publish=[(key, result, {**options, "exchange": exchange}), *also])
                return
            except Unroutable:
                raise
            except NotFound:
                pass  # no exchange: a key of the default one may hold a slash
        message.ack(publish=[(place, result, options), *also])
    except Fenced:
        raise  # it is somebody else's by now
    except Refused as error:
        where = also[0][0] if place is None else place
        logger.error("%s: what %r came to is not published to %r: %s", worker.name, message, where, error)
        _settle(worker, message, "retry", reason_of(error), None)


def give_back(message: Message) -> None:
    """Give back a message that the function was not called for: its delivery does not count."""
    try:
        message.holder.settle(message, "unseen", None, None)
    except PenstockError as error:
        logger.debug("%r is not given back, for the server has taken it back: %s", message, error)


def _interrupted(worker: Worker, message: Message) -> None:
    """Give a message back, uncounted where its queue allows that; one that the server has taken back is no matter."""
    try:
        _settle(worker, message, "release", "interrupted at its last delivery, for its worker stopped", None)
    except PenstockError as error:
        logger.debug("%r is not released, for the server has taken it back: %s", message, error)
