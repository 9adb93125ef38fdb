"""Publishers and workers of the demo of a cluster: pika with three addresses, which goes on with whoever leads."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import suppress

import pika
from pika.exceptions import AMQPError

PACE_S = 0.002
TIMEOUT_S = 3
GONE = (AMQPError, OSError)
AGAIN = "settled for sure, and delivered again"
OUT_OF_ORDER = "out of the order of their publisher"


class Load:
    """Publishers and workers, and what each of them knows."""

    def __init__(self, ports: list[int]) -> None:
        self.parameters = [
            pika.ConnectionParameters(
                "127.0.0.1", port, heartbeat=4, blocked_connection_timeout=60, socket_timeout=TIMEOUT_S,
                stack_timeout=2 * TIMEOUT_S,
            )
            for port in ports
        ]  # fmt: skip
        self.sent = 0
        self.confirmed = list[set[int]]()  # numbers, by publisher
        self.confirmed_at = time.monotonic()
        self.worked = Counter[tuple[int, int]]()  # (publisher, number) -> times that it came
        self.proven = set[tuple[int, int]]()  # of these, whose ack is known to be kept
        self.wrong = Counter[str]()
        self.stopping = threading.Event()
        self.resting = threading.Event()  # publishers only
        self._publishers = list[threading.Thread]()
        self._workers = list[threading.Thread]()
        self._lock = threading.Lock()

    def start(self, publishers: int, workers: int) -> None:
        """Have them work."""
        for threads, work, count in (
            (self._publishers, self._publish, publishers),
            (self._workers, self._work, workers),
        ):
            for _ in range(count):
                thread = threading.Thread(target=work, daemon=True)
                threads.append(thread)
                thread.start()

    def rest(self) -> None:
        """No publisher sends more, and what they sent is confirmed or not: from now on `count` stays as it is."""
        self.resting.set()
        for thread in self._publishers:
            thread.join(20)

    def end(self) -> None:
        """Nobody works any more; `rest` comes first."""
        self.stopping.set()
        for thread in self._workers:
            thread.join(20)

    @property
    def count(self) -> int:
        """Messages that were confirmed."""
        return sum(map(len, self.confirmed))

    def missing(self) -> list[tuple[int, int]]:
        """Confirmed, and not worked."""
        return [(n, one) for n, some in enumerate(self.confirmed) for one in list(some) if (n, one) not in self.worked]

    def again(self) -> int:
        """Delivered twice or oftener."""
        return sum(count > 1 for count in self.worked.values())

    def _publish(self) -> None:
        """Each connection is a publisher of its own: what an old one has sent may arrive after what a new one has."""
        while not self.resting.is_set():
            with suppress(*GONE):
                connection = pika.BlockingConnection(self.parameters)
                channel = connection.channel()
                channel.confirm_delivery()
                with self._lock:
                    publisher, number = len(self.confirmed), 0
                    self.confirmed.append(set())
                while not self.resting.is_set():
                    number += 1
                    self.sent += 1
                    body = b'{"publisher": %d, "number": %d}' % (publisher, number)
                    channel.basic_publish("", "work", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
                    self.confirmed[publisher].add(number)
                    self.confirmed_at = time.monotonic()
                    time.sleep(PACE_S)
                connection.close()

    def _work(self) -> None:
        while not self.stopping.is_set():
            with suppress(*GONE):
                connection = pika.BlockingConnection(self.parameters)
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_qos(prefetch_count=100)
                held, last = list[tuple[int, int]](), dict[int, int]()
                for method, _, body in channel.consume("work", inactivity_timeout=0.2):
                    if method is not None:
                        held.append(self._taken(body, method.redelivered, last))
                    if held and (method is None or len(held) >= 50):
                        channel.basic_ack(0, multiple=True)
                        channel.basic_publish("", "done", b"%d" % len(held))  # its confirm says that the acks are kept
                        with self._lock:
                            self.proven.update(held)
                        held = []
                    if self.stopping.is_set():
                        break
                connection.close()

    def _taken(self, body: bytes, again: bool, last: dict[int, int]) -> tuple[int, int]:
        told = json.loads(body)
        one = told["publisher"], told["number"]
        if not again:  # what another worker has given back comes after what this one had meanwhile
            self.wrong[OUT_OF_ORDER] += last.get(one[0], 0) >= one[1]
            last[one[0]] = one[1]
        with self._lock:
            if one in self.proven:
                self.wrong[AGAIN] += 1
            self.worked[one] += 1
        return one
