"""The life of a broker in this process: from start to crash to restart, its time, and real ports for real clients.

Ports are the server's own doors over the broker's engine, on an event loop in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, cast
from urllib.parse import quote

from penstock.client.arguments import arguments_checked
from penstock.errors import InvalidArgument, PenstockError, Unavailable, told_as
from penstock.log.simdisk import SimDisk
from penstock.server.alarms import Alarms
from penstock.server.amqp.door import Admission, AmqpDoor
from penstock.server.amqp.links import AmqpLink
from penstock.server.base.rounds import Pulse
from penstock.server.bulk.process import Bulk
from penstock.server.counters import Counters
from penstock.server.people.accounts import accounts_of
from penstock.server.people.logins import Logins
from penstock.server.people.users import Users
from penstock.server.services import Pools
from penstock.server.sockets.listening import patient
from penstock.server.upkeep.keeper import Pace
from penstock.testing.instance import FakeClock, Instance
from penstock.testing.link import Link
from penstock.testing.process import Config, load
from penstock.units import Duration, span
from penstock.version import __version__
from penstock.wire.amqp.frames import Limits
from penstock.wire.flight.bookmarks import parse_mark

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.ports import Disk
    from penstock.server.flight.door import FlightDoor
    from penstock.server.http.door import HttpDoor
    from penstock.server.services import Server


T = TypeVar("T")

VHOST = "/"


class Open(Protocol):
    """A subscription of some kind."""

    @property
    def is_open(self) -> bool:
        """Whether it may get more."""
        ...

    name: str  # of its client

    def end(self, *, lost: bool) -> None:
        """Close, or break off with the connection."""


@arguments_checked
class Running:
    """What every part of a broker stands on."""

    def __init__(
        self, config: Config = None, *, seed: int = 0, disk: SimDisk | None = None, clock: FakeClock | None = None
    ) -> None:
        """A broker that runs.

        config        the structure of the settings file, as a mapping, TOML text or a path
        seed          of what a crash loses
        disk, clock   to start from; if not given an empty one, and one that begins with the present second
        Raises SettingsError for settings that cannot be used, and what recovery raises for a damaged disk.
        """
        self.clock = FakeClock() if clock is None else clock
        self.disk = SimDisk(seed=seed) if disk is None else disk
        self.instance: Instance | None = None  # None: crashed, or closed
        self._settings: Settings = load(config)
        self._doors: Doors | None = None
        self._ports = dict[str, int]()  # doors to open again after a restart
        self._subscriptions: list[Open] = []
        self.seen: dict[tuple[str, str], str] = {}
        self._names = (f"client-{n}" for n in count(1))
        self._start()

    # -- time

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.clock.wall() / 1e6

    def advance(self, seconds: Duration) -> None:
        """Let time pass.  Leases, delays, expirations and commits of the log come due one after another on the way."""
        micros = span(seconds, "seconds")
        if self.instance is None:
            self.clock.advance(micros)
        else:
            self.command(lambda instance: instance.advance(micros))

    # -- ports

    @property
    def amqp_url(self) -> str:
        """A real AMQP port, opened by asking; it is the same one after a restart."""
        return f"amqp://{self._login()}@127.0.0.1:{self._open('amqp')}/%2F"

    @property
    def flight_url(self) -> str:
        """A real Flight port as a URL for `penstock.connect`, opened by asking."""
        return f"penstock://{self._login()}@127.0.0.1:{self._open('flight')}"

    @property
    def http_url(self) -> str:
        """A real HTTP port as a URL, opened by asking."""
        return f"http://127.0.0.1:{self._open('http')}"

    def _login(self) -> str:
        users = self._settings.users
        user = next((user for user in users if user.password is not None), users[0])
        secret = user.password.get_secret_value() if user.password is not None else ""
        return f"{quote(user.name, safe='')}:{quote(secret, safe='')}"

    def _open(self, name: str) -> int:
        instance = self._running()
        if self._doors is None:
            from penstock.testing.broker_life import Doors

            self._doors = Doors(instance, self.disk)
        port = self._doors.open(name, self._ports.get(name, 0))
        self._ports[name] = port
        return port

    # -- life

    def crash(self) -> None:
        """A power cut: connections break, what was gathered is lost, of unsynced writes any part may be."""
        instance = self._running()
        doors, self._doors, self.instance = self._doors, None, None
        if doors is not None:
            doors.crash()
        instance.crash()
        self._subscriptions.clear()
        self.disk.crash()

    def restart(self, config: Config = None) -> None:
        """Recover after a crash, or stop cleanly and start again.  config: new settings instead of the present ones."""
        settings = self._settings if config is None else load(config)
        if self.instance is not None:
            self._stop()
        self._settings = settings
        self.clock.reboot()
        self._start()

    def close(self) -> None:
        """Stop cleanly.  Twice does no harm."""
        if self.instance is not None:
            self._stop()

    def _start(self) -> None:
        self.instance = Instance(self.disk, self.clock, self._settings)
        self.link = Link(self.instance)
        for name in self._ports:
            self._open(name)

    def _stop(self) -> None:
        instance = self._running()
        doors, self._doors = self._doors, None
        try:
            if doors is not None:
                doors.close()
        finally:
            self.instance = None
            self._subscriptions.clear()
            instance.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the parts of the broker

    def command(self, work: Callable[[Instance], T]) -> T:
        """The result of a command, when its turns have come to their end.  Raises Unavailable after a crash."""
        instance = self._running()

        def job() -> T:
            return work(instance)

        return instance.run(job) if self._doors is None else self._doors.run(job)

    def aside(self, work: Callable[[], T]) -> T:
        """The same for what a client can do without a server."""
        return work() if self.instance is None else self.command(lambda _: work())

    def _running(self) -> Instance:
        if self.instance is None:
            raise Unavailable("the broker does not run: restart() it")
        return self.instance

    @staticmethod
    def _lsn(instance: Instance, bookmark: str) -> int:
        point = parse_mark(bookmark)
        if point.origin != instance.log.origin:
            raise InvalidArgument(f"{bookmark!r} is no message of this broker")
        return point.lsn


HOST = "127.0.0.1"

WAIT_S = 30.0
"""A loop that has not answered by then hangs."""

GOODBYE_S = 1.0
"""Clients that have not read what was sent to them by then are cut off."""


class Doors:
    """The doors of one instance.  All methods belong to the test's threads."""

    def __init__(self, instance: Instance, disk: Disk) -> None:
        settings = instance.settings
        self.accounts = accounts_of(settings)
        self.accounts.load(disk)
        users = Users(
            settings.users, settings.entitlement, settings.server.name, self.accounts, settings.permission,
            settings.topic_permission, settings.server.loopback_users,
        )  # fmt: skip
        self.users = users  # what raises comes before there is a loop
        self.instance = instance
        self.pulse = Pulse()
        self.loop = self.pulse.new_loop()
        self.entry = patient(self.loop)
        complain, guesses = self.entry.guards.complaints.tell, settings.before_login.wrong_logins
        self.logins = Logins(users, complain, loop=self.loop, guesses=guesses, delay_s=0.0)
        self.ports = dict[str, int]()  # of the open doors, by name
        # what HTTP and Flight show, under the names it has on a server
        self.settings = settings
        self.engine = instance.engine
        self.logins.on_refused = self.engine.event_exchange.refused
        self.shares = instance.engine.shares
        self.pools = Pools()
        self.log = instance.log
        self.cluster = None
        self.links = None  # a broker is the only site
        self.scratch = instance.scratch
        self.bulk = Bulk(".")  # never asked for anything: a log in memory is read here
        self.counters = Counters()
        self.pace = Pace(self.engine, self.loop.call_later)  # never behind: nothing tends a log in memory
        self.alarms = Alarms(self.engine, lambda: 0)
        self.serving = True
        self.doors = self.http_doors = None  # clients come to this process
        self.tls = self.ends = None  # a broker shows no certificate
        self.recovered_records = instance.recovered_records
        self.recovered_seconds = instance.recovered_seconds
        self.failure: BaseException | None = None  # a bug that the loop met
        self._disk = disk
        self._flight: FlightDoor | None = None
        self._http: HttpDoor | None = None
        self._closed = False
        self.loop.set_exception_handler(self._failed)
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock-broker", daemon=True)
        self._thread.start()
        self.amqp: AmqpDoor = self.run(self._begin)

    def _begin(self) -> AmqpDoor:
        self.instance.loop_soon = self.loop.call_soon
        self.instance.loop_end = self.pulse.at_round_end(self.loop)
        amqp = self.settings.amqp
        limits = Limits(
            frame_max=amqp.frame_max, channel_max=amqp.channel_max, heartbeat=0, max_message_size=amqp.message_max
        )
        self.accounts.keep_named()
        self.accounts.bound(self.engine.core)
        vhosts, admission = self.accounts.vhosts, Admission(self.users)
        return AmqpDoor(
            self.engine, self.logins, vhosts, self.counters, limits, self.users.rights, admission,
            entry=self.entry,
        )  # fmt: skip

    # -- handing over

    def run(self, work: Callable[[], T]) -> T:
        """The result of a command on the loop, once its turns have come to their end."""
        if self.failure is not None:
            raise PenstockError(f"the broker met a bug of its own: {self.failure!r}") from self.failure
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(self.instance.run(work))
            except BaseException as error:  # noqa: BLE001 - it goes to whoever asked
                future.set_exception(error)

        self.loop.call_soon_threadsafe(job)
        return future.result(WAIT_S)

    def _await(self, coroutine: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            self.failure = self.failure or error
        loop.default_exception_handler(context)

    # -- opening

    @property
    def addresses(self) -> dict[str, str]:
        """Of the open doors, by name."""
        return {name: f"{HOST}:{port}" for name, port in self.ports.items()}

    def open(self, name: str, port: int = 0) -> int:
        """The port of a door (amqp, flight, http), which is opened if it was not; 0: any free one."""
        if name not in self.ports:
            listen = {"amqp": self._open_amqp, "flight": self._open_flight, "http": self._open_http}[name]
            with told_as(Unavailable, f"the {name} door cannot open on port {port}: ", instead=OSError):
                self.ports[name] = listen(port)
        return self.ports[name]

    def _open_amqp(self, port: int) -> int:
        return self._await(self._on_loop(lambda: self.amqp.listen(HOST, port)))[1]

    def _open_flight(self, port: int) -> int:
        from penstock.server.app import flight_limits
        from penstock.server.flight.door import FlightDoor
        from penstock.server.flight.operation_actions import administration

        vhosts, limits = self.accounts.vhosts, flight_limits(self.settings)
        wake = self.loop.call_soon_threadsafe
        door = self.run(lambda: FlightDoor(self.engine, self.logins, vhosts, self._disk, wake=wake, limits=limits))
        door.actions.table |= administration(cast("Server", self), door.handover)
        self._flight = door
        return door.listen(HOST, port)[1]

    @property
    def flight(self) -> FlightDoor:
        """The Flight door; Unavailable before it is open."""
        if self._flight is None:
            raise Unavailable("the flight door is not open")
        return self._flight

    def _open_http(self, port: int) -> int:
        from penstock.server.http.door import HttpDoor

        self.open("flight")  # it runs what HTTP is asked in SQL

        # it reads the attributes above, no more; what a test has just done is in the metrics
        door = self._http = HttpDoor(cast("Server", self), __version__, self.entry, kept_s=0.0)
        return self._await(door.listen(HOST, port))[1]

    # -- closing

    def close(self) -> None:
        """Say goodbye to the clients, and stop the loop; commands run in the caller's thread again."""
        self.run(self._goodbye)
        self._end(self._drained())

    def crash(self) -> None:
        """Cut every connection without a word, and stop the loop."""
        self.serving = False
        self.engine.on_turn = None
        self.engine.broken = "the process is gone"
        self.failure = None
        self._end(self._cut())

    def _goodbye(self) -> None:
        self.serving = False
        self.amqp.stop_listening()
        self.amqp.close_all("the broker stops")
        if self._flight is not None:
            self._flight.stop()

    async def _drained(self) -> None:
        """Let what is buffered go out, then close; whoever does not read is cut off."""
        for session in list(self.amqp.sessions):
            session.link.close()
        deadline = self.loop.time() + GOODBYE_S
        while self.amqp.sessions and self.loop.time() < deadline:  # noqa: ASYNC110 - the door has no event for it
            await asyncio.sleep(0.001)
        await self._cut()

    async def _cut(self) -> None:
        self.amqp.stop_listening()
        for session in list(self.amqp.sessions):
            if isinstance(session.link, AmqpLink):
                session.link.transport.abort()
        while self.amqp.sessions:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0)

    def _end(self, farewell: Coroutine[object, object, None]) -> None:
        if self._closed:
            farewell.close()
            return
        self._closed = True
        self._await(farewell)
        if self._flight is not None:
            self._await(self._on_loop(self._flight.stop))
            self._flight.close()
            self._await(self._on_loop(self._flight.shut))
        if self._http is not None:
            self._await(self._http.close())
        self.pools.abandon()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()
        self.instance.loop_soon = self.instance.loop_end = None
        if self.failure is not None:
            raise PenstockError(f"the broker met a bug of its own: {self.failure!r}") from self.failure

    @staticmethod
    async def _on_loop(work: Callable[[], T]) -> T:
        return work()
