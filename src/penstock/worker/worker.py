"""One function and the queue whose messages it is given, as it was declared; what surrounds it, and what it comes to.

Bodies are its arguments.  Around it are the middlewares of its app, and what it depends on, made for each message:

    async def session(message: penstock.Message) -> AsyncIterator[Session]:
        async with Session() as session:
            yield session       # and what follows runs when the function has ended, an exception of it included

    @app.worker("orders")
    async def ship(order: Order, session: Annotated[Session, penstock.Depends(session)]) -> None: ...

What it comes to is kept in a topic by the ids of tasks; `penstock.client.results` waits for it.  A record is written in
one step with the settling of its message, and only for messages whose publisher wants it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin, get_type_hints

from penstock.client import Client
from penstock.client.aio.stream import Message as AsyncMessage
from penstock.client.bodies import Reader, reader_of
from penstock.client.messages import Message, Values
from penstock.client.results import DONE, FAILED, WANTED
from penstock.client.transactions import Opening, Transaction
from penstock.errors import AccessRefused, InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.units import Duration, seconds_of, span

Call: TypeAlias = Callable[[], Awaitable[object]]
"""What a middleware calls to go on; its result is that of the function."""

Middleware: TypeAlias = Callable[[AsyncMessage[Any], Call], Awaitable[object]]
"""Is given each message before the function, and what comes of it after."""

Off: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a piece of work in a thread."""


class Depends:
    """Marks an argument as made by a function, once a message: `Annotated[Session, penstock.Depends(session)]`.

    The function may be a coroutine, or a generator of either kind, which is continued when the worker's function has
    ended.  It takes nothing, the message, or what it depends on itself.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        if not callable(cast("object", make)):
            raise InvalidArgument(f"Depends: make is {make!r}, not a function: that is of type {type(make).__name__}")
        self.make = make
        self._needs: tuple[Depends | None, ...] | None = None

    def needs(self, is_message: Callable[[object], bool]) -> tuple[Depends | None, ...]:
        """What its own arguments are; None is the message.  InvalidArgument for what nothing is given to."""
        if self._needs is None:
            self._needs = tuple(self._read(is_message))
            for one in self._needs:
                if one is not None:
                    one.needs(is_message)
        return self._needs

    def _read(self, is_message: Callable[[object], bool]) -> list[Depends | None]:
        hints = get_type_hints(self.make, include_extras=True) if not inspect.isclass(self.make) else {}
        found = list[Depends | None]()
        for parameter in inspect.signature(self.make).parameters.values():
            annotation = hints.get(parameter.name, Any)
            if (other := depends_of(annotation)) is not None:
                found.append(other)
            elif is_message(annotation):
                found.append(None)
            elif parameter.default is parameter.empty:
                name = getattr(self.make, "__qualname__", repr(self.make))
                raise InvalidArgument(f"dependency {name}: nothing is given to its argument {parameter.name!r}")
        return found


def depends_of(annotation: object) -> Depends | None:
    """What makes an argument of this annotation; None where it is no dependency."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((one for one in get_args(annotation)[1:] if isinstance(one, Depends)), None)


