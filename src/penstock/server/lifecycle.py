"""A start and a stop, each in its order.

A start: sockets that listen at once, HTTP that tells how far it is, recovery in a thread, doors last.

    bind AMQP -> thread: check, fold, build queues  ........................ -> boot record on disk -> doors open
                 loop:   HTTP answers, Flight's entrance holds its callers,
                         whoever looks on is told

Connections are taken early and answered late: nobody sees a queue before the log has said what is in it, and a client
that came too early goes on by itself.  Modules that only the doors need are loaded while the thread works.
It opens and closes; what is recovered and what a door does is told by others.

A stop: who is told, what is still done, what is dropped, and the log last.

    doors     nobody new comes in; AMQP's clients get 320, Flight's calls Unavailable, deadlines are looked at no more
    bulk      large reads end; Flight's and HTTP's answers that are under way have some seconds
    actions   what was set off has two seconds
    pools     nothing is handed over any more; what runs ends, and its result is dropped
    upkeep    ends at its next step; the state as of now is written
    engine    its last turn: from now on nothing is decided, logged or told
    log       on the loop, for nothing else is left: committed, marked as cleanly stopped, closed

A step begins when the one before is over, so none hands work to what has ended.  What is dropped was promised to
nobody: whoever waited was told by the doors, and what the log has not confirmed is for its publisher to send again.
After a bug memory is not trusted: no last turn, no checkpoint, and a log that a start checks as after a kill.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeVar

from penstock.config.sections import DOORS, Address
from penstock.errors import SettingsError
from penstock.server.base.allowed import NO_DOOR, Machine
from penstock.server.sockets.listening import bind
from penstock.units import format_address
from penstock.version import __version__
from penstock.wire.amqp.frames import Limits

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.base.progress import Show
    from penstock.server.cluster.leading import Cluster
    from penstock.server.doors.doors import Doors
    from penstock.server.engine import Engine
    from penstock.server.flight.door import FlightDoor
    from penstock.server.flight.entrance import Entrance
    from penstock.server.http.door import HttpDoor
    from penstock.server.services import Server
    from penstock.server.sockets.tls import Identity, Keeper


SHOW_S = 0.1
_HTTP = "penstock.server.http.door"
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
        self._amqp = dict[str, list[socket.socket]]()  # where the door listens that is none yet, by name
        self._work: asyncio.Future[object] | None = None
        self._shown: asyncio.TimerHandle | None = None

    async def wait(self, cluster: Cluster) -> None:
        """Return when this server is to lead; until then HTTP alone is open, and Flight's port says who leads.

        With `follower_reads` it reads the copy of the log, too.
        """
        server = self._server
        if cluster.settings.follower_reads:
            self._begin_flight()
        self._begin_http()
        self._keep_tls()
        if self.tls is not None:  # it may follow for longer than a certificate lasts
            server.tls = self.tls
            self.tls.start(asyncio.get_running_loop(), server.pools.reading)
        await self._open_http()
        close = self._refuse(cluster) if self.entrance is None else await self._read_copy(self.entrance, cluster)
        try:
            await cluster.lead()
        finally:
            close()

    def _refuse(self, cluster: Cluster) -> Callable[[], None]:
        from penstock.server.cluster.flight_refusals import FlightRefusals

        server = self._server
        refusals = FlightRefusals(server.entry, cluster.refusal)
        refusals.open(server.settings, self.tls, server.say)
        return refusals.close

    async def _read_copy(self, entrance: Entrance, cluster: Cluster) -> Callable[[], None]:
        from penstock.server.flight.copy_door import copy_door

        door = copy_door(self._server, cluster)
        entrance.open(door)
        await self._listen_flight()

        def close() -> None:
            door.close()
            entrance.shut()

        return close

    async def recover(self, pool: Executor, work: Callable[[], T]) -> T:
        """The result of the work, done in a thread beside the first steps of the doors.

        Raises what it raises; SettingsError for an address that is taken.
        """
        listen, loop = self._server.settings.listen, asyncio.get_running_loop()
        following = self.entrance is not None
        if not following:
            self._begin_flight()
        self._begin_http()
        self._keep_tls()
        if not self._begin_amqp():
            for name, address, _ in self._at("amqp", "amqps"):
                self._amqp[name] = _bound(address, name, bind)
        future = loop.run_in_executor(pool, work)
        self._work = future  # type: ignore[assignment]  # of whatever it gives
        self._look(loop)
        if listen.http is not None or listen.https is not None:
            import_module(_HTTP)  # while the door's process loads what it needs
        await self._listen_amqp()
        if not following:
            await self._listen_flight()
        if self.http is None:
            await self._open_http()  # the last: who hears that it recovers finds all doors
        for name in _NEEDED_LATER:
            import_module(name)
        return await asyncio.shield(future)

    def _keep_tls(self) -> None:
        if self.tls is None and any(getattr(self._server.settings.listen, name) is not None for name in DOORS):
            from penstock.server.sockets.tls import Keeper

            self.tls = Keeper(self._server.settings.tls)
        self._look_at_others()

    def _look_at_others(self) -> None:
        """At the certificates that other servers are shown: a member may follow for longer than one lasts."""
        server, cluster = self._server, self._server.settings.cluster
        shown = (cluster is not None and cluster.tls is not None) or any(
            one.certificate for one in server.settings.link
        )
        if shown and server.ends is None:
            from penstock.server.sockets.certificates import Ends  # for those who have one

            server.ends = Ends(server.settings)
            server.ends.start(asyncio.get_running_loop(), server.pools.reading)

    def _at(self, *names: str) -> Iterator[tuple[str, Address, Keeper | None]]:
        """Where a door listens: without TLS and with, by these names of settings; with the keeper where it has TLS."""
        for name, keeper in zip(names, (None, self.tls), strict=True):
            if (address := getattr(self._server.settings.listen, name)) is not None:
                assert (name in DOORS) is (keeper is not None)
                yield name, address, keeper

    async def _open_http(self) -> None:
        listen = self._server.settings.listen
        if listen.http is None and listen.https is None:
            return
        from penstock.server.http.door import HttpDoor

        server = self._server
        self.http = HttpDoor(server, __version__, server.entry, server.progress, doors=server.http_doors)
        for name, address, keeper in self._at("http", "https"):
            try:
                self._listens(name, await self.http.listen(*address, keeper), self.http)
            except OSError as error:
                raise _taken(address, name, error) from error

    def _listens(self, name: str, bound: tuple[str, int], door: Entrance | Doors | HttpDoor) -> None:
        self.addresses[name] = format_address(*bound)
        if name in DOORS and self.tls is not None:
            self.tls.renewed.append(partial(_renew, door))

    def _begin_http(self) -> None:
        """Start the door's process, unless the server's own reads what HTTP's clients send."""
        server, settings = self._server, self._server.settings
        listen = settings.listen
        if server.http_doors is None and settings.server.doors != 0 and (listen.http or listen.https):
            from penstock.server.http.doorway import HttpDoors
            from penstock.server.http.reception import open_paths

            terms, most = server.entry.guards.terms, settings.before_login.bytes
            server.http_doors = HttpDoors(
                terms, most, asyncio.get_running_loop(), first=server.http_process,
                open_paths=open_paths(metrics=settings.server.open_metrics), trusted=settings.server.trusted_proxies,
            )  # fmt: skip
            server.http_doors.start()

    def _begin_amqp(self) -> bool:
        """Start the doors' processes, if AMQP has some."""
        server, settings = self._server, self._server.settings
        listen, count = settings.listen, doors_of(settings.server.doors)
        if not count or (listen.amqp is None and listen.amqps is None):
            return False
        from penstock.server.amqp.doors import AmqpDoors

        external = settings.tls.cert_login_from is not None
        server.doors = AmqpDoors(
            count, asyncio.get_running_loop(), amqp_limits(settings), server.entry.guards.terms,
            memory=settings.server.memory, external=external,
        )  # fmt: skip
        server.doors.start()
        return True

    async def _listen_amqp(self) -> None:
        if (doors := self._server.doors) is not None:
            await self._listen_apart(doors, "amqp", "amqps")

    async def _listen_apart(self, door: Entrance | Doors, *names: str) -> None:
        """Have what is a process, or several, listen at its addresses."""
        loop = asyncio.get_running_loop()
        for name, address, keeper in self._at(*names):
            listen = partial(door.listen, identity=None if keeper is None else keeper.identity)
            self._listens(name, await loop.run_in_executor(None, _bound, address, name, listen), door)

    def _begin_flight(self) -> None:
        """Start the door's process: it loads what it needs while the log is checked."""
        listen, server = self._server.settings.listen, self._server
        if listen.flight is None and listen.flight_tls is None:
            return
        from penstock.server.flight.connections import Strangers
        from penstock.server.flight.entrance import Entrance
        from penstock.wire.flight.received import Bounds

        terms, memory = server.entry.guards.terms, server.settings.server.memory
        size = server.settings.before_login.flight_bytes
        strangers = Strangers(terms.time_s, size, terms.sockets, terms.per_address)
        self.entrance = Entrance(
            server.logins, server.progress.line, strangers, server.shares,
            bounds=Bounds.within(memory), memory=memory, apart=True, first=server.flight_process,
        )  # fmt: skip
        self.entrance.process.start()

    async def _listen_flight(self) -> None:
        if (entrance := self.entrance) is not None:
            await self._listen_apart(entrance, "flight", "flight_tls")

    def open(self, amqp: AmqpDoor, flight: FlightDoor) -> None:
        if self._server.doors is not None:
            self._server.doors.open(amqp)
        for name in list(self._amqp):
            sockets = self._amqp.pop(name)  # they are the door's
            self.addresses[name] = format_address(*amqp.open(sockets, self.tls if name in DOORS else None))
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
        for watch in (self.tls, self._server.ends):
            if watch is not None:
                watch.stop()
        for sock in chain(*self._amqp.values()):
            sock.close()
        loop = asyncio.get_running_loop()
        if self._server.doors is not None:
            await loop.run_in_executor(None, self._server.doors.close)
        if self.entrance is not None:
            await loop.run_in_executor(None, self.entrance.close)
        if self.http is not None:
            await self.http.close()
        elif self._server.http_doors is not None:
            await loop.run_in_executor(None, self._server.http_doors.close)
        if self._work is not None:
            await asyncio.wait([self._work])
            self._work.exception()  # it was told already, or it is only `Stopped`

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shown = loop.call_later(SHOW_S, self._look, loop)
        self._show(self._server.progress)


