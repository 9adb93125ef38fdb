"""The clients of a crowd that speak Redis: a queue is a stream with one consumer group.

A publisher adds (XADD) and waits for the id; a worker asks for one message (XREADGROUP COUNT 1 BLOCK 0), and
acknowledges it (XACK) with the request for the next.  A request is a message too, and its answer goes to a list of its
sender's own (RPUSH, BLPOP); the server writes all this to its file, because that is a setting of the whole server.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TypeAlias

import crowd
from crowd import SILENCE_S, Sender, Tally
from harness import Wrong

GROUP = "workers"

Reply: TypeAlias = "str | int | bytes | list[Reply] | None"


def command(*words: str | bytes) -> bytes:
    """As it goes over the wire."""
    data = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in data)


def _reply(data: bytes, at: int) -> tuple[Reply, int] | None:
    """A reply and where it ends; None when it is not whole."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, head, at = data[at : at + 1], data[at + 1 : end], end + 2
    match kind:
        case b"+":
            return head.decode(), at
        case b":":
            return int(head), at
        case b"$":
            size = int(head)
            if size < 0:
                return None, at
            return (data[at : at + size], at + size + 2) if len(data) >= at + size + 2 else None
        case b"*":
            found: list[Reply] = []
            for _ in range(int(head)):
                one = _reply(data, at)
                if one is None:
                    return None
                found.append(one[0])
                at = one[1]
            return found, at
        case _:
            raise Wrong(f"Redis says {head.decode(errors='replace')}")


class Connection:
    """A client; `cut` gives the replies."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, SILENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._kept = b""

    def ask(self, *words: str | bytes) -> Reply:
        """One command and its reply."""
        self.sock.sendall(command(*words))
        while not (found := self.cut(self.sock.recv(65_536))):
            pass
        return found[0]

    def cut(self, data: bytes) -> list[Reply]:
        """The replies that are whole now."""
        if not data:
            raise Wrong("Redis closed the connection")
        data = self._kept + data
        found: list[Reply] = []
        at = 0
        while at < len(data) and (one := _reply(data, at)) is not None:
            found.append(one[0])
            at = one[1]
        self._kept = data[at:]
        return found


class Publisher(Sender):
    """Waits for the id of each message."""

    def __init__(self, link: Connection, tally: Tally, number: int, stream: str) -> None:
        super().__init__(link.sock, tally, number)
        self._link = link
        self._words = ("XADD", stream, "*", "tenant", "t-17", "attempt", "1", "type", "application/json")

    def message(self) -> bytes:
        name = b"id-%012d" % (self.number * 10_000_000 + self.count)
        return command(*self._words, "id", name, "body", self.tally.body(self.number, self.count))

    def heard(self, data: bytes, now: float) -> None:
        for one in self._link.cut(data):
            if not isinstance(one, bytes):
                raise Wrong(f"sender {self.number} waited for the id of {self.count}, got {one!r}")
            self.settled(now)


class Requester(Publisher):
    """Waits for an answer in its own list."""

    def __init__(self, link: Connection, tally: Tally, number: int, stream: str) -> None:
        super().__init__(link, tally, number, stream)
        self._own = f"{stream}.answers.{number}"
        self._words = (*self._words, "reply", self._own)

    def message(self) -> bytes:
        return super().message() + command("BLPOP", self._own, "0")

    def heard(self, data: bytes, now: float) -> None:
        for one in self._link.cut(data):
            if isinstance(one, bytes):
                continue  # the id of the request
            if one != [self._own.encode(), self.tally.body(self.number, self.count)]:
                raise Wrong(f"sender {self.number} waited for the answer to {self.count}, got {one!r}")
            self.settled(now)


class Worker(crowd.Worker):
    """One of the group."""

    def __init__(self, link: Connection, tally: Tally, stream: str, number: int) -> None:
        super().__init__(link.sock, tally)
        self._link = link
        self._stream = stream
        self._next = command(
            "XREADGROUP", "GROUP", GROUP, f"worker-{number}", "COUNT", "1", "BLOCK", "0", "STREAMS", stream, ">"
        )
        self.sock.sendall(self._next)

    def heard(self, data: bytes, now: float) -> None:
        for one in self._link.cut(data):
            if isinstance(one, int):
                continue  # the replies to XACK and RPUSH
            match one:
                case [[bytes(), [[bytes(name), [*fields]]]]]:
                    told = dict(zip(fields[::2], fields[1::2], strict=True))
                case _:
                    raise Wrong(f"no delivery: {one!r}")
            body, reply = told[b"body"], told.get(b"reply")
            assert isinstance(body, bytes)
            self.work(body, now)
            answer = command("RPUSH", reply, body) if isinstance(reply, bytes) else b""
            self.sock.sendall(answer + command("XACK", self._stream, GROUP, name) + self._next)


class RedisDoor:
    """Of a Redis server with streams."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._workers = 0
        self._control = Connection(address)

    def version(self) -> str:
        """What the server says."""
        told = self._control.ask("INFO", "server")
        assert isinstance(told, bytes)
        return told.partition(b"redis_version:")[2].split()[0].decode()

    def declare(self, name: str, count: int) -> list[str]:
        queues = [f"{name}.{number}" for number in range(count)]
        for queue in queues:
            self._control.ask("XGROUP", "CREATE", queue, GROUP, "0", "MKSTREAM")
        return queues

    def left(self, queues: Sequence[str]) -> int:
        left = 0
        for queue in queues:
            match self._control.ask("XINFO", "GROUPS", queue):
                case [[*fields]]:
                    told = dict(zip(fields[::2], fields[1::2], strict=True))
                    pending, lag = told[b"pending"], told[b"lag"]
                    assert isinstance(pending, int)
                    assert isinstance(lag, int)
                    left += pending + lag
                case other:
                    raise Wrong(f"no group: {other!r}")
        return left

    def remove(self, queues: Sequence[str]) -> None:
        self._control.ask("DEL", *queues)

    def publisher(self, number: int, queue: str, tally: Tally) -> Publisher:
        return Publisher(Connection(self._address), tally, number, queue)

    def worker(self, queue: str, tally: Tally) -> Worker:
        self._workers += 1
        return Worker(Connection(self._address), tally, queue, self._workers)

    def requester(self, number: int, queue: str, tally: Tally, *, direct: bool) -> Requester:
        """There is one way only."""
        return Requester(Connection(self._address), tally, number, queue)

    def answerer(self, queue: str, tally: Tally) -> Worker:
        """A worker that finds where to answer."""
        return self.worker(queue, tally)
