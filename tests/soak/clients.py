"""The load of a soak: publishers, quick and slow consumers over AMQP and Flight, and a probe of the latency.

Each is a thread that works until the server is gone or it is stopped, and enters into the books what it does before it
does it, and what it sees after it came.  What a client cannot explain is a fault.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pika import spec

import penstock
from crash_clients import GONE, Delivery, Peer, left
from penstock.errors import DiskFull, PenstockError
from rawlink import raw_frame
from soak.books import ACKED, PROVEN, REFUSED, Books, Id, body_of

BURST = 40
PATIENCE_S = 60.0
WINDOW = 2_000
LEFT_S = 0.2
"""How long a client waits before it looks again at something that nobody tells it."""


class Told(NamedTuple):
    """basic.ack or basic.nack from the server."""

    tag: int
    multiple: bool
    good: bool


class SoakPeer(Peer):
    """A connection that also knows nacks."""

    def _frame(self, kind: int, payload: bytes) -> Any:
        if kind == 1 and payload[:4] in (b"\0\x3c\0\x50", b"\0\x3c\0\x78"):
            tag, flags = struct.unpack_from(">QB", payload, 4)
            return Told(tag, bool(flags & 1), payload[3] == 0x50)
        if kind == 8 or (kind == 1 and payload[:4] in (b"\0\x0a\0\x3c", b"\0\x0a\0\x3d")):
            return None  # heartbeat, connection.blocked, connection.unblocked
        return super()._frame(kind, payload)

    def told(self, timeout: float) -> Iterator[Told | Delivery]:
        """What one read brings."""
        yield from self.events(timeout)  # type: ignore[misc]


def frames(queue: str, transient: bool = False) -> tuple[bytes, bytes]:
    """The method frame of a publish to a queue, and the properties of its header."""
    publish = spec.Basic.Publish(exchange="", routing_key=queue)
    payload = struct.pack(">HH", 60, 40) + b"".join(publish.encode())
    return raw_frame(1, 1, payload), struct.pack(">HB", 0x1000, 1 if transient else 2)


def message(method: bytes, properties: bytes, body: bytes) -> bytes:
    """The three frames of a publish."""
    return method + raw_frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties) + raw_frame(3, 1, body)


class SoakClient(threading.Thread):
    """One thread of the load.  `failure`: what it could not explain."""

    def __init__(self, name: str, port: int, books: Books) -> None:
        super().__init__(name=name, daemon=True)
        self.port = port
        self.books = books
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except GONE:
            pass
        except AssertionError as failure:
            if "CONNECTION_FORCED - the server stops" not in str(failure):  # which is as good as being gone
                self.failure = failure
        except BaseException as failure:  # noqa: BLE001  the soak tells it
            self.failure = failure

    def work(self) -> None:
        raise NotImplementedError


class Publisher(SoakClient):
    """Publishes as fast as confirms come, as long as not too many of its messages wait unsettled.

    rest: seconds after each burst.
    """

    def __init__(
        self, port: int, books: Books, publisher: int, *, most: int, rest: float, transient: bool = False
    ) -> None:
        super().__init__(f"publisher-{publisher}", port, books)
        self.publisher, self.most, self.rest, self.transient = publisher, most, rest, transient
        self.queue = books.queues[publisher]

    def work(self) -> None:
        books, mine = self.books, self.publisher
        method, properties = frames(self.queue, self.transient)
        waiting: deque[tuple[int, int]] = deque()  # (delivery tag, number), ascending
        tag = 0
        room = self.most - books.waiting[mine]
        with SoakPeer(self.port) as peer:
            peer.select_confirms()
            while not self.stopping.is_set():
                if room <= 0:
                    self._confirms(peer, waiting, 0.05)
                    if not waiting:
                        self.stopping.wait(0.05)
                        room = self.most - books.waiting[mine]
                    continue
                numbers = books.send(mine, BURST, self.transient)
                data = b"".join([message(method, properties, body_of(mine, number)) for number in numbers])
                waiting.extend(zip(range(tag + 1, tag + 1 + BURST), numbers, strict=True))
                tag += BURST
                room -= BURST
                peer.send(data)
                while len(waiting) > WINDOW and not self.stopping.is_set():
                    self._confirms(peer, waiting, 0.5)
                if self.rest:
                    self.stopping.wait(self.rest)
            until = time.monotonic() + 5
            while waiting and time.monotonic() < until:
                self._confirms(peer, waiting, 0.2)

    def _confirms(self, peer: SoakPeer, waiting: deque[tuple[int, int]], timeout: float) -> None:
        refused = False
        for event in list(peer.told(timeout)):
            assert isinstance(event, Told), event
            done = list[int]()
            if event.multiple:
                while waiting and waiting[0][0] <= event.tag:
                    done.append(waiting.popleft()[1])
            elif waiting and waiting[0][0] == event.tag:
                done.append(waiting.popleft()[1])
            else:
                found = next(item for item in waiting if item[0] == event.tag)
                waiting.remove(found)
                done.append(found[1])
            self.books.confirm(self.publisher, done, 1 if event.good else REFUSED)
            refused = refused or not event.good
        if refused:  # the disk is full: no use in hurrying
            self.stopping.wait(0.02)


class Worker(SoakClient):
    """Consumes a queue: acks in runs, now and then gives back or rejects, and asks now and then for proof of its acks.

    `pace`: seconds between acks of a slow one; 0: as fast as it can.
    """

    def __init__(
        self, port: int, books: Books, queue: str, *, prefetch: int = 500, run: int = 50, pace: float = 0.0,
        refuse: int = 0, text: str = "",
    ) -> None:  # fmt: skip
        super().__init__(f"worker-{queue}-{text}", port, books)
        self.queue, self.prefetch, self.run_length, self.pace = queue, prefetch, run, pace
        self.refuse, self.text = refuse, text

    def work(self) -> None:
        books = self.books
        method, properties = frames("markers")
        held: list[tuple[int, Id]] = []
        unproven: list[Id] = []
        asked: list[Id] | None = None
        seen = 0
        with SoakPeer(self.port) as peer:
            peer.select_confirms()
            peer.method(spec.Basic.Qos(prefetch_count=self.prefetch))
            peer.expect(spec.Basic.QosOk)
            arguments = {"x-filter": self.text} if self.text else {}
            peer.method(spec.Basic.Consume(queue=self.queue, consumer_tag="c", nowait=True, arguments=arguments))
            while not self.stopping.is_set():
                events = list(peer.told(0.1))
                for event in events:
                    if isinstance(event, Told):
                        if event.good and asked is not None:
                            books.settle(asked, PROVEN)
                        asked = None
                        continue
                    one = books.deliver(event.body, event.redelivered, self.queue)
                    seen += 1
                    if self.refuse and seen % self.refuse == 0:
                        requeue = seen % (3 * self.refuse) != 0
                        settle = (
                            spec.Basic.Nack(event.tag, requeue=True)
                            if requeue
                            else spec.Basic.Reject(event.tag, requeue=False)
                        )
                        peer.method(settle)
                        continue
                    held.append((event.tag, one))
                if len(held) >= self.run_length or (held and not events):
                    while self.pace and len(held) > 1 and not self.stopping.wait(self.pace):
                        tag, one = held.pop(0)
                        books.settle([one], ACKED)
                        peer.method(spec.Basic.Ack(tag))
                        unproven.append(one)
                    done = [one for _, one in held]
                    books.settle(done, ACKED)
                    if self.refuse or self.pace:
                        for tag, _ in held:
                            peer.method(spec.Basic.Ack(tag))
                    else:
                        peer.method(spec.Basic.Ack(held[-1][0], multiple=True))
                    unproven += done
                    held.clear()
                if asked is None and len(unproven) > 1000:
                    asked, unproven = unproven, []
                    peer.send(message(method, properties, b"marker"))


class Visitor(SoakClient):
    """Comes now and then to a queue, takes what nobody else wants, and leaves without a word."""

    def __init__(self, port: int, books: Books, queue: str, every: float) -> None:
        super().__init__(f"visitor-{queue}", port, books)
        self.queue, self.every = queue, every

    def work(self) -> None:
        while not self.stopping.wait(self.every):
            worker = Worker(self.port, self.books, self.queue, prefetch=100, run=20)
            worker.start()
            self.stopping.wait(self.every / 2)
            worker.stopping.set()
            worker.join(60)
            if worker.failure is not None:
                raise worker.failure


class FlightLoad(SoakClient):
    """Publishes tables through Flight, and consumes them in a second thread.  rest: seconds after each table."""

    def __init__(self, port: int, books: Books, publisher: int, address: str, *, most: int, rest: float) -> None:
        super().__init__("flight", port, books)
        self.publisher, self.address, self.most, self.rest = publisher, address, most, rest

    def work(self) -> None:
        taker = threading.Thread(target=self._take, daemon=True)
        try:
            with penstock.connect(f"penstock://{self.address}") as client:
                taker.start()
                while not self.stopping.is_set():
                    if self.books.waiting[self.publisher] > self.most:
                        self.stopping.wait(LEFT_S)
                        continue
                    numbers = self.books.send(self.publisher, 1_000)
                    table = pa.table({"body": [body_of(self.publisher, number) for number in numbers]})
                    try:
                        told = client.publish_table(self.books.queues[self.publisher], table)
                    except DiskFull:
                        self.stopping.wait(LEFT_S)
                        continue
                    refused = {numbers[one.row] for one in told.refused}
                    self.books.confirm(self.publisher, [number for number in numbers if number not in refused])
                    self.books.confirm(self.publisher, refused, REFUSED)
                    if self.rest:
                        self.stopping.wait(self.rest)
        except PenstockError as error:
            if not error.retry:
                raise
        finally:
            self.stopping.set()
            if taker.is_alive():
                taker.join(60)

    def _take(self) -> None:
        try:
            with penstock.connect(f"penstock://{self.address}") as client:
                queue = self.books.queues[self.publisher]
                for taken in client.consume(queue, backlog=500, timeout="500ms"):
                    one = self.books.deliver(taken.body, taken.redelivered)
                    self.books.settle([one])
                    taken.ack()
                    if self.stopping.is_set():
                        return
        except PenstockError as error:
            if not error.retry:
                self.failure = error
        except BaseException as failure:  # noqa: BLE001  the soak tells it
            self.failure = failure


class Sink(SoakClient):
    """Takes what nobody counts."""

    def work(self) -> None:
        with SoakPeer(self.port) as peer:
            peer.method(spec.Basic.Consume(queue="markers", consumer_tag="c", no_ack=True, nowait=True))
            while not self.stopping.is_set():
                for _ in peer.told(0.2):
                    continue


class Probe(SoakClient):
    """One message at a time: how long its confirm takes."""

    def __init__(self, port: int, books: Books) -> None:
        super().__init__("probe", port, books)
        self.taken: list[float] = []

    def take(self) -> list[float]:
        """Seconds of the confirms since the last call."""
        taken, self.taken = self.taken, []
        return taken

    def work(self) -> None:
        method, properties = frames("markers")
        with SoakPeer(self.port) as peer:
            peer.select_confirms()
            while not self.stopping.wait(0.01):
                began = time.monotonic()
                peer.send(message(method, properties, b"probe"))
                while not list(peer.told(5)):
                    if self.stopping.is_set() or time.monotonic() - began > 30:
                        return
                self.taken.append(time.monotonic() - began)


def drained(
    port: int, books: Books, queues: tuple[str, ...], quiet: float = 1.5, link: type[SoakPeer] = SoakPeer
) -> Counter[Id]:
    """Everything that waits in these queues, taken and left unsettled on open connections: so nothing comes twice.

    Until nothing has come for so many quiet seconds, and the server says that nothing is left.
    """
    found = Counter[Id]()
    peers = list[SoakPeer]()
    looker = link(port)
    try:
        for queue in queues:
            peer = link(port)
            peers.append(peer)
            peer.method(spec.Basic.Consume(queue=queue, consumer_tag="c", nowait=True))
        silent_since, until = time.monotonic(), time.monotonic() + PATIENCE_S
        over = False
        while not over:
            silent = time.monotonic() - silent_since > quiet
            over = silent and (not left(looker, queues) or time.monotonic() > until)
            for queue, peer in zip(queues, peers, strict=True):
                for event in list(peer.told(0.02)):
                    assert isinstance(event, Delivery), event
                    found[books.deliver(event.body, event.redelivered, queue)] += 1
                    silent_since, over = time.monotonic(), False  # it was on its way when none was left
    finally:
        for peer in (looker, *peers):
            peer.leave()
    return found
