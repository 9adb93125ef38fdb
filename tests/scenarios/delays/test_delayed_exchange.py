"""The exchange type `x-delayed-message`: a message waits at its exchange and is routed when it is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import penstock
from penstock.core.queue.settling import letters
from penstock.errors import AccessRefused
from penstock.testing import Broker
from scenario import amqp, bodies, broker_of, get


@contextmanager
def house(kind: str = "direct", **more: object) -> Iterator[tuple[Broker, BlockingChannel]]:
    with broker_of({"name": "q"}, {"name": "r"}) as broker, amqp(broker) as channel:
        channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": kind, **more})
        yield broker, channel


def send(channel: BlockingChannel, text: str, delay: object = None, key: str = "k", **properties: object) -> None:
    headers = {} if delay is None else {"x-delay": delay}
    headers |= properties.pop("headers", {})  # type: ignore[arg-type]
    channel.basic_publish(
        "d", key, text.encode(), pika.BasicProperties(delivery_mode=2, headers=headers, **properties), mandatory=True
    )


def test_it_is_routed_when_due_and_not_before() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        send(channel, "x", 5000)
        assert broker.stats("q")["ready"] == broker.stats("q")["delayed"] == 0
        assert broker.stats("amq.delayed.d")["delayed"] == 1
        broker.advance(4.9)
        assert get(channel, "q") is None
        broker.advance(0.1)
        method, _, body = channel.basic_get("q", auto_ack=True)
        assert (method.exchange, method.routing_key, body) == ("d", "k", b"x")
        assert broker.stats("amq.delayed.d")["delayed"] == 0


def test_a_binding_made_meanwhile_counts_and_one_removed_does_not() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        send(channel, "x", 5000)
        channel.queue_unbind("q", "d", "k")
        channel.queue_bind("r", "d", "k")
        broker.advance(5)
        assert (get(channel, "q"), get(channel, "r")) == (None, b"x")


def test_delivered_messages_carry_the_delay_negated() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        send(channel, "x", 5000, headers={"other": "kept"})
        broker.advance(5)
        _, properties, _ = channel.basic_get("q", auto_ack=True)
        assert properties.headers == {"x-delay": -5000, "other": "kept"}


@pytest.mark.parametrize("delay", [None, 0, -7])
def test_no_delay_or_none_above_zero_means_now(delay: int | None) -> None:
    with house() as (_, channel):
        channel.queue_bind("q", "d", "k")
        send(channel, "x", delay)
        assert get(channel, "q") == b"x"


def test_mandatory_says_nothing_of_a_message_that_waits() -> None:
    with house() as (broker, channel):
        send(channel, "waits", 1000)  # nobody is bound, and pika would raise
        with pytest.raises(pika.exceptions.UnroutableError):
            send(channel, "now")
        broker.advance(1)
        assert broker.stats("amq.delayed.d")["delayed"] == broker.stats("amq.delayed.d")["dying"] == 0


@pytest.mark.parametrize("kind", [None, "x-delayed-message", "nonsense", 5])
def test_the_real_type_has_to_be_named(kind: object) -> None:
    with broker_of() as broker, amqp(broker) as channel:
        arguments = {} if kind is None else {"x-delayed-type": kind}
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-delayed-type") as caught:
            channel.exchange_declare("d", "x-delayed-message", arguments=arguments)
        assert caught.value.reply_code == 406


@pytest.mark.parametrize(
    ("kind", "key", "arguments"),
    [("fanout", "", {}), ("topic", "a.*", {}), ("headers", "", {"x-match": "all", "color": "red"})],
)
def test_it_routes_as_its_real_type_does(kind: str, key: str, arguments: dict[str, object]) -> None:
    with house(kind) as (broker, channel):
        channel.queue_bind("q", "d", key, arguments)
        send(channel, "hit", 1000, "a.b", headers={"color": "red"})
        send(channel, "miss", 1000, "b.b" if kind == "topic" else "a.b", headers={"color": "blue"})
        broker.advance(1)
        assert get(channel, "q") == b"hit"
        assert get(channel, "q") == (b"miss" if kind == "fanout" else None)


def test_the_order_is_that_of_the_due_times_and_of_sending_for_equal_ones() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        for text, delay in (("c", 3000), ("a1", 1000), ("b", 2000), ("a2", 1000)):
            send(channel, text, delay)
        broker.advance(5)
        assert [get(channel, "q") for _ in range(5)] == [b"a1", b"a2", b"b", b"c", None]


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_outlives_a_restart_and_comes_once(clean: bool) -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        send(channel, "x", 5000)
        send(channel, "y", 500_000)
        broker.advance(2)
        channel.connection.close()
        if not clean:
            broker.crash()
        broker.advance(4)
        broker.restart()
        assert bodies(broker.subscribe("q", max_backlog=5).take()) == [b"x"]
        assert broker.stats("amq.delayed.d")["delayed"] == 1
        broker.restart()
        assert bodies(broker.subscribe("q", max_backlog=5).take()) == [b"x"]
        broker.advance(500)
        assert broker.stats("q")["published"] == 1


def test_transient_messages_and_exchanges_end_with_the_process() -> None:
    with broker_of({"name": "q"}) as broker:
        with amqp(broker) as channel:
            channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
            channel.exchange_declare("e", "x-delayed-message", durable=False, arguments={"x-delayed-type": "fanout"})
            channel.basic_publish("d", "", b"gone", pika.BasicProperties(headers={"x-delay": 10_000}))
        broker.restart()
        assert [queue for queue in ("amq.delayed.d", "amq.delayed.e") if queue in names(broker)] == ["amq.delayed.d"]
        assert broker.stats("amq.delayed.d")["delayed"] == 0


def names(broker: Broker) -> set[str]:
    return broker.command(lambda instance: {queue.name for queue in instance.core.queues()})


def test_what_waits_goes_with_its_exchange() -> None:
    with house() as (broker, channel):
        send(channel, "x", 5000)
        channel.exchange_delete("d")
        assert "amq.delayed.d" not in names(broker)
        channel.connection.close()
        broker.crash()
        broker.restart()
        assert "amq.delayed.d" not in names(broker)


def test_an_exchange_that_is_deleted_with_its_last_binding_takes_its_queue_along() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        channel.exchange_declare("d", "x-delayed-message", auto_delete=True, arguments={"x-delayed-type": "direct"})
        channel.queue_bind("q", "d", "k")
        assert "amq.delayed.d" in names(broker)
        channel.queue_unbind("q", "d", "k")
        assert "amq.delayed.d" not in names(broker)


def test_nobody_else_may_use_its_queue() -> None:
    with house() as (broker, channel):
        send(channel, "x", 5000)
        with pytest.raises(AccessRefused, match="belongs to exchange 'd'"):
            broker.subscribe("amq.delayed.d")
        with penstock.connect(broker.flight_url) as client, pytest.raises(AccessRefused, match="goes with it"):
            client.delete("amq.delayed.d")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.queue_bind("amq.delayed.d", "amq.fanout")
        assert caught.value.reply_code == 403
        broker.advance(5)


def test_what_waits_can_be_withdrawn_and_moved_and_its_story_goes_on() -> None:
    with house() as (broker, channel), penstock.connect(broker.flight_url) as client:
        channel.queue_bind("q", "d", "k")
        send(channel, "one", 5000)
        send(channel, "two", 5000)
        marks = [broker.command(lambda instance: instance.core.last_lsn) - n for n in (1, 0)]
        client.cancel(marks[0])
        client.reschedule(marks[1], "60s")
        broker.advance(59)
        assert get(channel, "q") is None
        assert client.explain(bookmark=marks[1])["queues"][0]["reasons"][0]["code"] == "delayed"
        broker.advance(1)
        [message] = broker.subscribe("q").take()
        assert message.body == b"two"
        told = broker.story(message.bookmark)[0]
        assert told.details["moved_from"] == f"{message.bookmark.split('|')[0]}|{marks[1]}|"
        assert told.details["from_queue"] == "amq.delayed.d"


def test_the_life_of_a_message_begins_when_it_is_due() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        send(channel, "x", 10_000, expiration="3000", priority=3)
        broker.advance(12.9)
        assert broker.stats("q")["ready"] == 1
        broker.advance(0.2)
        assert broker.stats("q")["ready"] == 0


def test_copies_to_other_keys_are_made_when_due_and_bcc_is_not_shown() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "cc")
        channel.queue_bind("r", "d", "bcc")
        send(channel, "x", 1000, headers={"CC": ["cc"], "BCC": ["bcc"]})
        broker.advance(1)
        for queue in "qr":
            _, properties, body = channel.basic_get(queue, auto_ack=True)
            assert (body, properties.headers) == (b"x", {"x-delay": -1000, "CC": ["cc"]})


def test_bcc_of_what_waits_is_in_no_header_and_outlives_a_crash() -> None:
    with house() as (broker, channel):
        channel.queue_bind("q", "d", "k")
        channel.queue_bind("r", "d", "bcc")
        send(channel, "x", 1000, headers={"BCC": ["bcc"]})
        rows = broker.command(lambda instance: list(instance.log.read(range(instance.core.last_lsn + 1)).properties))
        assert rows
        assert not any(b"bcc" in data for data in rows)
        channel.connection.close()
        broker.crash()
        broker.restart()
        broker.advance(1)
        with amqp(broker) as channel:
            for queue in "qr":
                _, properties, body = channel.basic_get(queue, auto_ack=True)
                assert (body, properties.headers) == (b"x", {"x-delay": -1000})


def test_a_batch_of_both_kinds_is_parted_and_confirmed_whole() -> None:
    with house() as (broker, channel), penstock.connect(broker.flight_url) as client:
        channel.queue_bind("q", "d", "k")
        receipt = client.publish("k", b"later", exchange="d", delay="5s")
        assert receipt.outcome == "stored"
        client.publish("k", b"now", exchange="d")
        assert get(channel, "q") == b"now"
        assert broker.publish("d/k", "third", delay=5)
        broker.advance(5)
        assert [get(channel, "q"), get(channel, "q")] == [b"later", b"third"]


def test_an_alternate_exchange_is_asked_when_due() -> None:
    with house(**{"alternate-exchange": "amq.fanout"}) as (broker, channel):
        channel.queue_bind("r", "amq.fanout")
        send(channel, "x", 1000)
        assert get(channel, "r") is None
        broker.advance(1)
        assert get(channel, "r") == b"x"


def test_declared_again_it_has_to_be_the_same() -> None:
    with house() as (_, channel):
        channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'x-delayed-type'"):
            channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})


def test_what_a_full_queue_refuses_when_due_goes_on_waiting() -> None:
    with broker_of({"name": "q", "max_length": 1, "overflow": "reject-publish"}) as broker, amqp(broker) as channel:
        channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        channel.queue_bind("q", "d")
        send(channel, "one", 1000)
        send(channel, "two", 1000)
        broker.advance(1)
        assert broker.stats("q")["ready"] == 1
        assert broker.stats("amq.delayed.d")["queue_depth"] == 1
        assert get(channel, "q") == b"one"
        broker.advance(600)
        assert get(channel, "q") == b"two"
        assert broker.stats("amq.delayed.d")["queue_depth"] == 0


def emptied(channel: BlockingChannel, queue: str) -> list[bytes]:
    out = list[bytes]()
    while (body := get(channel, queue)) is not None:
        out.append(body)
    return out


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_what_a_full_queue_refuses_when_due_keeps_nobody_elses_waiting(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(letters, "LETTER", at_once)
    full = {"name": "full", "max_length": 2, "overflow": "reject-publish"}
    with broker_of(full, {"name": "q"}) as broker:
        with amqp(broker) as channel:
            channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
            for name in ("full", "q"):
                channel.queue_bind(name, "d", name)
            for n in range(10):
                send(channel, f"full {n}", 1000, "full")
                send(channel, f"q {n}", 1000, "q")
            send(channel, "q later", 2000, "q")
            broker.advance(1)
            assert emptied(channel, "q") == [b"q %d" % n for n in range(10)]
            assert (broker.stats("full")["ready"], broker.stats("amq.delayed.d")["dying"]) == (2, 8)
            broker.advance(1)
            assert emptied(channel, "q") == [b"q later"]
        broker.crash()
        broker.restart()
        with amqp(broker) as channel:
            got = emptied(channel, "full")
            for _ in range(4):
                broker.advance(1)
                got += emptied(channel, "full")
            assert got == [b"full %d" % n for n in range(10)]
            broker.advance(1)
            assert broker.stats("amq.delayed.d")["queue_depth"] == 0
