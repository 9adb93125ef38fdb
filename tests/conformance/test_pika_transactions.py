"""pika: tx.select, tx.commit and tx.rollback over publishes, acks and rejects of several queues."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def depth(channel: BlockingChannel, queue: str) -> int:
    """Ready messages of a queue."""
    return channel.queue_declare(queue, passive=True).method.message_count


def test_commit_and_rollback(connect: Connect) -> None:
    channel, looker = connect().channel(), connect().channel()
    for queue in ("tx-in", "tx-out"):
        channel.queue_declare(queue, durable=True)
    channel.queue_declare("tx-dead", durable=True)
    channel.queue_delete("tx-in")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "tx-dead"}
    channel.queue_declare("tx-in", durable=True, arguments=arguments)
    for n in range(4):
        channel.basic_publish("", "tx-in", b"%d" % n, PERSISTENT)
    channel.tx_select()
    tags = [channel.basic_get("tx-in")[0].delivery_tag for _ in range(3)]  # type: ignore[union-attr]
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_publish("", "tx-out", b"new", PERSISTENT)
    assert [depth(looker, queue) for queue in ("tx-in", "tx-out", "tx-dead")] == [1, 0, 0]
    channel.tx_rollback()
    assert [depth(looker, queue) for queue in ("tx-in", "tx-out", "tx-dead")] == [1, 0, 0]
    channel.basic_ack(tags[0])  # unacked again, under its tag
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_nack(tags[2], requeue=True)
    channel.basic_publish("", "tx-out", b"newer", PERSISTENT)
    channel.tx_commit()
    assert [depth(looker, queue) for queue in ("tx-in", "tx-out", "tx-dead")] == [2, 1, 1]
    assert channel.basic_get("tx-out")[2] == b"newer"
    _, properties, body = channel.basic_get("tx-dead")
    assert body == b"1"
    assert properties is not None
    assert properties.headers["x-death"][0]["reason"] == "rejected"


def test_what_is_unroutable_comes_back_at_commit(connect: Connect) -> None:
    channel = connect().channel()
    back = list[bytes]()
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: back.append(body))
    channel.tx_select()
    channel.basic_publish("", "tx-nobody", b"lost", PERSISTENT, mandatory=True)
    channel.connection.process_data_events(0.05)
    assert back == []
    channel.tx_commit()
    channel.connection.process_data_events(0)
    assert back == [b"lost"]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("confirm_delivery", "tx_select", "cannot switch from confirm to tx mode"),
        ("tx_select", "confirm_delivery", "cannot switch from tx to confirm mode"),
        ("queue_declare", "tx_commit", "channel is not transactional"),
        ("queue_declare", "tx_rollback", "channel is not transactional"),
    ],
)
def test_refusals_are_406_with_the_words_clients_know(connect: Connect, first: str, second: str, text: str) -> None:
    channel = connect().channel()
    getattr(channel, first)(*(("tx-words",) if first == "queue_declare" else ()))
    with pytest.raises(ChannelClosedByBroker) as closed:
        getattr(channel, second)()
    assert (closed.value.reply_code, closed.value.reply_text) == (406, f"PRECONDITION_FAILED - {text}")