class Made:
    """What the dependencies of one message came to."""

    def __init__(self, message: object, stack: AsyncExitStack, off: Off) -> None:
        """stack: what is left when the function has ended.  off: for what is no coroutine."""
        self._message, self._stack, self._off = message, stack, off
        self._values = dict[Callable[..., Any], Any]()

    async def of(self, depends: Depends, is_message: Callable[[object], bool]) -> Any:
        """Its value, made when first asked for."""
        make = depends.make
        if make not in self._values:
            needs = depends.needs(is_message)
            arguments = [self._message if one is None else await self.of(one, is_message) for one in needs]
            self._values[make] = await self._make(make, arguments)
        return self._values[make]

    async def _make(self, make: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        if inspect.isasyncgenfunction(make):
            return await self._stack.enter_async_context(asynccontextmanager(make)(*arguments))
        if inspect.isgeneratorfunction(make):
            return await self._stack.enter_async_context(_in_threads(contextmanager(make)(*arguments), self._off))
        if inspect.iscoroutinefunction(make):
            return await make(*arguments)
        return await self._off(partial(make, *arguments))


@asynccontextmanager
async def _in_threads(inner: Any, off: Off) -> AsyncGenerator[Any, None]:
    """A context manager whose both ends run in threads."""
    value = await off(inner.__enter__)
    try:
        yield value
    except BaseException as error:
        leaving = off(partial(inner.__exit__, type(error), error, error.__traceback__))
        await asyncio.shield(asyncio.ensure_future(leaving))
        raise
    else:
        await off(partial(inner.__exit__, None, None, None))


def surrounded(call: Call, middlewares: Sequence[Middleware], message: AsyncMessage[Any]) -> Call:
    """The call within all of them, the first one outermost."""
    for one in reversed(middlewares):
        call = partial(one, message, call)
    return call


class Results:
    """The topic of an app's results.  Any thread."""

    def __init__(self, topic: str, keep: Duration) -> None:
        """keep: how long a record stays."""
        if not topic:
            raise InvalidArgument("results: name a topic")
        self.topic = topic
        self._keep = f"{span(keep, 'results_for')}us"
        self._limits = dict[str, tuple[float, float]]()  # failures and deliveries of a message, by queue

    def prepare(self, client: Client, queues: Iterable[str]) -> None:
        """The topic is there, and it is known how often each queue delivers a message."""
        client.declare_topic(self.topic, key=["/id"], expiration=self._keep)
        for queue in queues:
            with suppress(AccessRefused):  # then nobody knows which failure is the last
                self._limits[queue] = _deliveries(client.queue(queue)["settings"])

    def id_of(self, message: Message) -> str | None:
        """The task that a message is; None where nobody wants its result."""
        return message.message_id if message.headers.get(WANTED) else None

    def done(self, id: str, value: object) -> tuple[str, dict[str, Any]]:
        """What is published with the acknowledgement."""
        return self.topic, {"id": id, "state": DONE, "value": value}

    def is_last(self, message: Message, queue: str, *, failed: bool) -> bool:
        """Whether the message is given up if this delivery failed, or else if it is given back.

        queue: its own, where the message does not say it.
        """
        failures, deliveries = self._limits.get(message.queue or queue, (math.inf, math.inf))
        return message.attempt >= (failures if failed else deliveries)

    def failed(self, id: str, message: Message, verb: str, reason: str) -> None:
        """Settle a message that failed for good, and keep why."""
        transaction = Transaction(cast("Opening", message.holder.client))
        transaction.publish(self.topic, {"id": id, "state": FAILED, "error": reason})
        if verb == "reject":
            transaction.reject(message, reason)
        else:
            transaction.retry(message, error=reason)
        transaction.commit()


def _deliveries(settings: Mapping[str, Any]) -> tuple[float, float]:
    """After how many failures a queue gives a message up, and after how many deliveries, whatever became of them."""
    told: dict[str, Any] = {name: one["value"] for name, one in settings.items()}
    retry: Any = told.get("retry") or {}
    returns: int | None = told.get("delivery_limit")
    deliveries: float = told.get("max_deliveries") or math.inf
    attempts: float = retry.get("attempts") or math.inf
    return min(deliveries, attempts, math.inf if returns is None or returns < 0 else returns + 1), deliveries


@dataclass(slots=True)
class Counts:
    """How many messages had which outcome since the worker began, and what it has now."""

    done: int = 0  # acknowledged
    retried: int = 0  # went back as a failure: the function raised, or took too long
    rejected: int = 0  # dead letters: the function said so, or the body was not what it takes
    released: int = 0  # went back uncounted
    lost: int = 0  # the server had taken them back before the outcome could be told: they come again
    connections: int = 0  # to the server, the first one included
    running: int = 0  # at this moment

    def settled(self, verb: str) -> None:
        """One more of an outcome: ack, retry, reject, release or lost."""
        names = {"ack": "done", "retry": "retried", "reject": "rejected", "release": "released", "lost": "lost"}
        name = names[verb]
        setattr(self, name, getattr(self, name) + 1)

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, one) + getattr(other, one) for one in Counts.__dataclass_fields__))


CONCURRENCY_MOST = 10_000

BACKLOG_LEAST = 2
"""Messages for each function that may run, so that the next one is there when one ends."""

Function = Callable[..., Any]

_MESSAGES = (Message, AsyncMessage, Values)


