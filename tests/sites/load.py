"""Publishers and workers at several sites, and books in which every message stands: confirmed or not, worked where.

A message may be worked twice only where the page says so (docs/links.md): its worker's site was killed, or its worker
went away with it, or an operator had a site act for another.  Everything else is a finding.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import pika
from pika.exceptions import AMQPError

from live_server import PIKAS_MISTAKES, Mortal
from sites.house import Site

EARLY_S = 1.0
"""What was settled so shortly before a kill may not be on the disk: acks are synced within a tenth of a second."""


class Given(NamedTuple):
    """A message given to a worker.  acked: monotonic seconds, 0 if it never was."""

    site: str
    at: float
    redelivered: bool


class Books:
    """What happened.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.confirmed = set[bytes]()
        self.given = dict[bytes, list[Given]]()
        self.acked = dict[bytes, float]()  # the latest
        self.ends = dict[str, list[float]]()  # by site: when it was killed
        self.counts = Counter[str]()

    def confirm(self, bodies: Iterable[bytes]) -> None:
        with self._lock:
            self.confirmed.update(bodies)
            self.counts["confirmed"] = len(self.confirmed)

    def give(self, site: str, body: bytes, redelivered: bool) -> None:
        with self._lock:
            self.given.setdefault(body, []).append(Given(site, time.monotonic(), redelivered))

    def ack(self, body: bytes) -> None:
        with self._lock:
            self.acked[body] = time.monotonic()

    def killed(self, site: str) -> None:
        with self._lock:
            self.ends.setdefault(site, []).append(time.monotonic())

    def worked(self) -> list[tuple[bytes, str]]:
        """What was given to somebody, and at which site the last time."""
        with self._lock:
            return [(body, some[-1].site) for body, some in self.given.items()]

    def told(self) -> set[bytes]:
        """What was confirmed."""
        with self._lock:
            return set(self.confirmed)

    def left(self) -> set[bytes]:
        """Confirmed, and nobody has worked it."""
        with self._lock:
            return self.confirmed - self.acked.keys()

    def again(self) -> int:
        """How often a message was given once more."""
        with self._lock:
            return sum(len(some) - 1 for some in self.given.values())

    def wrong(self, *, proxied: bool = False) -> list[str]:
        """Messages given twice without a reason that the page names."""
        found = list[str]()
        with self._lock:
            for body, some in self.given.items():
                for one, after in pairwise(some):
                    killed = any(one.at - EARLY_S <= end <= after.at for end in self.ends.get(one.site, ()))
                    if not killed and not proxied:
                        when = self.acked.get(body, 0.0)
                        found.append(f"{body!r}: given at {one.site}, then at {after.site}; acked {when:.2f}: {some}")
        return found


class _Client(threading.Thread):
    """One connection at a time, to one site; when it ends, the next."""

    def __init__(self, site: Site, books: Books) -> None:
        super().__init__(daemon=True)
        self.site, self.books = site, books
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(AMQPError, OSError, *PIKAS_MISTAKES):
                connection = Mortal(self.site.parameters(heartbeat=10, socket_timeout=5))
                with contextlib.closing(connection):
                    self.work(connection)
            self.over.wait(0.1)

    def work(self, connection: pika.BlockingConnection) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.over.set()
        self.join(20)


class Publisher(_Client):
    """One message after another, each confirmed, `pause` seconds between them."""

    def __init__(self, site: Site, books: Books, pause: float = 0.002, name: str = "") -> None:
        super().__init__(site, books)
        self.pause, self.next, self.prefix = pause, 0, name or site.name
        self.resting = threading.Event()

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.over.is_set():
            if self.resting.is_set():
                connection.process_data_events(0.05)
                continue
            self.next += 1
            body = f"{self.prefix}:{self.next}".encode()
            channel.basic_publish("", "work", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
            self.books.confirm([body])
            if self.pause:
                self.over.wait(self.pause)


class Worker(_Client):
    """Acknowledges whatever it is given, `pause` seconds after."""

    def __init__(self, site: Site, books: Books, prefetch: int = 20, pause: float = 0.0) -> None:
        super().__init__(site, books)
        self.prefetch, self.pause = prefetch, pause
        self.resting = threading.Event()  # it consumes nothing meanwhile

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self.prefetch)
        tag = ""
        while True:
            wants = not self.over.is_set() and not self.resting.is_set()
            if wants and not tag:
                tag = channel.basic_consume("work", self._took)
            elif not wants and tag:
                channel.basic_cancel(tag)  # what it was given before is worked
                tag = ""
            connection.process_data_events(0.05)
            if self.over.is_set():
                return

    def _took(self, channel: object, method: pika.spec.Basic.Deliver, properties: object, body: bytes) -> None:
        self.books.give(self.site.name, body, bool(method.redelivered))
        if self.pause:
            time.sleep(self.pause)
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]
        self.books.ack(body)
