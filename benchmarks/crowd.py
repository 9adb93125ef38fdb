"""Many ordinary clients on one thread: each has one message in flight, or works on one at a time.

Owns the loop that serves them, when each sends, and the tally: a body names its sender and its number, so every message
that comes is checked and accounted for.  Refuses to know protocols (`crowd_amqp`, `crowd_nats`, `crowd_redis`) and what
is measured (`crowd_loads`).
"""

from __future__ import annotations

import os
import resource
import select
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from harness import Wrong

SILENCE_S = 60.0
"""A server of which nothing comes for so long has lost something."""

NUMBER = struct.Struct(">IQ")
"""At the head of a body: its sender, and which of its messages it is."""


def allow_many() -> None:
    """As many sockets as the system lets this process have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Socket(Protocol):
    """What is used of a socket."""

    def fileno(self) -> int: ...
    def sendall(self, data: bytes | bytearray, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def setblocking(self, blocking: bool, /) -> None: ...
    def close(self) -> None: ...


class Tally:
    """The messages of a run: what each says, and that each comes once.  `delivered`: seconds from when it was due."""

    def __init__(self, senders: int, size: int) -> None:
        self.delivered: list[float] = []
        self._bodies = [os.urandom(size - NUMBER.size) for _ in range(senders)]
        self._under_way = [dict[int, float]() for _ in range(senders)]

    def body(self, sender: int, number: int = 0) -> bytes:
        """What a message says."""
        return NUMBER.pack(sender, number) + self._bodies[sender]

    def sent(self, sender: int, number: int, due: float) -> None:
        """It goes out now."""
        self._under_way[sender][number] = due

    def came(self, body: bytes, now: float) -> None:
        """Somebody has it.  Raises Wrong when its body was never sent, or has come before."""
        sender, number = NUMBER.unpack_from(body)
        if body[NUMBER.size :] != self._bodies[sender]:
            raise Wrong(f"message {number} of sender {sender} has changed")
        due = self._under_way[sender].pop(number, None)
        if due is None:
            raise Wrong(f"message {number} of sender {sender} came twice, or was never sent")
        self.delivered.append(now - due)


class Client(ABC):
    """Who has a socket in the loop."""

    def __init__(self, sock: Socket, tally: Tally) -> None:
        self.sock = sock
        self.tally = tally

    @abstractmethod
    def heard(self, data: bytes, now: float) -> None:
        """The server has written."""


class Sender(Client):
    """Has one message in flight, until it is confirmed or answered.  `took`: seconds from when each was due to that."""

    def __init__(self, sock: Socket, tally: Tally, number: int) -> None:
        super().__init__(sock, tally)
        self.number = number
        self.count = self.confirmed = 0
        self.due = 0.0
        self.took: list[float] = []
        self.next: Callable[[Sender, float], None] = _nothing  # called when one was confirmed

    def send(self, due: float) -> None:
        """The next message, which is due now or was before."""
        self.count += 1
        self.due = due
        self.tally.sent(self.number, self.count, due)
        self.sock.sendall(self.message())

    @abstractmethod
    def message(self) -> bytes | bytearray:
        """As it goes over the wire, the one of number `count`."""

    def settled(self, now: float) -> None:
        """What is in flight is confirmed, or answered."""
        if self.confirmed == self.count:
            raise Wrong(f"sender {self.number}: message {self.count} was confirmed twice")
        self.confirmed += 1
        self.took.append(now - self.due)
        self.next(self, now)


def _nothing(sender: Sender, now: float) -> None:
    """It waits."""


class Worker(Client):
    """Has one message at a time, and acknowledges it."""

    def __init__(self, sock: Socket, tally: Tally) -> None:
        super().__init__(sock, tally)
        self.done = 0

    def work(self, body: bytes, now: float) -> None:
        """A message is here."""
        self.tally.came(body, now)
        self.done += 1


class Door(Protocol):
    """How a server is spoken to: queues, and the clients of a load."""

    def declare(self, name: str, count: int) -> list[str]:
        """So many durable queues, whose names begin alike."""
        ...

    def left(self, queues: Sequence[str]) -> int:
        """How many messages are in them, waiting or held by somebody."""
        ...

    def remove(self, queues: Sequence[str]) -> None:
        """Delete them."""
        ...

    def publisher(self, number: int, queue: str, tally: Tally) -> Sender:
        """Sends messages that are kept, and waits for each confirm."""
        ...

    def worker(self, queue: str, tally: Tally) -> Worker:
        """Takes one message at a time and acknowledges it."""
        ...

    def requester(self, number: int, queue: str, tally: Tally, *, direct: bool) -> Sender:
        """Sends requests and waits for each answer.  direct: without a queue of its own, where there is such a way."""
        ...

    def answerer(self, queue: str, tally: Tally) -> Worker:
        """Takes one request at a time, answers with what it said, and acknowledges it."""
        ...


class Crowd:
    """All clients of a run, served by one loop."""

    def __init__(self, senders: Sequence[Sender], workers: Sequence[Worker] = ()) -> None:
        self.senders = senders
        self.workers = workers
        self._poll = select.epoll()
        self._clients: dict[int, Client] = {}
        for one in (*senders, *workers):
            one.sock.setblocking(False)
            self._clients[one.sock.fileno()] = one
            self._poll.register(one.sock.fileno(), select.EPOLLIN)

    @property
    def done(self) -> int:
        """Messages that were worked off."""
        return sum(one.done for one in self.workers)

    def close(self) -> None:
        """Every connection ends."""
        self._poll.close()
        for one in self._clients.values():
            one.sock.close()

    def closed_loop(self, seconds: float) -> None:
        """Everybody sends as soon as the last one is confirmed, for so long; returns when all is confirmed and done."""
        end = time.perf_counter() + seconds

        def again(sender: Sender, now: float) -> None:
            if now < end:
                sender.send(now)

        for one in self.senders:
            one.next = again
            one.send(time.perf_counter())
        self._run(lambda: None, lambda: time.perf_counter() >= end)

    def alone(self, seconds: float) -> None:
        """One message at a time in the whole server: the next goes when the last is both delivered and confirmed."""
        end = time.perf_counter() + seconds
        (sender,) = self.senders

        def send() -> None:
            if sender.count == sender.confirmed == self.done and (now := time.perf_counter()) < end:
                sender.send(now)

        self._run(send, lambda: time.perf_counter() >= end)

    def paced(self, seconds: float, rate: float) -> None:
        """Everybody sends so many a second, evenly apart; who still waits for a confirm sends when it has come."""
        start = time.perf_counter()
        step, end = 1 / rate, start + seconds
        due = [(start + step * number / len(self.senders), number) for number in range(len(self.senders))]
        heapify(due)
        late: dict[int, float] = {}

        def again(sender: Sender, now: float) -> None:
            if sender.number in late:
                sender.send(late.pop(sender.number))

        for one in self.senders:
            one.next = again

        def send() -> float | None:
            while due and due[0][0] <= time.perf_counter():
                moment, number = heappop(due)
                sender = self.senders[number]
                if sender.count > sender.confirmed:
                    late.setdefault(number, moment)
                else:
                    sender.send(moment)
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
                data = one.sock.recv(65_536)
                if not data:
                    raise Wrong("the server closed a connection")
                one.heard(data, time.perf_counter())
            if ready:
                silent = time.perf_counter()
            elif time.perf_counter() - silent > SILENCE_S:
                raise Wrong("nothing comes any more")
            if over() and all(one.count == one.confirmed for one in self.senders):
                sent = sum(one.count for one in self.senders)
                if not self.workers or sent == self.done:
                    return
