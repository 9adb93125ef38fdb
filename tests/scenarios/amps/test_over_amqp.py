"""The examples of the AMPS documents behind `penstock serve FILE.xml`, seen by an unmodified AMQP client."""

from __future__ import annotations

from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from live_server import LiveServer

HERE = Path(__file__).resolve().parent


def channel_of(server: LiveServer) -> BlockingChannel:
    channel = server.connect().channel()
    channel.confirm_delivery()
    return channel


def publish(channel: BlockingChannel, topic: str, body: bytes) -> None:
    """Confirmed, and in a queue."""
    try:
        channel.basic_publish("", topic, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    except UnroutableError:
        raise AssertionError(f"no queue took what was published to {topic}") from None


def get(channel: BlockingChannel, queue: str, *, ack: bool = True) -> bytes | None:
    """The next body of a queue, None where there is none."""
    method, _, body = channel.basic_get(queue, auto_ack=ack)
    return None if method is None else body


def test_getting_started(tmp_path: Path) -> None:
    with LiveServer(tmp_path, [str(HERE / "getting-started.xml")]) as server:
        channel = channel_of(server)
        publish(channel, "Work", b"1")
        assert get(channel, "WorkToDo", ack=False) == b"1"
        channel.close()  # nothing was acknowledged, and at-most-once does not deliver again
        assert get(channel_of(server), "WorkToDo") is None


def test_dead_letters(tmp_path: Path) -> None:
    with LiveServer(tmp_path, [str(HERE / "dead-letters.xml")]) as server:
        channel = channel_of(server)
        publish(channel, "Jobs", b'{"id": 1}')
        for _ in range(3):
            method, _, body = channel.basic_get("Jobs")
            assert (method is not None, body) == (True, b'{"id": 1}')
            channel.basic_nack(method.delivery_tag, requeue=True)
        assert get(channel, "Jobs") is None
        failed = next(channel.consume("FailedJobs", auto_ack=True, inactivity_timeout=20))  # it comes a moment later
        assert failed[2] == b'{ "message": {"id": 1}, "reason": "max_cancels" }'


def test_many_topics(tmp_path: Path) -> None:
    with LiveServer(tmp_path, [str(HERE / "many-topics.xml")]) as server:
        channel = channel_of(server)
        for topic in ("ORDERS", "ORDERS_ANALYTICS", "ORDERS_RISK", "ORDERS_ANALYTICS_DIRECT", "ORDERS_RISK_DIRECT"):
            publish(channel, topic, topic.encode())
        taken = {name: [get(channel, name) for _ in range(4)] for name in ("ORDERS_ANALYTICS", "ORDERS_RISK")}
        assert taken == {
            "ORDERS_ANALYTICS": [b"ORDERS", b"ORDERS_ANALYTICS", b"ORDERS_ANALYTICS_DIRECT", None],
            "ORDERS_RISK": [b"ORDERS", b"ORDERS_RISK", b"ORDERS_RISK_DIRECT", None],
        }
