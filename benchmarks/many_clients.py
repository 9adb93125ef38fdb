"""Many ordinary AMQP clients on one thread: each publishes one message and waits for its confirm, or works on one.

A message has an id of its own, a time, and two headers; its body names its publisher and its number, so that every
delivery is checked and every message accounted for.  Owns the clients and the loop that serves them.  Refuses to know
what is measured.
"""

from __future__ import annotations

import os
import resource
import select
import struct
import time
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from amqp_client import Link, content, method
from harness import Wrong

SILENCE_S = 60.0
"""A server of which nothing comes for so long has lost something."""

_NUMBER = struct.Struct(">IQ")  # at the head of a body: its publisher, and which of its messages it is
_CONFIRM = struct.Struct(">BHIHHQBB")
_FRAME = struct.Struct(">BHI").unpack_from


def allow_many() -> None:
    """As many sockets as the system lets this process have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


class Client(Protocol):
    """Who has a socket in the loop."""

    link: Link

    def heard(self, data: bytes, now: float) -> None:
        """The server has written."""
        ...


class Publisher:
    """Has one message in flight.  `took`: seconds from when each was due to its confirm, since the loop began."""

    def __init__(self, address: tuple[str, int], number: int, key: str, size: int) -> None:
        self.link = Link(address)
        self.link.call((85, 10), b"\0", (85, 11))
        self.number = number
        self.sent = self.confirmed = 0
        self.due = 0.0
        self.took: list[float] = []
        self.next: Callable[[Publisher, float], None] = _nothing  # called when one was confirmed
        headers = _short("tenant") + b"S\0\0\0\x04t-17" + _short("attempt") + b"l" + (1).to_bytes(8, "big")
        told = b"\xb0\xc0" + _short("application/json") + len(headers).to_bytes(4, "big") + headers + b"\x02"
        told += _short("id-000000000000") + (1_790_000_000).to_bytes(8, "big")
        body = bytes(_NUMBER.size) + os.urandom(size - _NUMBER.size)
        self._data = bytearray(method((60, 40), b"\0\0" + _short("") + _short(key) + b"\0") + content(body, told))
        self._id = self._data.index(b"id-") + 3
        self._body = len(self._data) - 1 - size
        self.body = body[_NUMBER.size :]

    def send(self, due: float) -> None:
        """The next message, which is due now or was before."""
        self.sent += 1
        self.due = due
        self._data[self._id : self._id + 12] = b"%012d" % (self.number * 10_000_000 + self.sent)
        _NUMBER.pack_into(self._data, self._body, self.number, self.sent)
        self.link.sock.sendall(self._data)

    def heard(self, data: bytes, now: float) -> None:
        kind, channel, size, class_id, number, tag, _, end = _CONFIRM.unpack(data)
        if (kind, channel, size, class_id, number, tag, end) != (1, 1, 13, 60, 80, self.sent, 0xCE):
            raise Wrong(f"publisher {self.number} waited for the confirm of {self.sent}, got {data.hex(' ')}")
        if self.confirmed == self.sent:
            raise Wrong(f"publisher {self.number}: message {tag} was confirmed twice")
        self.confirmed += 1
        self.took.append(now - self.due)
        self.next(self, now)


def _nothing(publisher: Publisher, now: float) -> None:
    """It waits."""


class Worker:
    """Has one message at a time, and acknowledges it."""

    def __init__(self, address: tuple[str, int], queue: str, publishers: Sequence[Publisher], seen: list[set[int]]):
        """seen: by publisher, the numbers that any worker has had."""
        self.link = Link(address)
        self.link.call((60, 10), struct.pack(">IHB", 0, 1, 0), (60, 11))
        self.link.call((60, 20), b"\0\0" + _short(queue) + _short("") + b"\0" + bytes(4), (60, 21))
        self.done = 0
        self._publishers = publishers
        self._seen = seen
        self._kept = self.link.rest

    def heard(self, data: bytes, now: float) -> None:
        data = self._kept + data
        frames: list[bytes] = []
        at = 0
        while len(data) - at >= 7 and len(data) - at >= 8 + (size := _FRAME(data, at)[2]):
            frames.append(data[at + 7 : at + 7 + size])
            at += 8 + size
            if len(frames) == 3:
                self._take(*frames)
                self._kept, data, at = b"", data[at:], 0
                frames = []
        self._kept = data

    def _take(self, deliver: bytes, header: bytes, body: bytes) -> None:
        if deliver[:4] != b"\0\x3c\0\x3c" or header[:4] != b"\0\x3c\0\0":
            raise Wrong(f"no delivery: {deliver[:20].hex(' ')}")
        tag = int.from_bytes(deliver[5 + deliver[4] : 13 + deliver[4]], "big")
        publisher, number = _NUMBER.unpack_from(body)
        if body[_NUMBER.size :] != self._publishers[publisher].body:
            raise Wrong(f"message {number} of publisher {publisher} has changed")
        if number in self._seen[publisher]:
            raise Wrong(f"message {number} of publisher {publisher} came twice")
        self._seen[publisher].add(number)
        self.done += 1
        self.link.sock.sendall(_CONFIRM.pack(1, 1, 13, 60, 80, tag, 0, 0xCE))


class Crowd:
    """All clients of a run, served by one loop."""

    def __init__(self, publishers: Sequence[Publisher], workers: Sequence[Worker] = ()) -> None:
        self.publishers = publishers
        self.workers = workers
        self._poll = select.epoll()
        self._clients: dict[int, Client] = {}
        for one in (*publishers, *workers):
            one.link.sock.setblocking(False)
            self._clients[one.link.sock.fileno()] = one
            self._poll.register(one.link.sock.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Every connection ends."""
        self._poll.close()
        for one in self._clients.values():
            one.link.sock.close()

    def closed_loop(self, seconds: float) -> None:
        """Everybody sends as soon as the last one is confirmed, for so long; returns when all is confirmed and done."""
        end = time.perf_counter() + seconds

        def again(publisher: Publisher, now: float) -> None:
            if now < end:
                publisher.send(now)

        for one in self.publishers:
            one.next = again
            one.send(time.perf_counter())
        self._run(lambda: None, lambda: time.perf_counter() >= end)

    def paced(self, seconds: float, rate: float) -> None:
        """Everybody sends so many a second, evenly apart; who still waits for a confirm sends when it has come."""
        start = time.perf_counter()
        step, end = 1 / rate, start + seconds
        due = [(start + step * number / len(self.publishers), number) for number in range(len(self.publishers))]
        heapify(due)
        late: dict[int, float] = {}

        def again(publisher: Publisher, now: float) -> None:
            if publisher.number in late:
                publisher.send(late.pop(publisher.number))

        for one in self.publishers:
            one.next = again

        def send() -> float | None:
            while due and due[0][0] <= time.perf_counter():
                moment, number = heappop(due)
                publisher = self.publishers[number]
                if publisher.sent > publisher.confirmed:
                    late.setdefault(number, moment)
                else:
                    publisher.send(moment)
                if moment + step < end:
                    heappush(due, (moment + step, number))
            return due[0][0] - time.perf_counter() if due else None

        self._run(send, lambda: not due and not late)

    def _run(self, send: Callable[[], float | None], over: Callable[[], bool]) -> None:
        silent = time.perf_counter()
        while True:
            wait = send()
            ready = self._poll.poll(0.2 if wait is None else max(wait, 0))
            for handle, _ in ready:
                one = self._clients[handle]
                data = one.link.sock.recv(65_536)
                if not data:
                    raise Wrong("the server closed a connection")
                one.heard(data, time.perf_counter())
            if ready:
                silent = time.perf_counter()
            elif time.perf_counter() - silent > SILENCE_S:
                raise Wrong("nothing comes any more")
            if over() and all(one.sent == one.confirmed for one in self.publishers):
                sent = sum(one.sent for one in self.publishers)
                if not self.workers or sent == sum(one.done for one in self.workers):
                    return
