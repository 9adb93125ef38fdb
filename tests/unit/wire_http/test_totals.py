"""What went through channels, vhosts and the server, as RabbitMQ's API counts it, after a load that is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest.mock import patch

import httpx
import pika
import pytest
from pika.exceptions import UnroutableError

from http_lab import NO_TLS, Http
from penstock.server.base.rounds import Turns

NONE = {
    "publish": 0, "confirm": 0, "return_unroutable": 0, "drop_unroutable": 0, "deliver_get": 0, "deliver": 0,
    "deliver_no_ack": 0, "get": 0, "get_no_ack": 0, "get_empty": 0, "ack": 0, "redeliver": 0,
}  # fmt: skip
SENT = {"publish": 8, "confirm": 8, "return_unroutable": 1, "drop_unroutable": 1}
TAKEN = {
    "deliver_get": 8, "deliver": 4, "deliver_no_ack": 1, "get": 2, "get_no_ack": 1, "get_empty": 1, "ack": 3,
    "redeliver": 2,
}  # fmt: skip


def counts(stats: dict[str, Any]) -> dict[str, int]:
    return {name: one for name, one in stats.items() if not name.endswith("_details")}


def metrics_of(http: Http) -> str:
    return httpx.get(f"{http.broker.http_url}/metrics", verify=NO_TLS).text


@pytest.fixture
def loaded(http: Http) -> Iterator[tuple[Http, pika.BlockingConnection]]:
    """One channel has published, and another has taken."""
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    sends, takes = connection.channel(), connection.channel()
    sends.confirm_delivery()
    sends.basic_publish("", "nowhere", b"x")
    with pytest.raises(UnroutableError):
        sends.basic_publish("", "nowhere", b"x", mandatory=True)
    for _ in range(6):
        sends.basic_publish("", "q", b"x")
    got = list[int]()
    takes.basic_qos(prefetch_count=4)
    tag = takes.basic_consume("q", lambda _, method, *__: got.append(method.delivery_tag or 0))
    while len(got) < 4:
        connection.process_data_events(1)
    takes.basic_cancel(tag)
    takes.basic_ack(got[1], multiple=True)
    takes.basic_nack(got[2])
    takes.basic_nack(got[3], requeue=False)
    first = takes.basic_get("q")[0]
    assert first.redelivered
    takes.basic_ack(first.delivery_tag)
    takes.basic_get("q", auto_ack=True)
    takes.basic_get("q")
    takes.basic_nack(first.delivery_tag + 2)
    takes.basic_consume("q", lambda *_: got.append(0), auto_ack=True)
    while len(got) < 5:
        connection.process_data_events(1)
    assert takes.basic_get("q")[0] is None
    yield http, connection
    if connection.is_open:
        connection.close()


def test_when_a_connection_came_stays_where_the_clock_is_set(
    loaded: tuple[Http, pika.BlockingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    http, _ = loaded
    [before] = http.get("connections")
    clock, wall = http.broker.clock, http.broker.clock.wall
    monkeypatch.setattr(clock, "wall", lambda: wall() + 3_600_000_000)
    [after] = http.get("connections")
    assert after["connected_at"] == before["connected_at"]


def test_of_channels(loaded: tuple[Http, pika.BlockingConnection]) -> None:
    sends, takes = sorted(loaded[0].get("channels"), key=lambda one: one["number"])
    assert counts(sends["message_stats"]) == NONE | SENT
    assert counts(takes["message_stats"]) == NONE | TAKEN


def test_of_a_vhost_and_of_the_server_also_when_channels_and_queues_are_gone(
    loaded: tuple[Http, pika.BlockingConnection],
) -> None:
    http, connection = loaded
    whole = NONE | SENT | TAKEN
    http.do("PUT", "vhosts/other", {}, 201)

    def look() -> None:
        found = http.get("vhosts/%2F")
        assert counts(found["message_stats"]) == counts(http.get("overview")["message_stats"]) == whole
        assert [found[name] for name in ("messages", "messages_ready", "messages_unacknowledged")] == [0, 0, 0]
        assert counts(http.get("vhosts/other")["message_stats"]) == NONE

    look()
    connection.close()
    http.do("DELETE", "queues/%2F/q", None, 204)
    look()
    http.do("PUT", "queues/%2F/q", {}, 201)
    http.publish("q", "x")
    http.take("q", 1, "ack_requeue_true")
    whole |= {"publish": 9, "deliver_get": 9, "get": 3}
    assert counts(http.get("vhosts/%2F")["message_stats"]) == whole
    assert http.get("vhosts/%2F")["messages_ready"] == 1


def test_a_vhost_of_the_name_of_one_that_is_deleted_begins_at_nothing(http: Http) -> None:
    http.do("PUT", "vhosts/other", {}, 201)
    where = pika.URLParameters(http.broker.amqp_url)
    where.virtual_host = "other"
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "nowhere", b"x")
        assert http.get("vhosts/other")["message_stats"]["publish"] == 1
    assert http.get("vhosts/other")["message_stats"]["publish"] == 1
    http.do("DELETE", "vhosts/other", None, 204)
    http.do("PUT", "vhosts/other", {}, 201)
    assert counts(http.get("vhosts/other")["message_stats"]) == NONE


def test_rates_are_between_two_looks(http: Http) -> None:
    for path in ("overview", "vhosts/%2F"):
        http.get(path)
    for _ in range(10):
        http.publish("q", "x")
    http.broker.advance(5)
    overview, vhost = http.get("overview"), http.get("vhosts/%2F")
    assert overview["message_stats"]["publish_details"] == vhost["message_stats"]["publish_details"] == {"rate": 2.0}
    assert overview["queue_totals"]["messages_details"] == vhost["messages_ready_details"] == {"rate": 2.0}
    http.do("DELETE", "queues/%2F/q/contents", None, 204)
    http.broker.advance(5)
    assert http.get("overview")["queue_totals"]["messages_details"] == {"rate": -2.0}  # it gets less


def test_who_does_not_monitor_is_told_what_went_through_the_queues(http: Http) -> None:
    http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
    http.do("PUT", "permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"}, 201)
    for name in ("q", "nowhere"):
        http.publish(name, "x")
    ann = Http(http.broker, "ann")
    for stats in (ann.get("vhosts/%2F")["message_stats"], ann.get("overview")["message_stats"]):
        assert stats["publish"] == 1
        assert stats.keys() == http.get("queues/%2F/q")["message_stats"].keys()
    assert http.get("vhosts")[0]["message_stats"]["publish"] == 2
    assert http.get("vhosts")[0]["message_stats"]["drop_unroutable"] == 1


def test_since_when_nothing_goes_through_a_channel(http: Http) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    assert "idle_since" not in http.get("channels")[0]
    began = http.broker.now()
    http.broker.advance(4)
    assert "idle_since" not in http.get("channels")[0]
    http.broker.advance(2)
    assert datetime.fromisoformat(http.get("channels")[0]["idle_since"]).timestamp() == pytest.approx(began, abs=1)
    channel.basic_publish("", "q", b"x")
    channel.queue_declare("q", passive=True)
    http.broker.advance(2)
    assert "idle_since" not in http.get("channels")[0]
    connection.close()


def test_a_node_says_how_much_it_may_have(http: Http) -> None:
    node = http.get("nodes")[0]
    assert 0 < node["fd_used"] < node["fd_total"]
    assert node["sockets_used"] <= node["sockets_total"] <= node["fd_total"]
    limit = re.search("^rabbitmq_disk_space_available_limit_bytes (.*)$", metrics_of(http), re.MULTILINE)
    assert limit is not None
    assert node["disk_free_limit"] == float(limit[1]) < node["disk_free"]
    memory = http.get(f"nodes/{node['name']}/memory")["memory"]
    assert memory["total"]["rss"] > 1 << 20
    http.do("GET", "nodes/other/memory", status=404)


def test_queues_come_and_go_in_churn(http: Http) -> None:
    before = http.get("overview")["churn_rates"]
    http.do("PUT", "queues/%2F/a", {}, 201)
    http.do("DELETE", "queues/%2F/a", None, 204)
    http.broker.advance(5)
    after = http.get("overview")["churn_rates"]
    assert [after[name] - before[name] for name in ("queue_created", "queue_declared", "queue_deleted")] == [1, 1, 1]
    assert after["queue_created_details"] == {"rate": 0.2}


def test_requests_are_heard_as_what_comes_from_all_sockets_is(http: Http) -> None:
    """In the turns that clients of AMQP share, too."""
    with patch.object(Turns, "heard", autospec=True, side_effect=Turns.heard) as heard:
        http.get("whoami")
    assert heard.call_count == 1
