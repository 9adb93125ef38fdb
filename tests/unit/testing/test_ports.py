"""Real clients on the ports of a broker in the same process."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit
from urllib.request import urlopen

import pika
import pika.exceptions
import pytest

import penstock
from penstock.testing import Broker
from penstock.testing.instance import Instance
from penstock.wire.amqp.frames import PROTOCOL_HEADER

WAIT_S = 10.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)
CONFIG: dict[str, object] = {"queue": [{"name": "q", "lease_period": "30s"}]}


def test_pika_and_the_broker_share_queues_and_time() -> None:
    with Broker(CONFIG) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"from pika", PERSISTENT)
        [message] = broker.subscribe("q", name="here").take()
        assert message.body == b"from pika"
        broker.advance(29)
        assert channel.basic_get("q")[0] is None
        broker.disconnect("here")
        method, _, body = channel.basic_get("q")
        assert (method.redelivered, body) == (True, b"from pika")
        broker.advance(30)  # the lease of pika's delivery ends by the broker's clock
        assert broker.stats("q")["ready"] == 1
        connection.close()


def test_deliveries_are_pushed_to_pika_by_commands_of_the_test() -> None:
    with Broker(CONFIG) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        got: list[bytes] = []

        def on_message(channel: object, method: object, properties: object, body: bytes) -> None:
            got.append(body)

        channel.basic_consume("q", on_message, auto_ack=True)
        for n in range(3):
            broker.publish("q", f"{n}")
        while len(got) < 3:
            connection.process_data_events(time_limit=5)
        assert got == [b"0", b"1", b"2"]
        connection.close()


def test_a_crash_cuts_connections_and_a_restart_opens_the_same_port() -> None:
    with Broker(CONFIG) as broker:
        url = broker.amqp_url
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"one", PERSISTENT)
        assert channel.basic_get("q")[2] == b"one"
        broker.crash()
        with pytest.raises(pika.exceptions.AMQPError):
            channel.basic_get("q")
        broker.restart()
        assert broker.amqp_url == url
        again = pika.BlockingConnection(pika.URLParameters(url))
        method, _, body = again.channel().basic_get("q")
        assert (method.redelivered, body) == (True, b"one")
        again.close()


LOGIN = b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
BEGUN = {
    "nothing to AMQP's": ("amqp", b""),
    "a first word": ("amqp", PROTOCOL_HEADER),
    "nothing to HTTP's": ("http", b""),
    "half a head": ("http", b"GET /api/queues HTTP/1.1\r\nhost: x\r\n"),
    "a body that does not come": (
        "http", b"PUT /api/queues/%2F/x HTTP/1.1\r\nhost: x\r\n" + LOGIN + b"content-length: 9\r\n\r\n{",
    ),
    "to be told of events": ("http", b"GET /api/events HTTP/1.1\r\nhost: x\r\n" + LOGIN + b"\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("ends", ["close", "crash"])
def test_everybody_hears_of_an_end_whatever_was_begun(ends: str) -> None:
    """One stranger with each: what a loop leaves open is heard of by nobody."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(CONFIG))
        ports = {"amqp": urlsplit(broker.amqp_url).port, "http": urlsplit(broker.http_url).port}
        links = dict[str, socket.socket]()
        for name, (door, word) in BEGUN.items():
            links[name] = stack.enter_context(socket.create_connection(("127.0.0.1", ports[door] or 0), WAIT_S))
            links[name].sendall(word)
        assert links["a first word"].recv(1) == b"\x01"
        assert links["to be told of events"].recv(8) == b"HTTP/1.1"
        getattr(broker, ends)()
        left = [name for name, link in links.items() if not ended(link)]
        assert left == []


def ended(link: socket.socket) -> bool:
    """Whether its other end goes, whatever is said before that."""
    try:
        while link.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_a_clean_stop_says_goodbye() -> None:
    with Broker(CONFIG) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        broker.restart()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
            connection.channel()


def test_users_of_the_settings_are_in_the_url() -> None:
    with Broker({**CONFIG, "user": [{"name": "al", "password": "p/w"}]}) as broker:
        assert broker.amqp_url.startswith("amqp://al:p%2Fw@127.0.0.1:")
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)).close()


def test_flight_clients_publish_consume_and_ack() -> None:
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        receipt = client.publish("q", {"n": 1}, delay=10)
        assert broker.stats("q")["delayed"] == 1
        broker.advance(30)  # the client names the time by its own clock
        for message in client.consume("q", backlog=1):
            assert message.json() == {"n": 1}
            message.ack()
            break
        assert [event.event for event in broker.story(receipt.bookmark)][-1] == "settled"


def test_http_shows_the_broker() -> None:
    with Broker(CONFIG) as broker:
        with urlopen(f"{broker.http_url}/healthz", timeout=30) as answer:
            assert json.loads(answer.read())["status"] == "ok"
        with urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
            assert b"q" in answer.read()
        with urlopen(f"{broker.http_url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        assert "penstock_durable_lsn 0.0" not in lines
        assert any(line.startswith("rabbitmq_queues 1") for line in lines)


def test_errors_reach_the_test_through_the_loop() -> None:
    with Broker(CONFIG) as broker:
        assert broker.amqp_url
        with pytest.raises(penstock.NotFound):
            broker.subscribe("nope")
        assert broker.publish("q", b"still there")


def test_a_command_that_fails_holds_up_nobody_at_the_doors() -> None:
    """Found by a read over Flight that waited for ever once in some hundred runs: a turn was begun and never ended."""

    def half_done(instance: Instance) -> None:
        instance.engine.arm()
        raise ValueError("it fails behind what it began")

    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url, timeout=WAIT_S) as client:
        with pytest.raises(ValueError, match="behind what it began"):
            broker.command(half_done)
        client.publish("q", b"a")
        assert broker.stats("q")["ready"] == 1
