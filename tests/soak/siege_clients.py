"""Honest clients of a siege: each goes on when a door has sent it away, and writes down how long it was not served."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

import penstock
from penstock.errors import PenstockError
from soak.books import ACKED, DELIVERED, Books, Id, body_of, identity
from soak.clients import Told, frames, message
from soak.cluster_clients import Client, Link, Publisher, Serving, Worker

VHOST = "town"
PAUSE_S = 0.02
PATIENCE_S = 120.0
"""An honest client of any door is served within so long, whatever goes on, on a machine that does much else."""


class Besieged(Protocol):
    """The siege, as its clients know it."""

    books: Books
    pace: float

    def random_servers(self) -> Sequence[Serving]: ...

    @property
    def flight(self) -> str:
        """Address for our own client."""
        ...

    @property
    def http(self) -> int:
        """A port."""
        ...


class Town(Link):
    """An honest connection."""

    def open(self, vhost: str = VHOST, tune: tuple[int, int, int] = (10, 131_072, 0)) -> None:
        super().open(vhost, tune)


class Ledger(Books):
    """Books of queues in which nothing comes twice without being marked."""

    def deliver(self, body: bytes, redelivered: bool, queue: str = "") -> Id:
        with suppress(ValueError, IndexError):
            publisher, number = identity(body)
            if not redelivered and self.flags[publisher][number] & DELIVERED:
                self.fault(f"{publisher}.{number} of {queue} came twice, and was not marked")
        return super().deliver(body, redelivered, queue)


class Tenacious(Client):
    """One that goes on whatever it was told, and keeps what it cannot explain."""

    link = Town

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.failures = list[BaseException]()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.session()
            if self.failure is not None:
                self.failures.append(self.failure)
                self.failure = None
            self.stopping.wait(0.05)

    def session(self) -> None:
        """Until it fails, or is told to stop."""
        super().run()


class Waited(NamedTuple):
    """What one publish of an honest client took."""

    began: float
    seconds: float


class Lone(Tenacious):
    """One message at a time over AMQP."""

    door = "amqp"

    def __init__(self, soak: Besieged) -> None:
        super().__init__(soak, "lone publisher")
        self.siege = soak
        self.waited = list[Waited]()
        self.served_at = time.monotonic()

    def took(self, began: float) -> None:
        """A publish was confirmed."""
        self.served_at = time.monotonic()
        self.waited.append(Waited(began, self.served_at - began))

    def work(self, link: Link) -> None:
        method, properties = frames("lone")
        mine = self.books.publisher("lone")
        link.select_confirms()
        while not self.stopping.wait(PAUSE_S):
            [number] = self.books.send(mine, 1)
            began = time.monotonic()
            link.send(message(method, properties, body_of(mine, number)))
            while not (told := list(link.told(3))):
                if self.stopping.is_set() or time.monotonic() - began > PATIENCE_S / 2:
                    return
            assert all(isinstance(one, Told) and one.good for one in told), told
            self.took(began)
            self.books.confirm(mine, [number])


class OverFlight(Lone):
    """Ten messages at a time over Flight."""

    door = "flight"

    def session(self) -> None:
        try:
            with penstock.connect(self.siege.flight, timeout="60s") as client:
                self.publish(client)
        except PenstockError as error:
            if not error.retry:
                self.failure = error
        except BaseException as failure:  # noqa: BLE001  the siege tells it
            self.failure = failure

    def publish(self, client: penstock.Client) -> None:
        mine = self.books.publisher("bulk")
        while not self.stopping.wait(PAUSE_S):
            numbers = self.books.send(mine, 10)
            began = time.monotonic()
            client.publish_table("bulk", pa.table({"body": [body_of(mine, number) for number in numbers]}))
            self.took(began)
            self.books.confirm(mine, numbers)


class OverHttp(Lone):
    """One message at a time over HTTP."""

    door = "http"

    def session(self) -> None:
        try:
            with closing(HTTPConnection("127.0.0.1", self.siege.http, timeout=60)) as link:
                self.publish(link)
        except (OSError, HTTPException):
            pass
        except BaseException as failure:  # noqa: BLE001  the siege tells it
            self.failure = failure

    def publish(self, link: HTTPConnection) -> None:
        mine = self.books.publisher("web")
        headers = {"authorization": "Basic " + b64encode(b"guest:guest").decode(), "content-type": "application/json"}
        told: dict[str, object] = {
            "properties": {"delivery_mode": 2},
            "routing_key": "web",
            "payload_encoding": "string",
        }
        while not self.stopping.wait(PAUSE_S):
            [number] = self.books.send(mine, 1)
            body = json.dumps({**told, "payload": body_of(mine, number).decode()})
            began = time.monotonic()
            link.request("POST", f"/api/exchanges/{VHOST}/amq.default/publish", body, headers)
            answer = link.getresponse()
            said = answer.read()
            if answer.status == 503:  # too much at a time: nobody knows, later
                return
            assert said == b'{"routed":true}', (answer.status, said[:300])
            self.took(began)
            self.books.confirm(mine, [number])


class FlightWorker(Tenacious):
    """Consumes over Flight."""

    def __init__(self, soak: Besieged) -> None:
        super().__init__(soak, "worker of bulk")
        self.siege = soak

    def session(self) -> None:
        try:
            with penstock.connect(self.siege.flight, timeout="60s") as client:
                for taken in client.consume("bulk", backlog=100, timeout="1s", reconnect=None):
                    self.books.settle([self.books.deliver(taken.body, taken.redelivered, "bulk")], ACKED)
                    taken.ack()
                    if self.stopping.is_set():
                        break
        except PenstockError as error:
            if not error.retry:
                self.failure = error
        except BaseException as failure:  # noqa: BLE001  the siege tells it
            self.failure = failure


class TownPublisher(Tenacious, Publisher):
    """Publishes as fast as it may."""


class TownWorker(Tenacious, Worker):
    """Consumes."""