def _renew(door: Entrance | Doors | HttpDoor, identity: Identity) -> None:
    threading.Thread(target=door.renew, args=(identity,), name="penstock-renew", daemon=True).start()


DOORS_MOST = 4
"""Processes of AMQP doors that `auto` asks for: as many fill one core with what they bring."""


def doors_of(wanted: Literal["auto"] | int) -> int:
    """How many processes take AMQP clients."""
    if wanted != "auto":
        return wanted
    cores = Machine().cores() if sys.platform == "linux" else 1  # doors need what Linux has
    return 0 if cores <= 2 else min(DOORS_MOST, cores - 1)


def amqp_limits(settings: Settings) -> Limits:
    """What the AMQP door allows."""
    return Limits(
        frame_max=settings.amqp.frame_max,
        channel_max=settings.amqp.channel_max,
        heartbeat=settings.amqp.heartbeat // 1_000_000,
        max_message_size=settings.amqp.message_max,
        handshake_bytes=settings.before_login.bytes,
    )


def _bound(address: Address, name: str, listen: Callable[[str, int], T]) -> T:
    try:
        return listen(address.host, address.port)
    except OSError as error:
        raise _taken(address, name, error) from error


def _taken(address: Address, name: str, error: OSError) -> SettingsError:
    binding = "" if error.errno == NO_DOOR else f"cannot bind {address}: "
    return SettingsError(f"listen.{name}: {binding}{error.strerror}")


