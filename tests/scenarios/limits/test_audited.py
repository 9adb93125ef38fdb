"""What clients of RabbitMQ meet around limits, arguments, policies: by the wire, and in combinations."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

import pika
import pytest
from pika import spec
from pika.exceptions import ChannelClosedByBroker

from http_lab import Http
from live_server import Mortal
from penstock.testing import Broker
from rawlink import RawLink
from scenario import amqp, get
from waiting import eventually

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def rule(broker: Broker, **definition: object) -> None:
    """One policy for `q` and `r`."""
    values = {key.replace("_", "-"): value for key, value in definition.items()}
    told = Http(broker).ask("PUT", "policies/%2F/p", {"pattern": "^[qr]$", "definition": values})
    assert told.status_code in {201, 204}, told.text


def send(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str, count: int) -> None:
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


def all_of(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> list[bytes]:
    found = list[bytes]()
    while (body := get(channel, queue)) is not None:
        found.append(body)
    return found


def test_each_number_has_one_outcome_however_many_queues_refuse() -> None:
    with Broker() as broker, RawLink(urlsplit(broker.amqp_url).port or 0).ready() as link:
        for name, arguments in (
            ("dead", {}),
            ("free", {}),
            ("full", {"x-max-length": 0, "x-overflow": "reject-publish"}),
            ("dlx", {"x-max-length": 1, "x-overflow": "reject-publish-dlx", **LETTERS}),
        ):
            link.method(spec.Queue.Declare(queue=name, arguments=arguments))
            link.expect(spec.Queue.DeclareOk)
            if name != "dead":
                link.method(spec.Queue.Bind(queue=name, exchange="amq.fanout"))
                link.expect(spec.Queue.BindOk)
        link.method(spec.Confirm.Select())
        link.expect(spec.Confirm.SelectOk)
        for exchange, key in (("amq.fanout", ""), ("", "free"), ("amq.fanout", ""), ("", "dlx"), ("", "none")):
            link.method(spec.Basic.Publish(exchange=exchange, routing_key=key))
            link.send(pika.frame.Header(1, 1, pika.BasicProperties()).marshal() + pika.frame.Body(1, b"x").marshal())
        outcomes = dict[int, str]()
        while len(outcomes) < 5:
            said = link.read().method
            first = max(outcomes, default=0) + 1 if said.multiple else said.delivery_tag
            for number in range(first, said.delivery_tag + 1):
                assert number not in outcomes
                outcomes[number] = said.NAME
        assert [outcomes[number].rpartition(".")[2] for number in range(1, 6)] == ["Nack", "Ack", "Nack", "Nack", "Ack"]
        assert [broker.stats(name)["ready"] for name in ("free", "full", "dlx", "dead")] == [3, 0, 1, 2]


def test_policies_trim_with_a_dead_letter_for_each_and_a_rejecting_argument_keeps_all() -> None:
    with Broker() as broker, amqp(broker) as channel:
        channel.queue_declare("dead")
        channel.queue_declare("q", arguments=LETTERS)
        channel.queue_declare("r", arguments={"x-overflow": "reject-publish"})
        for name in "qr":
            send(channel, name, 6)
        rule(broker, max_length=3)
        assert [broker.stats(name)["ready"] for name in "qr"] == [3, 6]
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "r", b"more")
        rule(broker, max_length=2, overflow="reject-publish")
        assert broker.stats("q")["ready"] == 3
        rule(broker, max_length=2)  # the mode is off again, and drops
        assert broker.stats("q")["ready"] == 2
        reasons = list[object]()
        for body in (b"0", b"1", b"2", b"3"):
            _, properties, found = channel.basic_get("dead", auto_ack=True)
            assert found == body
            reasons.append(properties.headers["x-death"][0]["reason"])
        assert reasons == ["maxlen"] * 4
        rule(broker, overflow="reject-publish")  # the limit is off
        send(channel, "q", 3)
        assert broker.stats("q")["ready"] == 5


@pytest.mark.parametrize(
    ("definition", "left", "dead"),
    [
        ({"max_length": 2, "overflow": "drop-head"}, [b"2", b"3"], [b"0", b"1"]),
        ({"max_length": 2, "overflow": "drop-newest"}, [b"0", b"1"], []),
        ({"max_length": 2, "overflow": "reject-publish-dlx"}, [b"0", b"1"], [b"2", b"3"]),
        ({"max_length": 9}, [b"0", b"1", b"2", b"3"], []),
        ({"ring_size": 2}, [b"2", b"3"], []),
    ],
)
def test_another_overflow_lets_publishers_go_that_are_held_up(
    definition: dict[str, object], left: list[bytes], dead: list[bytes]
) -> None:
    letters = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    with Broker() as broker, amqp(broker) as channel:
        channel.queue_declare("dead")
        channel.queue_declare("q")
        rule(broker, max_length=2, overflow="block", **letters)
        plain = channel.connection.channel()
        send(plain, "q", 4)
        eventually(lambda: broker.command(lambda one: one.engine.rooms.waiting), "it is held up")
        rule(broker, **definition, **letters)
        plain.basic_qos(prefetch_count=0)  # answered behind what was held up
        assert all_of(channel, "q") == left
        assert all_of(channel, "dead") == dead


def test_priorities_groups_and_one_active_consumer_beside_times_to_live() -> None:
    with Broker() as broker, amqp(broker) as channel:
        channel.queue_declare("dead")
        channel.queue_declare("q", arguments={"x-max-priority": 5, **LETTERS})
        for body, priority, expiration in ((b"a", 1, "5000"), (b"b", 5, "1000"), (b"c", 3, None), (b"d", 0, "0")):
            channel.basic_publish("", "q", body, pika.BasicProperties(priority=priority, expiration=expiration))
        broker.advance(1.5)
        assert all_of(channel, "dead") == [b"d", b"b"]  # wherever they stand
        assert get(channel, "q") == b"c"
        broker.advance(5)
        assert all_of(channel, "dead") == [b"a"]
        channel.queue_declare("s", arguments={"x-single-active-consumer": True, "x-group-key": "/k"})
        first, second = (broker.subscribe("s", max_backlog=9) for _ in range(2))
        for key in "xxy":
            channel.basic_publish("", "s", b'{"k": "%s"}' % key.encode())
        held = first.take()
        assert [one.body for one in held] == [b'{"k": "x"}', b'{"k": "y"}']
        assert second.take() == []
        first.close()
        broker.disconnect("client-1")
        assert len(second.take()) == 2


def test_a_delivery_limit_counts_what_was_given_back_and_what_was_lost() -> None:
    with Broker() as broker, amqp(broker) as channel:
        channel.queue_declare("dead")
        channel.queue_declare("q", arguments={"x-delivery-limit": 2, **LETTERS})
        channel.basic_publish("", "q", b"1")
        for how in ("nack", "reject", "lost"):
            method, _, _ = channel.basic_get("q") if how != "lost" else (None, None, None)
            if method is None:
                connection = Mortal(pika.URLParameters(broker.amqp_url))
                assert connection.channel().basic_get("q")[2] == b"1"
                connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
                connection.close()
            elif how == "nack":
                channel.basic_nack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag)
        eventually(lambda: not broker.stats("q")["leased"], "the lost one is given back")
        _, properties, _ = channel.basic_get("dead", auto_ack=True)
        assert properties.headers["x-death"][0]["reason"] == "delivery_limit"


def test_a_ring_of_an_address_a_policy_and_an_argument() -> None:
    address = [{"pattern": "#", "default_ring_size": 9}, {"pattern": "q", "default_ring_size": 5}]
    with Broker(config={"address": address}) as broker, amqp(broker) as channel:
        channel.queue_declare("q")
        channel.queue_declare("r", arguments={"x-ring-size": 2})
        channel.queue_declare("rest")
        for name in ("q", "r", "rest"):
            send(channel, name, 12)
        assert [broker.stats(name)["ready"] for name in ("q", "r", "rest")] == [5, 2, 9]
        rule(broker, ring_size=3)
        send(channel, "q", 2)
        assert broker.stats("q")["ready"] == 5  # it grows no larger, and only consumers make it shorter
        assert len(all_of(channel, "q")) == 5
        send(channel, "q", 5)
        assert [broker.stats(name)["ready"] for name in ("q", "r")] == [3, 2]
        rule(broker, ring_size=3, max_length=2)
        assert broker.stats("q")["ready"] == 2


def test_of_scheduled_messages_of_one_moment_the_earliest_is_in_front_and_a_ring_refuses_it() -> None:
    with Broker(config={"queue": [{"name": "q", "ring_size": 5}, {"name": "r", "ring_size": 1}]}) as broker:
        for name in "qr":
            for body in (b"1", b"2"):
                broker.publish(name, body, delay=10)
        broker.publish("q", b"waits")
        broker.advance(11)
        assert [one.body for one in broker.subscribe("q", max_backlog=9).take()] == [b"1", b"2", b"waits"]
        assert [one.body for one in broker.subscribe("r", max_backlog=9).take()] == [b"2"]


def test_a_name_that_the_server_makes_begins_as_the_declare_says() -> None:
    with Broker() as broker, amqp(broker) as channel:
        made = [channel.queue_declare("", arguments={"x-name-prefix": "jobs"}).method.queue for _ in range(2)]
        assert all(re.fullmatch(r"jobs-[\w-]{22}", name) for name in made)
        assert made[0] != made[1]
        assert channel.queue_declare("own", arguments={"x-name-prefix": "jobs"}).method.queue == "own"
        assert channel.queue_declare("", arguments={"x-name-prefix": "n" * 64}).method.queue.startswith("n" * 64 + "-")
        for prefix, why in (
            ("n" * 65, "it has 65 bytes, and 1 to 64 are allowed"),
            ("", "it has 0 bytes, and 1 to 64 are allowed"),
            (7, "7 is no text"),
            ("amq.x", "names that begin with 'amq.' are reserved"),
        ):
            other = channel.connection.channel()
            with pytest.raises(ChannelClosedByBroker) as closed:
                other.queue_declare("", arguments={"x-name-prefix": prefix})
            assert closed.value.reply_code == 406
            assert closed.value.reply_text == (
                f"PRECONDITION_FAILED - invalid arg 'x-name-prefix' for queue '' in vhost '/': {why}"
            )


def test_a_bad_argument_of_a_queue_with_a_long_name_still_says_what_is_allowed() -> None:
    with Broker() as broker, amqp(broker) as channel:
        for arguments, end in (
            ({"x-max-length": -1}, "-1 is not in 0..9223372036854775807"),
            ({"x-max-length-bytes": True}, "true is not a whole number"),
            ({"x-expires": 5, "x-queue-expires": 9}, "which is there too"),
        ):
            other = channel.connection.channel()
            with pytest.raises(ChannelClosedByBroker) as closed:
                other.queue_declare("n" * 255, arguments=arguments)
            text = closed.value.reply_text
            assert closed.value.reply_code == 406
            assert text.startswith("PRECONDITION_FAILED - invalid arg 'x-")
            assert text.endswith(end)
            assert len(text) == 255
        channel.queue_declare("the channel beside it lives")
