"""What surrounds a worker's function: the middlewares of its app, and what it depends on, made for each message.

async def session(message: penstock.Message) -> AsyncIterator[Session]:
    async with Session() as session:
        yield session       # and what follows runs when the function has ended, an exception of it included

@app.worker("orders")
async def ship(order: Order, session: Annotated[Session, penstock.Depends(session)]) -> None: ...
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from penstock.client.aio.stream import Message
from penstock.errors import InvalidArgument

Call: TypeAlias = Callable[[], Awaitable[object]]
"""What a middleware calls to go on; its result is that of the function."""

Middleware: TypeAlias = Callable[[Message[Any], Call], Awaitable[object]]
"""Is given each message before the function, and what comes of it after."""

Off: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a piece of work in a thread."""


class Depends:
    """Marks an argument as made by a function, once a message: `Annotated[Session, penstock.Depends(session)]`.

    The function may be a coroutine, or a generator of either kind, which is continued when the worker's function has
    ended.  It takes nothing, the message, or what it depends on itself.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
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
    except Exception as error:
        if not await off(partial(inner.__exit__, type(error), error, error.__traceback__)):
            raise
    except asyncio.CancelledError as error:
        await asyncio.shield(asyncio.ensure_future(off(partial(inner.__exit__, type(error), error, None))))
        raise
    else:
        await off(partial(inner.__exit__, None, None, None))


def surrounded(call: Call, middlewares: Sequence[Middleware], message: Message[Any]) -> Call:
    """The call within all of them, the first one outermost."""
    for one in reversed(middlewares):
        call = partial(one, message, call)
    return call
