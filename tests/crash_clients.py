"""Clients of the kill tests: raw sockets, several at once, each with a journal of what it did and what it saw.

A line is written before the bytes it speaks of leave, or after the bytes it speaks of came.  Lines of a journal:

    p ID KIND          about to publish (KIND: a target of `TARGETS`)
    c ID               confirmed
    d QUEUE ID R       delivered; R: 1 if the server says redelivered
    a QUEUE ID         about to ack
    n QUEUE ID         about to give back, or to reject into the dead-letter queue
    k                  about to publish a marker
    m                  the marker is confirmed: all acks of this journal before `k` are durable
    q+ NAME, q+! NAME  about to declare a queue; answered
    q- NAME, q-! NAME  about to delete it; answered
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pika import frame, spec

from rawlink import RawLink, raw_frame

TARGETS = {
    "plain": ("", "plain"), "work": ("", "work"), "again": ("", "again"), "once": ("", "once"),
    "both": ("fork", "a.b"), "transient": ("", "plain"),
}  # fmt: skip
QUEUES = ("plain", "work", "dead", "again", "once", "left", "right")
GONE = (ConnectionError, EOFError, TimeoutError, OSError)


class Alarm:
    """Rings when a client writes a line that begins so; for kills just after something was seen."""

    def __init__(self) -> None:
        self.prefix = "nothing begins so"
        self.rings = threading.Event()


class Journal:
    """Lines appended to a file, written through to the kernel one by one."""

    def __init__(self, path: Path, alarm: Alarm) -> None:
        self._file = path.open("a", buffering=1)
        self._alarm = alarm

    def write(self, *lines: str) -> None:
        self._file.write("".join(line + "\n" for line in lines))
        if lines and lines[-1].startswith(self._alarm.prefix):
            self._alarm.rings.set()

    def close(self) -> None:
        self._file.close()


class Delivery(NamedTuple):
    """One message that came."""

    consumer: str
    tag: int
    redelivered: bool
    body: bytes


class Confirm(NamedTuple):
    """basic.ack from the server."""

    tag: int
    multiple: bool


def publish_bytes(exchange: str, key: str, body: bytes, transient: bool = False) -> bytes:
    method = spec.Basic.Publish(exchange=exchange, routing_key=key)
    properties = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 1 if transient else 2)
    pieces = [frame.Method(1, method).marshal(), raw_frame(2, 1, properties)]
    pieces += [raw_frame(3, 1, body[at : at + 131_064]) for at in range(0, len(body), 131_064)]
    return b"".join(pieces)


class Peer(RawLink):
    """A connection with channel 1 open that parses deliveries and confirms without much ado."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        try:
            self.ready()
        except BaseException:
            self.socket.close()
            raise
        self.published = 0
        self._delivery: tuple[str, int, bool] | None = None
        self._missing = 0
        self._body: list[bytes] = []

    def select_confirms(self) -> None:
        self.method(spec.Confirm.Select())
        self.expect(spec.Confirm.SelectOk)

    def events(self, timeout: float) -> Iterator[Delivery | Confirm]:
        """What one read brings, nothing after `timeout` seconds of silence.  EOFError when the server is gone."""
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return
        finally:
            self.socket.settimeout(30)
        if not data:
            raise EOFError
        self.buffer += data
        yield from self.buffered()

    def buffered(self) -> Iterator[Delivery | Confirm]:
        """What has come already."""
        buffer, at = self.buffer, 0
        try:
            while len(buffer) - at >= 8:
                kind, _, size = struct.unpack_from(">BHI", buffer, at)
                if len(buffer) - at < size + 8:
                    break
                payload = buffer[at + 7 : at + 7 + size]
                at += size + 8
                found = self._frame(kind, payload)
                if found is not None:
                    yield found
        finally:
            self.buffer = buffer[at:]

    def _frame(self, kind: int, payload: bytes) -> Delivery | Confirm | None:
        if kind == 1:
            method = struct.unpack_from(">HH", payload)
            if method == (60, 60):
                length = payload[4]
                tag, flags = struct.unpack_from(">QB", payload, 5 + length)
                self._delivery = payload[5 : 5 + length].decode(), tag, bool(flags & 1)
            elif method == (60, 80):
                tag, flags = struct.unpack_from(">QB", payload, 4)
                return Confirm(tag, bool(flags & 1))
            elif method in ((10, 50), (20, 40)):
                raise AssertionError(f"the server closed: {payload!r}")
            return None
        if kind == 2:
            self._missing = struct.unpack_from(">Q", payload, 4)[0]
            self._body = []
        elif kind == 3:
            self._body.append(payload)
            self._missing -= len(payload)
        if kind in (2, 3) and not self._missing and self._delivery is not None:
            delivery, self._delivery = Delivery(*self._delivery, b"".join(self._body)), None
            return delivery
        return None


def left(looker: Peer, queues: Iterable[str]) -> int:
    """Messages that are ready in these queues, in the server's own words, on a connection that consumes nothing.

    Where there are none what it has given to others has left it: the second answer is of a later turn than that.
    """
    count, asked = 0, tuple(queues)
    for _ in range(2):
        for queue in asked if not count else ():
            looker.method(spec.Queue.Declare(queue=queue, passive=True))
            count += int(looker.expect(spec.Queue.DeclareOk).message_count)
    return count


