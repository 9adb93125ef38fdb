"""The clients of a crowd that speak NATS: JetStream for what is kept, plain subjects for requests.

A queue is a subject of one work-queue stream on disk, with a durable pull consumer.  A publisher waits for the PubAck
of each message; a worker asks for one message at a time and acks it.  A request is answered by one of a queue group,
as NATS has it: nothing is kept, and a worker is handed requests without asking.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import crowd
from crowd import SILENCE_S, Sender, Tally
from harness import Wrong

_OPTIONS = b'{"verbose":false,"pedantic":false,"headers":true,"no_responders":true}'
_ONE = b'{"batch":1}'
_HEADERS = b"NATS/1.0\r\nTenant: t-17\r\nAttempt: 1\r\nContent-Type: application/json\r\nId: id-%012d\r\n\r\n"


class Message(NamedTuple):
    """What came on a subject."""

    reply: bytes  # the subject that an answer, or an ack, goes to
    status: bytes  # of the server itself, as "408 Request Timeout"; empty for a message
    body: bytes


class Connection:
    """A logged-in client; `cut` gives messages and answers the server's pings."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, SILENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.info: dict[str, Any] = {}
        self._kept = b""
        self._pongs = 0
        self.settle(b"CONNECT %s\r\n" % _OPTIONS)

    def settle(self, data: bytes) -> list[Message]:
        """Send, and return when the server has handled it: what came meanwhile."""
        came: list[Message] = []
        wanted = self._pongs + 1
        self.sock.sendall(data + b"PING\r\n")
        while self._pongs < wanted:
            came += self.cut(self._read())
        return came

    def ask(self, subject: str, content: object) -> dict[str, Any]:
        """A call of JetStream's management."""
        body = b"" if content is None else json.dumps(content).encode()
        came = self.settle(b"SUB answer 9\r\nPUB $JS.API.%s answer %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        while not came:
            came = self.cut(self._read())
        self.sock.sendall(b"UNSUB 9\r\n")
        answer: dict[str, Any] = json.loads(came[0].body)
        if "error" in answer:
            raise Wrong(f"NATS refused {subject}: {answer['error']}")
        return answer

    def _read(self) -> bytes:
        if data := self.sock.recv(65_536):
            return data
        raise Wrong("NATS closed the connection")

    def cut(self, data: bytes) -> list[Message]:
        """The messages that are whole now."""
        data = self._kept + data
        found: list[Message] = []
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            after = end + 2
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                size, with_headers = int(words[-1]), line[:1] == b"H"
                if len(data) < after + size + 2:
                    break
                head = int(words[-2]) if with_headers else 0
                reply = words[3] if len(words) == (6 if with_headers else 5) else b""
                status = data[after : data.index(b"\r\n", after)][9:] if with_headers else b""
                found.append(Message(reply, status, data[after + head : after + size]))
                after += size + 2
            elif line == b"PING":
                self.sock.sendall(b"PONG\r\n")
            elif line == b"PONG":
                self._pongs += 1
            elif line.startswith(b"INFO "):
                self.info = json.loads(line[5:])
            else:
                raise Wrong(f"NATS says {line.decode(errors='replace')}")
            at = after
        self._kept = data[at:]
        return found


class Publisher(Sender):
    """Waits for the PubAck of each message, or for its answer."""

    def __init__(self, link: Connection, tally: Tally, number: int, subject: str, *, asks: bool = False) -> None:
        super().__init__(link.sock, tally, number)
        self._link = link
        self._asks = asks
        self._head = b"HPUB %s inbox.%d" % (subject.encode(), number)
        link.settle(b"SUB inbox.%d 1\r\n" % number)

    def message(self) -> bytes:
        headers = _HEADERS % (self.number * 10_000_000 + self.count)
        body = self.tally.body(self.number, self.count)
        return b"%s %d %d\r\n%s%s\r\n" % (self._head, len(headers), len(headers) + len(body), headers, body)

    def heard(self, data: bytes, now: float) -> None:
        for one in self._link.cut(data):
            if self._asks:
                right = one.body == self.tally.body(self.number, self.count)
            else:
                right = b'"seq":' in one.body and b'"error"' not in one.body
            if one.status or not right:
                raise Wrong(f"sender {self.number} waited for {self.count}, got {one}")
            self.settled(now)


class Worker(crowd.Worker):
    """Pulls one message, acks it with the request for the next."""

    def __init__(self, link: Connection, tally: Tally, stream: str, consumer: str, number: int) -> None:
        super().__init__(link.sock, tally)
        self._link = link
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self._next = b"PUB %s pulled.%d %d\r\n%s\r\n" % (subject, number, len(_ONE), _ONE)
        link.settle(b"SUB pulled.%d 1\r\n" % number)
        self.sock.sendall(self._next)

    def heard(self, data: bytes, now: float) -> None:
        for one in self._link.cut(data):
            if one.status:
                raise Wrong(f"a pull ended: {one.status.decode()}")
            self.work(one.body, now)
            self.sock.sendall(b"PUB %s 4\r\n+ACK\r\n%s" % (one.reply, self._next))


class Answerer(crowd.Worker):
    """One of the queue group of a subject."""

    def __init__(self, link: Connection, tally: Tally, subject: str) -> None:
        super().__init__(link.sock, tally)
        self._link = link
        link.settle(b"SUB %s workers 1\r\n" % subject.encode())

    def heard(self, data: bytes, now: float) -> None:
        for one in self._link.cut(data):
            self.work(one.body, now)
            self.sock.sendall(b"PUB %s %d\r\n%s\r\n" % (one.reply, len(one.body), one.body))


class NatsDoor:
    """Of a NATS server with JetStream."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._workers = 0
        self._control = Connection(address)
        self.version: str = self._control.info["version"]

    def declare(self, name: str, count: int) -> list[str]:
        stream = {"name": name, "subjects": [f"{name}.*"], "retention": "workqueue", "storage": "file"}
        self._control.ask(f"STREAM.CREATE.{name}", stream | {"num_replicas": 1})
        queues = [f"{name}.{number}" for number in range(count)]
        for number, queue in enumerate(queues):
            consumer = {"durable_name": f"c{number}", "ack_policy": "explicit", "filter_subject": queue}
            content = {"stream_name": name, "config": consumer | {"max_ack_pending": 100_000}}
            self._control.ask(f"CONSUMER.DURABLE.CREATE.{name}.c{number}", content)
        return queues

    def left(self, queues: Sequence[str]) -> int:
        told = self._control.ask(f"STREAM.INFO.{queues[0].partition('.')[0]}", None)
        return int(told["state"]["messages"])

    def remove(self, queues: Sequence[str]) -> None:
        self._control.ask(f"STREAM.DELETE.{queues[0].partition('.')[0]}", None)

    def publisher(self, number: int, queue: str, tally: Tally) -> Publisher:
        return Publisher(Connection(self._address), tally, number, queue)

    def worker(self, queue: str, tally: Tally) -> Worker:
        self._workers += 1
        stream, _, number = queue.partition(".")
        return Worker(Connection(self._address), tally, stream, f"c{number}", self._workers)

    def requester(self, number: int, queue: str, tally: Tally, *, direct: bool) -> Publisher:
        """There is one way only."""
        return Publisher(Connection(self._address), tally, number, f"requests.{queue}", asks=True)

    def answerer(self, queue: str, tally: Tally) -> Answerer:
        return Answerer(Connection(self._address), tally, f"requests.{queue}")
