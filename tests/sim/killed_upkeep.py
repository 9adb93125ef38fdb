"""What goes on beside the commands of a walk: upkeep of the log, a disk that fails, and connections over AMQP."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from typing import Any
from unittest import mock

from penstock.config.settings import GUEST, LogSection, Retention
from penstock.core.commands import life
from penstock.log.rewrite_plan import Aims
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings
from penstock.server.amqp.door import AmqpDoor
from penstock.server.counters import Counters
from penstock.server.people.logins import Logins
from penstock.server.people.users import Users
from penstock.server.upkeep.keeper import Keeper
from penstock.testing import Broker
from penstock.testing.instance import Instance
from penstock.wire.amqp import methods as m
from sim.killed_seen import stored
from sim.serverkit import Client, Content, message

QUEUES = ("q0", "q1", "q2", "q3", "dead")
FLEETING = "n0"
"""A queue that no start keeps."""
TRANSIENT = encode(Properties(delivery_mode=1))

SEGMENT = 6_000
"""Bytes of a segment, so that a life has several."""


class Here(Executor):
    """Does what it is given at once."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(work(*given, **named))
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            future.set_exception(error)
        return future


class KeeperHere(Keeper):
    """One that has the instance commit where a server's loop would do it meanwhile."""

    instance: Instance

    async def _synced(self, lsn: int) -> None:
        self.instance.make_durable()


class Sessions:
    """The AMQP door of an instance, as `Client` knows a server."""

    beside = None

    def __init__(self, instance: Instance) -> None:
        self.instance, self.jobs = instance, instance._jobs
        users = Users([GUEST.model_copy(update={"loopback_only": False})])
        self.door = AmqpDoor(instance.engine, Logins(users), frozenset("/"), Counters(), None)
        self.clients = list[Client]()

    def turn(self) -> None:
        """What the loop would run now."""
        self.instance.run(lambda: None)

    def client(self, prefetch: int) -> Client:
        """A connection with channel 1 open."""
        client = Client(self)  # type: ignore[arg-type]
        client.channel(prefetch=prefetch)
        self.clients.append(client)
        return client


