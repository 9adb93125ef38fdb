"""kill -9 for each process that takes clients, one after the other, while each of their calls is under way.

    AMQP    publish with a confirm; take and acknowledge; a transaction of three
    Flight  publish; take, and move in a transaction; an upload of a table
    HTTP    publish; look at a queue, and at what happens; an upload of definitions

What was confirmed is there, once where it was moved, all or nothing where it was one transaction; no lease, consumer,
connection or descriptor stays in the server, whose memory does not grow; and nothing but the door that was killed ends.
`make soak` kills 200 of them.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import orjson
import pika
import pyarrow as pa
import pytest
from pika.exceptions import AMQPError

import penstock
from choices import EFFORT, SEED
from forked import beside
from live_server import LiveServer, Mortal
from penstock import PenstockError
from waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("as_the_files_say")]

KILLS = 3 if EFFORT == 1 else 20 * EFFORT
PERSISTENT = pika.BasicProperties(delivery_mode=2)
LOGIN = {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "content-type": "application/json"}
GONE = (AMQPError, PenstockError, OSError, HTTPException)
BACK_S = 20.0
UPLOAD = 100
PAUSE_S = 0.02
"""Between calls of a worker: all of them have to be read again at the end."""

WARM_S = 1.0
GROWS_MOST = 96 << 20
"""Bytes that the server may have more of at the end: what it caches of what was published meanwhile."""

OF_DOORS = 12
"""Descriptors of ways, lines and files that had not begun yet when they were counted first."""


class Server(LiveServer):
    """Its doors are children of its own."""

    children_load = True
    http = "127.0.0.1:0"

    def doors(self) -> dict[str, int]:
        """The process of each kind of door that runs."""
        assert self.process is not None
        there = {name: beside(self.process.pid, f"penstock.server.{name}.front") for name in ("amqp", "flight", "http")}
        return {name: pids[-1] for name, pids in there.items() if pids}

    def link(self) -> HTTPConnection:
        host, _, port = self.ready["http"].rpartition(":")
        return HTTPConnection(host, int(port), timeout=20)

    def ask(self, path: str) -> object:
        with closing(self.link()) as link:
            link.request("GET", path, headers=LOGIN)
            return orjson.loads(link.getresponse().read())

    @property
    def url(self) -> str:
        return f"penstock://guest:guest@{self.ready['flight']}"


class Worker(threading.Thread):
    """A client that goes on by itself, with another connection whenever one has ended."""

    def __init__(self, server: Server, door: str, work: Callable[[Worker], Iterator[None]]) -> None:
        super().__init__(daemon=True, name=work.__name__)
        self.server, self.door = server, door
        self.over = threading.Event()
        self.told, self.tried = set[str](), set[str]()
        self.done = 0  # what was answered
        self.failed: BaseException | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        try:
            while not self.over.is_set():
                with suppress(*GONE), closing(self._work(self)) as steps:
                    for _ in steps:
                        self.done += 1
                        self.over.wait(PAUSE_S)
                        if self.over.is_set():
                            break
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failed = error

    def next(self) -> str:
        """A body that nothing else has."""
        body = f"{self.name}-{len(self.tried)}"
        self.tried.add(body)
        return body


def amqp_publishes(worker: Worker) -> Iterator[None]:
    with closing(Mortal(worker.server.parameters())) as link:
        channel = link.channel()
        channel.confirm_delivery()
        while True:
            body = worker.next()
            channel.basic_publish("", "amqp", body.encode(), PERSISTENT, mandatory=True)
            worker.told.add(body)
            yield


def amqp_consumes(worker: Worker) -> Iterator[None]:
    with closing(Mortal(worker.server.parameters())) as link:
        channel = link.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _, body in channel.consume("amqp", inactivity_timeout=0.05):
            if method is not None and body is not None:
                worker.tried.add(body.decode())
                channel.basic_ack(method.delivery_tag)
            yield


def amqp_commits(worker: Worker) -> Iterator[None]:
    with closing(Mortal(worker.server.parameters())) as link:
        channel = link.channel()
        channel.tx_select()
        while True:
            body = worker.next()
            for part in range(3):
                channel.basic_publish("", "tx", f"{body}/{part}".encode(), PERSISTENT)
            channel.tx_commit()
            worker.told.add(body)
            yield


def flight_publishes(worker: Worker) -> Iterator[None]:
    with penstock.connect(worker.server.url, timeout=30) as client:
        while True:
            body = worker.next()
            if client.publish("flight", body.encode()).outcome == "stored":
                worker.told.add(body)
            yield


def flight_moves(worker: Worker) -> Iterator[None]:
    with penstock.connect(worker.server.url, timeout=30) as client:
        with client.consume("flight", backlog=10, reconnect=0, timeout=0.2) as consumer:
            for message in consumer:
                with client.transaction() as transaction:
                    transaction.ack(message)
                    transaction.publish("moved", message.body)
                yield
        yield


def flight_uploads(worker: Worker) -> Iterator[None]:
    with penstock.connect(worker.server.url, timeout=30) as client:
        while True:
            body = worker.next()
            rows = [f"{body}/{row}".encode() + bytes(500) for row in range(UPLOAD)]
            client.publish_table("uploads", pa.table({"body": pa.array(rows, pa.binary())}))
            worker.told.add(body)
            yield


def http_publishes(worker: Worker) -> Iterator[None]:
    with closing(worker.server.link()) as link:
        while True:
            body = worker.next()
            asked: dict[str, object] = {"properties": {"delivery_mode": 2}, "routing_key": "http", "payload": body}
            asked["payload_encoding"] = "string"
            link.request("POST", "/api/exchanges/%2F/amq.default/publish", orjson.dumps(asked), LOGIN)
            answer = link.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"routed":true}')
            worker.told.add(body)
            yield


def http_looks(worker: Worker) -> Iterator[None]:
    with closing(worker.server.link()) as stream, closing(worker.server.link()) as link:
        stream.request("GET", "/api/events", headers=LOGIN)
        assert stream.getresponse().readline() == b": penstock\n"  # it goes on, and is not read
        while True:
            link.request("GET", "/api/queues/%2F/http/peek?count=50", headers=LOGIN)
            assert link.getresponse().read().startswith(b"[")
            yield


def http_uploads(worker: Worker) -> Iterator[None]:
    definitions = {"queues": [{"name": f"q{n}", "vhost": "/", "durable": True, "x": "x" * 4000} for n in range(200)]}
    with closing(worker.server.link()) as link:
        while True:
            link.request("POST", "/api/definitions", orjson.dumps(definitions), LOGIN)
            answer = link.getresponse()
            assert (answer.status, answer.read()) == (204, b"")
            yield


WORK: dict[str, tuple[Callable[[Worker], Iterator[None]], ...]] = {
    "amqp": (amqp_publishes, amqp_consumes, amqp_commits),
    "flight": (flight_publishes, flight_moves, flight_uploads),
    "http": (http_publishes, http_looks, http_uploads),
}

QUEUES = ("amqp", "tx", "flight", "moved", "uploads", "http")


def bodies(server: Server, queue: str) -> list[str]:
    """All that a queue has, in its order; it is empty then."""
    found = list[str]()
    with closing(Mortal(server.parameters())) as link:
        channel = link.channel()
        channel.basic_qos(prefetch_count=1000)
        left = int(channel.queue_declare(queue, passive=True).method.message_count)
        for method, _, body in channel.consume(queue, inactivity_timeout=30):
            if not left or method is None or body is None:
                break
            found.append(body.rstrip(b"\0").decode())
            channel.basic_ack(method.delivery_tag)
            left -= 1
            if not left:
                break
    return found


def test_doors_are_killed_in_the_midst_of_everything_and_nothing_told_is_lost(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    config = tmp_path / "penstock.toml"
    config.write_text("[server]\ndoors = 1\nmemory = '64MiB'\n")
    with Server(tmp_path, [str(config)], flight=True) as server:
        with closing(Mortal(server.parameters())) as link:
            for queue in QUEUES:
                link.channel().queue_declare(queue, durable=True)
        workers = [Worker(server, door, work) for door, some in WORK.items() for work in some]
        eventually(lambda: all(one.done > 1 for one in workers), lambda: f"idle: {idle(workers)}")
        time.sleep(WARM_S if EFFORT > 1 else 0)
        before, memory = server.descriptors(), server.memory()
        process = server.process
        assert process is not None
        late = Counter[str]()
        for turn in range(KILLS):
            door = chance.choice(sorted(WORK)) if turn >= len(WORK) else sorted(WORK)[turn]  # each once at least
            victim, counts = server.doors()[door], {one: one.done for one in workers}
            time.sleep(chance.random() * 0.2)  # in the midst of something
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            eventually(lambda: server.doors().get(door, victim) != victim, f"no other {door} door", BACK_S)  # noqa: B023
            late[door] = max(late[door], int(1000 * (time.monotonic() - killed)))
            eventually(
                lambda: all(one.done > counts[one] for one in workers if one.door == door or one.failed),  # noqa: B023
                lambda: f"idle: {idle(workers)}",
            )
            assert process.poll() is None, server.output()
            assert not [one for one in workers if one.failed]
        for one in workers:
            one.over.set()
        for one in workers:
            one.join(60)
            assert not one.is_alive(), one.name
            assert one.failed is None, one.failed
        eventually(lambda: not leased(server), lambda: f"left behind: {leased(server)}")
        eventually(lambda: server.ask("/api/connections") == [])
        eventually(
            lambda: server.descriptors() <= before + OF_DOORS, lambda: f"{server.descriptors()}, {before} before"
        )
        assert server.memory() - memory < GROWS_MOST
        judge(server, {one.name: one for one in workers})
        server.stop()
        assert "Traceback" not in server.output(), server.output()
        print(f"{KILLS} kills; the next one began after {dict(late)} ms at most")


def idle(workers: list[Worker]) -> list[object]:
    return [(one.name, one.done, one.failed) for one in workers]


def leased(server: Server) -> list[object]:
    """Queues with leases or consumers."""
    found = server.ask("/api/queues")
    assert isinstance(found, list)
    return [one["name"] for one in found if one["messages_unacknowledged"] or one["consumers"]]


def judge(server: Server, workers: dict[str, Worker]) -> None:
    """What was told is there."""
    amqp, consumed = workers["amqp_publishes"], workers["amqp_consumes"]
    left = set(bodies(server, "amqp"))
    assert amqp.told <= left | consumed.tried <= amqp.tried

    parts = Counter(body.partition("/")[0] for body in bodies(server, "tx"))
    commits = workers["amqp_commits"]
    assert commits.told <= parts.keys() <= commits.tried
    assert set(parts.values()) == {3}

    flight = workers["flight_publishes"]
    moved, waiting = bodies(server, "moved"), bodies(server, "flight")
    assert len(set(moved)) == len(moved)
    assert not set(moved) & set(waiting)
    assert flight.told <= {*moved, *waiting} <= flight.tried

    rows = Counter(body.partition("/")[0] for body in bodies(server, "uploads"))
    uploads = workers["flight_uploads"]
    assert {body for body, count in rows.items() if count == UPLOAD} >= uploads.told
    assert rows.keys() <= uploads.tried

    told = workers["http_publishes"]
    assert told.told <= set(bodies(server, "http")) <= told.tried
