"""pika: priorities, who is chosen, prefetch, one active consumer, exclusive ones, unused queues, overdue deliveries.

The tests stand for sentences about RabbitMQ's queues; time is moved by hand.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from penstock.errors import NotFound
from penstock.testing import Broker
from waiting import wait_for

pytestmark = pytest.mark.conformance


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[[], BlockingChannel]]:
    """A channel of a new connection, with confirms."""
    connections = list[pika.BlockingConnection]()

    def one() -> BlockingChannel:
        connections.append(pika.BlockingConnection(pika.URLParameters(broker.amqp_url)))
        channel = connections[-1].channel()
        channel.confirm_delivery()
        return channel

    yield one
    for connection in connections:
        with contextlib.suppress(AMQPError):
            connection.close()


@pytest.fixture
def channel(connect: Callable[[], BlockingChannel]) -> BlockingChannel:
    return connect()


class Taker:
    """Collects what a consumer gets."""

    def __init__(
        self, channel: BlockingChannel, queue: str = "q", *, exclusive: bool = False, ack: bool = False, **named: object
    ) -> None:
        self.channel = channel
        self.got: list[tuple[int, bool, str]] = []  # tag, redelivered, body
        self.cancelled = False
        arguments = {"x-" + name.replace("_", "-"): value for name, value in named.items()}
        self.tag = channel.basic_consume(queue, self._take, exclusive=exclusive, auto_ack=ack, arguments=arguments)

    def _take(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.got.append((method.delivery_tag, method.redelivered, body.decode()))

    def wait(self, count: int) -> list[str]:
        wait_for(self.channel, lambda: len(self.got) >= count)
        settle(self.channel)
        return [body for _, _, body in self.got]

    @property
    def bodies(self) -> list[str]:
        settle(self.channel)
        return [body for _, _, body in self.got]


def settle(channel: BlockingChannel) -> None:
    """What was sent before an answer has come."""
    channel.basic_qos(prefetch_count=0)


def publish(channel: BlockingChannel, *bodies: str, priority: int | None = None, queue: str = "q") -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, priority=priority))


def gets(channel: BlockingChannel, queue: str = "q", *, ack: bool = True) -> list[str]:
    out = list[str]()
    while (found := channel.basic_get(queue, auto_ack=ack))[0] is not None:
        out.append(found[2].decode())
    return out


def vanish(channel: BlockingChannel) -> None:
    """The link breaks, without a word."""
    channel.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(AMQPError):
        channel.connection.process_data_events(1)


def refused(code: int, text: str) -> Any:
    return pytest.raises(ChannelClosedByBroker, match=rf"\({code}, .*{text}")


# -- priority queues


def test_a_message_above_the_highest_level_counts_as_it_and_without_as_zero(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
    publish(channel, "none")
    publish(channel, "zero", priority=0)
    publish(channel, "five", priority=5)
    publish(channel, "nine", priority=9)
    publish(channel, "three", priority=3)
    assert gets(channel) == ["five", "nine", "three", "none", "zero"]


@pytest.mark.parametrize("value", [256, -1, "high", True])
def test_a_number_of_levels_beyond_a_byte_is_refused(channel: BlockingChannel, value: object) -> None:
    with refused(406, "x-max-priority"):
        channel.queue_declare("q", arguments={"x-max-priority": value})


def test_requeued_messages_return_to_their_place_in_their_level(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
    publish(channel, "a", "b", "c", priority=2)
    publish(channel, "low", priority=1)
    method, _, body = channel.basic_get("q")
    assert body == b"a"
    channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    assert gets(channel, ack=False) == ["a", "c", "low"]


# -- choosing a consumer


def test_higher_consumer_priority_first_until_it_is_out_of_credit(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    low = Taker(channel, priority=-1)
    channel.basic_qos(prefetch_count=2)
    high = Taker(channel, priority=10)
    publish(channel, "0", "1", "2", "3")
    assert high.wait(2) == ["0", "1"]
    assert low.wait(2) == ["2", "3"]
    channel.basic_ack(high.got[0][0])
    publish(channel, "4", "5")
    assert (high.wait(3)[2:], low.wait(3)[2:]) == (["4"], ["5"])


@pytest.mark.parametrize("value", ["high", True])
def test_a_consumer_priority_that_is_no_integer_is_refused(channel: BlockingChannel, value: object) -> None:
    channel.queue_declare("q")
    with refused(406, "x-priority"):
        Taker(channel, priority=value)


def test_equal_consumers_take_turns_the_least_recently_served_first(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    takers = [Taker(channel, ack=True) for _ in range(3)]
    publish(channel, *map(str, range(7)))
    wait_for(channel, lambda: sum(len(one.got) for one in takers) == 7)
    assert [one.bodies for one in takers] == [["0", "3", "6"], ["1", "4"], ["2", "5"]]


# -- prefetch


def test_prefetch_is_for_consumers_started_afterwards_each_by_itself(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    free = Taker(channel, priority=-5)
    channel.basic_qos(prefetch_count=1)
    one, two = Taker(channel), Taker(channel)
    publish(channel, "0", "1", "2", "3")
    wait_for(channel, lambda: len(one.got) + len(two.got) + len(free.got) == 4)
    assert (one.bodies, two.bodies, free.bodies) == (["0"], ["1"], ["2", "3"])


def test_a_global_cap_holds_together_with_those_of_consumers(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    channel.basic_qos(prefetch_count=2)
    one, two = Taker(channel), Taker(channel)
    publish(channel, *map(str, range(6)))
    wait_for(channel, lambda: len(one.got) + len(two.got) == 3)
    settle(channel)
    assert sorted([len(one.got), len(two.got)]) == [1, 2]
    channel.basic_ack(one.got[0][0])
    wait_for(channel, lambda: len(one.got) + len(two.got) == 4)


def test_prefetch_zero_is_without_limit(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    channel.basic_qos(prefetch_count=1)
    channel.basic_qos(prefetch_count=0)
    taker = Taker(channel)
    publish(channel, *map(str, range(50)))
    assert len(taker.wait(50)) == 50


def test_a_prefetch_size_closes_the_connection(channel: BlockingChannel) -> None:
    with pytest.raises(ConnectionClosedByBroker, match=r"540.*prefetch_size!=0 \(10\)"):
        channel.basic_qos(prefetch_size=10)


def test_get_ignores_prefetch_and_what_it_took_is_unacked(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    channel.basic_qos(prefetch_count=1)
    publish(channel, "a", "b", "c")
    assert gets(channel, ack=False) == ["a", "b", "c"]
    stats = broker.stats("q")
    assert (stats["ready"], stats["leased"]) == (0, 3)


# -- single active consumer

SAC = {"x-single-active-consumer": True}


def test_the_first_gets_everything_and_others_wait_in_order_of_arrival(
    broker: Broker, connect: Callable[[], BlockingChannel]
) -> None:
    one, two, three = connect(), connect(), connect()
    one.queue_declare("q", durable=True, arguments=SAC)
    first, second, third = Taker(one), Taker(two), Taker(three, priority=9)
    assert broker.stats("q")["single_active_consumer_tag"] == first.tag
    publish(one, "a", "b")
    assert first.wait(2) == ["a", "b"]
    assert not second.bodies
    one.connection.close()  # what it held goes on to the next, at once
    assert second.wait(2) == ["a", "b"]
    assert all(again for _, again, _ in second.got)
    vanish(two)
    assert third.wait(2) == ["a", "b"]
    assert broker.stats("q")["single_active_consumer_tag"] == third.tag


def test_after_a_cancel_the_next_is_served_at_once_and_the_old_ones_acks_count(
    broker: Broker, connect: Callable[[], BlockingChannel]
) -> None:
    one, two = connect(), connect()
    one.queue_declare("q", durable=True, arguments=SAC)
    one.basic_qos(prefetch_count=1)
    first, second = Taker(one), Taker(two)
    publish(two, "a", "b")
    assert first.wait(1) == ["a"]
    one.basic_cancel(first.tag)
    assert second.wait(1) == ["b"]
    one.basic_ack(first.got[0][0])
    settle(one)
    assert broker.stats("q")["leased"] == 1


def test_an_exclusive_consumer_of_it_is_refused(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments=SAC)
    with refused(403, "single active consumer"):
        Taker(channel, exclusive=True)


def test_get_works_beside_a_single_active_consumer(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments=SAC)
    publish(channel, "a")
    assert gets(channel) == ["a"]


def test_the_argument_counts_at_a_redeclare(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments=SAC)
    with refused(406, "inequivalent arg 'x-single-active-consumer'"):
        channel.queue_declare("q", durable=True)


# -- exclusive consumers and queues, auto-delete


def test_an_exclusive_consumer_shuts_out_others_and_is_shut_out_by_them(
    connect: Callable[[], BlockingChannel], channel: BlockingChannel
) -> None:
    channel.queue_declare("q")
    text = "queue 'q' in vhost '/' in exclusive use"
    taker = Taker(channel, exclusive=True)
    with refused(403, text):
        Taker(connect())
    channel.basic_cancel(taker.tag)
    Taker(channel)
    with refused(403, text):
        Taker(connect(), exclusive=True)


def test_an_exclusive_queue_is_its_connections_alone_and_never_survives(
    broker: Broker, connect: Callable[[], BlockingChannel], channel: BlockingChannel
) -> None:
    channel.queue_declare("q", durable=True, exclusive=True)
    for act in (
        lambda other: other.queue_declare("q", passive=True),
        lambda other: other.queue_declare("q", durable=True, exclusive=True),
        lambda other: other.basic_get("q"),
        lambda other: other.queue_purge("q"),
        lambda other: other.queue_delete("q"),
        lambda other: other.queue_bind("q", "amq.fanout"),
        lambda other: other.basic_consume("q", lambda *_: None),
    ):
        with refused(405, "cannot obtain exclusive access to locked queue 'q' in vhost '/'"):
            act(connect())
    broker.restart()
    with pytest.raises(NotFound):
        broker.stats("q")


def test_an_exclusive_queue_ends_with_its_connection(broker: Broker, connect: Callable[[], BlockingChannel]) -> None:
    owner = connect()
    owner.queue_declare("q", exclusive=True)
    owner.connection.close()
    with refused(404, "no queue 'q'"):
        connect().queue_declare("q", passive=True)


def test_an_auto_delete_queue_goes_with_its_last_consumer_if_it_ever_had_one(
    connect: Callable[[], BlockingChannel], channel: BlockingChannel
) -> None:
    channel.queue_declare("q", auto_delete=True)
    assert gets(channel) == []  # a get is no consumer
    channel.queue_declare("q", passive=True)
    one, two = Taker(channel), Taker(connect())
    channel.basic_cancel(one.tag)
    channel.queue_declare("q", passive=True)
    two.channel.basic_cancel(two.tag)
    with refused(404, "no queue 'q'"):
        channel.queue_declare("q", passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding_as_source(channel: BlockingChannel) -> None:
    channel.exchange_declare("source", "fanout", auto_delete=True)
    channel.exchange_declare("target", "fanout", auto_delete=True)
    channel.queue_declare("q")
    channel.exchange_bind("target", "source")
    channel.queue_bind("q", "source")
    channel.exchange_unbind("target", "source")
    channel.exchange_declare("source", passive=True)
    channel.exchange_declare("target", passive=True)  # it was never a source
    channel.queue_unbind("q", "source")
    with refused(404, "no exchange 'source'"):
        channel.exchange_declare("source", passive=True)


# -- cancel notification


def test_a_client_is_told_when_its_queue_is_gone(connect: Callable[[], BlockingChannel]) -> None:
    one, two = connect(), connect()
    one.queue_declare("q")
    told = list[object]()
    taker = Taker(one)
    one.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    two.queue_delete("q")
    wait_for(one, lambda: told)
    assert told == [taker.tag]
    one.queue_declare("q")  # the channel lives on


def test_cancelling_what_nobody_knows_is_answered_and_requeues_nothing(
    broker: Broker, channel: BlockingChannel
) -> None:
    channel._impl._send_method(pika.spec.Basic.Cancel(consumer_tag="nobody", nowait=False))
    settle(channel)
    channel.queue_declare("q")
    publish(channel, "a")
    taker = Taker(channel)
    taker.wait(1)
    channel.basic_cancel(taker.tag)
    assert broker.stats("q")["leased"] == 1
    channel.close()
    assert broker.stats("q")["ready"] == 1


# -- unused queues


@pytest.mark.parametrize("value", [0, -1, 315_360_000_001, "10"])
def test_an_expiry_out_of_range_is_refused(channel: BlockingChannel, value: object) -> None:
    with refused(406, "x-expires"):
        channel.queue_declare("q", arguments={"x-expires": value})


def test_an_unused_queue_goes_and_get_and_passive_declare_are_use(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("dead", durable=True)
    channel.queue_bind("dead", "amq.fanout")
    channel.queue_declare("q", durable=True, arguments={"x-expires": 10_000, "x-dead-letter-exchange": "amq.fanout"})
    publish(channel, "a", "b")
    broker.advance(9)
    assert channel.basic_get("q", auto_ack=True)[2] == b"a"
    broker.advance(9)
    channel.queue_declare("q", passive=True)
    broker.advance(9)
    assert broker.stats("q")["ready"] == 1
    broker.publish("q", b"a publish is no use")
    broker.advance(2)
    with pytest.raises(NotFound):
        broker.stats("q")
    assert not gets(channel, "dead")
    channel.queue_declare("q", auto_delete=True)  # the name is free
    assert gets(channel) == []


def test_a_consumer_keeps_a_queue_and_its_time_begins_when_it_goes(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-expires": 10_000})
    taker = Taker(channel)
    broker.advance(60)
    channel.basic_cancel(taker.tag)
    broker.advance(9)
    assert broker.stats("q")["consumers"] == 0
    broker.advance(2)
    with pytest.raises(NotFound):
        broker.stats("q")


# -- overdue deliveries


@pytest.mark.parametrize("where", ["queue", "consumer", "get"])
def test_an_overdue_delivery_closes_the_channel_and_all_it_held_returns(
    broker: Broker, connect: Callable[[], BlockingChannel], where: str
) -> None:
    channel, other = connect(), connect()
    arguments = {} if where == "consumer" else {"x-consumer-timeout": 30_000}
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.queue_declare("r", durable=True)
    publish(channel, "a", "b")
    publish(channel, "c", queue="r")
    if where == "get":
        gets(channel, ack=False)
    else:
        Taker(channel, **({"consumer_timeout": 30_000} if where == "consumer" else {})).wait(2)
    Taker(channel, "r").wait(1)
    broker.advance(29)
    settle(channel)
    broker.advance(2)
    with pytest.raises(ChannelClosedByBroker) as closed:
        settle(channel)
    assert closed.value.reply_code == 406
    assert closed.value.reply_text.startswith(
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel.channel_number} timed out. "
        "Timeout value used: 30000 ms."
    )
    assert channel.connection.is_open
    method, _, body = other.basic_get("q", auto_ack=True)
    assert (method.redelivered, body) == (True, b"a")
    assert gets(other) == ["b"]
    assert gets(other, "r") == ["c"]


def test_settled_in_time_nothing_is_overdue(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-consumer-timeout": 30_000})
    taker = Taker(channel)
    for number in range(5):
        publish(channel, str(number))
        taker.wait(number + 1)
        broker.advance(20)
        channel.basic_ack(taker.got[-1][0])
    settle(channel)
    assert broker.stats("q")["acked"] == 5


# -- after a return


def test_every_message_that_came_back_is_redelivered_also_after_a_lost_connection(
    connect: Callable[[], BlockingChannel],
) -> None:
    one, two = connect(), connect()
    one.queue_declare("q", durable=True)
    publish(one, "a", "b", "c")
    taker = Taker(one)
    taker.wait(3)
    one.basic_nack(taker.got[1][0])
    taker.wait(4)
    assert taker.got[3][1:] == (True, "b")
    vanish(one)
    again = Taker(two)
    assert again.wait(3) == ["a", "b", "c"]
    assert all(flag for _, flag, _ in again.got)


def test_a_return_goes_to_its_place_ahead_of_younger_ones(connect: Callable[[], BlockingChannel]) -> None:
    one, two = connect(), connect()
    one.queue_declare("q", durable=True)
    publish(one, *map(str, range(5)))
    tags = [one.basic_get("q")[0].delivery_tag for _ in range(3)]
    one.basic_nack(tags[1])
    assert gets(one) == ["1", "3", "4"]
    one.close()
    assert gets(two) == ["0", "2"]


# -- last values, and consumers that remove nothing


def test_last_values_replace_within_one_read_and_out_ones_stay_out(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-last-value-key": "/@headers/symbol"})
    raw = channel.connection.channel()  # without confirms: one read brings many
    for number in range(300):
        properties = pika.BasicProperties(delivery_mode=2, headers={"symbol": f"s{number % 3}"})
        raw.basic_publish("", "q", str(number), properties)
    raw.basic_qos(prefetch_count=0)
    assert broker.stats("q")["ready"] == 3
    method, _, body = channel.basic_get("q")
    assert body == b"297"
    channel.basic_publish("", "q", b"newer", pika.BasicProperties(delivery_mode=2, headers={"symbol": "s0"}))
    channel.basic_nack(method.delivery_tag)
    assert gets(channel) == ["298", "299", "newer"]


def test_consumers_that_remove_nothing_see_all_and_gets_walk_on(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-non-destructive": True})
    publish(channel, "a", "b")
    one, two = Taker(channel), Taker(channel, ack=True)
    assert (one.wait(2), two.wait(2)) == (["a", "b"], ["a", "b"])
    channel.basic_ack(one.got[-1][0], multiple=True)
    assert gets(channel) == ["a", "b"]
    publish(channel, "c")
    assert (one.wait(3)[2:], two.wait(3)[2:]) == (["c"], ["c"])
    assert broker.stats("q")["ready"] == 3


# -- duplicates


def test_duplicates_are_confirmed_and_stay_out_over_one_read(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-dedup-window": 60_000, "x-dedup-key": "/id"})
    raw = channel.connection.channel()  # without confirms: one read brings many
    for number in range(300):
        raw.basic_publish("", "q", b'{"id": %d}' % (number % 3), pika.BasicProperties(delivery_mode=2))
    raw.close()
    assert broker.stats("q")["ready"] == 3
    assert broker.stats("q")["duplicates"] == 297
    channel.confirm_delivery()
    for _ in range(2):  # confirmed, and no duplicate is returned as one that nobody wanted
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-dedup-key": "k"})
        channel.basic_publish("", "q", b"{}", properties, mandatory=True)
    assert broker.stats("q")["ready"] == 4


def test_a_unique_message_enters_again_once_it_is_acknowledged(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-unique": True, "x-dedup-key": "/@headers/id"})
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2, headers={"id": "a"})
    for _ in range(2):
        channel.basic_publish("", "q", b"one", properties)
    method, _, _ = channel.basic_get("q")
    channel.basic_publish("", "q", b"two", properties)
    assert channel.basic_get("q")[0] is None
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "q", b"three", properties)
    assert channel.basic_get("q", auto_ack=True)[2] == b"three"
    assert broker.stats("q")["duplicates"] == 2
