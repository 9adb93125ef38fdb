"""Those who publish: pika with confirms for single messages, our client for Arrow batches over Flight.

Each function is the whole life of one process.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any

import numpy as np
import pika
import pika.spec
from flights import TOPIC, bodies, saved
from shared import ALLOWED, RATE, World, again

import penstock

WINDOW = 512
"""Messages of one pika process that wait for their confirm."""

PIECE = 2_000
"""Rows of one Arrow upload."""


class PikaPublisher:
    """Publishes bodies to the topic, `WINDOW` ahead of the confirms, and notes how long each confirm took."""

    def __init__(self, world: World, slot: int, messages: list[bytes]) -> None:
        self.took = list[float]()
        self.error: BaseException | None = None
        self._world = world
        self._slot = slot
        self._messages = messages
        self._next = 0
        self._sent: deque[tuple[int, float]] = deque()
        self._channel: Any = None
        host, port = world.amqp
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters(host, port, heartbeat=60),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._open),
            on_open_error_callback=lambda _, error: self._end(error),
            on_close_callback=lambda _, reason: self._end(reason),
        )

    def run(self) -> None:
        """Until all is confirmed.  RuntimeError when the connection broke before."""
        self._connection.ioloop.start()
        if len(self.took) != len(self._messages):
            raise RuntimeError(f"{len(self.took)} of {len(self._messages)} messages confirmed: {self.error}")

    def _open(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(ack_nack_callback=self._confirmed, callback=lambda _: self._publish())

    def _publish(self) -> None:
        properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
        while len(self._sent) < WINDOW and self._next < len(self._messages):
            self._channel.basic_publish("", TOPIC, self._messages[self._next], properties)
            self._next += 1
            self._sent.append((self._next, time.perf_counter()))

    def _confirmed(self, frame: Any) -> None:
        method, now = frame.method, time.perf_counter()
        if isinstance(method, pika.spec.Basic.Nack):
            self.error = RuntimeError("the server refused a message")
            self._connection.close()
            return
        if method.multiple:
            while self._sent and self._sent[0][0] <= method.delivery_tag:
                self.took.append(now - self._sent.popleft()[1])
        else:
            at = next(i for i, (tag, _) in enumerate(self._sent) if tag == method.delivery_tag)
            self.took.append(now - self._sent[at][1])
            del self._sent[at]
        self._world.counters[self._slot] = len(self.took)
        if len(self.took) == len(self._messages):
            self._connection.close()
        elif len(self._sent) <= WINDOW // 2:
            self._publish()

    def _end(self, reason: BaseException) -> None:
        self.error = self.error or reason
        self._connection.ioloop.stop()


def publish_with_pika(world: World, slot: int, start: int, count: int) -> None:
    """Rows start..start+count, one message each.

    There is no name for an AMQP message by which the server could know it again, so this process does not resend: the
    demo kills the server when these are done.
    """
    messages = bodies(saved(world.table).slice(start, count))
    again(lambda: socket.create_connection(world.amqp).close(), (OSError,))
    publisher = PikaPublisher(world, slot, messages)
    began = time.time()
    publisher.run()
    np.savez(world.folder / f"confirms-{slot}.npz", took=np.array(publisher.took), span=np.array([began, time.time()]))


def publish_with_flight(world: World, slot: int, start: int) -> None:
    """All rows from `start` on, at the ordered pace, in uploads of at most `PIECE` rows.

    An upload that broke is sent again as it was: publisher and sequence tell the server which rows it has already.
    """
    table = saved(world.table).slice(start)
    size = min(PIECE, max(100, table.num_rows // 20))
    resent = known = 0
    took = list[float]()
    client: list[penstock.Client] = []

    def connected() -> penstock.Client:
        if not client:
            client.append(penstock.connect(world.url))
        return client[0]

    begun = time.time()
    pace = time.monotonic()
    for first in range(0, table.num_rows, size):
        piece = table.slice(first, size)
        while first >= world.orders[ALLOWED]:
            time.sleep(0.02)
            pace = time.monotonic()
        tries = 0

        def upload(piece: Any = piece, first: int = first) -> penstock.client.TableReceipt:
            nonlocal tries
            tries += 1
            try:
                return connected().publish_table(TOPIC, piece, publisher="airport", sequence=first + 1)
            except penstock.Unavailable:
                client.clear()
                raise

        started = time.perf_counter()
        receipt = again(upload, (penstock.Unavailable,))
        if tries == 1:
            took.append(time.perf_counter() - started)
        else:
            resent += piece.num_rows
            known += receipt.duplicates
        if receipt.stored + receipt.duplicates != piece.num_rows:
            raise RuntimeError(f"rows from {first} on: {receipt}")
        world.counters[slot] = first + piece.num_rows
        pace = max(pace + piece.num_rows / world.orders[RATE], time.monotonic() - 0.5)
        time.sleep(max(0.0, pace - time.monotonic()))
    np.savez(
        world.folder / f"uploads-{slot}.npz",
        took=np.array(took),
        span=np.array([begun, time.time()]),
        resent=np.array([resent, known]),
        rows=np.array(table.num_rows),
    )
