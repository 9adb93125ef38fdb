"""Those who work: pika and our client on the queue `work`, and one who watches the late flights.

A worker writes into its book what it did and acknowledges afterwards.  On a flight without an arrival delay it fails,
as real workers do on messages they cannot use.  `crash_after`: the process ends in mid-lease, without a word to anyone,
when it has been handed so many flights.
"""

from __future__ import annotations

import os
import time
from math import nan
from typing import Any

import orjson
import pika
import pika.exceptions
from shared import Book, World, again

BACKLOG = 200
"""Flights that a worker holds at once."""

ACK_EVERY = 50

CRASH = 70
"""Exit status of a worker that crashes."""


class PoisonError(Exception):
    """A flight that cannot be worked on."""


def made_up(flight: dict[str, Any]) -> int:
    """The work: a flight's arrival delay in minutes.  PoisonError when nobody knows when it arrived."""
    delay = flight["arr_delay"]
    if delay is None:
        raise PoisonError(f"flight {flight['id']} never arrived")
    return int(delay)


class PikaWorker:
    """A BlockingConnection with a prefetch; acknowledges up to `ACK_EVERY` flights with one ack."""

    def __init__(self, world: World, slot: int, crash_after: int) -> None:
        self._world = world
        self._slot = slot
        self._crash_after = crash_after
        self._book = Book(world.folder / "worked", f"pika-{slot}")
        self._handed = 0
        self._done: list[tuple[int, bool, tuple[int, int, int, int, int, float, float]]] = []

    def run(self) -> None:
        """Until the connection breaks or the work is over."""
        self._done.clear()  # what is not acknowledged comes again
        host, port = self._world.amqp
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=60))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=BACKLOG)
        channel.basic_consume("work", self._work)
        while not self._world.over:
            connection.process_data_events(time_limit=0.1)
            self._settle(channel)
        connection.close()

    def _work(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        flight = orjson.loads(body)
        self._handed += 1
        try:
            delay, worked = made_up(flight), True
        except PoisonError:
            delay, worked = 0, False
        line = (flight["id"], 0, method.redelivered, worked, delay, nan, time.time())
        self._done.append((method.delivery_tag, worked, line))
        if len(self._done) >= ACK_EVERY:
            self._settle(channel)

    def _settle(self, channel: Any) -> None:
        """Into the book first, then to the server: failures one by one, the rest with one ack."""
        if not self._done:
            return
        if 0 < self._crash_after <= self._handed:
            self._book.write(line for _, _, line in self._done[: len(self._done) // 2])
            os._exit(CRASH)
        self._book.write(line for _, _, line in self._done)
        for tag, worked, _ in self._done:
            if not worked:
                channel.basic_nack(tag)  # comes again after the queue's back-off, or goes to the dead letters
        last = [tag for tag, worked, _ in self._done if worked][-1:]
        if last:
            channel.basic_ack(last[0], multiple=True)
        self._world.counters[self._slot] += sum(worked for _, worked, _ in self._done)
        self._done.clear()


def work_with_pika(world: World, slot: int, crash_after: int) -> None:
    """A pika worker that comes back when the server does."""
    again(PikaWorker(world, slot, crash_after).run, (pika.exceptions.AMQPError, OSError))


def work_with_sdk(world: World, slot: int, crash_after: int) -> None:
    """The same with our client: leaving the `with` acknowledges, an exception gives the flight back."""
    import penstock

    book = Book(world.folder / "worked", f"sdk-{slot}")
    handed = 0

    def run() -> None:
        nonlocal handed
        with (
            penstock.connect(world.url) as client,
            client.consume("work", backlog=BACKLOG, name=f"sdk-{slot}") as flights,
        ):
            while not world.over:
                message = flights.take(0.1)
                if message is None:
                    continue
                now, flight = time.time(), message.json()
                waited = now - message.time.timestamp() if message.attempt == 1 else nan
                facts = (flight["id"], min(message.attempt, 255), message.redelivered)
                handed += 1
                try:
                    with message:
                        delay = made_up(flight)
                        book.write([(*facts, True, delay, waited, now)])
                        if 0 < crash_after <= handed:
                            os._exit(CRASH)
                except PoisonError:
                    book.write([(*facts, False, 0, waited, now)])
                else:
                    world.counters[slot] += 1

    again(run, (penstock.Unavailable,))


def watch(world: World, slot: int, queue: str) -> None:
    """Take whatever a view shows, as it comes."""
    import penstock

    book = Book(world.folder / queue, f"watch-{slot}")

    def run() -> None:
        with (
            penstock.connect(world.url) as client,
            client.consume(queue, backlog=1_000, name=f"watch-{queue}") as flights,
        ):
            while not world.over:
                message = flights.take(0.1)
                if message is None:
                    continue
                with message:
                    flight = message.json()
                    waited = time.time() - message.time.timestamp() if message.attempt == 1 else nan
                    line = (flight["id"], min(message.attempt, 255), message.redelivered, True, 0, waited, time.time())
                    book.write([line])
                world.counters[slot] += 1

    again(run, (penstock.Unavailable,))
