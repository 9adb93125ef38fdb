"""Somebody who may read some fields of a topic tries to see the others: by each door, by filters, by other names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlparse

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import penstock
from penstock.errors import AccessRefused
from penstock.testing import Broker

pytestmark = pytest.mark.conformance

ORDER = {
    "id": 1,
    "owner": "ann",
    "total": 9.5,
    "ship": {"to": "Oslo", "phone": "555"},
    "lines": [{"sku": "a", "cost": 3}],
}
SHOWN = {"id": 1, "total": 9.5, "ship": {"to": "Oslo"}, "lines": [{"sku": "a"}]}
LIST = "-/owner, -/ship/phone, -/lines/cost"


@pytest.fixture
def broker() -> Iterator[Broker]:
    config = {
        "user": [
            {"name": "root", "password": "root", "tags": ["administrator"]},
            *({"name": name, "password": name} for name in ("ann", "bob", "cid")),
        ],
        "topic": [
            {"name": "orders", "key": ["/id"]},
            {"name": "kept", "key": ["/id"]},
            {"name": "notes"},
            {"name": "open"},
        ],
        "queue": [
            {"name": "work", "underlying_topic": "orders"},
            {"name": "both", "underlying_topic": "^(notes|open)$", "default_publish_target": "notes"},
        ],
        "view": [{"name": "owners", "source": "orders", "select": "/id, /owner AS /owner", "group_by": ["/id"]}],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "ann", "topic": "^(orders|notes)$", "read": "/owner = USER()", "select": LIST},
            {"user": "ann", "topic": "owners", "read": True, "select": "-/, +/id"},
            {"user": "ann", "topic": "open", "read": True},
            {"user": "bob", "topic": "^kept$", "read": True, "write": True, "select": "-/owner"},
            {"user": "cid", "topic": "^kept$", "write": True},
        ],
    }
    with Broker(config) as broker:
        broker.publish("orders", json.dumps(ORDER))
        broker.publish("orders", json.dumps({**ORDER, "id": 2, "owner": "bob"}))
        for topic in ("notes", "open", "kept"):
            broker.publish(topic, json.dumps(ORDER))
        broker.advance(1)
        yield broker


def client(broker: Broker, user: str = "ann") -> penstock.Client:
    return penstock.connect(f"penstock://{user}:{user}@{broker.flight_url.rpartition('@')[2]}")


def read(messages: Iterator[object] | Sequence[object]) -> list[object]:
    return [message.json() for message in messages]  # type: ignore[attr-defined]  # messages and records alike


def refused(*acts: Callable[[], object]) -> None:
    for act in acts:
        with pytest.raises(AccessRefused, match="may not read the field|may read a part"):
            act()


def test_records_and_replays_come_with_the_fields_that_may_be_read(broker: Broker) -> None:
    with client(broker) as ann:
        assert read(ann.sow("orders")) == [SHOWN]
        assert read(ann.sow("orders", select="-/, +/total, +/owner")) == [{"total": 9.5}]
        assert read(ann.replay("orders", "EPOCH")) == [SHOWN]
        assert read(ann.replay("orders", "EPOCH", follow=True, limit=1, timeout=30)) == [SHOWN]
        assert read(ann.replay("orders", "EPOCH", follow=True, rate="1000", limit=1, timeout=30)) == [SHOWN]
        assert read(ann.replay("notes", "EPOCH", filter="/ship/to = 'Oslo'")) == [SHOWN]
        assert read(ann.sow("owners", order_by="/id")) == [{"id": 1}, {"id": 2}]
    with client(broker, "root") as root:
        assert read(root.sow("orders", filter="/id = 1")) == [ORDER]


def test_subscriptions_deltas_and_what_goes_out_of_focus_too(broker: Broker) -> None:
    with client(broker) as ann:
        with ann.sow_and_subscribe("orders", oof=True, timeout=30) as records:
            assert read([records.take()]) == [SHOWN]
            broker.sow_delete("orders", filter="/id = 1")
            gone = records.take()
            assert gone is not None
            assert (gone.event, gone.json()) == ("oof", SHOWN)
        broker.publish("orders", json.dumps(ORDER))
        with ann.sow_and_subscribe("orders", delta=True, no_empties=True, timeout=30) as changes:
            assert read([changes.take()]) == [SHOWN]
            broker.delta_publish("orders", '{"id": 1, "ship": {"phone": "556"}}')  # of what ann sees nothing changes
            broker.delta_publish("orders", '{"id": 1, "ship": {"to": "Rome", "phone": "557"}}')
            assert read([changes.take()]) == [{"id": 1, "ship": {"to": "Rome"}}]


def test_nothing_asks_for_a_field_that_may_not_be_read(broker: Broker) -> None:
    """Which messages a filter takes would tell what the field holds."""
    grouped = {"projection": ["MAX(/owner) AS /who"], "grouping": ["1"]}
    with client(broker) as ann:
        refused(
            lambda: list(ann.sow("orders", filter="/owner = 'ann'")),
            lambda: list(ann.sow("orders", filter="/id = 1 OR /ship/phone LIKE '^5'")),
            lambda: list(ann.sow("orders", filter="/lines[0]/cost > 2")),
            lambda: list(ann.sow("orders", filter="/ship IS NULL")),
            lambda: list(ann.sow("orders", order_by="/owner")),
            lambda: list(ann.sow("orders", **grouped)),  # type: ignore[arg-type]
            lambda: list(ann.sow("owners", filter="/owner = 'bob'")),
            lambda: list(ann.sow_and_subscribe("orders", filter="/owner = 'ann'", timeout=30)),
            lambda: list(ann.sow_and_subscribe("orders", conflation="1s", conflation_key="/owner", timeout=30)),
            lambda: list(ann.sow_and_subscribe("orders", timeout=30, **grouped)),  # type: ignore[arg-type]
            lambda: list(ann.replay("orders", "EPOCH", filter="/owner = 'ann'")),
            lambda: list(ann.replay("orders", "EPOCH", filter="/owner = 'ann'", follow=True, timeout=30)),
        )


def test_another_name_shows_no_more(broker: Broker) -> None:
    with client(broker) as ann:
        assert read(ann.replay("work", "EPOCH")) == [SHOWN]  # a queue with a bookmark is its topic
        assert read(ann.replay("work", "EPOCH", follow=True, limit=1, timeout=30)) == [SHOWN]
        for wanted in ({"pattern": "^(orders|notes|open)$"}, {"topic": "both"}):  # of several, what is read whole
            for follow in (False, True):
                asked = ann.replay(bookmark="EPOCH", follow=follow, limit=1, timeout=30, **wanted)  # type: ignore[arg-type]
                assert [message.topic for message in asked] == ["open"]
        refused(lambda: ann.action("stream_open", stream="s", topic="orders"))
        with pytest.raises(AccessRefused):
            list(ann.sow("work"))


def test_a_body_that_has_no_fields_comes_empty(broker: Broker) -> None:
    broker.publish("open", b"")
    with client(broker, "root") as root:
        root.publish("notes", b'["owner", {"owner": "ann", "total": 1}]')
    with client(broker) as ann:
        assert [message.body for message in ann.replay("notes", "EPOCH", filter="/total = 1")] == [b""]


def test_statements_see_what_replays_show(broker: Broker) -> None:
    with client(broker) as ann:
        rows = ann.query("SELECT body FROM notes").to_arrow().to_pylist()
        assert [json.loads(row["body"]) for row in rows] == [SHOWN]


def test_over_amqp(broker: Broker) -> None:
    address = urlparse(broker.amqp_url)
    assert address.hostname is not None
    assert address.port is not None
    login = pika.PlainCredentials("ann", "ann")
    connection = pika.BlockingConnection(pika.ConnectionParameters(address.hostname, address.port, credentials=login))
    got: list[object] = []

    def follow(queue: str, **more: object) -> None:
        connection.channel().basic_consume(
            queue,
            lambda c, m, p, body: got.append(json.loads(body)),
            auto_ack=True,
            arguments={"x-bookmark": "EPOCH", **more},  # type: ignore[dict-item]
        )

    follow("orders")
    follow("work", **{"x-select": "-/, +/owner, +/id"})
    while len(got) < 2:
        connection.process_data_events(1)
    assert sorted(map(str, got)) == sorted(map(str, [SHOWN, {"id": 1}]))
    with pytest.raises(ChannelClosedByBroker, match="may not read the field /owner"):
        follow("orders", **{"x-filter": "/owner = 'bob'"})
    connection.close()


def test_what_a_filter_removes_tells_nothing_that_may_not_be_read(broker: Broker) -> None:
    """Who may write a topic removed by a filter, and heard how many matched: any field, a question at a time."""
    with client(broker, "bob") as bob, client(broker, "cid") as cid:
        refused(lambda: bob.sow_delete("kept", filter="/id > 0 AND /owner < 'b'"))
        for text in ("/total > 9", "/owner = 'ann'", "TOPIC_NAME() = 'kept'"):
            with pytest.raises(AccessRefused, match="no right to read"):
                cid.sow_delete("kept", filter=text)
        assert bob.sow_delete("kept", filter="/total < 9") == 0
        assert cid.sow_delete("kept", filter="1 = 1") == 1
