"""Publishing and getting over HTTP."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import pika
import pytest
from starlette.responses import Response

from http_lab import Http
from penstock.records.entries import Rows
from penstock.server.http import messages, peeking
from penstock.server.http.peeking import Peeking

PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "headers": {"a": [1, {"b": None}], "t": True},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "expiration": "60000",
    "timestamp": 1700000000,
    "user_id": "guest",
}


def test_a_message_keeps_its_properties(http: Http) -> None:
    assert http.publish("q", "häl", **PROPERTIES)
    [message] = http.take("q")
    assert message == {
        "payload_bytes": 4,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 0,
        "properties": PROPERTIES,
        "payload": "häl",
        "payload_encoding": "string",
    }


def test_what_no_queue_takes_is_not_routed(http: Http) -> None:
    assert not http.publish("nobody", "x", exchange="amq.topic")
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert http.refused("POST", "exchanges/%2F/none/publish", body, 404) == "no exchange 'none' in vhost '/'"
    http.do("POST", "exchanges/nowhere/amq.topic/publish", body, 404)


def test_bytes_go_as_base64(http: Http) -> None:
    body = {"routing_key": "q", "payload": "/w==", "payload_encoding": "base64"}
    http.do("POST", "exchanges/%2F/amq.default/publish", body, 200)
    [message] = http.take("q", mode="reject_requeue_true")
    assert (message["payload"], message["payload_encoding"], message["payload_bytes"]) == ("/w==", "base64", 1)
    http.publish("q", "text")
    forced = http.take("q", encoding="base64")
    assert [base64.b64decode(one["payload"]) for one in forced] == [b"\xff", b"text"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload": None}, "payload is missing"),
        ({"payload_encoding": "hex"}, "payload_encoding is 'hex', not one of string, base64"),
        ({"payload": "!", "payload_encoding": "base64"}, "payload is '!', not base64"),
        ({"properties": {"priority": 300}}, "properties: priority is 300, not a whole number from 0 to 255"),
        ({"properties": {"color": "red"}}, "properties: 'color' is no property of a message"),
        ({"properties": {"user_id": "eve"}}, "user_id property set to 'eve' but authenticated user was 'guest'"),
        ({"properties": {"expiration": "soon"}}, "expiration"),
        ({"routing_key": "k" * 256}, "255"),
        ({"properties": {"headers": {"a": [True] * 70_000}}}, " bytes, 131072 are allowed"),
    ],
)
def test_what_cannot_be_published_is_400(http: Http, change: dict[str, object], reason: str) -> None:
    body: dict[str, object] = {"routing_key": "q", "payload": "x", "payload_encoding": "string", **change}
    assert reason in http.refused("POST", "exchanges/%2F/amq.default/publish", body)
    assert http.get("queues/%2F/q")["messages"] == 0


def test_each_way_to_settle(http: Http) -> None:
    http.do("PUT", "queues/%2F/dead", {}, 201)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.do("PUT", "queues/%2F/work", {"arguments": arguments}, 201)
    for text in ("a", "b", "c"):
        http.publish("work", text)
    looked = http.take("work", 2, "ack_requeue_true")
    assert [(one["payload"], one["message_count"], one["redelivered"]) for one in looked] == [
        ("a", 2, False),
        ("b", 1, False),
    ]
    again = http.take("work", 3, "reject_requeue_true")
    assert [(one["payload"], one["redelivered"]) for one in again] == [("a", True), ("b", True), ("c", False)]
    assert [one["payload"] for one in http.take("work", 1, "reject_requeue_false")] == ["a"]
    [letter] = http.take("dead")
    assert letter["properties"]["headers"]["x-death"][0]["reason"] == "rejected"
    assert [one["payload"] for one in http.take("work", 10, "ack_requeue_false")] == ["b", "c"]
    assert http.take("work") == []
    counts = http.get("queues/%2F/work")
    assert (counts["messages"], counts["consumers"]) == (0, 0)


def test_a_payload_is_cut_and_its_length_told(http: Http) -> None:
    http.publish("q", "0123456789")
    [message] = http.take("q", truncate="4")
    assert (message["payload"], message["payload_bytes"]) == ("0123", 10)


def test_an_auto_delete_queue_stays_after_a_get(http: Http) -> None:
    http.do("PUT", "queues/%2F/soon", {"auto_delete": True}, 201)
    http.publish("soon", "x")
    assert len(http.take("soon")) == 1
    assert http.get("queues/%2F/soon")["auto_delete"] is True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ackmode": "maybe"}, "ackmode is 'maybe', not one of ack_requeue_true"),
        ({"count": -1}, "count is -1, not a whole number from 0 to 10000"),
        ({"count": None}, "count is missing"),
        ({"encoding": "hex"}, "encoding is 'hex', not one of auto, base64"),
    ],
)
def test_a_get_that_cannot_be(http: Http, change: dict[str, object], reason: str) -> None:
    body: dict[str, object] = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", **change}
    assert reason in http.refused("POST", "queues/%2F/q/get", body)


def test_messages_of_one_answer_have_a_bound(http: Http) -> None:
    for _ in range(6):
        http.publish("q", "x" * (4 << 20))
    assert len(http.take("q", 100, "ack_requeue_true", truncate=1)) == 4
    assert http.get("queues/%2F/q")["messages_ready"] == 6


def test_filters_of_queues_hold(http: Http) -> None:
    http.do("PUT", "queues/%2F/paid", {"arguments": {"x-underlying-topic": "orders", "x-filter": "/paid = 1"}}, 201)
    assert http.publish("orders", '{"paid": 1}')
    assert not http.publish("orders", '{"paid": 0}')
    assert [one["payload"] for one in http.take("paid")] == ['{"paid": 1}']


def test_an_exclusive_queue_is_somebody_elses(http: Http) -> None:

    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    connection.channel().queue_declare("mine", exclusive=True)
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert "exclusive access to locked queue 'mine'" in http.refused("POST", "queues/%2F/mine/get", body)
    assert "locked" in http.refused("DELETE", "queues/%2F/mine")
    assert http.get("queues/%2F/mine")["exclusive"] is True
    connection.close()


def test_counts_and_rates_of_a_queue(http: Http) -> None:
    assert http.get("queues/%2F/q")["message_stats"]["publish"] == 0
    for _ in range(10):
        http.publish("q", "x")
    http.take("q", 4)
    assert http.get("queues/%2F/q")["message_stats"]["publish_details"] == {"rate": 0.0}
    http.broker.advance(5)
    stats = http.get("queues/%2F/q")["message_stats"]
    assert (stats["publish"], stats["deliver_get"], stats["ack"]) == (10, 4, 0)
    assert (stats["publish_details"], stats["deliver_get_details"]) == ({"rate": 2.0}, {"rate": 0.8})


def test_deliveries_are_told_apart(http: Http) -> None:
    for _ in range(6):
        http.publish("q", "x")
    http.take("q", 1, mode="ack_requeue_true")
    assert len(http.broker.subscribe("q", max_backlog=2).take()) == 2
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url))
    channel = connection.channel()
    channel.basic_get("q", auto_ack=True)
    channel.basic_consume("q", lambda *_: None, auto_ack=True)
    connection.process_data_events(0)
    stats = http.get("queues/%2F/q")["message_stats"]
    names = ("deliver", "deliver_no_ack", "get", "get_no_ack", "deliver_get")
    assert [stats[name] for name in names] == [2, 3, 1, 1, 7]
    connection.close()


def test_the_first_message_of_a_queue_with_fair_shares_is_told(http: Http) -> None:
    http.do("PUT", "queues/%2F/fair", {"arguments": {"x-fairness-key": "/a"}}, 201)
    began = int(http.broker.now())
    http.publish("fair", '{"a": 1}')
    http.broker.advance(3)
    http.publish("fair", '{"a": 2}')
    assert began <= http.get("queues/%2F/fair")["head_message_timestamp"] <= began + 1


def test_since_when_a_queue_is_idle_and_when_its_first_message_came(http: Http) -> None:
    assert http.get("queues/%2F/q")["head_message_timestamp"] is None
    began = int(http.broker.now())
    http.publish("q", "x")
    http.broker.advance(3)
    http.publish("q", "y")
    assert "idle_since" not in http.get("queues/%2F/q")
    http.broker.advance(60)
    item = http.get("queues/%2F/q")
    assert item["head_message_timestamp"] == began
    assert datetime.fromisoformat(item["idle_since"]).timestamp() == pytest.approx(began + 3, abs=1)
    http.take("q", 1)
    item = http.get("queues/%2F/q")
    assert "idle_since" not in item
    assert item["head_message_timestamp"] == began + 3


def test_the_share_of_time_in_which_consumers_have_room(http: Http) -> None:
    def capacity() -> float:
        item = http.get("queues/%2F/q")
        assert item["consumer_capacity"] == item["consumer_utilisation"]
        return float(item["consumer_capacity"])

    assert capacity() == 0.0  # nobody consumes
    one = http.broker.subscribe("q", max_backlog=1)
    assert capacity() == 1.0
    http.broker.advance(6)
    http.publish("q", "x")
    http.publish("q", "y")
    http.broker.advance(2)
    assert capacity() == pytest.approx(0.75, abs=0.01)
    http.broker.advance(2)
    assert capacity() == 0.0
    one.take()[0].ack()
    http.broker.advance(2)
    assert capacity() == 1.0


def test_a_queue_that_is_full_refuses_by_name(http: Http) -> None:
    http.do("PUT", "queues/%2F/small", {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}, 201)
    assert http.publish("small", "a")
    body = {"routing_key": "small", "payload": "b", "payload_encoding": "string"}
    reason = http.refused("POST", "exchanges/%2F/amq.default/publish", body)
    assert "small" in reason
    assert "max_length" in reason
    assert http.get("queues/%2F/small")["messages"] == 1


def test_a_request_is_answered_over_http(http: Http) -> None:
    """Who waits without a queue waits for an answer by any door."""
    with pika.BlockingConnection(pika.URLParameters(http.broker.amqp_url)) as connection:
        channel = connection.channel()
        next(channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=0.01))
        channel.basic_publish("", "q", b"?", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        [request] = http.take("q")
        address = request["properties"]["reply_to"]
        assert http.publish(address, "!")
        _, _, body = next(channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=30))
        assert body == b"!"
        channel.cancel()
    assert not http.publish(address, "late")


def test_who_publishes_with_further_keys_may_publish_by_each_of_them(http: Http) -> None:
    http.do("PUT", "users/ann", {"password": "ann", "tags": "management"}, 201)
    http.do("PUT", "permissions/%2F/ann", {"configure": "", "write": ".*", "read": ""}, 201)
    http.do("PUT", "topic-permissions/%2F/ann", {"exchange": "amq.topic", "write": "^a", "read": ""}, 201)
    ann = Http(http.broker, "ann")
    assert not ann.publish("a.1", "x", "amq.topic", headers={"CC": ["a.2"], "BCC": ["a.3"]})
    for name in ("CC", "BCC"):
        body = {"routing_key": "a.1", "payload": "x", "payload_encoding": "string",
                "properties": {"headers": {name: ["a.2", "b"]}}}  # fmt: skip
        assert "topic 'b'" in ann.refused("POST", "exchanges/%2F/amq.topic/publish", body, 401)


def test_large_bodies_are_read_and_told_a_little_at_a_time(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of many megabytes holds nobody up: so many bytes of it are in one step, or one message."""
    read, written = list[int](), list[int]()
    rows, text = Peeking._rows, messages.json_response

    async def reading(self: Peeking, lsns: list[int], queue: int) -> Rows:
        read.append(len(lsns))
        return await rows(self, lsns, queue)

    def writing(value: object, **more: Any) -> Response:
        if isinstance(value, list):
            written.append(len(value))
        return text(value, **more)

    monkeypatch.setattr(Peeking, "_rows", reading)
    monkeypatch.setattr(messages, "json_response", writing)
    monkeypatch.setattr(peeking, "PART_BYTES", 250)
    monkeypatch.setattr(messages, "TOLD_BYTES", 250)
    monkeypatch.setattr(messages, "WRITTEN", 64)
    payloads = [f"{number}" * 100 for number in range(5)] + ["5" * 300, "6"]
    for payload in payloads:
        http.publish("q", payload)
    assert [one["payload"] for one in http.get("queues/%2F/q/peek")] == payloads
    assert [one["payload"] for one in http.take("q", 7, "ack_requeue_true")] == payloads
    assert (read, written) == ([2, 2, 1, 1, 1], [2, 2, 1, 1, 1] * 2)
    shown = http.get("queues/%2F/q/peek?truncate=3")
    assert [(one["payload"], one["payload_bytes"]) for one in shown] == [(one[:3], len(one)) for one in payloads]
    assert (read[5:], written[10:]) == ([2, 2, 1, 1, 1], [7])
    monkeypatch.setattr(peeking, "GET_BYTES", 350)
    looked = http.ask("GET", "queues/%2F/q/peek")
    assert (len(looked.json()), looked.headers["x-looked-at"]) == (4, "4")
    assert len(http.get("queues/%2F/q/peek?truncate=3")) == 7
