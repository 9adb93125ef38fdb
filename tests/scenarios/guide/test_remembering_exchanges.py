"""Exchanges that remember, and quorum queues' two levels, by an unmodified client of AMQP."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from scenario import amqp, broker_of, get


def test_a_queue_that_is_bound_late_gets_what_was_said_with_its_exchange_and_key() -> None:
    with broker_of({"name": "late"}) as broker, amqp(broker) as channel:
        channel.exchange_declare("room", "x-recent-history", durable=True, arguments={"x-recent-history-length": 2})
        for text in "abc":
            channel.basic_publish("room", f"key.{text}", text.encode(), pika.BasicProperties(delivery_mode=2))
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("room", "key.d", b"d", mandatory=True)
        channel.queue_bind("late", "room", "whatever")
        got = [channel.basic_get("late", auto_ack=True) for _ in range(3)]
        assert [(method.exchange, method.routing_key, body) for method, _, body in got[:2]] == [
            ("room", "key.c", b"c"), ("room", "key.d", b"d")
        ]  # fmt: skip
        assert got[2][0] is None
        assert broker.stats("amq.recent.room")["ready"] == 2


def test_history_reaches_who_consumes_already() -> None:
    with broker_of({"name": "late"}) as broker, amqp(broker) as channel:
        channel.exchange_declare("room", "x-recent-history", durable=True)
        channel.basic_publish("room", "", b"said before")
        inbox: list[bytes] = []
        channel.basic_consume("late", lambda _c, _m, _p, body: inbox.append(body), auto_ack=True)
        channel.queue_bind("late", "room")
        for _ in range(100):
            if inbox:
                break
            channel.connection.process_data_events(0.1)
        assert inbox == [b"said before"]


def test_duplicates_are_confirmed_and_go_nowhere() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        channel.exchange_declare("once", "x-message-deduplication", durable=True, arguments={"x-cache-size": "10"})
        channel.queue_bind("q", "once")
        for text in ("first", "second"):
            headers = {"x-deduplication-header": "order 7"}
            channel.basic_publish("once", "k", text.encode(), pika.BasicProperties(headers=headers), mandatory=True)
        assert (get(channel, "q"), get(channel, "q")) == (b"first", None)


def test_a_quorum_queue_sends_two_of_a_high_priority_for_each_other() -> None:
    with broker_of() as broker, amqp(broker) as channel:
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        for text, priority in [("n1", None), ("n2", 4), ("n3", 0), ("h1", 5), ("h2", 255), ("h3", 9), ("h4", 6)]:
            channel.basic_publish("", "q", text.encode(), pika.BasicProperties(priority=priority), mandatory=True)
        assert [get(channel, "q") for _ in range(7)] == [b"n1", b"h1", b"h2", b"n2", b"h3", b"h4", b"n3"]
