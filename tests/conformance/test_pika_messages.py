"""pika: publishing with confirms, and all ways to take and settle a message."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, UnroutableError

from waiting import eventually, wait_for

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(channel: BlockingChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT)


def vanish(connection: pika.BlockingConnection) -> None:
    """The link breaks, without a word."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(AMQPError):
        connection.process_data_events(1)


class Taker:
    """Collects deliveries of a consumer."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.got: list[tuple[int, bool, bytes]] = []  # tag, redelivered, body
        self.properties: list[pika.BasicProperties] = []
        self.tag = channel.basic_consume(queue, self._take, **options)

    def _take(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.got.append((method.delivery_tag, method.redelivered, body))
        self.properties.append(properties)

    def wait(self, count: int) -> None:
        wait_for(self.channel, lambda: len(self.got) >= count)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.got]


def test_mandatory_comes_back_before_its_ack(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as unroutable:
        channel.basic_publish("", "nowhere", b"lost", PERSISTENT, mandatory=True)
    returned = unroutable.value.messages[0]
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.routing_key, returned.body) == ("nowhere", b"lost")
    assert returned.properties.delivery_mode == 2
    channel.basic_publish("", "nowhere", b"lost")  # not mandatory: confirmed
    channel.basic_publish("", queue, b"x", mandatory=True)


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_003])
def test_bodies_of_any_size(channel: BlockingChannel, queue: str, size: int) -> None:
    body = bytes(i * 7 % 251 for i in range(min(size, 5000))) * (size // 5000 + 1)
    body = body[:size]
    channel.confirm_delivery()
    publish(channel, queue, body, b"next")
    taker = Taker(channel, queue)
    taker.wait(2)
    assert taker.bodies == [body, b"next"]


def test_small_frames(connect: Connect, queue: str) -> None:
    channel = connect(frame_max=4096).channel()
    channel.confirm_delivery()
    body = b"0123456789" * 2000
    publish(channel, queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_properties_and_headers_come_back_as_they_were(channel: BlockingChannel, queue: str) -> None:
    headers: dict[str, Any] = {
        "text": "héllo", "int": 5, "big": 2**40, "negative": -3, "bool": True, "none": None,
        "bytes": b"\x00\xff", "list": [1, "two", {"three": 3}], "table": {"deep": {"deeper": []}},
    }  # fmt: skip
    sent = pika.BasicProperties(
        content_type="application/json", content_encoding="utf-8", headers=headers, delivery_mode=2, priority=3,
        correlation_id="c-1", reply_to="answers", expiration="60000", message_id="m-1", timestamp=1_700_000_000,
        type="order", user_id="guest", app_id="tests", cluster_id="x",
    )  # fmt: skip
    channel.basic_publish("", queue, b"x", sent)
    method, got, _ = channel.basic_get(queue, auto_ack=True)
    assert got.__dict__ == sent.__dict__
    assert (method.exchange, method.routing_key, method.redelivered, method.message_count) == ("", queue, False, 0)


def test_many_in_order(channel: BlockingChannel, queue: str) -> None:
    bodies = [b"%d" % i for i in range(3000)]
    publish(channel, queue, *bodies)
    taker = Taker(channel, queue, auto_ack=True)
    taker.wait(3000)
    assert taker.bodies == bodies


def test_get_counts_and_empty(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    assert channel.basic_get(queue) == (None, None, None)
    publish(channel, queue, b"a", b"b", b"c")
    method, _, body = channel.basic_get(queue)
    assert (body, method.message_count) == (b"a", 2)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"b"
    channel.basic_reject(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.message_count) == (b"a", True, 1)


def test_prefetch_of_each_consumer(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, *(b"%d" % i for i in range(10)))
    channel.basic_qos(prefetch_count=3)
    first = Taker(channel, queue)
    first.wait(3)
    channel.basic_qos(prefetch_count=2)
    second = Taker(channel, queue)
    second.wait(2)
    channel.basic_qos(prefetch_count=2)
    assert (len(first.got), len(second.got)) == (3, 2)
    channel.basic_ack(first.got[2][0], multiple=True)
    wait_for(channel, lambda: len(first.got) + len(second.got) == 8)
    channel.basic_qos(prefetch_count=2)
    assert (len(first.got), len(second.got)) == (6, 2)


def test_prefetch_of_a_channel(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    queues = [f"{name}-{i}" for i in range(2)]
    for one in queues:
        channel.queue_declare(one)
        publish(channel, one, *(b"%d" % i for i in range(5)))
    channel.basic_qos(prefetch_count=3, global_qos=True)
    takers = [Taker(channel, one) for one in queues]
    wait_for(channel, lambda: sum(len(taker.got) for taker in takers) == 3)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    assert sum(len(taker.got) for taker in takers) == 3
    channel.basic_ack(takers[0].got[0][0])
    wait_for(channel, lambda: sum(len(taker.got) for taker in takers) == 4)
    channel.basic_qos(prefetch_count=0, global_qos=True)
    wait_for(channel, lambda: sum(len(taker.got) for taker in takers) == 10)


def test_ack_multiple_and_zero(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    channel.basic_ack(0, multiple=True)  # nothing is outstanding, which is fine
    publish(channel, queue, *(b"%d" % i for i in range(6)))
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(6)]
    channel.basic_ack(tags[4])
    channel.basic_ack(tags[1], multiple=True)
    channel.basic_nack(tags[3], multiple=True, requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.delivery_tag) == (b"2", True, 7)
    channel.basic_ack(0, multiple=True)
    assert channel.basic_get(queue)[2] == b"3"


@pytest.mark.parametrize("how", ["unknown", "twice", "zero", "multiple", "no_ack", "nack", "reject"])
def test_unknown_tags_close_the_channel(channel: BlockingChannel, queue: str, how: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, b"a", b"b")
    tag = channel.basic_get(queue, auto_ack=how == "no_ack")[0].delivery_tag
    wrong = {"unknown": 5, "zero": 0, "multiple": 9, "nack": 7, "reject": 8}.get(how, tag)
    with pytest.raises(ChannelClosedByBroker) as refused:  # noqa: PT012
        if how == "twice":
            channel.basic_ack(tag)
        if how == "nack":
            channel.basic_nack(wrong)
        elif how == "reject":
            channel.basic_reject(wrong)
        else:
            channel.basic_ack(wrong, multiple=how == "multiple")
        channel.queue_declare(queue, passive=True)
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406, f"PRECONDITION_FAILED - unknown delivery tag {wrong}",
    )  # fmt: skip


def test_what_comes_back_keeps_its_place_and_says_so(connect: Connect, queue: str) -> None:
    channel = connect().channel()
    channel.confirm_delivery()
    publish(channel, queue, *(b"%d" % i for i in range(5)))
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    channel.basic_nack(tags[1])
    got = [(m.redelivered, body) for m, _, body in (channel.basic_get(queue) for _ in range(3))]
    assert got == [(True, b"1"), (False, b"3"), (False, b"4")]
    channel.close()
    channel = connect().channel()
    got = [(m.redelivered, body) for m, _, body in (channel.basic_get(queue) for _ in range(5))]
    assert got == [(True, b"%d" % i) for i in range(5)]


def test_recover_brings_everything_back(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, *(b"%d" % i for i in range(4)))
    taker = Taker(channel, queue)
    taker.wait(4)
    channel.basic_recover(requeue=True)
    taker.wait(8)
    assert taker.got[4:] == [(5 + i, True, b"%d" % i) for i in range(4)]


def test_a_lost_connection_returns_what_it_held(connect: Connect, queue: str, channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    publish(channel, queue, *(b"%d" % i for i in range(4)))
    other = connect()
    taker = Taker(other.channel(), queue)
    taker.wait(4)
    vanish(other)
    taker = Taker(channel, queue)
    taker.wait(4)
    assert [(again, body) for _, again, body in taker.got] == [(True, b"%d" % i) for i in range(4)]


def test_cancel_keeps_leases_and_nothing_comes_after_it(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, b"a", b"b")
    channel.basic_qos(prefetch_count=1)
    taker = Taker(channel, queue)
    taker.wait(1)
    channel.basic_cancel(taker.tag)
    channel.basic_ack(taker.got[0][0])
    channel.basic_qos(prefetch_count=1)
    assert taker.bodies == [b"a"]
    assert channel.basic_get(queue)[2] == b"b"
    channel.basic_cancel("nobody")


def test_the_client_is_told_when_its_queue_goes(channel: BlockingChannel, connect: Connect, queue: str) -> None:
    told: list[str] = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    taker = Taker(channel, queue)
    connect().channel().queue_delete(queue)
    wait_for(channel, lambda: told)
    assert told == [taker.tag]


def test_exclusive_consumer(channel: BlockingChannel, connect: Connect, queue: str) -> None:
    channel.basic_consume(queue, lambda *_: None, exclusive=True)
    for exclusive in (False, True):
        fresh = connect().channel()
        with pytest.raises(ChannelClosedByBroker) as refused:
            fresh.basic_consume(queue, lambda *_: None, exclusive=exclusive)
        assert (refused.value.reply_code, refused.value.reply_text) == (
            403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use",
        )  # fmt: skip


def test_consumer_priority(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=2)
    low = Taker(channel, queue)
    high = Taker(channel, queue, arguments={"x-priority": 5})
    publish(channel, queue, *(b"%d" % i for i in range(4)))
    wait_for(channel, lambda: len(low.got) + len(high.got) == 4)
    assert (high.bodies, low.bodies) == ([b"0", b"1"], [b"2", b"3"])


def test_content_filter_of_a_consumer(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, b'{"n": 1}', b'{"n": 2}')
    even = Taker(channel, queue, arguments={"x-filter": "/n % 2 = 0"})
    publish(channel, queue, b'{"n": 3}', b'{"n": 4}', b"no json")
    even.wait(2)
    assert even.bodies == [b'{"n": 2}', b'{"n": 4}']
    rest = Taker(channel, queue)
    rest.wait(3)
    assert rest.bodies == [b'{"n": 1}', b'{"n": 3}', b"no json"]


def test_a_filter_that_is_none_is_refused(channel: BlockingChannel, queue: str) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_consume(queue, lambda *_: None, arguments={"x-filter": "/n = = 2"})
    assert refused.value.reply_code == 406


def test_several_queues_on_one_channel_and_connection(connect: Connect, name: str) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(5)]
    takers: list[Taker] = []
    for i, channel in enumerate(channels):
        channel.queue_declare(f"{name}-{i}", exclusive=True)
        takers.append(Taker(channel, f"{name}-{i}"))
    for i in range(50):
        channels[0].basic_publish("", f"{name}-{i % 5}", b"%d" % i)
    wait_for(channels[0], lambda: all(len(taker.got) == 10 for taker in takers))
    for i, taker in enumerate(takers):
        assert taker.got == [(1 + k, False, b"%d" % (i + 5 * k)) for k in range(10)]


def test_heartbeats_keep_an_idle_connection(connect: Connect) -> None:
    def is_kept() -> bool:
        """False where this process had no CPU for so long that it was silent itself."""
        connection, silent = connect(heartbeat=1), 0.0
        now = time.monotonic()
        until = now + 3.5
        try:
            channel = connection.channel()
            while now < until:
                connection.process_data_events(0.2)
                silent, now = max(silent, time.monotonic() - now), time.monotonic()
            channel.queue_declare("", exclusive=True)
        except AMQPError:
            if max(silent, time.monotonic() - now) < 1.5:
                raise
            return False
        return True

    eventually(is_kept)


def test_a_silent_client_is_cut_off(connect: Connect, channel: BlockingChannel, name: str) -> None:
    silent = connect(heartbeat=1)
    silent.channel().queue_declare(name, exclusive=True)
    until = time.monotonic() + 60  # it sends nothing: pika works only when it is asked to
    while time.monotonic() < until:
        channel.connection.process_data_events(0.2)
        with contextlib.suppress(ChannelClosedByBroker):  # 405: still his
            channel.connection.channel().queue_declare(name)
            break
    else:
        pytest.fail("the silent client is still served")
    with pytest.raises(AMQPError):
        silent.process_data_events(1)


def test_transient_and_expired(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-message-ttl": 60})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"short")
    channel.basic_publish("", name, b"shorter", pika.BasicProperties(expiration="0"))
    wait_for(channel, lambda: channel.queue_declare(name, passive=True).method.message_count == 0)


@pytest.mark.parametrize("expiration", ["soon", "-1", "1.5", ""])
def test_a_bad_expiration_closes_the_channel(channel: BlockingChannel, queue: str, expiration: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration=expiration))
    assert refused.value.reply_code == 406


@pytest.mark.parametrize("why", ["rejected", "expired", "delivery_limit"])
def test_dead_letters_tell_their_story(channel: BlockingChannel, name: str, why: str) -> None:
    dead = f"{name}-dead"
    channel.queue_declare(dead, durable=True)
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    if why == "expired":
        arguments["x-message-ttl"] = 30
    if why == "delivery_limit":
        arguments["x-delivery-limit"] = 1
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"body", pika.BasicProperties(headers={"mine": 1}, delivery_mode=2))
    taker: Taker | None = None
    if why == "rejected":
        channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
    if why == "delivery_limit":
        for again in (False, True):
            method = channel.basic_get(name)[0]
            assert method.redelivered == again
            channel.basic_reject(method.delivery_tag, requeue=True)
    taker = Taker(channel, dead)
    taker.wait(1)
    headers = taker.properties[0].headers
    assert headers["mine"] == 1
    [entry] = headers["x-death"]
    assert (entry["queue"], entry["reason"], entry["count"], entry["exchange"], entry["routing-keys"]) == (
        name, why, 1, "", [name],
    )  # fmt: skip
    assert [headers[f"x-first-death-{field}"] for field in ("queue", "reason", "exchange")] == [name, why, ""]
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_retry_waits_longer_each_time(channel: BlockingChannel, name: str) -> None:
    dead = f"{name}-dead"
    channel.queue_declare(dead, durable=True)
    retry = {"initial": "120ms", "factor": 2, "jitter": 0, "attempts": 3}
    arguments = {"x-retry": retry, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, name, b"poison")
    times: list[float] = []
    taker = Taker(channel, name)
    for attempt in range(3):
        taker.wait(attempt + 1)
        times.append(time.monotonic())
        channel.basic_nack(taker.got[-1][0])
    letters = Taker(channel, dead)
    letters.wait(1)
    assert letters.bodies == [b"poison"]
    assert [again for _, again, _ in taker.got] == [False, True, True]
    assert times[1] - times[0] >= 0.11
    assert times[2] - times[1] >= 0.23


def test_a_lease_that_ends_comes_back(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-lease-period": 1000})  # it ends once before anybody looks
    publish(channel, name, b"x")
    taker = Taker(channel, name)
    taker.wait(2)
    first, *more = [again for _, again, _ in taker.got]
    assert (first, set(more)) == (False, {True})  # who looks late has it more than twice
    channel.basic_ack(taker.got[0][0])  # late, silent, and it settles
    channel.basic_ack(taker.got[1][0])
    channel.basic_cancel(taker.tag)
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_at_most_once_is_sent_once(connect: Connect, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-semantics": "at-most-once"})
    channel.confirm_delivery()
    publish(channel, name, b"a", b"b", b"c")
    other = connect()
    holder = other.channel()
    holder.basic_qos(prefetch_count=2)
    taker = Taker(holder, name)
    taker.wait(2)
    vanish(other)
    rest = Taker(channel, name)
    rest.wait(1)
    channel.basic_qos()
    assert rest.bodies == [b"c"]


def test_a_queue_without_duplicates_as_the_plugin_has_it(channel: BlockingChannel, name: str) -> None:
    arguments = {"x-message-deduplication": True}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()

    def publish(body: bytes, key: object = None) -> None:
        headers: dict[str, Any] = {} if key is None else {"x-deduplication-header": key}
        channel.basic_publish("", name, body, pika.BasicProperties(headers=headers), mandatory=True)

    for body, key in ((b"1", "a"), (b"2", "a"), (b"3", 5), (b"4", 5), (b"5", None), (b"6", None)):
        publish(body, key)
    found = [channel.basic_get(name) for _ in range(5)]
    assert [body for _, _, body in found] == [b"1", b"3", b"5", b"6", None]
    publish(b"7", "a")
    channel.basic_ack(0, multiple=True)
    publish(b"8", "a")
    assert channel.basic_get(name, auto_ack=True)[2] == b"8"
    with pytest.raises(ChannelClosedByBroker, match="x-message-deduplication"):
        channel.queue_declare(name, durable=True)
