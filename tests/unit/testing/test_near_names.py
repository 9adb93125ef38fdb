"""Who names a queue or a topic that is not there is told which one he may have meant, at every door, and never of one
that he does not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import httpx
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import penstock
from http_lab import NO_TLS
from penstock.errors import NotFound
from penstock.testing import Broker

CONFIG = {
    "queue": [{"name": "to-ship"}, {"name": "secret-1"}],
    "topic": [{"name": "orders", "key": ["/id"]}, {"name": "prices", "exchange": "amq.topic"}, {"name": "hidden-1"}],
    "view": [
        {"name": "revenue", "source": "orders", "select": "/region, SUM(/total) AS /total", "group_by": ["/region"]}
    ],
    "user": [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "plain", "password": "p", "tags": ["management"]},
    ],
    "entitlement": [
        {"tag": "administrator", "read": True, "write": True},
        {"user": "plain", "queue": "^(to-ship|secret-[2-9])$", "read": True},
        {"user": "plain", "topic": "^(orders|hidden-[2-9])$", "read": True},
    ],
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as broker:
        yield broker


def of(url: str, user: str) -> str:
    """The address with another login."""
    return re.sub("//(.*@)?", f"//{user}@", url, count=1)


def amqp(broker: Broker, name: str, user: str) -> str:
    """What is said of a queue that is asked for."""
    address = pika.URLParameters(f"{of(broker.amqp_url, user)}?heartbeat=0")
    connection = pika.BlockingConnection(address)
    try:
        with pytest.raises(ChannelClosedByBroker) as closed:
            connection.channel().basic_get(name)
    finally:
        connection.close()
    return str(closed.value.reply_text)


def flight(broker: Broker, name: str, user: str) -> str:
    with penstock.connect(of(broker.flight_url, user)) as client:
        with pytest.raises(penstock.PenstockError) as refused:
            client.queue(name)
        return str(refused.value)


def http(broker: Broker, name: str, user: str) -> str:
    answer = httpx.post(
        f"{broker.http_url}/api/bindings/%2F/e/amq.topic/q/{name}", json={}, verify=NO_TLS, timeout=20,
        auth=tuple(user.split(":")),
    )  # fmt: skip
    return str(answer.json()["reason"])


DOORS = [amqp, flight, http]


@pytest.mark.parametrize("ask", DOORS)
@pytest.mark.parametrize("name", ["to_ship", "toship", "to-shipp", "ot-ship", "To-Ship", "to-shi"])
def test_one_slip_is_seen(broker: Broker, ask: object, name: str) -> None:
    assert callable(ask)
    said = ask(broker, name, "guest:guest")
    assert said.endswith(f"no queue '{name}' in vhost '/'; did you mean 'to-ship'?")


@pytest.mark.parametrize("ask", DOORS)
@pytest.mark.parametrize("name", ["ship", "x" * 200])
def test_what_is_far_from_any_is_none(broker: Broker, ask: object, name: str) -> None:
    assert callable(ask)
    assert ask(broker, name, "guest:guest").endswith(f"no queue '{name}' in vhost '/'")


@pytest.mark.parametrize("ask", [amqp, flight])
def test_what_somebody_does_not_see_is_told_to_nobody(broker: Broker, ask: object) -> None:
    assert callable(ask)
    assert ask(broker, "secret-2", "plain:p").endswith("no queue 'secret-2' in vhost '/'"), "he may have one so named"
    assert ask(broker, "secret-2", "guest:guest").endswith("did you mean 'secret-1'?")


ASKED: dict[str, Callable[[penstock.Client, str], object]] = {
    "topic": lambda client, name: client.topic(name),
    "sow": lambda client, name: list(client.sow(name)),
    "sow_and_subscribe": lambda client, name: next(iter(client.sow_and_subscribe(name))),
}


def of_a_topic(broker: Broker, name: str, way: str, user: str = "guest:guest") -> str:
    """What is said of a topic that is asked for in that way."""
    with penstock.connect(of(broker.flight_url, user)) as client:
        with pytest.raises(NotFound) as refused:
            ASKED[way](client, name)
        return str(refused.value)


@pytest.mark.parametrize("way", ASKED)
def test_one_slip_in_the_name_of_a_topic_is_seen(broker: Broker, way: str) -> None:
    assert of_a_topic(broker, "order", way).endswith("; did you mean 'orders'?")
    assert "did you mean" not in of_a_topic(broker, "price", way), "that is a topic of another exchange"
    assert "did you mean" not in of_a_topic(broker, "somewhere", way)


@pytest.mark.parametrize("way", ["topic", "sow", "sow_and_subscribe"])
def test_one_slip_in_the_name_of_a_view_is_seen(broker: Broker, way: str) -> None:
    assert of_a_topic(broker, "revenu", way).endswith("; did you mean 'revenue'?")


@pytest.mark.parametrize("way", ["topic", "sow", "sow_and_subscribe"])
def test_one_slip_in_the_name_of_a_queue_that_is_read_is_seen(broker: Broker, way: str) -> None:
    assert of_a_topic(broker, "to-shp", way).endswith("; did you mean 'to-ship'?")


@pytest.mark.parametrize("way", ["topic", "sow"])
def test_a_topic_that_somebody_does_not_see_is_told_to_nobody(broker: Broker, way: str) -> None:
    assert "did you mean" not in of_a_topic(broker, "hidden-2", way, "plain:p")
    assert of_a_topic(broker, "hidden-2", way).endswith("did you mean 'hidden-1'?")
    assert of_a_topic(broker, "order", "sow", "guest:guest").endswith("did you mean 'orders'?")


def test_one_slip_in_the_name_of_a_queue_that_spark_reads_is_seen(broker: Broker) -> None:
    with penstock.connect(broker.flight_url) as client, pytest.raises(NotFound, match=r"did you mean 'to-ship'\?$"):
        client.action("locate", queue="to-shp")


def test_an_exclusive_queue_is_nobodys_but_its_connections(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(f"{broker.amqp_url}?heartbeat=0"))
    connection.channel().queue_declare("mine-1", exclusive=True)
    assert "mine-1" not in amqp(broker, "mine-2", "guest:guest")
    connection.close()


def test_of_very_many_it_takes_no_longer() -> None:
    queues = [{"name": f"queue-{n}"} for n in range(3000)]
    with Broker({"queue": queues}) as broker, pytest.raises(NotFound) as refused:
        broker.stats("queue-29999")
    near = refused.value.near
    assert near is not None
    looked = list[str]()
    sees = Mock(sees_queue=lambda _, name: looked.append(name))
    assert near(sees) is None
    assert looked
    assert set(looked) == {"queue-2999"}
