"""What commands over HTTP share: the core once the start is over, rights of who asks, the wait for the disk.

They run on the loop that serves messages, like an AMQP session's: a command is decided at once, and answered when its
records are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import DiskFull, LogBroken, NotFound, Refused, Unavailable

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.view import Queue
    from penstock.records.chunks import Now
    from penstock.server.engine import Engine
    from penstock.server.entitlements import Need, Rights
    from penstock.server.http.facts import Facts
    from penstock.server.services import Server

T = TypeVar("T")


def resolve(future: asyncio.Future[None]) -> None:
    """Let whoever awaits it go on, unless he has gone."""
    if not future.done():
        future.set_result(None)


class Waits:
    """Futures of answers that wait for the log; all of them fail when it breaks."""

    def __init__(self) -> None:
        self._open = set[asyncio.Future[None]]()
        self._engine: Engine | None = None

    async def durable(self, engine: Engine, lsn: int) -> None:
        """Return when everything up to `lsn` is durable.  Raises LogBroken."""
        if self._engine is not engine:
            self._engine = engine
            engine.on_broken.append(self._broken)
        if lsn <= engine.log.durable:
            return
        if engine.broken is not None:
            raise LogBroken(f"{engine.broken}; whether this will last is unknown")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        engine.when_durable(lsn, partial(resolve, future))
        engine.arm()
        await future

    def _broken(self, reason: str) -> None:
        for future in list(self._open):
            if not future.done():
                future.set_exception(LogBroken(f"{reason}; whether this will last is unknown"))


class Commands:
    """The base of the commands of one noun."""

    def __init__(self, server: Server, facts: Facts, waits: Waits) -> None:
        self.server = server
        self.facts = facts
        self._waits = waits

    @property
    def engine(self) -> Engine:
        """Raises Unavailable while the server starts."""
        self.facts.refuse_early()
        return self.server.engine

    @property
    def core(self) -> Core:
        """The same."""
        return self.engine.core

    def now(self) -> Now:
        """The instant of a command."""
        return self.engine.now()

    def rights(self, user: str | None) -> Rights | None:
        """What a user may do; None where nothing is limited, and for nobody: all of it was judged before."""
        return None if user is None else self.server.users.rights(user)

    def configure(self, user: str | None, what: str, vhost: str, *needs: Need) -> None:
        """AccessRefused unless the user may change the topology so."""
        rights = self.rights(user)
        if rights is not None:
            rights.configure(what, vhost, needs)

    def binds(self, user: str | None, vhost: str, source: str, key: str) -> None:
        """AccessRefused unless the user may bind to this exchange, or unbind, with this key."""
        rights = self.rights(user)
        if rights is not None:
            rights.binds(self.core, vhost, source, key)

    def vhost(self, name: str) -> str:
        """A vhost that is there.  Raises NotFound."""
        self.facts.refuse_early()
        if name not in self.facts.vhosts():
            raise NotFound("Not Found")
        return name

    def queue(self, vhost: str, name: str) -> Queue:
        """A queue that anybody may use.  Raises NotFound, ResourceLocked."""
        return self.core.queue(self.vhost(vhost), name)

    def refuse_full(self) -> None:
        """LogBroken or DiskFull when nothing can be stored."""
        if self.engine.broken is not None:
            raise LogBroken(f"the log is broken: {self.engine.broken}")
        if self.engine.log.full:
            raise DiskFull("the log has no room")

    async def decide(self, work: Callable[[], T], *, wait: bool = True) -> T:
        """The result of a command, when its records are durable.  Raises what the core refuses, and LogBroken.

        wait: False leaves the waiting to whoever decides many things at once.
        """
        engine = self.engine
        if engine.broken is not None:
            raise LogBroken(f"the log is broken: {engine.broken}")
        if not self.server.serving:
            raise Unavailable("the server stops")
        before = engine.core.last_lsn
        try:
            result = work()
        except Refused:
            engine.arm()
            raise
        engine.arm()
        last = engine.core.last_lsn
        if wait and last > before:
            await self._waits.durable(engine, last)
        return result

    async def durable(self, lsn: int) -> None:
        """Return when everything up to `lsn` is durable.  Raises LogBroken."""
        await self._waits.durable(self.engine, lsn)
