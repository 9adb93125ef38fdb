"""The broker of a test: one server in this process, whose disk can crash and whose time moves when told.

It owns names, units and the life from start to crash to restart.  Every rule is the server's own: see `instance` for
how turns run, `doors` for real ports, `story` for what the log tells.

Seconds, on the outside, are floats since the Unix epoch or lengths; LSNs are bookmarks, `<origin>|<lsn>|`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from penstock.config.arguments import queue_settings_from_mapping
from penstock.core.effects import Verb
from penstock.errors import DiskFull, InvalidArgument, LogBroken, NotFound, PenstockError, Unavailable
from penstock.expr import compile_filter
from penstock.log import SimDisk
from penstock.records import properties as header_codec
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.tables import FieldValue
from penstock.testing.clock import FakeClock
from penstock.testing.instance import Instance
from penstock.testing.settings import Config, load
from penstock.testing.story import Event, tell
from penstock.testing.subscription import Subscription
from penstock.units import to_micros
from penstock.wire.flight.bookmarks import format_bookmark, parse_point

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.core.queue.view import Queue
    from penstock.testing.doors import Doors
    from penstock.testing.message import Message

T = TypeVar("T")

VHOST = "/"

NO_END = 253_370_764_800_000_000
"""When a message that must never expire expires: the year 9999, in microseconds."""

_VERBS = {None: Verb.ACK, "ack": Verb.ACK, "cancel": Verb.CANCEL, "expire": Verb.EXPIRE}


class Broker:
    """A running broker; `with` closes it.  Safe to use from one thread at a time."""

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
        self._seed = seed
        self._doors: Doors | None = None
        self._ports = dict[str, int]()  # doors to open again after a restart
        self._subscriptions = list[Subscription]()
        self._names = (f"client-{n}" for n in count(1))
        self._start()

    # -- publishing

    def publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: float | None = None,
        delay: float | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Store a message, durably; its bookmark, or empty text when nothing was stored.

        topic        `K`, or `E/K` where an exchange E exists
        expiration   seconds from now after which it ends undelivered; 0: never, whatever the queue's own says
        delay        seconds from now before which it is not delivered
        publisher, sequence    a number at or below the publisher's highest is a duplicate, and not stored
        Nothing is stored either when no queue and no declared topic wants the message.
        Raises Refused with a code and a reason, LogBroken when the outcome is unknown.
        """
        data = body.encode() if isinstance(body, str) else body
        life = _micros("expiration", expiration)
        wait = _micros("delay", delay)
        header = header_codec.encode(
            header_codec.Properties(
                headers=dict(headers) if headers else None,
                delivery_mode=header_codec.PERSISTENT,
                priority=priority,
                expiration=str(life // 1000) if life else None,
            )
        )

        def work(instance: Instance) -> str:
            core, engine = instance.core, instance.engine
            if engine.broken is not None:
                raise LogBroken(engine.broken)
            if instance.log.full:
                raise DiskFull("the log has no room")
            now = engine.now()
            batch = Publishes(self._topic(instance, topic), header, [data], size=len(header) + len(data))
            if life is not None:
                batch.expires_at = [now.wall + life if life else NO_END]
            if wait:
                batch.not_before = [now.wall + wait]
            published = core.publish(now, batch, publisher=publisher, sequence=sequence)
            for _, refusal in published.refused:
                raise refusal
            instance.make_durable()
            return format_bookmark(instance.log.origin, published.first) if published.stored else ""

        return self.command(work)

    # -- subscribing

    def subscribe(
        self, queue: str, filter: str | None = None, max_backlog: int | None = 1, name: str | None = None
    ) -> Subscription:
        """A new subscription, served at once.

        max_backlog   outstanding at once; None: no limit of its own; 0: it gets nothing
        name          of the client, as the log and `disconnect` know it; `client-1`, `client-2` ... if not given
        Raises NotFound, AccessRefused, or ExpressionError for the filter.
        """
        if max_backlog is not None and max_backlog < 0:
            raise InvalidArgument(f"max_backlog is {max_backlog}, below 0")
        compiled = None if filter is None else compile_filter(filter)
        client = next(self._names) if name is None else name

        def work(instance: Instance) -> Subscription:
            subscription = Subscription(self, instance, queue, client)
            core, now = instance.core, instance.engine.now()
            subscription.consumer = core.subscribe(
                now,
                core.queue(VHOST, queue),
                tag=client,
                holder=subscription,
                client=client,
                filter=compiled,
                max_backlog=max_backlog,
            )
            self._subscriptions.append(subscription)
            return subscription

        return self.command(work)

    def disconnect(self, name: str) -> int:
        """End all subscriptions of a client as a lost connection does; how many there were."""

        def work(instance: Instance) -> int:
            mine = [one for one in self._subscriptions if one.name == name and one.is_open]
            for subscription in mine:
                subscription.end(lost=True)
            return len(mine)

        return self.command(work)

    # -- settling

    def ack(self, queue: str, bookmarks: Sequence[str] | str, by: str = "", option: str | None = None) -> int:
        """Settle messages wherever they are, as the queue's `leasing` allows to the client `by`; how many it affected.

        bookmarks   a sequence, or text with commas between them
        option      "cancel" or "expire" instead of an ack
        Durable when this returns.
        """
        if option not in _VERBS:
            raise InvalidArgument(f"option is {option!r}: there is 'cancel' and 'expire'")
        verb = _VERBS[option]
        texts = bookmarks.split(",") if isinstance(bookmarks, str) else bookmarks

        def work(instance: Instance) -> int:
            core, now = instance.core, instance.engine.now()
            found = core.queue(VHOST, queue)
            wanted = sorted({self._lsn(instance, text) for text in texts})
            affected = 0
            for subscription in self._subscriptions:
                consumer = subscription.consumer
                if by and subscription.name == by and subscription.is_open and consumer is not None:
                    held = [lsn for lsn in wanted if consumer.queue is found and subscription.holds(lsn)]
                    wanted = [lsn for lsn in wanted if lsn not in held]
                    if held:
                        affected += core.settle(now, found, [as_chunk(held)], verb, by=consumer)
            if wanted:
                affected += core.settle(now, found, [as_chunk(wanted)], verb, client=by)
            instance.make_durable()
            return affected

        return self.command(work)

    def settle_one(self, subscription: Subscription, message: Message, verb: Verb) -> bool:
        """End one delivery: for `Message.ack` and its like."""

        def work(instance: Instance) -> bool:
            core, now = instance.core, instance.engine.now()
            consumer = subscription.consumer
            chunk: Chunk = range(message.lsn, message.lsn + 1)
            if consumer is not None and subscription.is_newest(message):
                affected = core.settle(now, consumer.queue, [chunk], verb, by=consumer)
            elif verb is Verb.CANCEL:
                affected = 0  # a former holder has nothing to give back
            else:
                queue = _find(instance, message.queue)
                if queue is None:
                    return False
                client = "" if queue.settings.leasing == "strict" else subscription.name
                affected = core.settle(now, queue, [chunk], verb, client=client)
            instance.make_durable()
            return affected > 0

        return self.command(work)

    # -- time

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.clock.wall() / 1e6

    def advance(self, seconds: float) -> None:
        """Let time pass.  Leases, delays, expirations and commits of the log come due one after another on the way."""
        micros = to_micros(seconds)
        if micros < 0:
            raise InvalidArgument(f"time does not go back by {-seconds} s")
        if self.instance is None:
            self.clock.advance(micros)
        else:
            self.command(lambda instance: instance.advance(micros))

    # -- administration

    def alter(self, queue: str, **settings: object) -> None:
        """Change settings of a queue: durations as text, seconds or timedelta; None for a key's default."""

        def work(instance: Instance) -> None:
            core = instance.core
            found = core.queue(VHOST, queue)
            core.alter_queue(instance.engine.now(), found, queue_settings_from_mapping(settings, queue, found.settings))
            instance.make_durable()

        self.command(work)

    def stats(self, queue: str) -> dict[str, object]:
        """Figures of a queue: ready, leased, delayed, consumers ...; counts are since the last start."""
        return self.command(lambda instance: instance.core.stats(instance.core.queue(VHOST, queue)))

    def story(self, bookmark: str) -> list[Event]:
        """Every event of one message in the log, oldest first; NotFound when the log has no such message."""

        def work(instance: Instance) -> list[Event]:
            return tell(instance.log, self._lsn(instance, bookmark))

        return self.command(work)

    # -- ports

    @property
    def amqp_url(self) -> str:
        """A real AMQP port, opened by asking; it is the same one after a restart."""
        return f"amqp://{self._login()}@127.0.0.1:{self._open('amqp')}/%2F"

    @property
    def flight_url(self) -> str:
        """The same for `penstock.connect`."""
        return f"penstock://{self._login()}@127.0.0.1:{self._open('flight')}"

    @property
    def http_url(self) -> str:
        """The same for HTTP."""
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
        self.instance = Instance(self.disk, self.clock, self._settings, seed=self._seed)
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
    def _topic(instance: Instance, text: str) -> Topic:
        exchange, slash, key = text.partition("/")
        if slash and exchange:
            try:
                return instance.core.topic(VHOST, exchange, key)
            except NotFound:
                pass  # a key of the default exchange may hold a slash
        return instance.core.topic(VHOST, "", text)

    @staticmethod
    def _lsn(instance: Instance, bookmark: str) -> int:
        point = parse_point(bookmark)
        if point.kind != "lsn" or point.origin != instance.log.origin:
            raise InvalidArgument(f"{bookmark!r} is no message of this broker")
        return point.lsn


def _find(instance: Instance, name: str) -> Queue | None:
    try:
        return instance.core.queue(VHOST, name)
    except PenstockError:
        return None  # deleted, or another connection's own by now


def _micros(what: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    micros = to_micros(seconds)
    if micros < 0:
        raise InvalidArgument(f"{what} is {seconds} s, below 0")
    return micros
