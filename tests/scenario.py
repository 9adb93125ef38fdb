"""Words that the scenarios of the AMPS documents share: brokers with their queues, bodies, an AMQP client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from penstock.testing import Broker, Message

PATIENCE_S = 20
"""How long an AMQP client waits for what has to come."""


def broker_of(*queues: dict[str, object], **sections: object) -> Broker:
    """A broker with these queues and other sections of the settings file."""
    return Broker({"queue": list(queues), **sections})


def bodies(messages: Sequence[Message]) -> list[bytes]:
    """What the messages say."""
    return [message.body for message in messages]


def waiting(broker: Broker, queue: str) -> list[bytes]:
    """What a query of the queue shows: nothing is leased by it."""
    return [record.body for record in broker.sow(queue)]


@contextmanager
def amqp(broker: Broker) -> Iterator[BlockingChannel]:
    """A channel of an unmodified client on a real socket, with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


def publish(channel: BlockingChannel, topic: str, *texts: str) -> None:
    """Publish and have each confirmed."""
    for text in texts:
        channel.basic_publish("", topic, text.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)


def get(channel: BlockingChannel, queue: str, *, ack: bool = True) -> bytes | None:
    """The next body of a queue, None where there is none."""
    method, _, body = channel.basic_get(queue, auto_ack=ack)
    return None if method is None else body


def _spelled(arguments: dict[str, object]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in arguments.items()}


class Worker:
    """An AMQP consumer: what it was sent, in order."""

    def __init__(self, channel: BlockingChannel, queue: str, prefetch: int = 0, **arguments: object) -> None:
        """`arguments` are those of the consumer, `x_filter` for `x-filter`."""
        self.channel = channel
        self.inbox = list[tuple[Any, bytes]]()
        self.headers = list[dict[str, Any]]()  # of all that was ever sent, in order
        channel.basic_qos(prefetch_count=prefetch)
        self.tag = channel.basic_consume(queue, self._on_message, arguments=_spelled(arguments))

    def _on_message(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        self.inbox.append((method, body))
        self.headers.append(properties.headers or {})

    def replace(self, queue: str, **arguments: object) -> None:
        """Other terms for the same consumer.  pika refuses a tag that is in use, so the frame is made here."""
        method = pika.spec.Basic.Consume(
            queue=queue, consumer_tag=self.tag, arguments={**_spelled(arguments), "x-replace": True}
        )
        self.channel._impl._send_method(method)
        self.channel.basic_qos(prefetch_count=0)  # a round trip: the server has read it

    def take(self, count: int) -> list[tuple[Any, bytes]]:
        """The next so many deliveries; AssertionError when they do not come."""
        for _ in range(PATIENCE_S * 10):
            if len(self.inbox) >= count:
                break
            self.channel.connection.process_data_events(0.1)
        assert len(self.inbox) >= count, self.inbox
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return taken

    def nothing(self) -> bool:
        """Whether nothing has come that was sent before a round trip that begins now."""
        self.channel.basic_qos(prefetch_count=0, global_qos=False)
        self.channel.connection.process_data_events(0)
        return not self.inbox