@dataclass(frozen=True, slots=True)
class Worker:
    """A function with what was said of it.  Made by `App.worker`."""

    function: Function
    name: str
    queue: str  # or a pattern of names
    concurrency: int  # messages that are worked on at once
    backlog: int  # messages that are leased at once, those that are worked on among them
    timeout: float | None  # seconds that one message may take
    filter: str | None
    publish: str | None  # the topic of what the function returns
    mandatory: bool | None  # whether it is an error that nobody takes that; None: over the default exchange
    is_async: bool
    readers: tuple[Reader | Depends | None, ...]  # of the arguments; None is the message itself
    value: Any  # the type of its `value`: that of `Message[Order]`, else Any
    middlewares: tuple[Middleware, ...] = ()  # of its app, the outermost first
    results: Results | None = None  # of its app

    @property
    def is_plain(self) -> bool:
        """Whether nothing surrounds the function, and it depends on nothing."""
        return not self.middlewares and not any(isinstance(read, Depends) for read in self.readers)

    def arguments(self, message: Values) -> Sequence[object]:
        """What the function is called with, `Depends` where something is to be made for it.

        InvalidBody when the body is not what it takes.
        """
        return [
            read if isinstance(read, Depends) else message if read is None else read(message.body, message.content_type)
            for read in self.readers
        ]


def is_message(annotation: object) -> bool:
    """Whether an argument of this annotation is the message."""
    return (get_origin(annotation) or annotation) in _MESSAGES


def declare(
    function: Function,
    queue: str,
    *,
    concurrency: int = 1,
    backlog: int | None = None,
    timeout: Duration | None = None,
    filter: str | None = None,
    publish: str | None = None,
    mandatory: bool | None = None,
) -> Worker:
    """A worker from a function's signature.  InvalidArgument names the function and what is wrong."""
    name = getattr(function, "__qualname__", repr(function))
    who = f"worker {name}"
    if not queue:
        raise InvalidArgument(f"{who}: name a queue")
    if publish == "":
        raise InvalidArgument(f"{who}: publish is empty: name a topic, or exchange/key")
    _check_count(who, "concurrency", concurrency)
    if backlog is None:
        backlog = concurrency * BACKLOG_LEAST
    _check_count(who, "backlog", backlog)
    if backlog < concurrency:
        raise InvalidArgument(f"{who}: a backlog of {backlog} leaves some of {concurrency} at once without a message")
    seconds = None if timeout is None else seconds_of(timeout, f"{who}: timeout")
    if seconds == 0:
        raise InvalidArgument(f"{who}: timeout is 0: nothing could be done")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(f"{who}: is a generator, which nobody runs: it has to do its work itself, without yield")
    is_async = inspect.iscoroutinefunction(function)
    readers, value = _readers(function, who)
    return Worker(
        function, name, queue, concurrency, backlog, seconds, filter, publish, mandatory, is_async, tuple(readers),
        value,
    )  # fmt: skip


def _check_count(who: str, what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= CONCURRENCY_MOST:
        raise InvalidArgument(f"{who}: {what} is {value!r}, not a whole number from 1 to {CONCURRENCY_MOST:,}")


def _readers(function: Function, who: str) -> tuple[list[Reader | Depends | None], Any]:
    """How each argument is made, one body at most, one message at most; and the type of the message's value."""
    readers: dict[str, Reader | Depends | None] = {}
    value: Any = Any
    for name, annotation in _given(function, who):
        if get_origin(annotation) is Annotated and Depends in get_args(annotation):
            told = "names Depends and not what makes it: write Annotated[..., Depends(function)]"
            raise InvalidArgument(f"{who}: argument {name!r} {told}")
        if (depends := depends_of(annotation)) is not None:
            depends.needs(is_message)
            readers[f"{name} depends"] = depends
            continue
        wants_it = is_message(annotation) or (annotation is Any and name == "message")
        noun = "message" if wants_it else "body"
        if wants_it and get_args(annotation):
            [value] = get_args(annotation)
        if noun in readers:
            raise InvalidArgument(f"{who}: argument {name!r} would be a second {noun}, and there is one")
        readers[noun] = None if wants_it else reader_of(annotation, who)
    if not readers:
        raise InvalidArgument(f"{who}: takes no argument; let it take the body, the message, or both")
    return list(readers.values()), value


def _given(function: Function, who: str) -> Iterator[tuple[str, Any]]:
    """The arguments that a call has to give, each with its annotation."""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except (NameError, AttributeError) as error:
        raise InvalidArgument(
            f"{who}: an annotation cannot be resolved: {error}; define the type at module level"
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{who}: {error}") from None
    for one in signature.parameters.values():
        if one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        if one.kind is one.KEYWORD_ONLY:
            raise InvalidArgument(f"{who}: argument {one.name!r} has no default, and nothing is given to it")
        yield one.name, hints.get(one.name, Any)
