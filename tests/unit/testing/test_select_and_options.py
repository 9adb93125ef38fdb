"""Select lists, and what a subscriber may say of durability and time: on the broker of tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidArgument
from penstock.testing import Broker
from penstock.testing.topic_records import RecordMessage

CONFIG: dict[str, Any] = {
    "topic": [{"name": "orders", "key": ["/id"]}, {"name": "plain"}],
    "queue": [{"name": "q", "underlying_topic": "orders"}],
    "view": [{"name": "v", "source": "orders", "select": "/kind, COUNT(/id) AS /n", "group_by": ["/kind"]}],
}


def told(subscription: Any) -> list[tuple[str, str, object]]:
    messages: list[RecordMessage] = subscription.take()
    return [(one.kind, one.reason, json.loads(one.body)) for one in messages]


def test_a_query_sends_the_fields_that_are_asked_for() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id": 1, "kind": "a", "notes": "long", "total": 5}')
        for name in ("orders", "q"):  # records, and what is available in a queue
            [record] = broker.sow(name, filter="/notes = 'long'", order_by="/total", select="-/,+/id")
            assert record.json() == {"id": 1}, "filter and order see the whole"
        assert [row.json() for row in broker.sow("v", select="-/n")] == [{"kind": "a"}]
        with pytest.raises(InvalidArgument, match="select does not go with projection"):
            broker.sow("q", projection="COUNT(1) AS /n", grouping=[], select="-/n")


def test_a_subscription_sends_the_fields_that_are_asked_for() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id": 1, "kind": "a", "total": 5}')
        watch = broker.subscribe("orders", filter="/total > 1", sow=True, oof=True, select="-/total")
        plain = broker.subscribe("plain", select="-/,+/x")
        past = broker.subscribe("orders", bookmark="EPOCH", select="-/,+/kind")
        rows = broker.subscribe("v", sow=True, select="-/kind")
        broker.publish("orders", '{"id": 2, "kind": "b", "total": 7}')
        broker.publish("orders", '{"id": 2, "kind": "b", "total": 1}')
        broker.publish("plain", '{"x": 1, "y": 2}')
        assert told(watch) == [
            ("sow", "", {"id": 1, "kind": "a"}),
            ("publish", "", {"id": 2, "kind": "b"}),
            ("oof", "match", {"id": 2, "kind": "b"}),
        ]
        assert [one.json() for one in plain.take()] == [{"x": 1}]
        assert [one.json() for one in past.take()] == [{"kind": "a"}, {"kind": "b"}, {"kind": "b"}]
        assert told(rows)[:2] == [("sow", "", {"n": 1}), ("publish", "", {"n": 1})]


def test_of_a_delta_the_changes_that_are_asked_for_and_the_key() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", '{"id": 1, "a": 1, "b": 1}')
        every = broker.subscribe("orders", delta=True, select="-/,+/a")
        some = broker.subscribe("orders", delta=True, no_empties=True, select="-/,+/a")
        broker.publish("orders", '{"id": 1, "a": 2, "b": 2}')
        broker.publish("orders", '{"id": 1, "a": 2, "b": 3}')
        assert told(every) == [("publish", "", {"id": 1, "a": 2}), ("publish", "", {"id": 1})]
        assert told(some) == [("publish", "", {"id": 1, "a": 2})], "a change that is not sent is none"


def test_conflation_sees_the_fields_that_are_not_sent() -> None:
    with Broker(CONFIG) as broker:
        watch = broker.subscribe("orders", conflation="1s", conflation_key="/kind", select="-/kind")
        for id, kind in ((1, "a"), (2, "a"), (3, "b")):
            broker.publish("orders", json.dumps({"id": id, "kind": kind}))
        broker.advance(1.1)
        assert [body for _, _, body in told(watch)] == [{"id": 2}, {"id": 3}]


def test_a_topic_without_a_key_is_conflated_by_the_key_that_is_named() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("plain", '{"k": 0, "n": 0}')
        watch = broker.subscribe("plain", filter="/n < 9", sow=True, conflation="500ms", conflation_key=["/k", "/m"])
        assert told(watch) == []
        for n in (1, 2, 3, 9):
            broker.publish("plain", json.dumps({"k": n % 2, "n": n}))
            broker.advance(0.1)
        assert told(watch) == []
        broker.advance(0.3)
        assert [body["n"] for _, _, body in told(watch)] == [3, 2]  # type: ignore[index]  # in the order of the first
        broker.publish("plain", '{"k": 1, "n": 4}')
        watch.close()
        broker.advance(1)
        assert told(watch) == []
        for asked, problem in (
            ({"queue": "plain", "conflation": "1s"}, "name a conflation_key that tells its messages apart"),
            ({"queue": "plain", "sow": True, "top_n": 1}, "no pages of it"),
            ({"queue": "q", "conflation": "1s", "conflation_key": "/k"}, "nothing is conflated"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                broker.subscribe(**asked)  # type: ignore[arg-type]


def test_options_of_durability_and_time() -> None:
    with Broker(CONFIG) as broker:
        at = broker.now()
        timed = broker.subscribe("plain", timestamp=True, fully_durable=True)
        bare = broker.subscribe("plain")
        records = broker.subscribe("orders", oof=True, timestamp=True, fully_durable=True)
        broker.publish("plain", b"1")
        broker.publish("orders", '{"id": 1}')
        assert [one.time for one in timed.take()] == [pytest.approx(at, abs=1)]
        assert [one.time for one in bare.take()] == [None]
        assert [one.time for one in records.take()] == [pytest.approx(at, abs=1)]
        for asked, problem in (
            ({"queue": "plain", "live": True}, "of a topic only what is durable is told"),
            ({"queue": "q", "live": True}, 'deliver = "early"'),
            ({"queue": "q", "fully_durable": True}, 'deliver = "durable"'),
            ({"queue": "q", "select": "-/a"}, "work comes whole"),
            ({"queue": "q", "timestamp": True}, "go with topics"),
            ({"queue": "plain", "select": "a"}, "is no part of a list"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                broker.subscribe(**asked)  # type: ignore[arg-type]


def test_where_several_texts_may_be_given_one_is_no_error() -> None:
    """`key="/id"` was refused, while `projection` and `select` took one text as well as several."""
    with Broker() as broker, penstock.connect(broker.flight_url) as client:
        client.declare_topic("t", key="/id")
        client.declare("q", underlying_topic="t")
        broker.publish("t", b'{"id": 1}')
        assert [len(one.body) for one in client.peek("q", states="ready")] == [9]
        (batch,) = client.queue_batches("q", columns="body")
        assert batch.schema.names == ["body"]
        (record,) = client.sow("t")
        assert client.sow_delete("t", keys=str(record.sow_key)) == 1
