"""User guide, entitlement beside queues: who may see a message, in step 3 of both message flows and at a barrier."""

from __future__ import annotations

from urllib.parse import urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel

from penstock.testing import Broker
from scenario import Worker

POINT = b'{"isSyncPoint": 1}'


def broker(filter_of_north: str) -> Broker:
    """Three users: who may do everything, who may read a part of the queue, who may read all of it."""
    return Broker(
        {
            "user": [{"name": name, "password": "p"} for name in ("admin", "north", "all")],
            "queue": [{"name": "q", "barrier_expression": "/isSyncPoint IS NOT NULL"}],
            "entitlement": [
                {"user": "admin", "read": True, "write": True},
                {"user": "north", "queue": "q", "read": filter_of_north},
                {"user": "all", "queue": "q", "read": True},
            ],
        }
    )


def channel_of(running: Broker, user: str) -> BlockingChannel:
    parts = urlsplit(running.amqp_url)
    url = f"amqp://{user}:p@{parts.hostname}:{parts.port}/%2F"
    return pika.BlockingConnection(pika.URLParameters(url)).channel()


def test_a_message_goes_to_those_who_are_entitled_to_it() -> None:
    with broker("/region = 'n'") as running:
        north, everybody = channel_of(running, "north"), channel_of(running, "all")
        of_north = Worker(north, "q", x_max_backlog=10)
        running.publish("q", b'{"region": "s"}')
        running.publish("q", b'{"region": "n"}')
        assert of_north.take(1)[0][1] == b'{"region": "n"}'
        assert Worker(everybody, "q").take(1)[0][1] == b'{"region": "s"}'  # it waited for somebody who may see it
        for channel in (north, everybody):
            channel.connection.close()


def test_who_may_not_see_the_barrier_pauses_all_the_same() -> None:
    with broker("/region = 'n'") as running:
        north, everybody = channel_of(running, "north"), channel_of(running, "all")
        of_north, of_all = Worker(north, "q", x_max_backlog=10), Worker(everybody, "q", x_max_backlog=0)
        running.publish("q", b'{"region": "n", "n": 1}')
        running.publish("q", POINT)
        running.publish("q", b'{"region": "n", "n": 2}')
        [(held, _)] = of_north.take(1)
        assert of_north.nothing()  # it has room for the second, which waits behind the barrier
        assert of_all.nothing()
        north.basic_ack(held.delivery_tag)
        assert of_all.take(1)[0][1] == POINT
        assert of_north.take(1)[0][1] == b'{"region": "n", "n": 2}'
        for channel in (north, everybody):
            channel.connection.close()