def identity(body: bytes) -> str:
    """The id in a body."""
    return body[: body.index(b" ")].decode()


class Client(threading.Thread):
    """A client that works until the server is gone or `stop` is set.  What it cannot explain is in `failure`."""

    def __init__(self, port: int, journal: Path, seed: int, alarm: Alarm) -> None:
        super().__init__(name=journal.stem)
        self.port = port
        self.journal = Journal(journal, alarm)
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Peer(self.port) as peer:
                self.work(peer)
        except GONE:
            pass
        except BaseException as failure:  # noqa: BLE001 - the test reports it
            self.failure = failure
        finally:
            self.journal.close()

    def work(self, peer: Peer) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes in bursts to random targets, with a random number of confirms in flight."""

    def work(self, peer: Peer) -> None:
        peer.select_confirms()
        rnd = self.random
        window = rnd.choice((1, 20, 300))
        waiting: dict[int, str] = {}
        number = 0
        while not self.stopping.is_set():
            lines, data = list[str](), list[bytes]()
            for _ in range(rnd.choice((1, 5, 60))):
                number += 1
                peer.published += 1
                kind = rnd.choice(list(TARGETS))
                name = f"{self.name}.{number}"
                waiting[peer.published] = name
                lines.append(f"p {name} {kind}")
                size = rnd.choice((10, 100, 100, 300, 5000)) if rnd.random() > 0.003 else 200_000
                body = f"{name} ".encode() + bytes(size)
                data.append(publish_bytes(*TARGETS[kind], body, kind == "transient"))
            self.journal.write(*lines)
            peer.send(b"".join(data))
            while len(waiting) > window and not self.stopping.is_set():
                for event in peer.events(0.5):
                    assert isinstance(event, Confirm)
                    tags = [tag for tag in waiting if tag <= event.tag] if event.multiple else [event.tag]
                    self.journal.write(*(f"c {waiting.pop(tag)}" for tag in tags))


class Worker(Client):
    """Consumes queues and settles in one of several ways; now and then it learns that its acks are durable."""

    def __init__(self, port: int, journal: Path, seed: int, alarm: Alarm, queues: tuple[str, ...]) -> None:
        super().__init__(port, journal, seed, alarm)
        self.queues = queues

    def work(self, peer: Peer) -> None:
        peer.select_confirms()
        rnd = self.random
        manner = rnd.choice(("each", "multiple", "mixed", "mixed", "hold"))
        peer.method(spec.Basic.Qos(prefetch_count=rnd.choice((5, 100, 1000))))
        peer.expect(spec.Basic.QosOk)
        for queue in self.queues:
            peer.method(spec.Basic.Consume(queue=queue, consumer_tag=queue, nowait=True))
        since_marker = 0
        while not self.stopping.is_set():
            for event in list(peer.events(0.1)):
                if isinstance(event, Confirm):
                    self.journal.write("m")
                    since_marker = 0
                    continue
                queue, name = event.consumer, identity(event.body)
                self.journal.write(f"d {queue} {name} {int(event.redelivered)}")
                since_marker += self.settle(peer, manner, queue, name, event.tag)
                if since_marker > 40:
                    since_marker = -100_000  # one marker on the way at a time
                    self.journal.write("k")
                    peer.send(publish_bytes("", "markers", b"marker "))

    def settle(self, peer: Peer, manner: str, queue: str, name: str, tag: int) -> int:
        """Settle this delivery and perhaps those before; how many acks that were."""
        rnd = self.random
        if manner == "hold":
            return 0
        if manner == "mixed" and rnd.random() < 0.25 and queue != "once":
            self.journal.write(f"n {queue} {name}")
            if queue == "work" and rnd.random() < 0.6:
                peer.method(spec.Basic.Reject(tag, requeue=False))
            elif rnd.random() < 0.5:
                peer.method(spec.Basic.Nack(tag, requeue=True))
            else:
                peer.method(spec.Basic.Reject(tag, requeue=True))
            return 0
        if manner == "multiple":
            self.unsettled = [*getattr(self, "unsettled", []), f"a {queue} {name}"]
            if rnd.random() > 0.05:
                return 0
            self.journal.write(*self.unsettled)
            count, self.unsettled = len(self.unsettled), []
            peer.method(spec.Basic.Ack(tag, multiple=True))
            return count
        self.journal.write(f"a {queue} {name}")
        peer.method(spec.Basic.Ack(tag))
        return 1


class Administrator(Client):
    """Declares and deletes durable queues, one after another."""

    def work(self, peer: Peer) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            name = f"{self.name}-{number}"
            self.journal.write(f"q+ {name}")
            peer.method(spec.Queue.Declare(queue=name, durable=True))
            peer.expect(spec.Queue.DeclareOk)
            self.journal.write(f"q+! {name}")
            peer.method(spec.Queue.Bind(queue=name, exchange="fork", routing_key="nothing"))
            peer.expect(spec.Queue.BindOk)
            if self.random.random() < 0.6:
                self.journal.write(f"q- {name}")
                peer.method(spec.Queue.Delete(queue=name))
                peer.expect(spec.Queue.DeleteOk)
                self.journal.write(f"q-! {name}")
