"""What counts as use of a queue that goes when nobody uses it, at every door; and what does not."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from collections.abc import Callable

import pika
import pytest

import penstock
from penstock.errors import NotFound
from penstock.testing import Broker

EXPIRES = {"x-expires": 10_000}


def by_amqp(act: Callable[[pika.adapters.blocking_connection.BlockingChannel], object]) -> Callable[[Broker], None]:
    def use(broker: Broker) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        act(connection.channel())
        connection.close()

    return use


def by_client(act: Callable[[penstock.Client], object]) -> Callable[[Broker], None]:
    def use(broker: Broker) -> None:
        with penstock.connect(broker.flight_url) as client:
            act(client)

    return use


def by_http(method: str, path: str, body: object = None) -> Callable[[Broker], None]:
    def use(broker: Broker) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{broker.http_url}{path}", data=data, method=method)
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()

    return use


USES = {
    "AMQP, passive": by_amqp(lambda channel: channel.queue_declare("q", passive=True)),
    "AMQP, again": by_amqp(lambda channel: channel.queue_declare("q", durable=True, arguments=EXPIRES)),
    "AMQP, get": by_amqp(lambda channel: channel.basic_get("q", auto_ack=True)),
    "client, passive": by_client(lambda client: client.declare("q", passive=True)),
    "client, again": by_client(lambda client: client.declare("q", queue_expires="10s", fairness_model="round-robin")),
    "client, consumer": by_client(lambda client: client.consume("q").close()),
    "HTTP, again": by_http("PUT", "/api/queues/%2F/q", {"durable": True, "arguments": EXPIRES}),
}
NO_USES = {
    "AMQP, publish": by_amqp(lambda channel: channel.basic_publish("", "q", b"1")),
    "client, publish": by_client(lambda client: client.publish("q", b"1")),
    "client, stats": by_client(lambda client: client.queue("q")),
    "HTTP, shown": by_http("GET", "/api/queues/%2F/q"),
    "HTTP, peek": by_http("GET", "/api/queues/%2F/q/peek"),
}


def there(broker: Broker) -> bool:
    return broker.command(lambda instance: any(queue.name == "q" for queue in instance.core.queues()))


@pytest.mark.parametrize("way", [*USES, *NO_USES])
def test_declares_gets_and_consumers_of_every_door_are_use(way: str) -> None:
    with Broker() as broker:
        by_amqp(lambda channel: channel.queue_declare("q", durable=True, arguments=EXPIRES))(broker)
        broker.advance(8)
        (USES | NO_USES)[way](broker)
        broker.advance(8)
        assert there(broker) is (way in USES)
        if way in USES:
            assert broker.stats("q")["ready"] == 0
            broker.advance(3)
        with pytest.raises(NotFound):
            broker.stats("q")
