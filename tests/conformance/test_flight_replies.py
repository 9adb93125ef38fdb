"""Who asks by AMQP, with direct reply-to, and is answered by another door: the reply comes, and each door says so."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import httpx
import pika
import pyarrow as pa
import pytest

import penstock
from penstock.core.topology.routing import REPLY_TO
from penstock.testing import Broker
from waiting import eventually


class Asking:
    """A client of AMQP that asks, and one of ours that answers."""

    def __init__(self, broker: Broker, connection: pika.BlockingConnection, client: penstock.Client) -> None:
        self.broker, self.client = broker, client
        self._connection, self._channel = connection, connection.channel()
        self.replies = list[bytes]()
        self._channel.basic_consume(REPLY_TO, lambda *came: self.replies.append(came[3]), auto_ack=True)

    def ask(self) -> Any:
        """The request, leased to who answers."""
        self._channel.basic_publish("", "sums", b"2 + 2", pika.BasicProperties(reply_to=REPLY_TO))
        self._connection.process_data_events(0)
        return self.client.consume("sums").take(20)

    def heard(self) -> bytes:
        def come() -> bool:
            self._connection.process_data_events(0.01)
            return bool(self.replies)

        eventually(come)
        return self.replies.pop()


@pytest.fixture
def asking() -> Generator[Asking]:
    with Broker({"queue": [{"name": "sums"}, {"name": "full", "max_length": 0, "overflow": "drop-newest"}]}) as broker:
        url = pika.URLParameters(broker.amqp_url)
        with penstock.connect(broker.flight_url) as client, pika.BlockingConnection(url) as connection:
            yield Asking(broker, connection, client)


def by_table(client: penstock.Client, address: str) -> str:
    receipt = client.publish_table(address, pa.table({"body": [b"4"]}))
    assert (receipt.rows, receipt.stored, receipt.unroutable, receipt.replies) == (1, 0, 0, 1)
    return "replied"


def by_transaction(client: penstock.Client, address: str) -> str:
    with client.transaction() as transaction:
        transaction.publish(address, b"4")
        transaction.publish("sums", b"next")
    reply, next_ = transaction.receipts
    assert next_.outcome == "stored"
    return reply.outcome


ANSWERS: dict[str, Callable[[penstock.Client, str], str]] = {
    "publish": lambda client, address: client.publish(address, b"4").outcome,
    "without mandatory": lambda client, address: client.publish(address, b"4", mandatory=False).outcome,
    "table": by_table,
    "transaction": by_transaction,
}


@pytest.mark.parametrize("how", ANSWERS)
def test_a_reply_over_flight_says_that_it_was_given(asking: Asking, how: str) -> None:
    request = asking.ask()
    assert ANSWERS[how](asking.client, request.reply_to) == "replied"
    assert asking.heard() == b"4"
    request.ack(publish=[(request.reply_to, b"5")])
    assert asking.heard() == b"5"


def test_a_reply_over_http_is_routed_and_comes(asking: Asking) -> None:
    message = {"routing_key": asking.ask().reply_to, "payload": "4", "payload_encoding": "string", "properties": {}}
    path = f"{asking.broker.http_url}/api/exchanges/%2F/amq.default/publish"
    answer = httpx.post(path, json=message, auth=("guest", "guest"))
    assert answer.json() == {"routed": True}
    assert asking.heard() == b"4"


def test_what_a_full_queue_drops_is_no_reply(asking: Asking) -> None:
    assert asking.client.publish("full", b"x").outcome == "dropped"
