"""The life of a broker in this process: from start to crash to restart, its time, its real ports.

It owns disk, clock and the instance between them, and hands commands to it; what the commands are stands beside it.
What is passed to them is looked at first: InvalidArgument names the argument and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, cast
from urllib.parse import quote

from penstock.errors import InvalidArgument, Unavailable
from penstock.expr import TopicPattern
from penstock.log.simdisk import SimDisk
from penstock.testing.fakes import FakeClock
from penstock.testing.instance import Instance
from penstock.testing.settings import Config, load
from penstock.units import to_micros
from penstock.wire.flight.bookmarks import parse_point

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.testing.doors import Doors


def check_text(**given: object) -> None:
    """Each is text, or None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"{name} is {value!r}, not text")


def check_texts(**given: object) -> None:
    """Each is text or several texts, or None."""
    for name, value in given.items():
        several = cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else [value]
        if value is not None and not all(isinstance(one, str) for one in several):
            raise InvalidArgument(f"{name} is {value!r}, not text or a list of texts")


def check_count(**given: object) -> None:
    """Each is a whole number from 0 on, or None."""
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(f"{name} is {value!r}, not a whole number")
        if value < 0:
            raise InvalidArgument(f"{name} is {value}, below 0")


def check_topic(name: str, value: object) -> str:
    """A queue, a topic or a pattern that can be used."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}, not text")
    try:
        TopicPattern(value)
    except ValueError as error:
        raise InvalidArgument(f"{name} is {value!r}: {error}") from None
    return value


def micros_of(name: str, value: object) -> int:
    """Microseconds of a number of seconds, or of a duration as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InvalidArgument(f"{name} is {value!r}, not a number of seconds")
    try:
        return to_micros(value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name}: {error}") from None


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
        ...


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

    def advance(self, seconds: float) -> None:
        """Let time pass.  Leases, delays, expirations and commits of the log come due one after another on the way."""
        micros = micros_of("seconds", seconds)
        if micros < 0:
            raise InvalidArgument(f"time does not go back by {-seconds} s")
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
            from penstock.testing.doors import Doors

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        point = parse_point(bookmark)
        if point.kind != "lsn" or point.origin != instance.log.origin:
            raise InvalidArgument(f"{bookmark!r} is no message of this broker")
        return point.lsn
