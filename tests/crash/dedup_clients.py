"""Clients of the kill test for queues without duplicates: each copy of a message has a number, equal copies a key.

What was asked and not answered when the server died may have happened or not.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

import penstock
from crash.model_clients import Client

KEYS_OF_UNIQUE = 12


@dataclass
class Notes:
    """What is known of one queue, over all lives."""

    queue: str
    window: bool  # else unique
    header: bool = False  # the key is in a header
    number: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    key: dict[int, int] = field(default_factory=dict[int, int])  # of each copy
    asked: dict[int, bool] = field(default_factory=dict[int, bool])  # published, not answered: whether it is the first
    sure: set[int] = field(default_factory=set[int])  # stored
    maybe: set[int] = field(default_factory=set[int])  # acked, not answered
    gone: set[int] = field(default_factory=set[int])  # its end is durable, or it was told to be a duplicate
    taken: set[int] = field(default_factory=set[int])  # keys that are in the window
    unknown: set[int] = field(default_factory=set[int])  # keys that nobody can know of any more
    next_key: int = 0
    duplicates: int = 0
    acked: int = 0

    def copies(self, keys: Sequence[int]) -> list[int]:
        """Numbers of new copies with these keys."""
        numbers = [next(self.number) for _ in keys]
        self.key.update(zip(numbers, keys, strict=True))
        return numbers


class Team:
    """When it is time to kill: so many answers were seen."""

    def __init__(self, answers: int) -> None:
        self._left = answers
        self._lock = threading.Lock()
        self.enough = threading.Event()

    def answered(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self.enough.set()


def body_of(notes: Notes, number: int) -> bytes:
    return orjson.dumps({"id": number, "key": notes.key[number], "pad": "x" * (number * 37 % 200)})


def send(client: penstock.Client, notes: Notes, keys: Sequence[int]) -> int:
    """Publish a copy of each key to a queue with a window; how many were stored, which must be those that were new."""
    numbers = notes.copies(keys)
    new = set[int]()
    for number, key in zip(numbers, keys, strict=True):
        notes.asked[number] = key not in notes.taken and key not in new
        new.add(key)
    if notes.header:
        stored = 0
        for number in numbers:
            key = str(notes.key[number])
            told = client.publish(notes.queue, body_of(notes, number), headers={"x-dedup-key": key})
            stored += told.outcome == "stored"
    else:
        table = pa.table({"body": [body_of(notes, number) for number in numbers]})
        stored = client.publish_table(notes.queue, table).stored
    first = {number for number in numbers if notes.asked[number]}
    assert stored == len(first), f"{stored} of {keys} were stored in {notes.queue}, not {len(first)}"
    notes.sure |= first
    notes.gone.update(set(numbers) - first)
    notes.taken.update(keys)
    notes.duplicates += len(numbers) - len(first)
    for number in numbers:
        del notes.asked[number]
    return stored


def send_unique(client: penstock.Client, notes: Notes, key: int) -> bool:
    """Publish a copy to a queue where keys are unique; whether it was stored."""
    [number] = notes.copies([key])
    there = {one for one in (*notes.sure, *notes.asked) if notes.key[one] == key} - notes.gone
    notes.asked[number] = True
    told = client.publish(notes.queue, body_of(notes, number))
    if told.outcome == "stored":
        notes.sure.add(number)
    else:
        assert told.outcome == "duplicate", told
        assert there, f"no message of {notes.queue} has the key {key} of {number}, and yet it is a duplicate"
        notes.gone.add(number)
        notes.duplicates += 1
    del notes.asked[number]
    return told.outcome == "stored"


class Publisher(Client[Notes]):
    """Publishes new keys, and again keys that were taken, in batches of any size."""

    def __init__(self, url: str, notes: Notes, seed: int, name: str, team: Team) -> None:
        super().__init__(url, notes, seed, name)
        self.team = team

    def work(self, client: penstock.Client) -> None:
        notes, rnd = self.notes, self.random
        while not self.stopping.is_set():
            if notes.window:
                send(client, notes, self.keys(rnd.choice((1, 1, 4, 30))))
            else:
                send_unique(client, notes, rnd.randrange(KEYS_OF_UNIQUE))
            self.team.answered()

    def keys(self, count: int) -> list[int]:
        """Some new, some again, some twice."""
        notes, rnd = self.notes, self.random
        out = list[int]()
        for _ in range(count):
            again = rnd.randrange(notes.next_key) if notes.next_key and rnd.random() < 0.5 else -1
            if again < 0 or again in notes.unknown:
                again, notes.next_key = notes.next_key, notes.next_key + 1
            out.append(again)
        return out


class Worker(Client[Notes]):
    """Takes, acks most, gives some back, and keeps some until the server is gone."""

    def work(self, client: penstock.Client) -> None:
        notes, rnd = self.notes, self.random
        consumer = client.consume(notes.queue, backlog=rnd.choice((1, 4, 20)), timeout="100ms")
        unsure = set[int]()
        while not self.stopping.is_set():
            message = consumer.take(0.1)
            if message is None:
                continue
            number = int(message.json()["id"])
            assert number not in notes.gone, f"{number} came from {notes.queue}: it was acked, or a duplicate"
            assert notes.asked.get(number, True), f"{number} came from {notes.queue}: its key was taken before"
            if rnd.random() < 0.6:
                notes.maybe.add(number)
                unsure.add(number)
                message.ack()
            elif rnd.random() < 0.5:
                message.release()
            if rnd.random() < 0.2:
                consumer.flush()
                notes.gone |= unsure
                notes.maybe -= unsure
                notes.acked += len(unsure)
                unsure.clear()


def seeded(rnd: random.Random) -> int:
    return rnd.randrange(1 << 30)
