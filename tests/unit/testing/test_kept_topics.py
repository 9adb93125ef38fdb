"""A topic that is kept has all that was published to it, whatever queues make of it: every way of keeping a topic held
against every reason for which a queue does not take a message."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from choices import spread
from penstock.testing import Broker

KEPT: dict[str, list[dict[str, Any]]] = {
    "by its name": [{"name": "orders.eu"}],
    "by a pattern": [{"name": "^orders\\..*"}],
    "by one of two patterns": [{"name": "^nothing"}, {"name": "[.]eu$"}],
    "by everything": [{"name": ".*"}],
    "with a key": [{"name": "orders.eu", "key": ["/n"]}],
    "by name and pattern": [{"name": "orders.eu"}, {"name": ".*"}],
}
VIEW = {"name": "q", "underlying_topic": "orders.eu"}

REASONS: dict[str, dict[str, Any]] = {
    "no queue": {},
    "a filter": {**VIEW, "filter": "/n > 10"},
    "a full queue that tells nobody": {**VIEW, "max_length": 1, "overflow": "drop-newest"},
    "a full queue, its oldest": {**VIEW, "max_length": 1, "overflow": "drop-head"},
    "a ring": {**VIEW, "ring_size": 1},
    "duplicates": {**VIEW, "dedup_key": "/same", "dedup_window": "1h"},
    "what has expired": {**VIEW, "expiration": "0s"},
    "the filter of a view by pattern": {
        "name": "r", "underlying_topic": "^orders", "default_publish_target": "orders.eu", "filter": "/n > 10",
    },
}  # fmt: skip


@pytest.mark.parametrize(("way", "reason"), spread(product(KEPT, REASONS), 24))  # each reason in three
def test_what_no_queue_takes_is_kept_and_followed(way: str, reason: str) -> None:
    queues = [REASONS[reason]] if REASONS[reason] else []
    bodies = [b'{"n": %d, "same": 1}' % n for n in range(4)]
    with Broker({"topic": KEPT[way], "queue": queues}) as broker:
        follower = broker.subscribe("orders.eu") if way != "with a key" else None
        marks = [broker.publish("orders.eu", body) for body in bodies]
        assert all(marks), "a message without a bookmark was not logged"
        if follower is not None and "orders.eu" not in {queue["name"] for queue in queues}:
            assert [message.body for message in follower.take()] == bodies
        for _ in range(2):
            replayed = broker.subscribe("orders.eu", bookmark="EPOCH").take()
            assert [message.body for message in replayed] == bodies
            broker.crash()
            broker.restart()


def test_a_pattern_keeps_what_it_matches_in_its_exchange_and_vhost() -> None:
    with Broker({"topic": [{"name": "^orders"}, {"name": "a("}]}) as broker:
        assert broker.publish("orders.eu", b"1")
        assert not broker.publish("invoices", b"2")
        assert broker.publish("a(", b"3")  # no pattern that can be read: the name itself
        assert not broker.publish("aa", b"4")


def test_a_pattern_that_goes_keeps_no_more() -> None:
    changes: list[Callable[[Broker], None]] = [Broker.restart, Broker.crash]
    with Broker({"topic": [{"name": "^orders"}]}) as broker:
        for change in changes:
            change(broker)
            if broker.instance is None:
                broker.restart()
            assert broker.publish("orders.eu", b"1")
        instance = broker.instance
        assert instance is not None
        broker.command(lambda one: one.core.delete_topic(one.engine.now(), "/", "", "^orders"))
        assert not broker.publish("orders.eu", b"2")
