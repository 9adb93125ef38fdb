"""Clients of the soak of a cluster: each goes on with whoever serves; what it does and sees is in the books."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pika import spec

from crash_clients import GONE, Delivery
from rawlink import RawLink
from soak.books import ACKED, DELIVERED, PROVEN, Books, Id, body_of, identity
from soak.clients import SoakPeer, Told, frames, message

SILENCE_S = 4.0
"""A client that waits for so long goes to another server."""
BURST, WINDOW, MOST = 20, 200, 2_000


class Serving(Protocol):
    """A server."""

    @property
    def door(self) -> int:
        """Where it takes AMQP."""
        ...


class House(Protocol):
    """The soak, as its clients know it."""

    books: Books
    pace: float  # seconds that a publisher waits between bursts, unless it is told something
    rest: float  # seconds that it waits in any case: a short run needs no full load

    def random_servers(self) -> Sequence[Serving]: ...


class Link(SoakPeer):
    """A client's connection that does not wait for long."""

    def __init__(self, port: int) -> None:
        RawLink.__init__(self, port, timeout=3)
        try:
            self.ready()
        except BaseException:
            self.socket.close()
            raise
        self.port = port
        self.published = 0
        self._delivery: tuple[str, int, bool] | None = None
        self._missing = 0
        self._body: list[bytes] = []


class Client(threading.Thread):
    """One that goes on with whoever serves, until it is told to stop."""

    link: type[Link] = Link

    def __init__(self, soak: House, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.soak, self.books = soak, soak.books
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        while not self.stopping.is_set() and self.failure is None:
            for server in self.soak.random_servers():
                try:
                    with self.link(server.door) as link:
                        self.work(link)
                except GONE:
                    continue
                except AssertionError as failure:
                    if "CONNECTION_FORCED" not in str(failure):  # the server stops: as good as being gone
                        self.failure = failure
                except BaseException as failure:  # noqa: BLE001  the soak tells it
                    self.failure = failure
            self.stopping.wait(0.1)

    def work(self, link: Link) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes with confirms.  What was on its way when a connection ended is of an outcome that nobody knows.

    Each connection is a publisher of its own in the books: what an old one has sent may arrive after a new one's.
    """

    def __init__(self, soak: House, queue: str) -> None:
        super().__init__(soak, f"publisher of {queue}")
        self.queue = queue
        self.slow = queue == "kept"
        self.mine = -1
        self.confirmed_at = time.monotonic()
        self.state = ""
        self.gaps = list[float]()

    def work(self, link: Link) -> None:
        books = self.books
        method, properties = frames(self.queue)
        mine = self.mine = books.publisher(self.queue)
        waiting: deque[tuple[int, int]] = deque()  # (delivery tag, number), ascending
        tag, heard = 0, time.monotonic()
        link.select_confirms()
        while not self.stopping.is_set() or (waiting and time.monotonic() - heard < SILENCE_S):
            room = len(waiting) < WINDOW and (books.waiting[mine] < MOST or self.slow)
            self.state = f"port {link.port}: {len(waiting)} wait for confirms, {books.waiting[mine]} to be settled"
            if room and not self.stopping.is_set():
                if pause := max(self.soak.rest, 0.1 if self.slow else 0.0):
                    self.stopping.wait(pause)
                numbers = books.send(mine, BURST)
                link.send(b"".join([message(method, properties, body_of(mine, number)) for number in numbers]))
                waiting.extend(zip(range(tag + 1, tag + 1 + BURST), numbers, strict=True))
                tag += BURST
            if self._confirms(link, waiting):
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                return  # or nobody settles: what was sent at most once may have gone with a connection

    def _confirms(self, link: Link, waiting: deque[tuple[int, int]]) -> bool:
        came = False
        for event in list(link.told(self.soak.pace)):
            assert isinstance(event, Told), event
            done = list[int]()
            while event.multiple and waiting and waiting[0][0] <= event.tag:
                done.append(waiting.popleft()[1])
            if not event.multiple:
                found = next(item for item in waiting if item[0] == event.tag)
                waiting.remove(found)
                done.append(found[1])
            came = True
            if event.good:  # else nobody knows: a log that breaks refuses what may have been sent already
                self.books.confirm(self.mine, done)
                now = time.monotonic()
                if now - self.confirmed_at > 0.5:
                    self.gaps.append(now - self.confirmed_at)
                self.confirmed_at = now
        return came


class Worker(Client):
    """Consumes a queue: settles in runs, asks now and then for proof, and looks at the order where it is alone."""

    def __init__(self, soak: House, queue: str, *, alone: bool = True) -> None:
        super().__init__(soak, f"worker of {queue}")
        self.queue, self.alone, self.once = queue, alone, queue == "once"

    def work(self, link: Link) -> None:
        books = self.books
        method, properties = frames("markers")
        held = list[tuple[int, Id]]()
        unproven, asked = list[Id](), list[Id]()
        last = dict[int, int]()
        heard = time.monotonic()
        link.select_confirms()
        link.method(spec.Basic.Qos(prefetch_count=300))
        link.expect(spec.Basic.QosOk)
        link.method(spec.Basic.Consume(queue=self.queue, consumer_tag="c", no_ack=self.once, nowait=True))
        while not self.stopping.is_set():
            events = list(link.told(0.1))
            for event in events:
                heard = time.monotonic()
                if isinstance(event, Told):
                    if event.good:
                        books.settle(asked, PROVEN)
                    asked = []
                    continue
                assert isinstance(event, Delivery), event
                one = self._taken(event, last)
                if not self.once:
                    held.append((event.tag, one))
            if len(held) >= 50 or (held and not events):
                done = [one for _, one in held]
                books.settle(done, ACKED)
                link.method(spec.Basic.Ack(held[-1][0], multiple=True))
                unproven += done
                held.clear()
            if not asked and len(unproven) >= 200:
                asked, unproven = unproven, []
                link.send(message(method, properties, b"marker"))
            if time.monotonic() - heard > SILENCE_S:
                return

    def _taken(self, event: Delivery, last: dict[int, int]) -> Id:
        books = self.books
        if self.once:
            publisher, number = identity(event.body)
            if books.flags[publisher][number] & DELIVERED:
                books.fault(f"{publisher}.{number} of once came twice")
        publisher, number = one = books.deliver(event.body, event.redelivered, self.queue)
        if self.once:
            books.settle([one], ACKED)
        if self.alone and last.get(publisher, -1) >= number:
            books.fault(f"{publisher}.{number} of {self.queue} came after {last[publisher]}")
        last[publisher] = number
        return one
