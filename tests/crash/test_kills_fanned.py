"""kill -9 under transactions over exchanges: each publishes to many queues at once, and settles what other queues gave.

A message goes by an exchange bound to another, by an alternate one, or by one that delays, into a queue of each lane,
and wanders within its lane: published anew with a higher number, dead by a rejection, a time to live or a limit.  Lanes
have priorities, keys of groups, keys of duplicates, back-off, and a limit that refuses a whole transaction.  After a
kill each is in its lane once; of a transaction all is done or nothing, of one that was answered all, of one that was
refused nothing; what was published again with its key is there once.

`PENSTOCK_KILLS` sets how often (a quarter of it, 2 by default), `PENSTOCK_SEED` repeats a run's choices.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

import penstock
from crash.test_kills import KILLS, SEED, audit
from crash.test_kills_transactions import PATIENCE_S
from live_server import PIKAS_MISTAKES, LiveServer

pytestmark = pytest.mark.crash

LIVES = max(2, KILLS // 4)
ENDED = 1 << 40
ALIVE_MOST = 500
GONE = (AMQPError, OSError, *PIKAS_MISTAKES)


def dying_to(queue: str, **more: object) -> dict[str, object]:
    named = {f"x-{name.replace('_', '-')}": value for name, value in more.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **named}


QUEUES: dict[str, dict[str, object]] = {
    "a": dying_to("a2"), "a2": dying_to("a", message_ttl=15),
    "b": dying_to("b2", max_priority=5), "b2": dying_to("b", max_length=3),
    "c": dying_to("c2", group_key="/g"),
    "c2": dying_to("c", group_key="/g", retry={"initial": "10ms", "attempts": 999}),
    "d": dying_to("d2", max_length=60, overflow="reject-publish"), "d2": dying_to("d2", priority_expression="/n"),
    "e": {"x-dedup-key": "/id", "x-dedup-window": 600_000}, "f": {"x-dedup-window": 600_000},
}  # fmt: skip
"""By the lane of their first letter; in `e` and `f` messages stay where they are, and are published again."""

Moved = dict[tuple[str, int], int]
"""By lane and id the number that a message gets; ENDED: it is gone."""


@dataclass
class Notes:
    lock: threading.Condition = field(default_factory=threading.Condition)  # told of each commit
    sure: Moved = field(default_factory=dict[tuple[str, int], int])
    open: list[Moved] = field(default_factory=list[Moved])  # asked for, and not answered
    again: list[int] = field(default_factory=list[int])  # ids of `e` and `f` to be published once more
    ids: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])

    def has(self, commits: int) -> bool:
        return self.counts["commits"] >= commits

    def next(self) -> int:
        with self.lock:
            self.ids += 1
            return self.ids

    def done(self, moved: Moved) -> None:
        with self.lock:
            self.open.remove(moved)
            for key, number in moved.items():
                self.sure[key] = max(number, self.sure.get(key, -1))
            self.counts["commits"] += 1
            self.lock.notify_all()

    def refused(self, moved: Moved) -> None:
        with self.lock:
            self.open.remove(moved)
            self.again += [one for (lane, one), number in moved.items() if lane == "e" and not number]
            self.counts["refused"] += 1


class Worker(threading.Thread):
    """Takes, settles and publishes until the server is gone."""

    def __init__(self, server: LiveServer, notes: Notes, seed: int) -> None:
        super().__init__(daemon=True)
        self.notes, self.random = notes, random.Random(seed)
        self.connection = server.connect()
        self.start()

    def run(self) -> None:
        with suppress(*GONE):
            while True:
                channel = self.connection.channel()
                channel.tx_select()
                with suppress(ChannelClosedByBroker):
                    while True:
                        self.step(channel)

    def step(self, channel: BlockingChannel) -> None:
        """One transaction."""
        rnd, moved = self.random, Moved()
        acts: list[tuple[Any, ...]] = []
        for queue in rnd.choices(list(QUEUES), k=rnd.randint(0, 4)):
            method, _, raw = channel.basic_get(queue)
            if method is not None and raw is not None:
                acts += self.settled(queue, method.delivery_tag, orjson.loads(raw), moved)
        acts += self.new(moved)
        rnd.shuffle(acts)
        with self.notes.lock:
            self.notes.open.append(moved)
        for act, *arguments in acts:
            getattr(channel, act)(*arguments)
        try:
            channel.tx_commit()
        except ChannelClosedByBroker as error:
            if error.reply_code == 406:
                self.notes.refused(moved)
            raise
        self.notes.done(moved)

    def settled(self, queue: str, tag: int, body: dict[str, int], moved: Moved) -> list[tuple[Any, ...]]:
        """What becomes of one message."""
        lane, one = queue[0], body["id"]
        way = self.random.choice(("back", "dead", "on", "on", "ended"))
        if way == "back":
            return [("basic_nack", tag, False, True)]
        if way == "dead" and lane < "e":
            return [("basic_reject", tag, False)]
        if way == "on" and lane < "e":
            moved[lane, one] = body["n"] + 1
            target = self.random.choice((lane, lane + "2"))
            return [("basic_ack", tag), published("", target, {**body, "n": body["n"] + 1}, priority=one % 6)]
        moved[lane, one] = ENDED
        return [("basic_ack", tag)]

    def new(self, moved: Moved) -> list[tuple[Any, ...]]:
        """Messages to all lanes."""
        acts, rnd, notes = list[tuple[Any, ...]](), self.random, self.notes
        if sum(number != ENDED for number in list(notes.sure.values())) > ALIVE_MOST:
            return []
        for _ in range(rnd.choice((0, 1, 3))):
            one, way = notes.next(), rnd.choice(("bound", "else", "later"))
            body = {"id": one, "n": 0, "g": one % 7}
            if way == "later":
                acts.append(published("later", "", body, headers={"x-delay": rnd.choice((1, 20, 60))}))
            else:
                acts.append(published("first", way, body, priority=one % 6))
            moved |= {
                (lane, one): 0 for lane in ("abc" if way == "later" else "abcd")
            }  # a full queue holds delayed ones
        for _ in range(rnd.choice((0, 1, 2))):
            with notes.lock:
                known = notes.again.pop() if notes.again else 0
            one = known or notes.next()
            acts.append(published("once", "", {"id": one, "n": 0}, headers={"x-dedup-key": str(one)}))
            moved |= {(lane, one): 0 for lane in "ef"}
        return acts


def published(exchange: str, key: str, body: dict[str, int], **properties: Any) -> tuple[Any, ...]:
    lasting = pika.BasicProperties(delivery_mode=2, **properties)
    return ("basic_publish", exchange, key, orjson.dumps(body), lasting)


def declare(channel: BlockingChannel) -> None:
    for queue, arguments in QUEUES.items():
        channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.exchange_declare("first", "topic", durable=True, arguments={"alternate-exchange": "other"})
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    for fan, lanes in (("other", ""), ("all", "abcd"), ("three", "abc"), ("once", "ef")):
        channel.exchange_declare(fan, "fanout", durable=True)
        for lane in lanes:
            channel.queue_bind(lane, fan)
    channel.exchange_bind("all", "first", "bound.#")
    channel.exchange_bind("all", "other")
    channel.exchange_bind("three", "later")


def look(client: penstock.Client, notes: Notes, where: str) -> None:
    """All is as it was promised, once what moves by itself has come to where it is seen once."""
    until = time.monotonic() + PATIENCE_S
    while True:
        bodies = [
            (queue[0], orjson.loads(one.body)) for queue in QUEUES
            for one in client.peek(queue, 10_000, states=("ready", "leased", "delayed"))
        ]  # fmt: skip
        places = [((lane, body["id"]), body["n"]) for lane, body in bodies]
        there = dict(places)
        wrong = [f"{key} is there twice" for key, count in Counter(key for key, _ in places).items() if count > 1]
        wrong += [*missing(there, notes), *strange(there, notes), *torn(there, notes)]
        if not wrong or time.monotonic() > until:
            break
    assert not wrong, f"{where}: {wrong[:9]}"
    unknown = {key for moved in notes.open for key in moved if key[0] > "d" and key not in there | notes.sure}
    halves = {one for _, one in unknown}  # it may have been there, and have ended
    ended = {key for moved in notes.open for key, number in moved.items() if number == ENDED}
    notes.again += [one for moved in notes.open for (lane, one), number in moved.items() if lane == "e" and not number]
    notes.again = [one for one in notes.again if one not in halves or not {("e", one), ("f", one)} & ended]
    notes.sure = {key: there.get(key, ENDED) for key in {*there, *notes.sure}}
    notes.open.clear()


def missing(there: Moved, notes: Notes) -> list[str]:
    ended = {key for moved in notes.open for key, number in moved.items() if number == ENDED}
    lost = [key for key, number in notes.sure.items() if number != ENDED and key not in there and key not in ended]
    back = [key for key, number in notes.sure.items() if there.get(key, number) < number]
    return [*(f"{key} is lost" for key in lost), *(f"{key} came back, as {there[key]}" for key in back)]


def strange(there: Moved, notes: Notes) -> list[str]:
    asked = {(key, number) for moved in notes.open for key, number in moved.items()}
    none = [one for one in there.items() if one not in asked and notes.sure.get(one[0]) != one[1]]
    return [f"{one} was never asked for" for one in none]


def torn(there: Moved, notes: Notes) -> list[str]:
    """Transactions of which a part is done."""
    ended = {key for moved in notes.open for key, number in moved.items() if number == ENDED}

    def is_done(key: tuple[str, int], number: int) -> bool | None:
        """None: nobody can tell."""
        known = notes.sure.get(key, -1)
        if key[0] > "d" and not number and known >= 0:
            return None  # published again
        if key in there:
            return there[key] >= number
        if number == ENDED or known == ENDED:
            return None if known in (-1, ENDED) else True
        return None if key in ended else False

    out = list[str]()
    for moved in notes.open:
        said = {key: is_done(key, number) for key, number in moved.items()}
        if {True, False} <= set(said.values()):
            out.append(f"of {moved} is done {said}")
    return out


def test_kills_of_transactions_over_exchanges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER__DOORS", "2")
    rnd, notes = random.Random(SEED), Notes()
    server = LiveServer(tmp_path, ["--sync", "commit"], flight=True)
    with server:
        declare(server.connect().channel())
        for life in range(LIVES):
            team = [Worker(server, notes, rnd.randrange(1 << 30)) for _ in range(3)]
            with notes.lock:  # one has just been answered then, and the others are anywhere in theirs
                enough = notes.counts["commits"] + rnd.randint(10, 30)
                assert notes.lock.wait_for(partial(notes.has, enough), PATIENCE_S), f"only {dict(notes.counts)}"
            server.kill()
            for worker in team:
                worker.join(PATIENCE_S)
                assert not worker.is_alive()
            server.start()
            with penstock.connect(f"penstock://{server.ready['flight']}") as client:
                look(client, notes, f"PENSTOCK_SEED={SEED}, life {life}")
    print(dict(notes.counts))
    assert notes.counts["commits"] >= 10 * LIVES
    assert "Traceback" not in server.output(), server.output()
    audit(server.data)
