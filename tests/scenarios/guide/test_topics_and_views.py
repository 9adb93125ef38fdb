"""User guide, "Advanced messaging and queues": filters, queries, topics with keys below, deltas, views, replay."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.testing import Broker
from scenario import amqp, bodies, broker_of, get, publish, waiting

ORDERS: dict[str, Any] = {"name": "orders", "key": ["/id"]}
PENDING: dict[str, Any] = {"name": "PendingOrders", "underlying_topic": "orders"}


def order(number: int, total: float, **fields: object) -> bytes:
    return orjson.dumps({"id": number, "total": total, **fields})


def test_consumers_choose_by_content() -> None:
    with broker_of(PENDING) as broker:
        large = broker.subscribe("PendingOrders", filter="/total >= 100", max_backlog=10)
        small = broker.subscribe("PendingOrders", filter="/total < 100", max_backlog=10)
        for number, total in enumerate((5, 500, 50)):
            broker.publish("orders", order(number, total))
        assert bodies(large.take()) == [order(1, 500)]
        assert bodies(small.take()) == [order(0, 5), order(2, 50)]


def test_a_filter_says_what_enters_the_queue() -> None:
    with broker_of({**PENDING, "filter": "/total >= 100"}) as broker, amqp(broker) as channel:
        for number, total in enumerate((5, 500, 50)):
            channel.basic_publish("", "orders", order(number, total))
        assert get(channel, "PendingOrders") == order(1, 500)
        assert get(channel, "PendingOrders") is None


def test_pending_orders_are_queried_like_a_view_and_nothing_is_leased() -> None:
    with broker_of(PENDING) as broker:
        for number, total in enumerate((5, 500, 50)):
            broker.publish("orders", order(number, total))
        worker = broker.subscribe("PendingOrders")
        [held] = worker.take()
        assert waiting(broker, "PendingOrders") == [order(1, 500), order(2, 50)]
        found = broker.sow("PendingOrders", filter="/total > 60")
        assert [record.body for record in found] == [order(1, 500)]
        assert broker.stats("PendingOrders")["ready"] == 2  # as before
        held.ack()
        assert bodies(worker.take()) == [order(1, 500)]


def test_each_publish_to_a_topic_with_a_key_is_a_message() -> None:
    with broker_of(PENDING, topic=[ORDERS]) as broker:
        for total in (1, 2, 3):
            broker.publish("orders", order(7, total))
        assert [record.body for record in broker.sow("orders")] == [order(7, 3)]  # the last value
        assert waiting(broker, "PendingOrders") == [order(7, 1), order(7, 2), order(7, 3)]


def test_deleting_from_the_topic_leaves_the_queue_alone() -> None:
    with broker_of(PENDING, topic=[ORDERS]) as broker:
        broker.publish("orders", order(1, 5))
        broker.publish("orders", order(2, 6))
        broker.sow_delete("orders", filter="/id = 1")
        assert [record.body for record in broker.sow("orders")] == [order(2, 6)]
        assert waiting(broker, "PendingOrders") == [order(1, 5), order(2, 6)]


def test_the_topics_expiration_is_the_messages_in_the_queue() -> None:
    with broker_of(PENDING, topic=[{**ORDERS, "expiration": "1m"}]) as broker:
        broker.publish("orders", order(1, 5))
        broker.advance(59)
        assert waiting(broker, "PendingOrders") == [order(1, 5)]
        broker.advance(1)
        assert waiting(broker, "PendingOrders") == []
        assert broker.sow("orders") == []


def test_a_delta_enters_the_queue_as_the_whole_message() -> None:
    with broker_of(PENDING, topic=[ORDERS]) as broker:
        broker.publish("orders", order(1, 5, region="n"))
        broker.delta_publish("orders", b'{"id": 1, "total": 9}')
        whole = [orjson.loads(body) for body in waiting(broker, "PendingOrders")]
        assert whole == [{"id": 1, "total": 5, "region": "n"}, {"id": 1, "total": 9, "region": "n"}]


def test_a_delta_subscription_to_a_queue_gets_whole_messages() -> None:
    with broker_of(PENDING, topic=[ORDERS]) as broker:
        broker.publish("orders", order(1, 5, region="n"))
        broker.delta_publish("orders", b'{"id": 1, "total": 9}')
        got = broker.subscribe("PendingOrders", max_backlog=5, delta=True).take()
        assert [orjson.loads(message.body) for message in got] == [
            {"id": 1, "total": 5, "region": "n"},
            {"id": 1, "total": 9, "region": "n"},
        ]


TOTALS = {"name": "open-total", "source": "PendingOrders", "select": "COUNT(/id) AS /orders, SUM(/total) AS /value"}


def unprocessed(broker: Broker) -> dict[str, Any]:
    rows = broker.sow("open-total")
    return orjson.loads(rows[0].body) if rows else {}


def test_a_view_shows_the_value_of_the_orders_that_nobody_has_taken() -> None:
    with broker_of({**PENDING, "lease_period": "30s"}, view=[{**TOTALS, "group_by": ["/currency"]}]) as broker:
        for number, total in enumerate((10, 20, 30)):
            broker.publish("orders", order(number, total, currency="EUR"))
        assert unprocessed(broker)["value"] == 60
        worker = broker.subscribe("PendingOrders", max_backlog=2, name="worker")
        held = worker.take()
        assert unprocessed(broker)["value"] == 30  # what is leased is not available
        held[0].ack()
        broker.disconnect("worker")
        assert unprocessed(broker)["value"] == 50  # what comes back is
        assert broker.stats("PendingOrders")["ready"] == 2  # and the view holds nothing


def test_an_aggregated_query_does_the_same_without_a_view() -> None:
    with broker_of({**PENDING, "expiration": "1m"}) as broker:
        for number, region in enumerate("nns"):
            broker.publish("orders", order(number, 10, region=region))

        def rows() -> list[Any]:
            found = broker.sow(
                "PendingOrders",
                projection="/region AS /region, SUM(/total) AS /total",
                grouping="/region",
                order_by="/region",
            )
            return [orjson.loads(row.body) for row in found]

        assert rows() == [{"region": "n", "total": 20}, {"region": "s", "total": 10}]
        broker.advance(60)  # what expires is available no longer
        assert rows() == []


def test_a_bookmark_makes_a_subscription_to_a_queue_one_to_its_topic() -> None:
    with broker_of(PENDING) as broker:
        marks = [broker.publish("orders", f"{n}") for n in range(3)]
        worker = broker.subscribe("PendingOrders", max_backlog=3)
        for message in worker.take():
            message.ack()
        worker.close()
        for _ in range(2):  # as often as one likes, by as many as like
            replay = broker.subscribe("PendingOrders", bookmark=marks[0])
            got = replay.take()
            assert bodies(got) == [b"1", b"2"]  # what comes after the bookmark
            assert got[0].lease_until is None
            assert not got[0].ack()
        live = broker.subscribe("PendingOrders", bookmark="NOW")
        broker.publish("orders", b"3")
        assert bodies(live.take()) == [b"3"]
        assert waiting(broker, "PendingOrders") == [b"3"]  # and for the queue it is as if nobody had


def test_replay_and_queue_differ_in_delivery_limits_and_acknowledgement() -> None:
    with broker_of(PENDING) as broker:
        for n in range(50):
            broker.publish("orders", f"{n}")
        assert len(broker.subscribe("PendingOrders", bookmark="EPOCH", filter="MESSAGE_SIZE() = 2").take()) == 40
        worker = broker.subscribe("PendingOrders")
        assert len(worker.take()) == 1  # the backlog holds the rest back
        assert broker.stats("PendingOrders")["leased"] == 1


def test_a_bookmark_over_amqp() -> None:
    with broker_of(PENDING) as broker, amqp(broker) as channel:
        publish(channel, "orders", "0", "1")
        got: list[bytes] = []
        channel.basic_consume(
            "PendingOrders", lambda *parts: got.append(parts[3]), auto_ack=True, arguments={"x-bookmark": "EPOCH"}
        )
        while len(got) < 2:
            channel.connection.process_data_events(5)
        assert got == [b"0", b"1"]
        assert broker.stats("PendingOrders")["ready"] == 2


REGIONS = {
    "name": "totals",
    "source": "PendingOrders",
    "select": "/region AS /region, SUM(/total) AS /total",
    "group_by": ["/region"],
}


def test_a_queue_over_a_view_gets_each_row_that_changes() -> None:
    with broker_of(PENDING, {"name": "per-region", "underlying_topic": "totals"}, view=[REGIONS]) as broker:
        broker.publish("orders", order(1, 10, region="n"))
        broker.publish("orders", order(2, 5, region="s"))
        broker.publish("orders", order(3, 7, region="n"))
        [done] = broker.subscribe("PendingOrders", filter="/id = 2").take()  # its row goes: that is no message
        got = broker.subscribe("per-region", max_backlog=10).take()
        assert [message.topic for message in got] == ["totals"] * 3
        assert [orjson.loads(message.body) for message in got] == [
            {"region": "n", "total": 10},
            {"region": "s", "total": 5},
            {"region": "n", "total": 17},
        ]
        done.ack()
        for message in got:
            message.ack()
        broker.crash()
        broker.restart()
        assert waiting(broker, "per-region") == []  # a start publishes nothing anew
        broker.publish("orders", order(4, 3, region="n"))
        assert [orjson.loads(body) for body in waiting(broker, "per-region")] == [{"region": "n", "total": 20}]


def test_a_view_over_several_topics_below_a_queue() -> None:
    both = {"name": "both", "underlying_topic": "^(web|shop)$", "default_publish_target": "web"}
    view = {**REGIONS, "source": "both"}
    with broker_of(both, {"name": "per-region", "underlying_topic": "totals"}, view=[view]) as broker:
        broker.publish("web", order(1, 10, region="n"))
        broker.publish("shop", order(2, 5, region="n"))
        assert [orjson.loads(body)["total"] for body in waiting(broker, "per-region")] == [10, 15]


def test_a_view_that_would_feed_itself_publishes_nothing() -> None:
    loop = {"name": "loop", "underlying_topic": "^(orders|totals)$", "default_publish_target": "orders"}
    with broker_of(loop, view=[{**REGIONS, "source": "loop"}]) as broker:
        broker.publish("orders", order(1, 10, region="n"))
        assert waiting(broker, "loop") == [order(1, 10, region="n")]


def test_a_queue_over_a_view_that_is_declared_later_over_amqp() -> None:
    with broker_of(PENDING, view=[REGIONS]) as broker, amqp(broker) as channel:
        channel.basic_publish("", "orders", order(1, 10, region="n"))
        channel.queue_declare("late", durable=True, arguments={"x-underlying-topic": "totals"})
        broker.advance(1)  # the view has what was published before
        channel.basic_publish("", "orders", order(2, 5, region="n"))
        broker.advance(1)
        body = get(channel, "late")
        assert body is not None
        assert orjson.loads(body) == {"region": "n", "total": 15}
        assert get(channel, "late") is None
        channel.queue_delete("late")
        channel.basic_publish("", "orders", order(3, 1, region="n"))
        assert broker.stats("PendingOrders")["ready"] == 3
