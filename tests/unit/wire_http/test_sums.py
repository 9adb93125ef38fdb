"""Sums are of what a login sees: totals tell nobody of connections, queues and messages of others, at no door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import penstock
from event_stream import EventReader
from http_lab import Http

NONE = {"connections": 0, "channels": 0, "consumers": 0, "queues": 0}


@pytest.fixture
def busy(http: Http) -> Iterator[Http]:
    """Somebody publishes to `/`, consumes there, and gets dead letters."""
    for user, tags in (("ann", "management"), ("eve", "monitoring")):
        http.do("PUT", f"users/{user}", {"password": user, "tags": tags}, 201)
        http.do("PUT", f"permissions/shop/{user}", {"configure": ".*", "write": ".*", "read": ".*"}, 201)
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("dead")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for queue in ("q", "q", "work"):
        channel.basic_publish("", queue, b"x")
    connection.channel().basic_consume("dead", lambda *_: None)
    method, _, _ = channel.basic_get("q")
    assert method is not None
    channel.basic_ack(method.delivery_tag)
    yield http
    connection.close()


def own_connection(http: Http, user: str) -> Any:
    url = http.broker.amqp_url.replace("guest:guest@", f"{user}:{user}@").replace("%2F", "shop")
    return pika.BlockingConnection(pika.URLParameters(url))


def test_an_overview(busy: Http) -> None:
    whole, ann, eve = (Http(busy.broker, user).get("overview") for user in ("guest", "ann", "eve"))
    assert whole["object_totals"]["connections"] == 1
    assert whole["object_totals"]["channels"] == 2
    assert whole["object_totals"]["queues"] == 3
    assert whole["queue_totals"]["messages"] == 2
    assert whole["message_stats"]["publish"] == 3
    assert eve["object_totals"] == whole["object_totals"]
    assert eve["message_stats"] == whole["message_stats"]
    found = ann["object_totals"]
    assert found.pop("exchanges") == whole["object_totals"].pop("exchanges") // 2  # `/` has as many as `shop`
    assert found == NONE
    for figures in (ann["queue_totals"], ann["message_stats"]):
        assert not any(rate["rate"] if isinstance(rate, dict) else rate for rate in figures.values())
    assert "churn_rates" not in ann
    assert "churn_rates" in eve


def test_an_overview_of_ones_own(busy: Http) -> None:
    ann = Http(busy.broker, "ann")
    connection = own_connection(busy, "ann")
    channel = connection.channel()
    channel.queue_declare("mine")
    channel.basic_publish("", "mine", b"x")
    channel.basic_publish("", "mine", b"x")
    assert channel.basic_get("mine", auto_ack=True)[0] is not None
    found = ann.get("overview")
    assert found["object_totals"] | {"exchanges": 0} == {
        "connections": 1, "channels": 1, "consumers": 0, "queues": 1, "exchanges": 0,
    }  # fmt: skip
    depths = [found["queue_totals"][name] for name in ("messages", "messages_ready", "messages_unacknowledged")]
    assert depths == [1, 1, 0]
    assert (found["message_stats"]["publish"], found["message_stats"]["deliver_get"]) == (2, 1)
    with EventReader(busy.broker.http_url, "interval=250ms", user="ann", password="ann") as stream:
        totals = stream.until("stats").data["totals"]
    assert (totals["connections"], totals["channels"], totals["queues"], totals["messages"]) == (1, 1, 1, 1)
    connection.close()


def test_events(busy: Http) -> None:
    with EventReader(busy.broker.http_url, "interval=250ms", user="ann", password="ann") as stream:
        totals = stream.until("stats").data["totals"]
        assert {name: totals[name] for name in NONE} == NONE
        assert totals["messages"] == 0
    with EventReader(busy.broker.http_url, "interval=250ms", user="eve", password="eve") as stream:
        totals = stream.until("stats").data["totals"]
        assert (totals["connections"], totals["channels"], totals["queues"]) == (1, 2, 3)


def test_dead_letters_of_all_vhosts_are_told_to_who_monitors(busy: Http) -> None:
    url = busy.broker.http_url
    with (
        EventReader(url, "interval=off", user="ann", password="ann") as ann,
        EventReader(url, "interval=off", user="eve", password="eve") as eve,
    ):
        ann.until("hello")
        eve.until("hello")
        busy.take("work", 1, "reject_requeue_false")
        assert eve.until("dead_letters").data["count"] == 1
        busy.do("PUT", "permissions/%2F/ann", {"configure": "", "write": "", "read": ""}, 201)
        busy.do("PUT", "queues/%2F/last", {}, 201)
        names = list[str]()
        while "queue.created" not in names:
            names.append(next(ann.events()).name)
        assert "dead_letters" not in names


def test_flight(busy: Http) -> None:
    found = dict[str, dict[str, Any]]()
    for user in ("guest", "ann", "eve"):
        vhost = "" if user == "guest" else "/shop"
        url = busy.broker.flight_url.replace("guest:guest@", f"{user}:{user}@")
        with penstock.connect(f"{url}{vhost}") as client:
            found[user] = client.overview()
    names = ("connections", "channels", "published", "delivered", "acknowledged")
    assert [found["guest"][name] for name in names[:3]] == [1, 2, 3]
    assert [found["eve"][name] for name in names] == [found["guest"][name] for name in names]
    assert [found["ann"][name] for name in names] == [0] * 5
    assert not {"confirmed", "redelivered"} & found["ann"].keys()