PATIENCE_S = 2.0
LOOK_S = 0.01
"""How often it looks: once in the life of a server, so no action tells of its end for this alone."""

REASON = "the server stops"


class Stopping:
    """The stop of one server.  For the loop's thread."""

    def __init__(self, server: Server, http: HttpDoor | None, end_timers: Callable[[], None]) -> None:
        self._server, self._http, self._end_timers = server, http, end_timers

    async def run(self) -> None:
        """All of it; what was taken and confirmed is durable when this returns."""
        self.close_doors()
        await self.end_calls()
        await end_actions(self._server.engine)
        await self.end_work()
        self.close_log()

    def close_doors(self) -> None:
        """Nobody new; everybody is told; nothing happens by time any more."""
        server = self._server
        server.serving = False
        server.amqp.stop_listening()
        server.amqp.close_all(REASON)
        server.flight.stop()
        if server.links is not None:
            server.links.stop()
        server.keeper.stop()
        for watch in (server.tls, server.ends):
            if watch is not None:
                watch.stop()
        if server.engine.archive is not None:
            server.engine.archive.stop()
        self._end_timers()
        server.pager.end()

    async def end_calls(self) -> None:
        """The bulk child, then who waits for it or for anything else."""
        server, loop = self._server, self._server.loop
        if server.doors is not None:
            await loop.run_in_executor(None, server.doors.close)
        server.engine.ask_of(None)  # what it was asked for is done in our threads, or not at all
        await loop.run_in_executor(None, server.bulk.close)
        await loop.run_in_executor(None, server.flight.close)
        server.flight.shut()
        if server.links is not None:
            await loop.run_in_executor(None, server.links.join, PATIENCE_S)
        if self._http is not None:
            await self._http.close()
        server.logins.close()

    async def end_work(self) -> None:
        """Threads and upkeep, then the last checkpoint; nothing reads the log when this returns."""
        server, pools = self._server, self._server.pools
        pools.close()
        await pools.end(pools.scanning, pools.judging, pools.replaying, pools.acting, pools.querying)
        if server.engine.archive is not None:
            await server.engine.archive.rest()
        if server.failure is None:
            server.engine.finish_turn()
            await server.keeper.last_checkpoint()
        else:
            await server.keeper.give_up()
        await pools.end(pools.reading)

    def close_log(self) -> None:
        """Nobody but this touches it now."""
        clean = self._server.failure is None
        self._server.engine.end(last_turn=clean)
        self._server.log.close(clean=clean)


async def end_actions(engine: Engine) -> None:
    """Wait until nothing is under way, two seconds at most; then no program runs any more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while not engine.acts.idle and engine.broken is None and loop.time() < until:  # noqa: ASYNC110 - it is bounded
        await asyncio.sleep(LOOK_S)
    engine.acts.steps.programs.stop()