class Upkeep:
    """The part of a walk that is no command of a client of Flight."""

    dice: random.Random
    broker: Broker
    sessions: Sessions | None
    capturing: Iterator[None] | None
    kept_from: int  # the log has let go of nothing above
    tended: int
    kept: KeeperHere | None

    @property
    def instance(self) -> Any:
        raise NotImplementedError

    def queue(self) -> str:
        raise NotImplementedError

    def body(self) -> str:
        raise NotImplementedError

    # -- the log

    def kept_up(self, work: Callable[[KeeperHere], Coroutine[Any, Any, None]]) -> None:
        """Upkeep of the log to its end, with all that retention may take."""
        self.instance.make_durable()
        self.instance.log.roll()
        self.kept_from = self.instance.log.durable
        keeper = self.keeper()
        keeper._loop.run_until_complete(work(keeper))

    def keeper(self) -> KeeperHere:
        """That of this life."""
        if self.kept is None:
            section = LogSection(segment="64KiB", retention=Retention(age="0s"))
            self.kept = kept = KeeperHere(self.instance.engine, Here(), section, asyncio.new_event_loop())
            kept.instance = self.instance
            kept.compaction._aims = Aims(
                segment=SEGMENT, sparse=0.9, rows=8, batches=2, many=2, cold=1, compress=self.dice.random() < 0.5
            )
            kept.compaction._rest.set()  # nobody is to have the interpreter meanwhile
            kept.retirement._rest.set()
        return self.kept

    def base(self) -> None:
        """What retirement writes."""
        self.instance.make_durable()
        retirement, floor = self.keeper().retirement, self.instance.log.durable + 1
        retirement.write_base(floor, retirement.state_below(floor))
        self.instance.make_durable()

    def unkept(self) -> None:
        """The life is over."""
        if self.kept is not None:
            self.tended += self.kept.compaction.totals.rewritten
            self.kept._loop.close()
            self.kept = None

    def retire(self) -> None:
        """Segments go that nobody needs, behind a base."""
        first = self.instance.log.first_lsn
        self.kept_up(lambda keeper: keeper._retire())
        self.tended += self.instance.log.first_lsn > first

    def compact(self) -> None:
        """Segments are rewritten without what nobody needs, or joined."""
        self.kept_up(lambda keeper: keeper._rewrite(3))

    def capture(self) -> None:
        """A step of a checkpoint: it is taken queue by queue, and written later."""
        if self.capturing is None:
            self.capturing = self.checkpoints()
        with mock.patch.object(life, "CAPTURE_MOST", 70):  # two queues or three
            if next(self.capturing, self) is self:
                self.capturing = None

    def checkpoints(self) -> Iterator[None]:
        """As a keeper makes one, with others' turns wherever these may be."""
        core, log = self.instance.core, self.instance.log
        self.instance.engine.finish_turn()
        snapshot = core.snapshot()
        for _ in core.capture(snapshot):
            yield
        self.instance.make_durable()
        yield
        log.write_checkpoint(snapshot.encode(lambda: None), snapshot.cut)
        core.captured(snapshot)

    # -- a disk that fails

    def fail(self) -> None:
        """One of the next calls to the disk."""
        dice = self.dice
        kind = dice.choice(("write", "sync", "sync", "folder"))
        error = errno.ENOSPC if kind == "write" and dice.random() < 0.5 else errno.EIO
        self.broker.disk.fail_next(kind, after=dice.randrange(3), error=error)

    # -- what no start keeps

    def fleet(self) -> None:
        """A queue that goes with the server; bound as others are."""

        def work(instance: Instance) -> None:
            instance.core.declare_queue(
                instance.engine.now(), "/", FLEETING, QueueSettings(), durable=False, arguments={}
            )

        self.broker.command(work)
        self.broker.act("bind", exchange="fan", queue=FLEETING, key="a")

    def publish_transient(self) -> None:
        """A message that goes with the server, by AMQP."""
        client = self.amqp().client(0)
        place = self.dice.choice((*QUEUES, "fan/a", "late/a", "s"))
        exchange, _, key = place.rpartition("/")
        client.send(message(self.body().encode(), key, exchange=exchange, properties=TRANSIENT))
        client.lose()
        self.amqp().clients.remove(client)

    # -- AMQP

    def amqp(self) -> Sessions:
        """The connections of this life."""
        if self.sessions is None:
            self.sessions = Sessions(self.instance)
        return self.sessions

    def connect(self) -> None:
        """Somebody consumes, from several queues maybe."""
        client = self.amqp().client(self.dice.choice((0, 1, 3)))
        for tag in range(self.dice.randint(1, 2)):
            client.consume(self.queue(), f"c{tag}")
        self.instance.run(lambda: None)

    def answer(self) -> None:
        """A client settles some of what it has, one by one or all up to one, and the disk has it."""
        clients = [one for one in self.amqp().clients if not one.closed]
        if not clients:
            return
        client = self.dice.choice(clients)
        tags = [one.tag for one in client.got if isinstance(one, Content)]
        if tags:
            tag, multiple = self.dice.choice(tags), self.dice.random() < 0.5
            requeue = self.dice.random() < 0.6
            self.dice.choice(
                (
                    lambda: client.ack(tag, multiple=multiple), lambda: client.ack(tag, multiple=multiple),
                    lambda: client.method(m.BasicNack(tag, multiple, requeue)),
                    lambda: client.method(m.BasicReject(tag, requeue)),
                    lambda: client.method(m.BasicRecover(True)),
                )
            )()  # fmt: skip
            client.got.clear()  # of what it does not know now it settles nothing more
        if self.dice.random() < 0.3:
            client.lose()
            self.amqp().clients.remove(client)
        self.broker.command(lambda instance: instance.make_durable())

    def stream(self) -> None:
        """Whoever reads a stream from a place gets what was published from there on."""
        self.broker.publish("s", self.body())
        self.instance.commit()
        there = {lsn for chunk in self.instance.core.queue("/", "s").chunks("ready") for lsn in chunk}
        rows = [(lsn, body) for lsn, _, body in stored(self.instance.log) if lsn in there]
        at = self.dice.randrange(len(rows) + 1)
        offset: object = self.dice.choice(("first", rows[at][0] if at < len(rows) else "next"))
        client = self.amqp().client(1000)
        client.consume("s", "s", **{"x-stream-offset": offset})
        for _ in range(3):
            self.instance.commit()
        got = [one.body for one in client.got if isinstance(one, Content)]
        wanted = [body for _, body in (rows if offset == "first" else rows[at:])]
        assert sorted(got) == sorted(wanted), f"the stream from {offset}: {got} instead of {wanted}: {client.got}"
        client.lose()
        self.amqp().clients.remove(client)
