"""kill -9 under transactions and dead letters: tokens move from queue to queue, and each is in exactly one place.

A worker takes some tokens, and in one transaction ends them and publishes each anew with a higher number, or rejects
them.  Others move by themselves: out of a queue by their time to live, out of a short one by newer ones.  After a kill
every token is there once, with the number whose commit was answered or one that was asked for: all of a transaction
or nothing, and commit-ok means all.

`PENSTOCK_KILLS` sets how often (a third of it, 2 by default), `PENSTOCK_SEED` repeats a run's choices (not its timing).
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

import penstock
from crash.model_clients import end, happens
from crash.test_kills import KILLS, PART, SEED, audit
from live_server import LiveServer, Mortal
from penstock import PenstockError

pytestmark = pytest.mark.crash

LIVES = max(2, KILLS // 3)
TOKENS = 60
PATIENCE_S = 60.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)

TAKEN = ("a", "b", "dead")
"""Where workers take tokens."""
GIVEN = ("a", "b", "rest", "tight")
"""Where they publish them."""
QUEUES = ("a", "b", "dead", "rest", "tight")


@dataclass
class Notes:
    """What is known of each token: the highest number that was answered, and all that were asked for."""

    sure: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(TOKENS), 0))
    asked: dict[int, set[int]] = field(default_factory=lambda: {token: {0} for token in range(TOKENS)})
    together: list[dict[int, int]] = field(default_factory=list[dict[int, int]])  # not answered: token -> number
    commits: int = 0
    rollbacks: int = 0

    def begin(self, moved: dict[int, int]) -> None:
        self.together.append(moved)
        for token, number in moved.items():
            self.asked[token].add(number)

    def done(self, moved: dict[int, int]) -> None:
        self.together.remove(moved)
        for token, number in moved.items():
            self.sure[token] = max(number, self.sure[token])
        self.commits += 1


class Worker(threading.Thread):
    """Moves tokens until the server is gone.  What it cannot explain is in `failure`."""

    def __init__(self, url: str, notes: Notes, lock: threading.Lock, seed: int) -> None:
        super().__init__()
        self.url, self.notes, self.lock, self.random = url, notes, lock, random.Random(seed)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except (AMQPError, PenstockError, OSError) as error:
            if not self.stopping.is_set() and not isinstance(error, (penstock.Unavailable, AMQPError)):
                self.failure = error
        except BaseException as failure:  # noqa: BLE001 - the test reports it
            self.failure = failure

    def work(self) -> None:
        raise NotImplementedError

    def moved(self, bodies: list[bytes]) -> tuple[dict[int, int], list[tuple[str, bytes]]]:
        """New numbers of these tokens, and where they go."""
        moved, out = dict[int, int](), list[tuple[str, bytes]]()
        for body in bodies:
            token, number = orjson.loads(body)
            with self.lock:
                moved[token] = max(number, *self.notes.asked[token]) + 1
            out.append((self.random.choice(GIVEN), orjson.dumps([token, moved[token]])))
        return moved, out


class AmqpWorker(Worker):
    """By tx.select, tx.commit and tx.rollback."""

    def work(self) -> None:
        with closing(Mortal(pika.URLParameters(self.url))) as connection:
            self.move(connection.channel())

    def move(self, channel: BlockingChannel) -> None:
        """Take, end, publish, and commit or not."""
        rnd, notes = self.random, self.notes
        channel.tx_select()
        while not self.stopping.is_set():
            got = [channel.basic_get(rnd.choice(TAKEN)) for _ in range(rnd.randint(1, 4))]
            kept = [(method.delivery_tag, body) for method, _, body in got if method is not None]
            if not kept:
                continue
            if rnd.random() < 0.3:  # asked for, and taken back
                for tag, body in kept:
                    channel.basic_ack(tag)
                    channel.basic_publish("", "a", body, PERSISTENT)
                channel.tx_rollback()
                notes.rollbacks += 1
            rejected = [one for one in kept if rnd.random() < 0.2]
            ended = [one for one in kept if one not in rejected]
            moved, out = self.moved([body for _, body in ended])
            for tag, _ in rejected:
                channel.basic_reject(tag, requeue=False)
            for tag, _ in ended:
                channel.basic_ack(tag)
            for queue, body in out:
                channel.basic_publish("", queue, body, PERSISTENT)
            with self.lock:
                notes.begin(moved)
            channel.tx_commit()
            with self.lock:
                notes.done(moved)


class ClientWorker(Worker):
    """By transactions of the Python client."""

    def work(self) -> None:
        client = penstock.connect(self.url)
        try:
            self.move(client)
        finally:
            with suppress(PenstockError):  # the server is gone
                client.close()

    def move(self, client: penstock.Client) -> None:
        """Take, end, publish."""
        rnd, notes = self.random, self.notes
        consumers = [client.consume(queue, backlog=4, timeout="50ms") for queue in TAKEN]
        while not self.stopping.is_set():
            messages = list[penstock.Message]()
            for consumer in rnd.sample(consumers, 2):
                while len(messages) < 3 and (message := consumer.take(0.02)) is not None:
                    messages.append(message)
            if not messages:
                continue
            moved, out = self.moved([message.body for message in messages])
            with self.lock:
                notes.begin(moved)
            with client.transaction() as transaction:
                for message in messages:
                    transaction.ack(message)
                for queue, body in out:
                    transaction.publish(queue, body)
            with self.lock:
                notes.done(moved)


def declare(client: penstock.Client) -> None:
    for name in ("a", "b"):
        client.declare(name, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.declare("dead", dead_letter_exchange="", dead_letter_routing_key="a")
    client.declare("rest", message_ttl="20ms", dead_letter_exchange="", dead_letter_routing_key="b")
    client.declare("tight", max_length=3, dead_letter_exchange="", dead_letter_routing_key="a")
    with client.transaction() as transaction:
        for token in range(TOKENS):
            transaction.publish("a", orjson.dumps([token, 0]))


def places(client: penstock.Client) -> list[tuple[int, int]]:
    """Every token that is anywhere, with its number."""
    found = list[tuple[int, int]]()
    for queue in QUEUES:
        some = client.peek(queue, 10 * TOKENS, states=("ready", "leased", "delayed"))
        found += [tuple(orjson.loads(message.body)) for message in some]
    return found


def look(client: penstock.Client, notes: Notes, where: str) -> None:
    """Each token is there once; what was committed holds, and what was not is whole."""
    until = time.monotonic() + PATIENCE_S
    while True:  # those that move by themselves may be seen twice, or not at all, on their way
        found = places(client)
        if sorted(token for token, _ in found) == list(range(TOKENS)) or time.monotonic() > until:
            break
    counts = Counter(token for token, _ in found)
    wrong = {token: counts[token] for token in range(TOKENS) if counts[token] != 1}
    assert not wrong, f"{where}: tokens that are not in exactly one place: {wrong}"
    present = dict(found)
    back = {token: number for token, number in present.items() if number < notes.sure[token]}
    assert not back, f"{where}: {back} came back behind { ({token: notes.sure[token] for token in back}) }"
    for moved in notes.together:
        there = {token for token, number in moved.items() if present[token] >= number}
        assert there in (set(), set(moved)), f"{where}: {there} of {moved} are done, and {present} is there"
    notes.sure.update(present)
    notes.asked = {token: {number} for token, number in present.items()}
    notes.together.clear()


def test_kills_of_transactions(tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    notes, lock = Notes(), threading.Lock()
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}: {LIVES} lives")
    server = LiveServer(tmp_path, ["--sync", "commit"], flight=True)
    with server:
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            declare(client)
        for life in range(LIVES):
            flight = f"penstock://{server.ready['flight']}"
            amqp = f"amqp://guest:guest@{server.ready['amqp']}/%2F"
            team: list[Worker] = [AmqpWorker(amqp, notes, lock, rnd.randrange(1 << 30)) for _ in range(2)]
            team += [ClientWorker(flight, notes, lock, rnd.randrange(1 << 30)) for _ in range(2)]
            for worker in team:
                worker.start()
            time.sleep(rnd.uniform(0.3, 1.2) * PART)
            if life == LIVES - 1:
                happens(lambda: notes.commits > LIVES, team, "too little is committed")
            server.kill()
            end(team, f"PENSTOCK_SEED={SEED}, life {life}")
            server.start()
            with penstock.connect(f"penstock://{server.ready['flight']}") as client:
                look(client, notes, f"PENSTOCK_SEED={SEED}, life {life}")
    print(notes.commits, "commits,", notes.rollbacks, "rollbacks")
    assert notes.commits > LIVES
    assert "Traceback" not in server.output(), server.output()
    audit(server.data)
