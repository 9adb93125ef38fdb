"""The clients of a crowd that speak AMQP.

A message has an id of its own, a time and two headers.  A request goes as RabbitMQ's clients send them: not kept, no
confirm, `reply-to` a queue that only its sender has, or `amq.rabbitmq.reply-to`; the answer has its correlation id.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crowd
from amqp_client import Link, content, method
from crowd import NUMBER, Sender, Tally
from harness import Wrong

_CONFIRM = struct.Struct(">BHIHHQBB")
_FRAME = struct.Struct(">BHI").unpack_from
_PLAIN, _ASKING = b"\xb0\xc0", b"\xb6\xc0"  # content type, headers, delivery mode, (correlation, reply-to,) id, time
_BEGINS = (b"\0\x3c\0\x3c", b"\0\x3c\0\0", b"")  # of a delivery's method, header, body
_NO_ACK, _EXCLUSIVE = b"\x02", b"\x04"


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


class Deliveries:
    """What is delivered to a connection, cut out of the stream: method, header and body of each."""

    def __init__(self, rest: bytes) -> None:
        self._kept = rest

    def cut(self, data: bytes) -> list[tuple[bytes, bytes, bytes]]:
        """Those that are whole now."""
        data = self._kept + data
        found: list[tuple[bytes, bytes, bytes]] = []
        frames: list[bytes] = []
        start = at = 0
        while len(data) - at >= 7 and len(data) - at >= 8 + (size := _FRAME(data, at)[2]):
            frames.append(data[at + 7 : at + 7 + size])
            if not frames[-1].startswith(_BEGINS[len(frames) - 1]):
                raise Wrong(f"no delivery: {frames[-1][:100]!r}")
            at += 8 + size
            if len(frames) == 3:
                deliver, header, body = frames
                found.append((deliver, header, body))
                frames, start = [], at
        self._kept = data[start:]
        return found


class Publisher(Sender):
    """Waits for the confirm of each message.  reply_to: it is a request."""

    def __init__(self, link: Link, tally: Tally, number: int, key: str, reply_to: str = "") -> None:
        super().__init__(link.sock, tally, number)
        headers = _short("tenant") + b"S\0\0\0\x04t-17" + _short("attempt") + b"l" + (1).to_bytes(8, "big")
        told = _short("application/json") + len(headers).to_bytes(4, "big") + headers
        if reply_to:
            told = _ASKING + told + b"\x01" + _short("co-000000000000") + _short(reply_to)
        else:
            told = _PLAIN + told + b"\x02"
        told += _short("id-000000000000") + (1_790_000_000).to_bytes(8, "big")
        body = tally.body(number)
        self._data = bytearray(method((60, 40), b"\0\0" + _short("") + _short(key) + b"\0") + content(body, told))
        self._body = len(self._data) - 1 - len(body)
        # the whole of each: a server's name of the reply queue may have its first letters by chance, as a body may
        found = [self._data.find(name + b"0" * 12, 0, self._body) for name in (b"id-", b"co-")]
        self._ids = [place + 3 for place in found if place >= 0]

    @property
    def text(self) -> bytes:
        """What tells the message in flight from all others."""
        return b"%012d" % (self.number * 10_000_000 + self.count)

    def message(self) -> bytearray:
        for place in self._ids:
            self._data[place : place + 12] = self.text
        NUMBER.pack_into(self._data, self._body, self.number, self.count)
        return self._data

    def heard(self, data: bytes, now: float) -> None:
        kind, channel, size, class_id, number, tag, _, end = _CONFIRM.unpack(data)
        if (kind, channel, size, class_id, number, tag, end) != (1, 1, 13, 60, 80, self.count, 0xCE):
            raise Wrong(f"sender {self.number} waited for the confirm of {self.count}, got {data.hex(' ')}")
        self.settled(now)


class Requester(Publisher):
    """Waits for the answer to each message."""

    def __init__(self, link: Link, tally: Tally, number: int, key: str, *, direct: bool) -> None:
        reply_to = "amq.rabbitmq.reply-to"
        if not direct:
            answer = link.call((50, 10), b"\0\0" + _short("") + _EXCLUSIVE + bytes(4), (50, 11))
            reply_to = answer[1 : 1 + answer[0]].decode()
        link.call((60, 20), b"\0\0" + _short(reply_to) + _short("") + _NO_ACK + bytes(4), (60, 21))
        super().__init__(link, tally, number, key, reply_to)
        self._deliveries = Deliveries(link.rest)

    def heard(self, data: bytes, now: float) -> None:
        for _, header, body in self._deliveries.cut(data):
            if body != self.tally.body(self.number, self.count) or b"co-" + self.text not in header:
                raise Wrong(f"sender {self.number} waited for the answer to {self.count}, got {body[:20].hex(' ')}")
            self.settled(now)


class Worker(crowd.Worker):
    """Consumes with a prefetch of 1."""

    def __init__(self, link: Link, tally: Tally, queue: str) -> None:
        super().__init__(link.sock, tally)
        link.consume(queue, "", 1)
        self._deliveries = Deliveries(link.rest)

    def heard(self, data: bytes, now: float) -> None:
        for deliver, header, body in self._deliveries.cut(data):
            self.work(body, now)
            tag = int.from_bytes(deliver[5 + deliver[4] : 13 + deliver[4]], "big")
            self.sock.sendall(self.answer(header, body) + _CONFIRM.pack(1, 1, 13, 60, 80, tag, 0, 0xCE))

    def answer(self, header: bytes, body: bytes) -> bytes:
        """What goes before the ack: nothing."""
        return b""


class Answerer(Worker):
    """Answers."""

    def answer(self, header: bytes, body: bytes) -> bytes:
        if header[12:14] != _ASKING:
            raise Wrong(f"a request lost its properties: {header.hex(' ')}")
        at = 15 + header[14]  # behind the content type
        at += 5 + int.from_bytes(header[at : at + 4], "big")  # behind headers and delivery mode
        correlation = header[at : at + 1 + header[at]]
        at += len(correlation)
        reply_to = header[at : at + 1 + header[at]]
        publish = method((60, 40), b"\0\0" + _short("") + reply_to + b"\0")
        return publish + content(body, b"\x14\0\x01" + correlation)


class AmqpDoor:
    """Of Penstock, RabbitMQ, and whoever else speaks it."""

    def __init__(self, address: tuple[str, int], login: tuple[str, str] = ("guest", "guest")) -> None:
        self._address = address
        self._login = login

    def _link(self) -> Link:
        Link.login = self._login
        return Link(self._address)

    def declare(self, name: str, count: int) -> list[str]:
        queues = [f"{name}.{number}" for number in range(count)]
        with self._link() as link:
            for queue in queues:
                link.declare(queue)
        return queues

    def left(self, queues: Sequence[str]) -> int:
        """What a closed connection held counts as soon as it is back."""
        with self._link() as link:
            return sum(link.declare(queue, passive=True) for queue in queues)

    def remove(self, queues: Sequence[str]) -> None:
        with self._link() as link:
            for queue in queues:
                link.delete(queue)
            link.close()

    def publisher(self, number: int, queue: str, tally: Tally) -> Publisher:
        link = self._link()
        link.confirms()
        return Publisher(link, tally, number, queue)

    def worker(self, queue: str, tally: Tally) -> Worker:
        return Worker(self._link(), tally, queue)

    def requester(self, number: int, queue: str, tally: Tally, *, direct: bool) -> Requester:
        return Requester(self._link(), tally, number, queue, direct=direct)

    def answerer(self, queue: str, tally: Tally) -> Answerer:
        return Answerer(self._link(), tally, queue)
