"""A server without sockets, loop or threads: core, engine and log on a simulated disk, and clients made of bytes.

Nothing moves by itself.  `turn` runs what the loop would run, `commit` is the disk's part, `read_cold` answers one read
of the log, and `run` does all three until nothing is left to do.  So a test stands between any two steps of a turn.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from penstock.config.settings import GUEST
from penstock.core.state.durable import DurableState
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY, LogSettings
from penstock.memory.caches import Caches
from penstock.records.entries import Rows
from penstock.records.properties import Properties, decode, encode
from penstock.server.amqp.connection import Connection
from penstock.server.amqp.door import AmqpDoor, Reading
from penstock.server.amqp.doorway import Doorway
from penstock.server.amqp.front import Host
from penstock.server.amqp.hosted import Hosted
from penstock.server.amqp.links import Came, Guarded
from penstock.server.counters import Counters
from penstock.server.engine import Engine
from penstock.server.opening import apply_settings, fold, open_core
from penstock.server.people.logins import Logins
from penstock.server.people.users import Users
from penstock.testing.instance import FakeClock
from penstock.testing.process import load
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import BODY, HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, Limits, frame
from sim.logkit import Steps as Steps  # tests of servers take it from here

M = TypeVar("M", bound=m.Method)

APART = os.environ.get("PENSTOCK_DOORS", "0") != "0"

T0 = 1_700_000_000_000_000
PERSISTENT = encode(Properties(delivery_mode=2))


def _start_ok(product: str = "", called: str = "") -> bytes:
    """What a client says of itself and its user.  product, called: its library and its name, where it says that."""
    said = {name: value for name, value in (("product", product), ("connection_name", called)) if value}
    told = {"capabilities": {"consumer_cancel_notify": True, "authentication_failure_close": True}, **said}
    return frame(METHOD, 0, m.ConnectionStartOk(told, response=b"\0guest\0guest").encode())


HANDSHAKE = (
    PROTOCOL_HEADER,
    _start_ok(),
    frame(METHOD, 0, m.ConnectionTuneOk(channel_max=2047, frame_max=131_072, heartbeat=0).encode()),
    frame(METHOD, 0, m.ConnectionOpen("/").encode()),
)


def clock() -> FakeClock:
    """A clock that stands at the same instant in every test."""
    return FakeClock(T0)


@dataclass(slots=True, eq=False)
class Content:
    """A method with its message, as a client got it."""

    method: m.BasicDeliver | m.BasicGetOk | m.BasicReturn
    channel: int
    properties: Properties
    body: bytes

    @property
    def tag(self) -> int:
        """The delivery tag."""
        assert not isinstance(self.method, m.BasicReturn)
        return self.method.delivery_tag

    @property
    def redelivered(self) -> bool:
        """Whether it was sent before."""
        assert not isinstance(self.method, m.BasicReturn)
        return self.method.redelivered


class Client:
    """One connection: its link for the server, and a reader of what the server writes."""

    def __init__(
        self,
        life: Life,
        *,
        login: bool = True,
        peer: str = "127.0.0.1:5000",
        heartbeat: int = 0,
        door: Beside | None = None,
        frame_max: int = 131_072,
        stranger: Guarded | None = None,
        product: str = "",
        called: str = "",
    ) -> None:
        """door: where it comes in; without one where all do.  stranger: who guards it.  product: its library.

        called: its name.
        """
        self.frame_max = frame_max
        self.life = life
        self.door = life.beside if door is None else door
        self.closed = False  # the server closed the link
        self.ended = False  # the server has said that nothing follows
        self.reading = True  # the server reads
        self.got: list[m.Method | Content] = []
        self.heartbeats = 0
        self.waiting = 0  # bytes that the kernel has not taken
        self.below = 0  # how many of them there may be, if the server has said so
        self.writes = 0
        self._kept = b""
        self._open: Content | None = None
        self._missing = 0
        self._unread = b""
        self._session: Connection | None = None
        self.mouth: Reading | Hosted
        if self.door is None:
            self.mouth = self._session = life.door.open_session(Came(self, peer, stranger=stranger))  # type: ignore[arg-type]
        else:
            self.mouth = self.door.host.connect(Came(self, peer, stranger=stranger))  # type: ignore[arg-type]
        if login:
            tune = m.ConnectionTuneOk(channel_max=2047, frame_max=frame_max, heartbeat=heartbeat)
            for part in (HANDSHAKE[0], _start_ok(product, called), frame(METHOD, 0, tune.encode()), HANDSHAKE[3]):
                self.send(part)
                life.turn()
            assert isinstance(self.got[-1], m.ConnectionOpenOk), self.got
            self.got.clear()

    @property
    def session(self) -> Connection:
        """As the core has it; at a door of its own not before the first turn."""
        if self._session is None:
            assert self.door is not None
            assert isinstance(self.mouth, Hosted)
            self._session = self.door.doorway._fars[self.mouth.number].connection
        return self._session

    # the server's side

    def write(self, data: bytes) -> None:
        assert not self.closed
        assert not self.ended
        self.writes += 1
        self._kept += data
        while len(self._kept) >= 7:
            kind, channel, size = struct.unpack_from(">BHI", self._kept)
            if kind == ord("A") or len(self._kept) < size + 8:
                break
            assert self._kept[7 + size] == 0xCE
            assert size + 8 <= self.frame_max, f"a frame of {size + 8} bytes"
            payload, self._kept = self._kept[7 : 7 + size], self._kept[8 + size :]
            self._frame(kind, channel, payload)

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            assert self._open is None
            method = m.decode_method(payload)
            if isinstance(method, m.BasicDeliver | m.BasicGetOk | m.BasicReturn):
                self._open = Content(method, channel, Properties(), b"")
            else:
                self.got.append(method)
        elif kind == HEARTBEAT:
            self.heartbeats += 1
        else:
            content = self._open
            assert content is not None
            assert content.channel == channel
            if kind == HEADER:
                self._missing = struct.unpack_from(">Q", payload, 4)[0]
                content.properties = decode(payload[12:])
            else:
                content.body += payload
                self._missing -= len(payload)
            if not self._missing:
                self.got.append(content)
                self._open = None

    def buffered(self) -> int:
        return self.waiting

    def keep_below(self, size: int) -> None:
        self.below = size

    def close(self) -> None:
        self.closed = not self.waiting  # what waits is written first

    def abort(self) -> None:
        self.closed, self.waiting = True, 0
        self.life.jobs.append(self.lose)

    def end_writing(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True
        if self._unread:
            self.life.jobs.append(self._read_on)

    def _read_on(self) -> None:
        """What came while nobody read; what is sent meanwhile queues up behind it."""
        if self.reading and self._unread:
            data, self._unread = self._unread, b""
            self.mouth.receive(data)

    # the client's side

    def send(self, data: bytes) -> None:
        """Bytes to the server; while it does not read they wait."""
        if self.closed or self.gone():
            return
        if self.reading and not self._unread:
            self.mouth.receive(data)
        else:
            self._unread += data

    def gone(self) -> bool:
        """Whether the other side has nothing of it any more."""
        if isinstance(self.mouth, Reading):
            return self.mouth.closed
        assert self.door is not None
        return self.mouth.number not in self.door.host.sessions

    def method(self, method: m.Method, channel: int = 1) -> None:
        """A method frame."""
        self.send(frame(METHOD, channel, method.encode()))

    def channel(self, number: int = 1, *, confirm: bool = False, prefetch: int = 0) -> None:
        """Open a channel."""
        self.method(m.ChannelOpen(), number)
        if confirm:
            self.method(m.ConfirmSelect(), number)
        if prefetch:
            self.method(m.BasicQos(prefetch_count=prefetch), number)
        self.life.turn()
        self.got.clear()

    def publish(self, key: str, *bodies: bytes, **how: Any) -> None:
        """Messages in one read."""
        self.send(b"".join(message(body, key, **how) for body in bodies))

    def consume(self, queue: str, tag: str = "c", channel: int = 1, *, no_ack: bool = False, **arguments: Any) -> None:
        """basic.consume."""
        self.method(m.BasicConsume(queue=queue, consumer_tag=tag, no_ack=no_ack, arguments=arguments), channel)

    def ack(self, tag: int, channel: int = 1, *, multiple: bool = False) -> None:
        """basic.ack."""
        self.method(m.BasicAck(tag, multiple), channel)

    def lose(self) -> None:
        """The link breaks."""
        self.mouth.connection_lost()

    # what came

    def take(self, kind: type[M]) -> M:
        """The next thing that came, which is of this kind."""
        assert self.got, f"nothing came; {kind.__name__} was expected"
        first = self.got.pop(0)
        assert isinstance(first, kind), f"{first} instead of {kind.__name__}"
        return first

    def take_all(self) -> list[m.Method | Content]:
        """All that came."""
        got, self.got = self.got, []
        return got

    def names(self) -> list[str]:
        """What came, by the names of the methods."""
        return [type(one.method if isinstance(one, Content) else one).__name__ for one in self.take_all()]

    def messages(self) -> list[Content]:
        """The messages that came; nothing else may have."""
        out = self.take_all()
        assert all(isinstance(one, Content) for one in out), out
        return [one for one in out if isinstance(one, Content)]

    def bodies(self) -> list[bytes]:
        """The bodies of the messages that came; nothing else may have."""
        return [one.body for one in self.messages()]

    def confirms(self) -> list[tuple[bool, int, bool]]:
        """(acked, number, multiple) of all that came; nothing else may have."""
        out = list[tuple[bool, int, bool]]()
        for one in self.take_all():
            assert isinstance(one, m.BasicAck | m.BasicNack), one
            out.append((isinstance(one, m.BasicAck), one.delivery_tag, one.multiple))
        return out


def message(
    body: bytes,
    key: str = "q",
    *,
    channel: int = 1,
    exchange: str = "",
    properties: bytes = PERSISTENT,
    mandatory: bool = False,
) -> bytes:
    """The frames of a publish."""
    head = frame(METHOD, channel, m.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory).encode())
    head += frame(HEADER, channel, struct.pack(">HHQ", 60, 0, len(body)) + properties)
    return head + b"".join(frame(BODY, channel, body[at : at + 100_000]) for at in range(0, len(body), 100_000))


class Beside:
    """A door beside the core: what one says to the other comes when the loop runs.  `cut` ends the way."""

    def __init__(self, life: Life, limits: Limits | None = None) -> None:
        self.up = deque[bytes]()  # what is on its way to the core
        self._down = deque[bytes]()
        self.over = False
        self.said = bytearray()  # all that has reached the core
        self.heard = bytearray()  # all that has reached the door
        self.least = 1 << 53  # bytes that reach the core; what is behind them is on its way for ever
        self.slow_up = self.slow_down = False  # what is said stays on its way meanwhile
        self.jobs = deque[Callable[[], None]]()
        self.failures = list[Exception]()  # faults that ended one client
        self.doorway = Doorway(life.door, self._down.append, lambda: sum(map(len, self._down)), lambda _: self.cut())
        self.host = Host(
            limits or Limits(), version="1", external=False, write=self.up.append, mono=life.clock.mono,
            soon=self.jobs.append, at_round_end=self.jobs.append, off=lambda work, then: then(work()),
            failed=self.failures.append,
        )  # fmt: skip

    def rounds(self) -> None:
        """What the door does with what it has heard."""
        while (self.jobs or (self._down and not self.slow_down)) and not self.over:
            while self._down and not self.slow_down:
                data = self._down.popleft()
                self.heard += data
                self.host.receive(data)
            while self.jobs:
                self.jobs.popleft()()

    def rise(self) -> bool:
        """What it has said reaches the core; whether that was anything."""
        self.rounds()
        before = len(self.said)
        while self.up and not self.over and not self.slow_up:
            data = self.up.popleft()[: self.least - len(self.said)]
            self.said += data
            if data:
                self.doorway.receive(data)
        return len(self.said) > before

    def cut(self) -> None:
        """The door is gone."""
        self.over = True
        self.doorway.lost()
        self.host.end()


class Life:
    """One process from its start to its end."""

    def __init__(
        self,
        disk: SimDisk,
        clock: FakeClock,
        *,
        log: LogSettings = MEMORY,
        config: Mapping[str, object] | None = None,
        budget: int = 1 << 20,
        limits: Limits | None = None,
        apart: bool | None = None,
    ) -> None:
        """apart: clients come to a door beside the core; `PENSTOCK_DOORS` where it is not said."""
        self.disk, self.clock = disk, clock
        self.jobs: deque[Callable[[], None]] = deque()
        self.cold: deque[tuple[Sequence[int], Callable[[Rows], None], int]] = deque()
        self.health: list[str] = []
        self.upkeep: object = None  # a test's own
        self.settings = load(config)
        self.log = Log.open(disk, clock, replace(log, cache=min(log.cache, budget // 8)))
        recovered = open_core(self.log, clock, self.settings)
        self.core = recovered.core
        self.engine = Engine(
            self.core,
            self.log,
            Caches(budget),
            clock,
            call_soon=self.jobs.append,
            read_cold=lambda lsns, answer, most=0: self.cold.append((lsns, answer, most)),
        )
        self.log.on_durable = self.engine.durable
        self.log.on_broken = self.engine.break_down
        self.engine.on_broken.append(self.health.append)
        self.counters = Counters()
        self.door = AmqpDoor(
            self.engine, Logins(Users([GUEST.model_copy(update={"loopback_only": False})])),
            frozenset(("/", "other")), self.counters, limits,
        )  # fmt: skip
        self.doors = list[Beside]()
        self.beside = self.open_door(limits) if apart or (apart is None and APART) else None
        apply_settings(self.core, self.settings, self.engine.now)
        self.engine.finish_turn()
        self.log.flush()
        if self.engine.broken is not None:  # no door opens before the boot record is on the disk
            raise OSError(errno.EIO, self.engine.broken)

    def open_door(self, limits: Limits | None = None) -> Beside:
        """One more door beside the core."""
        door = Beside(self, limits)
        self.doors.append(door)
        return door

    # steps

    def turn(self) -> None:
        """What the loop would run now."""
        while self.jobs or sum(door.rise() for door in self.doors):
            while self.jobs:
                self.jobs.popleft()()

    def commit(self) -> None:
        """All that is gathered goes to the disk."""
        self.log.flush()
        for door in self.doors:
            door.rounds()

    def read_cold(self) -> None:
        """Answer the oldest read of the log."""
        lsns, answer, most = self.cold.popleft()
        answer(self.log.read(lsns, most=most))
        self.engine.arm()

    def run(self) -> None:
        """Turns, commits that somebody waits for and cold reads until nothing is left to do."""
        self.engine.arm()
        for _ in range(10_000):
            before = self.log.durable, len(self.cold)
            self.turn()
            self.log.tick()
            while self.cold:
                self.read_cold()
            self.core_tick()
            if not self.jobs and before == (self.log.durable, len(self.cold)):
                return
        raise AssertionError("it does not come to rest")

    def core_tick(self) -> None:
        """Let the core do what is due."""
        wall, mono = self.core.next_deadline()
        if (wall is not None and wall <= self.clock.wall()) or (mono is not None and mono <= self.clock.mono()):
            self.engine.tick()

    def advance(self, micros: int) -> None:
        """Time passes at once, then everything runs."""
        self.clock.advance(micros)
        self.run()

    def client(self, *, confirm: bool = False, prefetch: int = 0, **how: Any) -> Client:
        """A connection with channel 1 open."""
        client = Client(self, **how)
        client.channel(confirm=confirm, prefetch=prefetch)
        return client

    def declare(self, *names: str, durable: bool = True, **arguments: Any) -> None:
        """Queues, by a connection of their own that leaves again."""
        client = self.client()
        for name in names:
            client.method(m.QueueDeclare(queue=name, durable=durable, arguments=arguments))
        self.run()
        assert all(isinstance(one, m.QueueDeclareOk) for one in client.take_all())
        client.lose()
        self.run()

    # the end

    def kill(self) -> None:
        """The process is gone; what the kernel has stays."""
        self._gone()
        self.disk.kill()

    def crash(self) -> None:
        """A power cut."""
        self._gone()
        self.disk.crash()

    def stop(self) -> None:
        """A clean stop."""
        self.run()
        self.log.close(clean=True)

    def _gone(self) -> None:
        self.jobs.clear()
        self.cold.clear()
        self.clock.reboot()

    # what is there

    def ready(self, name: str) -> int:
        """Ready messages of a queue."""
        return self.core.queue("/", name).ready

    def contents(self, name: str) -> list[bytes]:
        """Bodies of all that a queue holds in any state, oldest first; from what is durable."""
        lsns = sorted(lsn for chunk in self.core.queue("/", name).snapshot()[0] for lsn in chunk)
        return self.log.read(lsns).bodies if lsns else []


def state_of(disk: SimDisk, clock: FakeClock, log: LogSettings = MEMORY) -> DurableState:
    """The fold of what a disk holds; the disk is as after a kill afterwards."""
    opened = Log.open(disk, clock, log)
    state, _ = fold(opened)
    opened.close(clean=False)
    return state
