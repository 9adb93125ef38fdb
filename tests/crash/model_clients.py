"""Clients of the kill tests for queues with an order of their own: each notes what it was told, in memory.

What was asked and not answered when the server died may have happened or not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import penstock
from penstock import PenstockError
from waiting import eventually

N = TypeVar("N")  # what clients note
TOPIC = "t"
EXPRESSIONS = ("/p", "/q")
GROUPS = 3


@dataclass(frozen=True)
class Sent:
    """One message as its publisher made it."""

    number: int
    end: bool  # a barrier

    @property
    def p(self) -> int:
        return self.number * 7919 % 5

    @property
    def q(self) -> int:
        return self.number * 104_729 % 997

    @property
    def body(self) -> dict[str, object]:
        return {"id": self.number, "end": self.end, "p": self.p, "q": self.q, "g": self.number % GROUPS}


@dataclass
class Notes:
    """What all clients know, over all lives."""

    sent: dict[int, Sent] = field(default_factory=dict[int, Sent])
    marks: dict[int, str] = field(default_factory=dict[int, str])  # confirmed: number -> bookmark
    gone: dict[str, set[int]] = field(default_factory=dict[str, set[int]])  # by queue: the end was answered as durable
    maybe: dict[str, set[int]] = field(default_factory=dict[str, set[int]])  # settled, not answered
    barriers: set[int] = field(default_factory=set[int])  # barriers that came in this life
    declared: dict[str, bool] = field(default_factory=dict[str, bool])  # queues with a recovery point: answered
    expressions: set[str] = field(default_factory=lambda: {EXPRESSIONS[0]})  # the priority may be any of these
    depths: set[int] = field(default_factory=lambda: {1000})
    duplicates: int = 0
    deferred: int = 0
    replaced: int = 0

    def known(self) -> dict[str, int]:
        """Numbers by bookmark, but of messages whose first answer was lost; the publisher goes on meanwhile."""
        return {mark: number for number, mark in self.marks.copy().items() if mark}

    def settled(self, queue: str, number: int, *, sure: bool) -> None:
        """An end, answered or not."""
        self.maybe.setdefault(queue, set()).discard(number)
        (self.gone if sure else self.maybe).setdefault(queue, set()).add(number)


class Client(threading.Thread, Generic[N]):
    """Works until the server is gone or `stopping` is set.  What it cannot explain is in `failure`."""

    def __init__(self, url: str, notes: N, seed: int, name: str) -> None:
        super().__init__(name=name)
        self.url, self.notes, self.random = url, notes, random.Random(seed)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            client = penstock.connect(self.url)
            try:
                self.work(client)
            finally:
                try:
                    client.close()
                except PenstockError:
                    pass  # the server is gone
        except (PenstockError, OSError) as error:
            if not self.stopping.is_set() and not isinstance(error, penstock.Unavailable):
                self.failure = error
        except BaseException as failure:  # noqa: BLE001 - the test reports it
            self.failure = failure

    def work(self, client: penstock.Client) -> None:
        raise NotImplementedError


class Ended(Protocol):
    """A thread of clients that can be stopped."""

    name: str
    stopping: threading.Event
    failure: BaseException | None

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


def end(team: Iterable[Ended], where: str) -> None:
    """The server is gone: so are its clients, and each of them can explain what it saw.  AssertionError otherwise."""
    for client in team:
        client.stopping.set()
        client.join(60)
        assert not client.is_alive(), client.name
        if client.failure is not None:
            raise AssertionError(f"{where}, {client.name}") from client.failure


def happens(what: Callable[[], object], team: Sequence[Ended], why: str) -> None:
    """Wait until it is so, or until one of the clients has failed, who tells what is wrong."""
    eventually(lambda: bool(what()) or any(one.failure for one in team), why)


class Publisher(Client[Notes]):
    """Publishes with its name and a rising number; after a start it sends again what was not confirmed, and more."""

    def work(self, client: penstock.Client) -> None:
        notes = self.notes
        for number in sorted(set(notes.sent) - set(notes.marks))[:1] + sorted(notes.marks)[-1:]:
            self.publish(client, notes.sent[number])
        while not self.stopping.is_set():
            number = len(notes.sent) + 1
            notes.sent[number] = Sent(number, self.random.random() < 0.08)
            self.publish(client, notes.sent[number])

    def publish(self, client: penstock.Client, sent: Sent) -> None:
        receipt = client.publish(TOPIC, sent.body, publisher="pub", sequence=sent.number)
        if receipt.outcome == "duplicate":
            self.notes.duplicates += 1
            self.notes.marks.setdefault(sent.number, "")
        else:
            assert receipt.outcome == "stored", receipt
            assert sent.number not in self.notes.marks, f"{sent} was confirmed and is stored again"
            self.notes.marks[sent.number] = receipt.bookmark


class Worker(Client[Notes]):
    """Takes messages of one queue, acks most, and changes its terms now and then."""

    def __init__(self, url: str, notes: Notes, seed: int, queue: str) -> None:
        super().__init__(url, notes, seed, f"worker-{queue}")
        self.queue = queue

    def work(self, client: penstock.Client) -> None:
        rnd, notes, queue = self.random, self.notes, self.queue
        consumer = client.consume(queue, backlog=rnd.choice((1, 5, 50)), timeout="100ms")
        unsure = list[int]()
        while not self.stopping.is_set():
            message = consumer.take()
            if message is None:
                continue
            number = message.json()["id"]
            assert number not in notes.gone.get(queue, ()), f"{number} came back to {queue}: its end was durable"
            if queue == "fenced" and notes.sent[number].end:
                notes.barriers.add(number)
                continue
            if rnd.random() < 0.7:
                notes.settled(queue, number, sure=False)
                unsure.append(number)
                message.ack()
            elif rnd.random() < 0.5:
                message.release()
            if rnd.random() < 0.2:
                consumer.flush()
                for one in unsure:
                    notes.settled(queue, one, sure=True)
                unsure.clear()
            if rnd.random() < 0.05:
                consumer.replace(filter=rnd.choice(("", "/p > 0")), max_backlog=rnd.choice((1, 5, 50)))
                notes.replaced += 1


class Administrator(Client[Notes]):
    """Alters the order of queues; declares queues that take what was published before, and acks for them in advance."""

    def work(self, client: penstock.Client) -> None:
        notes, rnd = self.notes, self.random
        while not self.stopping.is_set():
            match rnd.randrange(4):
                case 0:
                    wanted = rnd.choice(EXPRESSIONS)
                    notes.expressions.add(wanted)
                    client.alter("ranked", priority_expression=wanted)
                    notes.expressions = {wanted}
                case 1:
                    client.alter("shallow", target_queue_depth=rnd.choice((1000, 2000)))
                case 2 if len(notes.declared) < 12:
                    self.declare(client, f"later-{len(notes.declared)}")
                case _:
                    marks = list(notes.known())
                    name = rnd.choice(sorted(notes.declared) or [""])
                    if marks and name:
                        self.ack(client, name, rnd.choice(marks))

    def declare(self, client: penstock.Client, name: str) -> None:
        """A queue that begins with now and is then moved back: acks in between are of what is not there."""
        notes = self.notes
        notes.declared[name] = False
        client.declare(name, underlying_topic=TOPIC)
        marks = list(notes.known())
        for mark in self.random.sample(marks, min(3, len(marks))):
            self.ack(client, name, mark)
            notes.deferred += 1
        client.alter(name, recovery_point="epoch")
        notes.declared[name] = True

    def ack(self, client: penstock.Client, name: str, mark: str) -> None:
        notes = self.notes
        number = notes.known()[mark]
        if number not in notes.gone.get(name, ()):
            notes.settled(name, number, sure=False)
        client.ack(name, [mark])
        notes.settled(name, number, sure=True)
