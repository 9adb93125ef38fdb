"""pika: consumers of several queues, replaced while they live, and told about their leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from penstock.testing import Broker
from waiting import wait_for

pytestmark = pytest.mark.conformance

CONFIG = {
    "queue": [
        {"name": "jobs.a", "lease_period": "30s"},
        {"name": "jobs.b", "max_per_subscription_backlog": 3},
        {"name": "plain"},
    ]
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


class Taker:
    """Collects what a consumer gets."""

    def __init__(self, channel: BlockingChannel, queue: str, tag: str = "t", **arguments: object) -> None:
        self.channel = channel
        self.tag = tag
        self.got: list[tuple[int, pika.BasicProperties, str]] = []
        channel.basic_consume(queue, self._take, consumer_tag=tag, arguments=named(arguments))

    def _take(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.got.append((method.delivery_tag, properties, body.decode()))

    def wait(self, count: int) -> list[str]:
        wait_for(self.channel, lambda: len(self.got) >= count)
        self.channel.connection.process_data_events(0.02)
        return [body for _, _, body in self.got]

    def replace(self, queue: str, *, nowait: bool = False, **arguments: object) -> None:
        """pika refuses a known tag before the server is asked, so it is sent past that check."""
        told = named({"replace": True, **arguments})
        asked = spec.Basic.Consume(queue=queue, consumer_tag=self.tag, arguments=told, nowait=nowait)
        if nowait:
            self.channel._impl._send_method(asked)
            self.channel.queue_declare("plain", passive=True)  # behind it
            return
        done = list[object]()
        self.channel._impl._rpc(asked, done.append, [(spec.Basic.ConsumeOk, {"consumer_tag": self.tag})])
        wait_for(self.channel, lambda: done)


def named(arguments: dict[str, object]) -> dict[str, object]:
    return {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}


def fill(broker: Broker, queue: str, *bodies: str) -> None:
    for body in bodies:
        broker.publish(queue, body)


def test_a_pattern_consumes_from_several_queues(broker: Broker, channel: BlockingChannel) -> None:
    fill(broker, "jobs.a", "a0", "a1", "a2")
    fill(broker, "jobs.b", "b0", "b1")
    channel.basic_qos(prefetch_count=10)
    taker = Taker(channel, "^jobs")
    assert len(taker.wait(3)) == 3  # the limit of jobs.b
    channel.basic_ack(taker.got[-1][0], multiple=True)
    assert sorted(taker.wait(5)) == ["a0", "a1", "a2", "b0", "b1"]
    channel.queue_declare("jobs.c")
    fill(broker, "jobs.c", "c0")
    assert taker.wait(6)[5] == "c0"
    channel.basic_nack(taker.got[5][0])
    assert taker.wait(7)[6] == "c0"
    channel.queue_delete("jobs.c")
    fill(broker, "jobs.a", "a3")
    assert taker.wait(8)[7] == "a3"
    channel.basic_cancel("t")
    fill(broker, "jobs.a", "a4")
    channel.basic_ack(taker.got[7][0], multiple=True)
    channel.close()
    assert (broker.stats("jobs.a")["ready"], broker.stats("jobs.a")["leased"]) == (1, 0)


def test_what_a_pattern_holds_returns_with_its_channel(broker: Broker, channel: BlockingChannel) -> None:
    fill(broker, "jobs.a", "a0")
    fill(broker, "jobs.b", "b0")
    taker = Taker(channel, "^jobs")
    taker.wait(2)
    channel.close()
    assert (broker.stats("jobs.a")["ready"], broker.stats("jobs.b")["ready"]) == (1, 1)


def test_a_name_that_is_neither_queue_nor_pattern_is_not_found(channel: BlockingChannel) -> None:
    with pytest.raises(ChannelClosedByBroker, match="404"):
        Taker(channel, "jobs.x")


def test_a_pattern_that_cannot_be_read_is_not_found(channel: BlockingChannel) -> None:
    with pytest.raises(ChannelClosedByBroker, match="404"):
        Taker(channel, "jobs(")


def test_replacing_a_consumer(broker: Broker, channel: BlockingChannel) -> None:
    for n in range(6):
        broker.publish("plain", b'{"n": %d}' % n)
    taker = Taker(channel, "plain", filter="/n < 3", max_backlog=2)
    assert taker.wait(2) == ['{"n": 0}', '{"n": 1}']
    taker.replace("plain", filter="/n > 4", max_backlog=3)
    assert taker.wait(3)[2:] == ['{"n": 5}']
    fill(broker, "jobs.b", "b0")
    taker.replace("jobs.b", nowait=True, filter="")
    assert len(taker.wait(3)) == 3
    channel.basic_ack(taker.got[0][0])
    assert taker.wait(4)[3:] == ["b0"]
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert (broker.stats("plain")["ready"], broker.stats("plain")["leased"]) == (3, 0)
    assert broker.stats("jobs.b")["ready"] == 0


def test_replacing_needs_a_live_tag(channel: BlockingChannel) -> None:
    taker = Taker(channel, "plain")
    taker.tag = "other"
    with pytest.raises(ChannelClosedByBroker, match="406"):
        taker.replace("plain", nowait=True)


def test_a_replaced_consumer_hears_of_the_end_of_its_queue(broker: Broker, channel: BlockingChannel) -> None:
    cancelled = list[object]()
    channel.add_on_cancel_callback(cancelled.append)
    taker = Taker(channel, "plain")
    taker.replace("jobs.b")
    other = channel.connection.channel()
    other.queue_delete("plain")
    fill(broker, "jobs.b", "b0")
    assert taker.wait(1) == ["b0"]
    other.queue_delete("jobs.b")
    wait_for(channel, lambda: cancelled)


def test_info_tells_bookmark_count_and_lease(broker: Broker, channel: BlockingChannel) -> None:
    mark = broker.publish("jobs.a", b"a0", headers={"own": 7})
    taker = Taker(channel, "jobs.a", info=True)
    taker.wait(1)
    end = round((broker.now() + 30) * 1000)
    assert taker.got[0][1].headers == {"own": 7, "x-bookmark": mark, "x-lease-until": end}
    channel.basic_nack(taker.got[0][0])
    taker.wait(2)
    assert taker.got[1][1].headers["x-delivery-count"] == 1
    taker.replace("plain", info=False)
    fill(broker, "plain", "p0")
    taker.wait(3)
    assert not taker.got[2][1].headers
    fill(broker, "jobs.b", "b0")
    several = Taker(channel, "^jobs.b", "s", info=True)
    several.wait(1)
    assert set(several.got[0][1].headers) == {"x-bookmark"}  # its leases do not end by time
