"""Views in a broker: of queues, topics and one another; read, followed and slowed down; through every door."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock
from penstock.errors import ExpressionError, InvalidArgument, NotFound, SettingsError
from penstock.testing import Broker

BY_REGION = {"select": "/region, COUNT(/id) AS /n, SUM(/total) AS /total", "group_by": ["/region"]}
OF_Q: dict[str, Any] = {
    "queue": [{"name": "q", "lease_period": "30s", "max_cancels": 2}],
    "view": [{"name": "open", "source": "q", **BY_REGION}],
}


def order(id: int, region: str = "n", total: float = 1) -> str:
    return json.dumps({"id": id, "region": region, "total": total})


def rows(broker: Broker, view: str = "open", **asked: Any) -> list[Any]:
    asked.setdefault("order_by", "/region")
    return [row.json() for row in broker.sow(view, **asked)]


def test_a_view_of_a_queue_has_what_is_available() -> None:
    with Broker(config=OF_Q) as broker:
        assert rows(broker) == []
        for id in range(4):
            broker.publish("q", order(id, "ns"[id % 2], id))
        assert rows(broker) == [{"region": "n", "n": 2, "total": 2}, {"region": "s", "n": 2, "total": 4}]
        worker = broker.subscribe("q", max_backlog=2)
        first, _ = worker.take()
        assert rows(broker) == [{"region": "n", "n": 1, "total": 2}, {"region": "s", "n": 1, "total": 3}]
        first.ack()  # the next one is leased
        assert rows(broker) == [{"region": "s", "n": 1, "total": 3}]
        worker.close()
        assert rows(broker) == [{"region": "n", "n": 1, "total": 2}, {"region": "s", "n": 2, "total": 4}]
        broker.crash()
        broker.restart()
        assert rows(broker) == [{"region": "n", "n": 1, "total": 2}, {"region": "s", "n": 2, "total": 4}]


def test_leases_that_end_delays_expiry_and_limits() -> None:
    with Broker(config=OF_Q) as broker:
        broker.publish("q", order(1), delay=10)
        broker.publish("q", order(2), expiration=60)
        worker = broker.subscribe("q")
        assert rows(broker) == [], "one waits for its time, one is leased"
        worker.close()
        assert rows(broker)[0]["n"] == 1
        broker.advance(11)
        assert rows(broker)[0]["n"] == 2
        worker = broker.subscribe("q", max_backlog=2)
        assert rows(broker) == []
        broker.advance(31)  # both leases end, and begin anew
        worker.close()
        assert rows(broker)[0]["n"] == 2
        broker.advance(31)
        assert rows(broker)[0]["n"] == 1, "one has expired"
        for _ in range(2):
            worker = broker.subscribe("q")
            worker.take()[0].cancel()
            worker.close()
        assert rows(broker) == []


def test_inactive_messages_are_not_in_views() -> None:
    config = {**OF_Q, "queue": [{"name": "q", "target_queue_depth": 1000}]}
    with Broker(config=config) as broker:
        marks = [broker.publish("q", order(id)) for id in range(1010)]
        assert [row["n"] for row in rows(broker)] == [1000]
        broker.ack("q", marks[:4])
        assert [(row["n"], row["total"]) for row in rows(broker)] == [(1000, 1000)]
        broker.ack("q", marks[4:20])
        assert [row["n"] for row in rows(broker)] == [990]
        broker.restart()
        assert [row["n"] for row in rows(broker)] == [990]


def test_a_view_of_a_topic_follows_its_records() -> None:
    config = {
        "topic": [{"name": "orders", "key": ["/id"]}],
        "view": [{"name": "open", "source": "orders", **BY_REGION}],
    }
    with Broker(config=config) as broker:
        for id in range(4):
            broker.publish("orders", order(id, "ns"[id % 2], id))
        broker.publish("orders", order(0, "s", 10))
        assert rows(broker) == [{"region": "n", "n": 1, "total": 2}, {"region": "s", "n": 3, "total": 14}]
        broker.sow_delete("orders", filter="/total > 5")
        broker.restart()
        assert rows(broker) == [{"region": "n", "n": 1, "total": 2}, {"region": "s", "n": 2, "total": 4}]
        broker.publish("orders", order(7, "n"), expiration=5)
        assert rows(broker)[0]["n"] == 2
        broker.advance(6)
        assert rows(broker)[0]["n"] == 1


def test_views_of_views_and_a_filter() -> None:
    config = {
        **OF_Q,
        "view": [
            *OF_Q["view"],
            {"name": "all", "source": "open", "select": "COUNT(/region) AS /regions, SUM(/n) AS /n"},
            {"name": "dear", "source": "q", "select": "/id AS /last, COUNT(1) AS /n", "filter": "/total > 5"},
        ],
    }
    with Broker(config=config) as broker:
        for id in range(6):
            broker.publish("q", order(id, "nsw"[id % 3], id * 2))
        assert rows(broker, "all", order_by=None) == [{"regions": 3, "n": 6}]
        assert rows(broker, "dear", order_by=None) == [{"last": 5, "n": 3}]
        broker.ack_filter("q", "/region = 'w'")
        assert rows(broker, "all", order_by=None) == [{"regions": 2, "n": 4}]


def test_a_join_of_a_queue_and_a_topic() -> None:
    config = {
        "topic": [{"name": "customers", "key": ["/id"]}],
        "queue": [{"name": "q"}],
        "view": [
            {
                "name": "by-name",
                "join": ["[q]./customer = [customers]./id"],
                "select": "[customers]./name, COUNT([q]./id) AS /n",
                "group_by": "[customers]./name",
            }
        ],
    }
    with Broker(config=config) as broker:
        broker.publish("customers", '{"id": "a", "name": "Anna"}')
        for id, customer in enumerate("aab"):
            broker.publish("q", json.dumps({"id": id, "customer": customer}))
        expected = [{"name": None, "n": 1}, {"name": "Anna", "n": 2}]
        assert rows(broker, "by-name", order_by="/name") == expected
        worker = broker.subscribe("q")
        assert rows(broker, "by-name", order_by="/name") == [{"name": None, "n": 1}, {"name": "Anna", "n": 1}]
        worker.close()
        broker.restart()
        assert rows(broker, "by-name", order_by="/name") == expected


def test_the_queue_of_a_view_may_come_later_and_go() -> None:
    with Broker(config={"view": OF_Q["view"]}) as broker:
        assert rows(broker) == []
        with penstock.connect(broker.flight_url) as client:
            client.declare("q")
            client.publish("q", {"id": 1, "region": "n", "total": 2})
            assert rows(broker) == [{"region": "n", "n": 1, "total": 2}]
            client.delete("q")
            assert rows(broker) == []
            client.declare("q")
            client.publish("q", {"id": 2, "region": "s", "total": 3})
            assert rows(broker) == [{"region": "s", "n": 1, "total": 3}]


def test_a_query_is_filtered_ordered_and_cut() -> None:
    with Broker(config=OF_Q) as broker:
        for id in range(30):
            broker.publish("q", order(id, "abcdef"[id % 6], id))
        assert [row["region"] for row in rows(broker, order_by="/total DESC", top_n=2, skip_n=1)] == ["e", "d"]
        assert [row["region"] for row in rows(broker, filter="/total > 75")] == ["e", "f"]
        with pytest.raises(InvalidArgument, match="skip_n needs top_n"):
            broker.sow("open", skip_n=1)
        with pytest.raises(NotFound):
            broker.sow("nothing")


def test_an_aggregated_query_needs_no_view() -> None:
    with Broker(config=OF_Q) as broker:
        for id in range(6):
            broker.publish("q", order(id, "ns"[id % 2], id))
        worker = broker.subscribe("q")
        asked = {"projection": "/region, MAX(/id) AS /last", "grouping": "/region", "filter": "/id < 5"}
        assert rows(broker, "q", **asked) == [{"region": "n", "last": 4}, {"region": "s", "last": 3}]
        assert rows(broker, "q", order_by="/last DESC", top_n=1, projection="MAX(/id) AS /last", grouping=[]) == [
            {"last": 5}
        ]
        assert rows(broker, projection="SUM(/n) AS /all", grouping=[]) == [{"all": 5}], "of a view"
        with pytest.raises(InvalidArgument, match="both"):
            broker.sow("q", projection="/region")
        with pytest.raises(ExpressionError, match="more than 65536 bytes"):
            broker.sow("q", projection="'" + "x" * 65536 + "' AS /x", grouping=[])
        assert worker.take()[0].ack()


def kinds(subscription: Any) -> list[tuple[str, str, Any]]:
    return [(one.kind, one.reason, one.json()) for one in subscription.take()]


def test_a_subscription_to_a_view_gets_rows_changes_and_what_vanishes() -> None:
    with Broker(config=OF_Q) as broker:
        mark = broker.publish("q", order(1))
        watch = broker.subscribe("open", sow=True, oof=True)
        few = broker.subscribe("open", filter="/n < 2", oof=True)
        quiet = broker.subscribe("open")
        assert kinds(watch) == [("sow", "", {"region": "n", "n": 1, "total": 1})]
        assert kinds(few) == kinds(quiet) == []
        broker.publish("q", order(2))
        assert kinds(watch) == [("publish", "", {"region": "n", "n": 2, "total": 2})]
        assert kinds(few) == [("oof", "match", {"region": "n", "n": 2, "total": 2})]
        broker.ack("q", mark)
        assert kinds(few) == [("publish", "", {"region": "n", "n": 1, "total": 1})]
        watch.take()
        broker.ack_filter("q", "1 = 1")
        assert kinds(watch) == [("oof", "deleted", {"region": "n", "n": 1, "total": 1})]
        assert [kind for kind, _, _ in kinds(quiet)] == ["publish", "publish"]
        watch.close()
        broker.publish("q", order(3))
        assert watch.take() == []
        with pytest.raises(InvalidArgument, match="no deltas"):
            broker.subscribe("open", delta=True)


def test_an_aggregated_subscription_is_a_view_for_one() -> None:
    with Broker(config=OF_Q) as broker:
        asked: dict[str, Any] = {"projection": "/region, COUNT(1) AS /n", "grouping": "/region", "filter": "/total > 1"}
        broker.publish("q", order(1, total=2))
        watch = broker.subscribe("q", sow=True, oof=True, **asked)
        assert kinds(watch) == [("sow", "", {"region": "n", "n": 1})]
        broker.publish("q", order(2, total=1))
        worker = broker.subscribe("q")
        broker.advance(0.2)  # a grant is told when it is on disk, and nobody hurries for it
        assert kinds(watch) == [("oof", "deleted", {"region": "n", "n": 1})]
        assert worker.take()[0].ack()
        watch.close()
        assert broker.command(lambda instance: [one.name for one in instance.engine.views.all_shown()]) == ["open"]
        with pytest.raises(NotFound):
            broker.subscribe("nothing", **asked)
        with pytest.raises(InvalidArgument, match="both"):
            broker.subscribe("q", projection="/region")
        with penstock.connect(broker.flight_url) as client:
            worker.close()
            with client.sow_and_subscribe("open", projection="SUM(/n) AS /n", grouping=[], timeout="20s") as rows:
                assert next(rows).json() == {"n": 1}
                client.publish("q", {"id": 3, "region": "s", "total": 3})
                assert next(rows).json() == {"n": 2}


SLOW: dict[str, Any] = {
    "topic": [{"name": "prices", "key": ["/id"]}],
    "queue": [{"name": "q"}],
    "view": [{"name": "mean", "source": "prices", "select": "AVG(/p) AS /p"}],
    "conflated_topic": [
        {"name": "slow", "source": "prices", "interval": "1s", "filter": "/p > 0"},
        {"name": "slower", "source": "slow", "interval": "10s"},
        {"name": "slow-mean", "source": "mean"},
    ],
}


def test_a_conflated_topic_tells_the_last_change_of_an_interval() -> None:
    with Broker(config=SLOW) as broker:
        watch = broker.subscribe("slow", sow=True, oof=True)
        for p in range(1, 5):
            broker.publish("prices", json.dumps({"id": 1, "p": p}))
            broker.advance(0.2)
        assert kinds(watch) == []
        assert broker.sow("slow") == []
        broker.advance(0.3)
        assert kinds(watch) == [("publish", "", {"id": 1, "p": 4})]
        assert [row.json() for row in broker.sow("slow", filter="/p > 3")] == [{"id": 1, "p": 4}]
        broker.publish("prices", '{"id": 2, "p": 1}')
        broker.sow_delete("prices", filter="/id = 2")
        broker.advance(2)
        assert kinds(watch) == [], "it left before it was told"
        broker.publish("prices", '{"id": 1, "p": 0}')
        assert [kind for kind, _, _ in kinds(watch)] == ["oof"], "what leaves is told at once"
        assert broker.sow("slow") == []


def test_conflated_topics_of_views_and_of_one_another() -> None:
    with Broker(config=SLOW) as broker:
        for id in range(3):
            broker.publish("prices", json.dumps({"id": id, "p": 2 * id}))
        broker.advance(4.9)
        assert broker.sow("slow-mean") == []
        broker.advance(0.2)
        assert [row.json() for row in broker.sow("slow-mean")] == [{"p": 2.0}]
        assert broker.sow("slower") == []
        broker.advance(7)
        assert len(broker.sow("slower")) == 2
        broker.restart()
        assert len(broker.sow("slower")) == 2, "the records there are come at once"


def test_a_conflated_subscription_learns_of_what_leaves_with_oof_alone() -> None:
    config = {"topic": [{"name": "prices", "key": ["/id"]}]}
    with Broker(config) as broker:
        plain = broker.subscribe("prices", conflation="500ms")
        knowing = broker.subscribe("prices", conflation="500ms", sow=True, oof=True)
        broker.publish("prices", '{"id": 1}')
        broker.sow_delete("prices", filter="1=1")
        broker.advance(1)
        assert [message.body for message in plain.take()] == [b'{"id": 1}']
        assert knowing.take() == []


def test_a_conflated_subscription() -> None:
    with Broker(config=SLOW) as broker:
        broker.publish("prices", '{"id": 1, "kind": "a", "p": 0}')
        watch = broker.subscribe("prices", sow=True, conflation="500ms")
        by_kind = broker.subscribe("prices", conflation="500ms", conflation_key="/kind")
        assert [kind for kind, _, _ in kinds(watch)] == ["sow"], "the query is not conflated"
        for id in (1, 2, 1, 2):
            broker.publish("prices", json.dumps({"id": id, "kind": "a", "p": id}))
            broker.advance(0.1)
        assert kinds(watch) == kinds(by_kind) == []
        broker.advance(0.3)
        assert [row["p"] for _, _, row in kinds(watch)] == [1, 2]
        assert [row["p"] for _, _, row in kinds(by_kind)] == [2]
        for asked, problem in (
            ({"queue": "q", "conflation": "1s"}, "nothing is conflated"),
            ({"queue": "prices", "conflation": "50ms"}, "the least is 100ms"),
            ({"queue": "prices", "conflation": "1s", "delta": True}, "does not go with deltas"),
            ({"queue": "prices", "conflation_key": "/a"}, "goes with conflation"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                broker.subscribe(**asked)


def test_views_through_flight() -> None:
    with Broker(config=OF_Q) as broker, penstock.connect(broker.flight_url) as client:
        for id in range(3):
            client.publish("q", {"id": id, "region": "ns"[id % 2], "total": id})
        found = [(row.sow_key, row.json()) for row in client.sow("open", order_by="/region DESC", top_n=1)]
        assert found == [('["s"]', {"region": "s", "n": 1, "total": 1})]
        asked = client.sow("q", projection="COUNT(1) AS /n", grouping="/region", order_by="/n")
        assert [(row.sow_key, row.json()) for row in asked] == [('["s"]', {"n": 1}), ('["n"]', {"n": 2})]
        assert client.queue("q")["ready"] == 3
        alike = client.sow("q", projection="COUNT(/none) AS /n", grouping="/region")
        assert [row.json() for row in alike] == [{"n": 0}, {"n": 0}], "rows that look alike are two"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"view": [{"name": "v", "select": "/a"}]}, "either a source or a join"),
        ({"view": [{"name": "v", "source": "q", "join": ["[a]./x = [b]./x"], "select": "/a"}]}, "either a source or a"),
        ({"view": [{"name": "v", "join": ["[a]./x = [b]./x"], "select": "/a", "filter": "1 = 1"}]}, "of one source"),
        ({"view": [{"name": "v", "source": "v", "select": "/a"}]}, "cannot be its own source"),
        (
            {"view": [{"name": "v", "source": "w", "select": "/a"}, {"name": "w", "source": "v", "select": "/a"}]},
            "'w' is defined after this one",
        ),
        ({"view": [{"name": "v", "join": ["[v]./x = [b]./x"], "select": "[b]./x"}]}, "'v' is this view or one after"),
        ({"queue": [{"name": "v"}], "view": [{"name": "v", "source": "q", "select": "/a"}]}, "'v' is a queue already"),
        ({"view": [{"name": "v", "source": "q"}]}, "select: is missing"),
        ({"conflated_topic": [{"name": "c", "source": "t", "interval": "50ms"}]}, "must be at least 100ms"),
        ({"conflated_topic": [{"name": "c", "source": "t", "interval": 5}]}, "5 needs a unit: write .5s."),
        ({"queue": [{"name": "q"}], "conflated_topic": [{"name": "c", "source": "q"}]}, "nothing of it is conflated"),
    ],
)
def test_settings_that_cannot_be(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        Broker(config=section)


def test_an_expression_that_cannot_be_stops_the_start() -> None:
    with pytest.raises(SettingsError, match='"v": MAX|"v": .*its answer changes with time'):
        Broker(config={"view": [{"name": "v", "source": "q", "select": "MAX(UNIX_TIMESTAMP()) AS /x"}]})


def test_subscriptions_through_flight() -> None:
    config = {**SLOW, "queue": OF_Q["queue"], "view": [*OF_Q["view"], *SLOW["view"]]}
    with Broker(config=config) as broker, penstock.connect(broker.flight_url) as client:
        client.publish("q", {"id": 1, "region": "n", "total": 1})
        with client.sow_and_subscribe("open", oof=True, timeout="20s") as watch:
            assert next(watch).json() == {"region": "n", "n": 1, "total": 1}
            client.publish("q", {"id": 2, "region": "s", "total": 2})
            one = next(watch)
            assert (one.event, one.sow_key, one.json()) == ("publish", '["s"]', {"region": "s", "n": 1, "total": 2})
            client.ack_filter("q", "/id = 1")
            gone = next(watch)
            assert (gone.event, gone.reason, gone.sow_key) == ("oof", "deleted", '["n"]')
        with client.sow_and_subscribe("prices", conflation="1s", timeout="20s") as watch:
            for p in range(3):
                client.publish("prices", {"id": 1, "p": p})
            broker.advance(1.1)
            assert next(watch).json() == {"id": 1, "p": 2}
        broker.advance(1)
        assert [row.json() for row in client.sow("slow")] == [{"id": 1, "p": 2}]


def test_what_a_barrier_holds_back_is_available_all_the_same() -> None:
    config = {**OF_Q, "queue": [{"name": "q", "barrier_expression": "/id = 2"}]}
    with Broker(config=config) as broker:
        for id in (1, 2, 3):
            broker.publish("q", order(id))
        assert [row["n"] for row in rows(broker)] == [3]
        assert len(broker.sow("q")) == 3
        assert rows(broker, "q", projection="COUNT(1) AS /n", grouping=[], order_by=None) == [{"n": 3}]
        worker = broker.subscribe("q", max_backlog=5)
        assert worker.take()[0].ack()
        assert [message.json()["id"] for message in worker.take()] == [2, 3]
        assert rows(broker) == []


def test_a_pass_over_the_log_fills_the_view_with_its_queue() -> None:
    topic = {"topic": [{"name": "t"}]}
    queue = {"name": "q", "underlying_topic": "t", "recovery_point": "epoch"}
    with Broker(config=topic) as broker:
        for id in range(5):
            broker.publish("t", order(id))
        broker.restart(config={**topic, "queue": [queue], "view": OF_Q["view"]})
        broker.publish("t", order(5))
        assert [row["n"] for row in rows(broker)] == [6]
