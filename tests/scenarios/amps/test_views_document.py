"""The views of `views.xml` do what the documents say of views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config=Path(__file__).with_name("views.xml")) as made:
        for id, qty in enumerate((10, 10, 25), 1):
            order = {"id": id, "symbol": "IBM", "qty": qty, "customer": "c1" if id < 3 else "c2"}
            made.publish("/Orders", json.dumps(order))
        yield made


def test_the_sums_of_the_documents_are_45_and_2(broker: Broker) -> None:
    assert [row.json() for row in broker.sow("/Tens")] == [{"symbol": "IBM", "total": 45, "tens": 2}]
    broker.publish("/Orders", '{"id": 1, "symbol": "IBM", "qty": 0}')
    assert [row.json() for row in broker.sow("/Tens")] == [{"symbol": "IBM", "total": 35, "tens": 1}]


def test_a_join_is_left_outer_and_follows_both_sides(broker: Broker) -> None:
    assert [row.json() for row in broker.sow("/ByCustomer")] == [{"name": None, "orders": 3, "qty": 45}]
    broker.publish("/Customers", '{"id": "c1", "name": "Mara"}')
    rows = [row.json() for row in broker.sow("/ByCustomer", order_by="/qty")]
    assert rows == [{"name": "Mara", "orders": 2, "qty": 20}, {"name": None, "orders": 1, "qty": 25}]


def test_a_group_is_gone_with_its_last_message_and_subscribers_are_told(broker: Broker) -> None:
    watch = broker.subscribe("/Tens", oof=True)
    broker.sow_delete("/Orders", filter="1=1")
    [gone] = watch.take()
    assert (gone.json()["total"], broker.sow("/Tens")) == (45, [])


def test_a_conflated_topic_waits_five_seconds_unless_it_says_otherwise(broker: Broker) -> None:
    watch = broker.subscribe("/SlowOrders")
    broker.advance(4.9)
    assert watch.take() == []
    broker.advance(0.2)
    assert [message.json()["qty"] for message in watch.take()] == [25]
