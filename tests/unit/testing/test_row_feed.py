"""Rows of views and conflated topics as messages of queues that show them."""

from __future__ import annotations

import orjson

from penstock.server.views import conflated
from penstock.testing import Broker

SOURCE = {"name": "orders"}
VIEW = {"name": "totals", "source": "orders", "select": "/r AS /r, SUM(/n) AS /n", "group_by": ["/r"]}
OVER = {"name": "over", "underlying_topic": "totals"}


def read(broker: Broker, queue: str) -> list[dict[str, object]]:
    return [orjson.loads(record.body) for record in broker.sow(queue)]


def test_more_rows_than_one_batch_all_arrive() -> None:
    with Broker({"queue": [SOURCE, OVER], "view": [VIEW]}) as broker:
        count = 2 * conflated.ROWS_MOST + 7
        for n in range(count):
            broker.publish("orders", f'{{"r": {n}, "n": 1}}')
        assert sorted(row["r"] for row in read(broker, "over")) == list(range(count))  # type: ignore[type-var]


def test_an_update_without_a_change_is_no_message() -> None:
    with Broker({"queue": [SOURCE, OVER], "view": [VIEW]}) as broker:
        broker.publish("orders", b'{"r": 1, "n": 5}')
        broker.publish("orders", b'{"r": 1, "n": 0}')
        assert read(broker, "over") == [{"r": 1, "n": 5}]


def test_a_conflated_topic_below_a_queue() -> None:
    prices = {"name": "prices", "key": ["/s"]}
    slow = {"name": "slow", "source": "prices", "interval": "5s"}
    queue = {"name": "ticks", "underlying_topic": "slow"}
    with Broker({"topic": [prices], "conflated_topic": [slow], "queue": [queue]}) as broker:
        for price in (1, 2, 3):
            broker.publish("prices", f'{{"s": "A", "p": {price}}}')
        broker.advance(5)
        assert read(broker, "ticks")[-1] == {"s": "A", "p": 3}
        assert len(read(broker, "ticks")) < 3


def test_two_queues_that_show_a_view_each_have_its_rows() -> None:
    second = {"name": "second", "underlying_topic": "^tot", "default_publish_target": "totals"}
    with Broker({"queue": [SOURCE, OVER, second], "view": [VIEW]}) as broker:
        broker.publish("orders", b'{"r": 1, "n": 5}')
        assert read(broker, "over") == read(broker, "second") == [{"r": 1, "n": 5}]


def test_a_view_of_a_queue_over_a_view() -> None:
    above = {"name": "rows", "source": "over", "select": "COUNT(/r) AS /rows, MAX(/n) AS /most"}
    with Broker({"queue": [SOURCE, OVER], "view": [VIEW, above]}) as broker:
        broker.publish("orders", b'{"r": 1, "n": 5}')
        broker.publish("orders", b'{"r": 2, "n": 9}')
        assert read(broker, "rows") == [{"rows": 2, "most": 9}]


def test_what_is_published_is_as_durable_as_any_message() -> None:
    with Broker({"queue": [SOURCE, OVER], "view": [VIEW]}) as broker:
        broker.publish("orders", b'{"r": 1, "n": 5}')
        [message] = broker.subscribe("over").take()
        broker.crash()
        broker.restart()
        [again] = broker.subscribe("over").take()
        assert (again.body, again.bookmark, again.redelivered) == (message.body, message.bookmark, True)
