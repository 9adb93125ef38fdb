"""A server that runs empty: what it refuses, what it lets end, and that it works again afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

import penstock
from http_lab import NO_TLS
from penstock.errors import AccessRefused, Draining
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]

CONFIG = {
    "queue": [{"name": "q"}, {"name": "once", "semantics": "at-most-once"}],
    "user": [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "plain", "password": "p"},
    ],
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as broker:
        yield broker


def nobody(*_: object) -> None:
    """Takes what never comes."""


def ready(broker: Broker) -> tuple[int, str]:
    """Status of readiness, and what health says."""
    health = httpx.get(f"{broker.http_url}/healthz", verify=NO_TLS, timeout=20)
    assert health.status_code == 200
    return httpx.get(f"{broker.http_url}/readyz", verify=NO_TLS, timeout=20).status_code, health.json()["status"]


def test_leases_end_and_nothing_new_begins(broker: Broker, run: Run) -> None:
    for body in (b"1", b"2", b"3"):
        broker.publish("q", body)
    holder = broker.subscribe("q", max_backlog=1)
    [held] = holder.take()
    assert ready(broker) == (200, "ok")
    url = ("--url", broker.flight_url)
    status, _, err = run("drain", "--timeout", "0s", *url)
    assert (status, "still 1 message leased in 1 queue after 0s" in err, "PS109" in err) == (1, True, True)
    assert ready(broker) == (503, "draining")
    for path, says in (("readyz", {"ready": False, "status": "draining"}), ("leader", {"role": "draining"})):
        answer = httpx.get(f"{broker.http_url}/{path}", verify=NO_TLS, timeout=20)
        assert (answer.status_code, answer.json()) == (503, says)
    held.ack()
    assert holder.take() == []  # it has credit, and is granted nothing
    with penstock.connect(broker.flight_url) as client:
        assert client.health()["status"] == "draining"
        with pytest.raises(Draining, match="no new messages") as refused:
            client.publish("q", b"4")
        assert refused.value.retry
        with pytest.raises(Draining, match="no new consumers"):
            next(iter(client.consume("q")))
        assert [one["code"] for one in client.explain("q")["reasons"]] == ["draining"]
        client.pause("q")
        client.resume("q")  # what an operator says of one queue does not let it deliver
    assert holder.take() == []
    assert json.loads(run("drain", "--json", *url)[1])["empty"]
    assert "may be stopped" in run("drain", *url)[1]
    assert run("drain", "--undo", *url) == (0, "the server takes work again\n", "")
    assert [one.body for one in holder.take()] == [b"2"]
    assert ready(broker) == (200, "ok")
    assert broker.stats("q")["ready"] == 1


def test_over_amqp_and_http(broker: Broker) -> None:
    broker.publish("q", b"1")
    with penstock.connect(broker.flight_url) as client:
        address = pika.URLParameters(f"{broker.amqp_url}?heartbeat=0")
        connections = [pika.BlockingConnection(address) for _ in range(3)]
        confirming, plain, taking = (connection.channel() for connection in connections)
        confirming.confirm_delivery()
        client.drain()
        with pytest.raises(NackError):
            confirming.basic_publish("", "q", b"2")
        plain.basic_publish("", "q", b"3")  # nobody would hear of a refusal: it waits
        with pytest.raises(ChannelClosedByBroker) as closed:
            taking.basic_consume("q", nobody)
        assert closed.value.reply_code == 506
        answer = httpx.post(
            f"{broker.http_url}/api/exchanges/%2F/amq.default/publish", verify=NO_TLS, auth=("guest", "guest"),
            json={"routing_key": "q", "payload": "4", "payload_encoding": "string", "properties": {}},
        )  # fmt: skip
        assert (answer.status_code, "drains" in answer.json()["reason"]) == (503, True)
        assert broker.stats("q")["ready"] == 1
        client.drain(undo=True)
        confirming.basic_publish("", "q", b"5")
        for connection in connections:
            connection.close()
    assert broker.stats("q")["ready"] == 3


def test_a_pause_that_ends_meanwhile_does_not_let_it_deliver(broker: Broker) -> None:
    broker.publish("q", b"1")
    with penstock.connect(broker.flight_url) as client:
        client.pause("q", "10s")
        waiting = broker.subscribe("q")
        client.drain()
        broker.advance(11.0)
        assert waiting.take() == []
        client.drain(undo=True)
        assert [one.body for one in waiting.take()] == [b"1"]


def test_a_restart_ends_it(broker: Broker) -> None:
    with penstock.connect(broker.flight_url) as client:
        client.drain()
        client.declare("late")
    broker.restart()
    broker.publish("q", b"1")
    assert [one.body for one in broker.subscribe("q").take()] == [b"1"]


def test_for_administrators(broker: Broker) -> None:
    plain = broker.flight_url.replace("guest:guest", "plain:p")
    with penstock.connect(plain) as client, pytest.raises(AccessRefused, match="drain"):
        client.drain()


def test_a_queue_that_comes_meanwhile_is_joined_and_delivers_nothing(broker: Broker) -> None:
    holder = broker.subscribe("^jobs.*")
    with penstock.connect(broker.flight_url) as client:
        client.declare("jobs.a")
        client.drain()
        client.declare("jobs.b")
        assert client.explain("jobs.b")["reasons"][0]["code"] == "draining"
        with pytest.raises(Draining, match=r"new consumers, of '\^jobs\.\*' neither"):
            next(iter(client.consume("^jobs.*")))
        client.drain(undo=True)
        client.publish("jobs.b", b"1")
    assert [one.body for one in holder.take()] == [b"1"]
