"""What came into a queue and what left it, in its details, is what is there: whatever a message left it for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.testing import Broker

HOUR = 3600.0


def acked(broker: Broker) -> None:
    broker.subscribe("q").take()[0].ack()


def sent_once(broker: Broker) -> None:
    broker.subscribe("q").take()


def settled_by_name(broker: Broker) -> None:
    broker.ack_filter("q", "/n = 1")


def cancelled(broker: Broker) -> None:
    broker.act("cancel", bookmark=broker.sow("q")[0].bookmark)


def expired(broker: Broker) -> None:
    broker.advance(2 * HOUR)


def purged(broker: Broker) -> None:
    broker.act("purge", queue="q")


def moved(broker: Broker) -> None:
    broker.act("move", queue="q", to="other")


def rejected(broker: Broker) -> None:
    broker.subscribe("q").take()[0].expire()


def given_back(broker: Broker) -> None:
    broker.subscribe("q").take()[0].cancel()


def nothing(broker: Broker) -> None:
    """Nothing leaves it."""


@pytest.mark.parametrize(
    ("settings", "do"),
    [
        ({}, acked), ({"semantics": "at-most-once"}, sent_once), ({}, settled_by_name), ({}, cancelled),
        ({"expiration": "1h"}, expired), ({}, purged), ({}, moved), ({}, rejected), ({}, given_back),
        ({"ring_size": 2}, nothing), ({"max_length": 2}, nothing), ({"last_value_key": "/n"}, nothing),
        ({"barrier_expression": "/n = 0"}, sent_once), ({"priority_expression": "/n"}, purged),
        ({"group_key": "/n"}, acked), ({"fairness_key": "/n"}, acked), ({"dedup_key": "/n", "unique": True}, nothing),
        ({"max_cancels": 1, "dead_letter_exchange": "", "dead_letter_routing_key": "other"}, given_back),
        ({"retry": {"initial": "1h"}}, given_back), ({"purge_on_no_consumers": True}, nothing),
        ({"non_destructive": True}, acked),
    ],
    ids=lambda part: part.__name__ if callable(part) else ",".join(part),
)  # fmt: skip
def test_what_came_and_did_not_leave_is_there(settings: dict[str, Any], do: Callable[[Broker], None]) -> None:
    with Broker({"queue": [{"name": "q", **settings}, {"name": "other"}]}) as broker:
        for number in (0, 1, 0, 1):
            broker.publish("q", b'{"n": %d}' % number)
        do(broker)
        broker.advance(0.5)
        told = broker.act("details", queue="q")
        assert told["insert_count"] - told["delete_count"] == len(told["messages"]) == told["depth"]
        before = told["depth"]
        broker.restart()
        told = broker.act("details", queue="q")
        assert (told["insert_count"], told["delete_count"]) == (0, before - told["depth"])


def test_what_is_inactive_has_not_left() -> None:
    with Broker({"queue": [{"name": "q", "target_queue_depth": 1000}]}) as broker:
        for number in range(1005):
            broker.publish("q", b'{"n": %d}' % number)
        broker.ack_filter("q", "/n < 2")
        told = broker.act("details", queue="q")
        assert (told["insert_count"], told["delete_count"], told["depth"], told["internal_depth"]) == (
            1005,
            2,
            1000,
            1003,
        )
