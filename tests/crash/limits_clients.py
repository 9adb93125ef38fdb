"""Clients of the kill tests for queues with limits, levels, times and policies: what each was told, in memory.

Messages of one family have rising numbers and one publisher.  A family is some queues among which its messages move by
themselves; an ack ends one.  What was asked and not answered when the server died may have happened or not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

import penstock
from crash.model_clients import Client

BACKLOG = 10
"""Messages a worker holds at most."""

WAIT_US = 1_500_000
"""Scheduled messages wait so long at most."""

POLICIES: dict[str, tuple[int, tuple[dict[str, object], ...]]] = {
    "low": (1, ({"max-length": 15}, {"max-length-bytes": 1500}, {"message-ttl": 3_600_000})),
    "high": (2, ({"max-length": 25, "overflow": "reject-publish"}, {"max-length": 60, "max-length-bytes": 4000})),
}
"""By name: priority, and what it may say."""

OPERATOR: tuple[dict[str, object], ...] = ({"max-length": 12}, {"max-length": 20})


@dataclass(frozen=True)
class Family:
    """Queues whose messages are one another's."""

    name: str
    places: tuple[str, ...]
    taken: tuple[str, ...]  # where workers take them
    topic: str  # where they are published
    exchange: str = ""
    rejects: float = 0.0  # share of what a worker has of the first place; dead letters that are rejected would be gone
    timed: bool = False
    ring: int = 0  # what is replaced is gone; anything else is somewhere
    refused: str = "gone"  # or "there": as dead letters


@dataclass
class Notes:
    """What is known of the messages of one family."""

    family: Family
    last: int = 0  # the highest number that was used
    asked: set[int] = field(default_factory=set[int])  # published in this life, not answered
    sure: set[int] = field(default_factory=set[int])  # there, as far as it is known
    maybe: set[int] = field(default_factory=set[int])  # acked, not answered
    gone: set[int] = field(default_factory=set[int])  # for ever
    refused: int = 0
    acked: int = 0
    rejected: int = 0


@dataclass
class Rules:
    """What policies there may be: one of these for each name; None is none."""

    may: dict[str, list[dict[str, object] | None]] = field(
        default_factory=lambda: {name: [None] for name in (*POLICIES, "operator")}
    )
    changes: int = 0
    redriven: int = 0


def due_of(body: bytes) -> int:
    """Microseconds; 0 of a message without a time."""
    return int(orjson.loads(body)["due"])


class Publisher(Client[Notes]):
    """Tables of a few messages, of any size."""

    def work(self, client: penstock.Client) -> None:
        notes, rnd, family = self.notes, self.random, self.notes.family
        while not self.stopping.is_set():
            numbers = range(notes.last + 1, notes.last + 1 + rnd.choice((1, 1, 3, 20, 50)))
            notes.last = numbers[-1]
            now = time.time_ns() // 1000
            due = [now + rnd.randrange(WAIT_US) if family.timed else 0 for _ in numbers]
            bodies = [
                orjson.dumps({"id": number, "due": when, "pad": "x" * rnd.choice((0, 9, 300))})
                for number, when in zip(numbers, due, strict=True)
            ]
            columns: dict[str, object] = {"body": bodies, "priority": pa.array([level(n) for n in numbers], pa.uint8())}
            if family.timed:
                columns["not_before"] = pa.array(due, pa.timestamp("us", "UTC"))
            notes.asked.update(numbers)
            told = client.publish_table(family.topic, pa.table(columns), exchange=family.exchange)
            refused = {numbers[one.row] for one in told.refused}
            assert told.stored + len(refused) == len(numbers), told
            notes.asked.difference_update(numbers)
            notes.refused += len(refused)
            if family.refused == "gone":
                notes.gone |= refused
                notes.sure.update(set(numbers) - refused)
            else:
                notes.sure.update(numbers)


class Worker(Client[Notes]):
    """Takes, acks most, rejects some, gives some back, and keeps some until the server is gone."""

    def work(self, client: penstock.Client) -> None:
        notes, rnd = self.notes, self.random
        queue = rnd.choice(notes.family.taken)
        rejects = notes.family.rejects if queue == notes.family.places[0] else 0.0
        consumer = client.consume(queue, backlog=rnd.choice((1, 4, BACKLOG)), timeout="100ms")
        unsure = set[int]()
        while not self.stopping.is_set():
            message = consumer.take(0.1)
            if message is None:
                continue
            number = int(message.json()["id"])
            assert due_of(message.body) <= time.time_ns() // 1000, f"{number} came early"
            assert number not in notes.gone, f"{number} came back to {message.queue}: its end was durable"
            chance = rnd.random()
            if chance < rejects:
                message.reject()
                notes.rejected += 1
            elif chance < 0.7:
                notes.maybe.add(number)
                unsure.add(number)
                message.ack()
            elif chance < 0.9:
                message.release()
            if rnd.random() < 0.2:
                consumer.flush()
                notes.gone |= unsure
                notes.maybe -= unsure
                notes.acked += len(unsure)
                unsure.clear()


class Ruler(Client[Rules]):
    """Sets and deletes policies, and sends dead letters back."""

    def work(self, client: penstock.Client) -> None:
        rules, rnd = self.notes, self.random
        while not self.stopping.is_set():
            if rnd.random() < 0.3:
                rules.redriven += client.redrive("grave", count=rnd.choice((1, 20, None)))["moved"]
                continue
            name = rnd.choice(list(rules.may))
            operator = name == "operator"
            priority, choices = (0, OPERATOR) if operator else POLICIES[name]
            wanted = rnd.choice((None, *choices))
            present = rules.may[name][-1]
            if wanted is None and present is None:
                continue
            rules.may[name].append(wanted)
            if wanted is None:
                client.delete_policy(name, operator=operator)
            else:
                client.set_policy(name, "^ruled$", wanted, priority=priority, operator=operator)
            rules.may[name] = [wanted]
            rules.changes += 1


def level(number: int) -> int:
    """The priority of a message."""
    return number * 7919 % 5
