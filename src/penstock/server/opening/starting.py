"""A start in its order: sockets that listen at once, HTTP that tells how far it is, recovery in a thread, doors last.

    bind AMQP -> thread: check, fold, build queues  ........................ -> boot record on disk -> doors open
                 loop:   HTTP answers, Flight's entrance holds its callers,
                         whoever looks on is told

Connections are taken early and answered late: nobody sees a queue before the log has said what is in it, and a client
that came too early goes on by itself.  Modules that only the doors need are loaded while the thread works.
It opens and closes; what is recovered and what a door does is told by others.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from penstock.config.doors import DOORS
from penstock.errors import SettingsError
from penstock.server.guard.listening import bind
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.config.doors import Address
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.flight.door import FlightDoor
    from penstock.server.flight.entrance import Entrance
    from penstock.server.http.door import HttpDoor
    from penstock.server.opening.progress import Show
    from penstock.server.services import Server
    from penstock.server.tls.files import Identity
    from penstock.server.tls.keeping import Keeper

SHOW_S = 0.1
_NEEDED_LATER = ("penstock.server.amqp.door", "penstock.server.flight.door")
"""Loaded while the thread works: 100 ms."""

T = TypeVar("T")


class Starting:
    """The doors of a server while it starts.  For the loop's thread."""

    def __init__(self, server: Server, show: Show) -> None:
        self.entrance: Entrance | None = None  # of Flight
        self.http: HttpDoor | None = None
        self._server = server
        self._show = show
        self.tls: Keeper | None = None
        self.addresses = dict[str, str]()  # of the doors that listen, by name
        self._amqp = list[socket.socket]()
        self._amqps = list[socket.socket]()
        self._work: asyncio.Future[object] | None = None
        self._shown: asyncio.TimerHandle | None = None

    async def recover(self, pool: Executor, work: Callable[[], T]) -> T:
        """The result of the work, done in a thread beside the first steps of the doors.

        Raises what it raises; SettingsError for an address that is taken.
        """
        listen, loop = self._server.settings.listen, asyncio.get_running_loop()
        if any(getattr(listen, name) is not None for name in DOORS):
            from penstock.server.tls.keeping import Keeper

            self.tls = Keeper(self._server.settings.tls)
        if listen.amqp is not None:
            self._amqp = _bound(listen.amqp, "amqp", bind)
        if listen.amqps is not None:
            self._amqps = _bound(listen.amqps, "amqps", bind)
        future = loop.run_in_executor(pool, work)
        self._work = future  # type: ignore[assignment]  # of whatever it gives
        self._look(loop)
        await self._open_http()
        self._listen_flight()
        for name in _NEEDED_LATER:
            import_module(name)
        return await asyncio.shield(future)

    async def _open_http(self) -> None:
        listen = self._server.settings.listen
        if listen.http is None and listen.https is None:
            return
        from penstock.server.http.door import HttpDoor

        self.http = HttpDoor(self._server, __version__, self._server.entry, self._server.progress)
        if listen.http is not None:
            try:
                self.addresses["http"] = _text(await self.http.listen(*listen.http))
            except OSError as error:
                raise _taken(listen.http, "http", error) from error
        if listen.https is not None and self.tls is not None:
            try:
                self.addresses["https"] = _text(await self.http.listen_tls(*listen.https, self.tls))
            except OSError as error:
                raise _taken(listen.https, "https", error) from error

    def _listen_flight(self) -> None:
        listen = self._server.settings.listen
        if listen.flight is None and listen.flight_tls is None:
            return
        from penstock.server.flight.connections import Strangers
        from penstock.server.flight.entrance import Entrance

        terms = self._server.entry.guards.terms
        size = self._server.settings.before_login.flight_bytes
        strangers = Strangers(terms.time_s, size, terms.sockets, terms.per_address)
        self.entrance = Entrance(self._server.logins, self._server.progress.line, strangers, self._server.shares)
        if listen.flight is not None:
            self.addresses["flight"] = _text(_bound(listen.flight, "flight", self.entrance.listen))
        if listen.flight_tls is not None and self.tls is not None:
            with_tls = partial(self.entrance.listen_tls, identity=self.tls.identity)
            self.addresses["flight_tls"] = _text(_bound(listen.flight_tls, "flight_tls", with_tls))
            self.tls.renewed.append(partial(_renew, self.entrance))

    def open(self, amqp: AmqpDoor, flight: FlightDoor) -> None:
        if self._amqp:
            self.addresses["amqp"] = _text(amqp.open(self._amqp))
        self._amqp = []  # they are the door's
        if self._amqps and self.tls is not None:
            self.addresses["amqps"] = _text(amqp.open_tls(self._amqps, self.tls))
        self._amqps = []
        if self.entrance is not None:
            flight.open()

    def end(self) -> None:
        """The start is over, well or not: who looks on is told a last time."""
        if self._shown is not None:
            self._shown.cancel()
            self._shown = None
            self._show(self._server.progress)

    async def undo(self) -> None:
        """Close what is open, and wait until the thread has ended."""
        self._server.progress.stop()
        self.end()
        for sock in (*self._amqp, *self._amqps):
            sock.close()
        loop = asyncio.get_running_loop()
        if self.entrance is not None:
            await loop.run_in_executor(None, self.entrance.close)
        if self.http is not None:
            await self.http.close()
        if self._work is not None:
            await asyncio.wait([self._work])
            self._work.exception()  # it was told already, or it is only `Stopped`

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shown = loop.call_later(SHOW_S, self._look, loop)
        self._show(self._server.progress)


def _renew(entrance: Entrance, identity: Identity) -> None:
    threading.Thread(target=entrance.renew, args=(identity,), name="penstock-flight-renew", daemon=True).start()


def _bound(address: Address, name: str, listen: Callable[[str, int], T]) -> T:
    try:
        return listen(address.host, address.port)
    except OSError as error:
        raise _taken(address, name, error) from error


def _taken(address: Address, name: str, error: OSError) -> SettingsError:
    return SettingsError(f"listen.{name}: cannot bind {address}: {error.strerror}")


def _text(bound: tuple[str, int]) -> str:
    return f"{bound[0]}:{bound[1]}"
