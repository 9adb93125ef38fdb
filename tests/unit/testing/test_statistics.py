"""The figures of a queue at every door: broker, Flight, HTTP, metrics, command line."""

from __future__ import annotations

import base64
import json
import time
import urllib.request

import pika
import pytest
from click.testing import CliRunner
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.cli.main import command as built
from penstock.errors import QueueFull
from penstock.testing import Broker
from penstock.testing.instance import Instance
from penstock.testing.subscriber import TopicSubscription

NAMED = (
    "queue_depth", "inactive_message_count", "backlog", "age_of_oldest_lease", "seconds_behind", "expired_leases",
    "deferred_ack_count", "owned", "transferred_in", "transferred_out", "proxied_transfer", "max_backlog",
    "target_queue_depth", "message_type", "topic",
)  # fmt: skip
"""Every metric of the documents."""


def fetch(broker: Broker, path: str) -> bytes:
    login = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(f"{broker.http_url}{path}", headers={"authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def busy() -> Broker:
    """A queue that everything has happened to."""
    queue = {"name": "q", "underlying_topic": "t", "lease_period": "10s", "max_cancels": 2, "max_backlog": 50}
    broker = Broker({"queue": [queue]})
    for number in range(10):
        broker.publish("t", str(number), priority=number % 3)
    broker.advance(1)
    worker = broker.subscribe("q", max_backlog=4, name="worker")
    broker.subscribe("q", max_backlog=0, name="idle", filter="/n > 1")
    broker.advance(2)
    first, second, third, fourth = worker.take()
    first.ack()
    second.cancel()
    again = next(message for message in worker.take() if message.lsn == second.lsn)
    again.cancel()
    third.expire()
    assert fourth.lsn
    return broker


def test_the_figures_of_the_documents() -> None:
    with busy() as broker:
        stats = broker.stats("q")
        assert [name for name in NAMED if name not in stats] == []
        assert stats["queue_depth"] == stats["owned"] == 7
        assert stats["backlog"] == 4
        assert stats["age_of_oldest_lease"] == 2.0
        assert stats["seconds_behind"] == 3.0
        assert (stats["max_backlog"], stats["topic"], stats["message_type"]) == (50, "t", "json")
        assert (stats["redelivered"], stats["cancelled"]) == (1, 2)
        assert stats["expirations"] == {"max_cancels": 1, "forced_expire": 1}
        assert stats["lease_to_ack"]["p50"] == pytest.approx(2.0, rel=0.25)  # type: ignore[index]
        broker.advance(8.5)
        assert broker.stats("q")["expired_leases"] == 1
        broker.disconnect("worker")
        broker.ack("q", [message.bookmark for message in broker.subscribe("q", max_backlog=None).take()], by="x")
        assert broker.stats("q")["queue_depth"] == 0
        assert broker.stats("q")["seconds_behind"] == 0.0
        assert broker.stats("q")["age_of_oldest_lease"] == 0.0


def test_seconds_behind_count_what_waits_for_the_turn_of_its_tenant_or_for_its_group() -> None:
    for key in ("fairness_key", "group_key"):
        with Broker({"queue": [{"name": "q", key: "/a"}]}) as broker:
            for _ in range(3):
                broker.publish("q", b'{"a": "x"}')
                broker.advance(2)
            assert broker.stats("q")["seconds_behind"] == 6.0, key
            worker = broker.subscribe("q", max_backlog=1)
            [message] = worker.take()
            message.ack()
            assert broker.stats("q")["seconds_behind"] == 4.0, key


def test_seconds_behind_begin_anew_with_a_start() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        broker.publish("q", "a")
        broker.advance(100)
        broker.restart()
        assert broker.stats("q")["seconds_behind"] == 0.0
        broker.advance(3)
        assert broker.stats("q")["seconds_behind"] == 3.0


def test_every_door_tells_the_same() -> None:
    with busy() as broker:
        mine = broker.stats("q")
        with penstock.connect(broker.flight_url) as client:
            assert {name: client.queue("q")[name] for name in NAMED} == {name: mine[name] for name in NAMED}
        shown = json.loads(fetch(broker, "/api/queues/%2F/q"))["penstock"]
        assert {name: shown[name] for name in NAMED} == {name: mine[name] for name in NAMED}
        result = CliRunner().invoke(built(None), ["queue", "show", "q", "--json", "--url", broker.flight_url])
        told = json.loads(result.output)
        assert {name: told[name] for name in NAMED} == {name: mine[name] for name in NAMED}


def test_prometheus_has_a_line_for_each() -> None:
    action = {"name": "tell", "on": {"topic": "t", "event": "publish"}, "do": {"echo_message": {"message": "x"}}}
    with Broker({"queue": [{"name": "q"}, {"name": "t"}], "action": [action]}) as broker:
        broker.publish("t", "a")
        broker.advance(1)
        broker.subscribe("t").take()[0].ack()
        summed, each = figures_at(broker, "/metrics"), figures_at(broker, "/metrics/per-object")
        queue = {"vhost": "/", "queue": "t"}
        for name, expected in (("acked", 1), ("delivered", 1), ("seconds_behind", 0), ("backlog", 0)):
            assert value(summed, f"penstock_queue_{name}") == expected
            assert value(each, f"penstock_queue_{name}", **queue) == expected
        assert value(summed, "penstock_queue_ack_rate") > 0
        assert value(each, "penstock_queue_ack_rate", **queue) > 0
        for name in ("redelivered", "cancelled"):
            assert value(each, f"penstock_queue_{name}", **queue) == 0
        assert value(each, "penstock_queue_expired", reason="time_limit", **queue) == 0
        assert value(each, "penstock_queue_lease_to_ack_seconds", quantile="0.99", **queue) >= 0
        assert value(summed, "penstock_action_runs") == 1
        assert value(summed, "penstock_action_failures") == 0


def test_what_limits_did_is_told_by_http_and_by_prometheus() -> None:
    queues: list[dict[str, object]] = [
        {"name": "short", "max_length": 2},
        {"name": "ring", "ring_size": 2},
        {"name": "full", "max_length": 1, "overflow": "reject-publish"},
        {"name": "once", "dedup_key": "/k", "dedup_window": "1m"},
        {"name": "source", "dead_letter_exchange": "", "dead_letter_routing_key": "full"},
    ]
    with Broker({"queue": queues}) as broker:
        for body in ("a", "bb", "ccc"):
            broker.publish("short", body)
            broker.publish("ring", body)
        broker.publish("full", "x")
        with pytest.raises(QueueFull):
            broker.publish("full", "y")
        broker.publish("once", '{"k": 1}')
        broker.publish("once", '{"k": 1}')
        broker.publish("source", "z")
        broker.subscribe("source").take()[0].reject()
        summed, each = figures_at(broker, "/metrics"), figures_at(broker, "/metrics/per-object")
        expected = (
            ("dropped", "dropped", "short", 1),
            ("replaced", "replaced", "ring", 1),
            ("refused", "refused", "full", 1),
            ("duplicates", "duplicates", "once", 1),
            ("dead_letter_refused", "dead_letters_refused", "source", 1),
        )
        for told, name, queue, least in expected:
            item = json.loads(fetch(broker, f"/api/queues/%2F/{queue}"))
            count = item["penstock"][told]
            assert count >= least, (told, item)
            labels = {"vhost": "/", "queue": queue}
            assert value(each, f"penstock_queue_{name}", **labels) == count
            assert value(summed, f"penstock_queue_{name}") == count
            assert count == broker.stats(queue)[told]
        for queue in ("short", "ring"):
            assert json.loads(fetch(broker, f"/api/queues/%2F/{queue}"))["message_bytes_ready"] == 5
            assert value(each, "rabbitmq_queue_messages_ready_bytes", vhost="/", queue=queue) == 5


def test_bytes_of_messages_are_those_of_the_messages_that_are_counted() -> None:
    """Under RabbitMQ's names: none of them stands beyond the depth; some are held back by barriers, or delayed."""
    queues: list[dict[str, object]] = [
        {"name": "deep", "target_queue_depth": 1000},
        {"name": "barred", "barrier_expression": "/b = 1"},
        {"name": "late"},
    ]
    with Broker({"queue": queues}) as broker:
        with broker.transaction() as transaction:
            for _ in range(1200):
                transaction.publish("deep", "12345")
        for body in ('{"b": 0}', '{"b": 1}', '{"b": 2}'):
            broker.publish("barred", body)
        broker.publish("late", "12345")
        broker.publish("late", "12345", delay="1h")
        broker.subscribe("late").take()
        each = figures_at(broker, "/metrics/per-object")
        for queue, messages, size in (("deep", 1000, 5), ("barred", 3, 8), ("late", 2, 5)):
            item = json.loads(fetch(broker, f"/api/queues/%2F/{queue}"))
            assert (item["messages"], item["message_bytes"]) == (messages, messages * size), queue
            parts = item["message_bytes_ready"] + item["message_bytes_unacknowledged"]
            assert item["message_bytes"] - parts == (5 if queue == "late" else 0)
            labels = {"vhost": "/", "queue": queue}
            assert value(each, "rabbitmq_queue_messages", **labels) == messages
            assert value(each, "rabbitmq_queue_messages_bytes", **labels) == messages * size


def figures_at(broker: Broker, path: str) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(fetch(broker, path).decode())}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The first sample with these labels."""
    return next(one.value for one in families[name].samples if labels.items() <= one.labels.items())


def test_details_of_a_queue_with_an_expression_show_the_priorities_that_it_serves_by() -> None:
    with Broker({"queue": [{"name": "q", "priority_expression": "/p"}]}) as broker:
        for body in (b'{"p": 7}', b'{"p": 70000}', b"{}"):
            broker.publish("q", body, priority=3)
        with penstock.connect(broker.flight_url) as client:
            assert [one["priority"] for one in client.details("q")["messages"]] == [7, 70_000, None]
            broker.alter("q", priority_expression=None)
            assert [one["priority"] for one in client.details("q")["messages"]] == [3, 3, 3]


def test_details_of_what_came_back_tell_of_no_lease() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as client:
        bookmark = broker.publish("q", b"1")
        broker.subscribe("q").take()
        broker.pause("q", 60)
        broker.ack("q", [bookmark], option="cancel")
        [back] = client.details("q")["messages"]
        assert (back["state"], back["deliveries"], back["leased_to"], back["leased_age"]) == ("ready", 1, None, None)


def test_details_of_a_queue() -> None:
    with busy() as broker:
        before = broker.stats("q")
        with penstock.connect(broker.flight_url) as client:
            details = client.details("q")
            assert len(client.details("q", limit=2)["messages"]) == 2
        assert broker.stats("q") == before
        worker, idle = details["subscriptions"]
        assert (worker["client"], worker["backlog"], worker["max_backlog"], worker["filter"]) == ("worker", 4, 4, None)
        assert (idle["client"], idle["backlog"], idle["max_backlog"], idle["filter"]) == ("idle", 0, 0, "/n > 1")
        assert details["depth"] == 7
        messages = details["messages"]
        assert [one["lsn"] for one in messages] == sorted(one["lsn"] for one in messages)
        leased = [one for one in messages if one["state"] == "leased"]
        assert len(leased) == 4
        assert {one["leased_to"] for one in leased} == {"worker"}
        assert max(one["leased_age"] for one in leased) == 2.0
        assert [one["deliverable"] for one in messages] == [False] * 4 + [True] * 3
        assert [one["priority"] for one in messages] == [0, 1, 2, 0, 1, 2, 0]
        assert {one["age"] for one in messages} == {3.0}
        result = CliRunner().invoke(built(None), ["queue", "show", "q", "--details", "--url", broker.flight_url])
        assert "worker" in result.output
        broker.pause("q", 60)
        with penstock.connect(broker.flight_url) as client:
            details = client.details("q")
        assert (details["paused"], details["paused_until"]) == (True, broker.now() + 60)
        assert not any(one["deliverable"] for one in details["messages"])
        assert [one["state"] for one in details["subscriptions"]] == ["full", "full"]

        def choke(instance: Instance) -> None:
            for consumer in instance.core.queue("/", "q").consumers:
                instance.core.choke(consumer)

        broker.command(choke)
        with penstock.connect(broker.flight_url) as client:
            assert [one["state"] for one in client.details("q")["subscriptions"]] == ["blocked", "blocked"]
        listed = CliRunner().invoke(built(None), ["queue", "list", "--url", broker.flight_url])
        assert "paused" in listed.output


def test_prometheus_has_replays_views_topics_and_actions() -> None:
    settings = {
        "queue": [{"name": "q", "target_queue_depth": 1000}, {"name": "b", "barrier_expression": "/end = true"}],
        "topic": [{"name": "t"}, {"name": "state", "key": ["/id"]}],
        "view": [{"name": "v", "source": "state", "select": "/id, COUNT(/id) AS /n", "group_by": ["/id"]}],
        "action": [
            {
                "name": "bad",
                "on": {"topic": "t", "event": "publish"},
                "do": {"query_sow": {"topic": "no", "capture": "X"}},
            }
        ],
    }
    with Broker(settings) as broker:
        for number in range(1003):
            broker.publish("q", str(number))
        for number in range(3):
            broker.publish("state", f'{{"id": {number}}}')
        broker.publish("b", "{}")
        broker.publish("b", '{"end": true}')
        for number in range(4):
            broker.publish("t", str(number))
        live, paused = broker.subscribe("t", bookmark="EPOCH"), broker.subscribe("t", bookmark="EPOCH")
        assert len(live.take()) == 4
        assert isinstance(paused, TopicSubscription)
        paused.pause()
        broker.publish("t", "4")
        broker.advance(1)
        summed, each = figures_at(broker, "/metrics"), figures_at(broker, "/metrics/per-object")
        for name, expected in (("replays", 2), ("replays_paused", 1), ("replays_live", 1), ("replay_messages", 9)):
            assert value(summed, f"penstock_{name}") == value(each, f"penstock_{name}") == expected
        assert value(summed, "penstock_replay_lag_records") > 0
        assert value(summed, "penstock_view_records") == value(each, "penstock_view_records", view="v") == 3
        assert value(each, "penstock_view_lag_records", view="v") == value(each, "penstock_view_errors", view="v") == 0
        assert value(each, "penstock_view_rebuilds", vhost="/", view="v") == 0
        assert value(summed, "penstock_views") == 1
        assert value(each, "penstock_sow_records", topic="state", exchange="", vhost="/") == 3
        assert value(each, "penstock_sow_index_bytes", topic="state") == value(summed, "penstock_sow_index_bytes") > 0
        assert value(each, "penstock_queue_messages_inactive", queue="q") == 3
        assert value(each, "penstock_queue_barriers_waiting", queue="b") == 1
        assert value(each, "penstock_queue_paused", queue="q") == value(summed, "penstock_queue_paused") == 0
        broker.pause("q")
        summed, each = figures_at(broker, "/metrics"), figures_at(broker, "/metrics/per-object")
        assert value(each, "penstock_queue_paused", queue="q") == value(summed, "penstock_queue_paused") == 1
        assert value(each, "penstock_action_failures", action="bad", reason="query_sow") == 5
        assert value(each, "penstock_action_failures", action="bad", reason="publish") == 0
        assert value(summed, "penstock_actions_waiting") == 0
        listed = {one["name"]: one["penstock"] for one in json.loads(fetch(broker, "/api/queues"))}
        shown = json.loads(fetch(broker, "/api/queues/%2F/q"))["penstock"]
        assert shown["inactive"] == shown["inactive_message_count"] == listed["q"]["inactive"] == 3
        assert listed["b"]["barriers_waiting"] == 1
        assert listed["q"]["deferred_acks"] == 0


def test_a_view_that_is_gathered_anew_says_so() -> None:
    settings = {
        "queue": [{"name": "q"}],
        "view": [{"name": "v", "source": "q", "select": "COUNT(/id) AS /n", "group_by": ["/id"]}],
    }
    with Broker(settings) as broker:
        assert broker.instance is not None
        engine = broker.instance.engine
        engine.core.delete_queue(engine.now(), engine.core.queue("/", "q"))
        broker.advance(1)
        assert value(figures_at(broker, "/metrics/per-object"), "penstock_view_rebuilds", view="v") == 1


def test_consumers_are_listed_and_replays_among_them_with_their_place() -> None:
    with Broker({"queue": [{"name": "q"}, {"name": "other"}]}) as broker:
        first = broker.publish("q", "a")
        last = broker.publish("q", "b")
        broker.subscribe("other", max_backlog=3, name="test")
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None, consumer_tag="work")
        channel.basic_consume("q", lambda *_: None, consumer_tag="read", arguments={"x-bookmark": first})
        seen = list[bytes]()
        channel.basic_consume(
            "q", lambda c, m, p, body: seen.append(body), consumer_tag="more", arguments={"x-bookmark": "EPOCH"}
        )
        until = time.monotonic() + 60
        while len(seen) < 2:  # then the one that came before is level too
            assert time.monotonic() < until
            connection.process_data_events(0.05)
        channel.basic_cancel("more")
        queue = json.loads(fetch(broker, "/api/queues/%2F/q"))
        details = {one["consumer_tag"]: one for one in queue["consumer_details"]}
        assert queue["consumers"] == 1, "a replay takes nothing out of the queue"
        work, read = details["work"], details["read"]
        assert (work["ack_required"], work["prefetch_count"], work["penstock"]["kind"]) == (True, 1, "queue")
        assert work["penstock"]["unacknowledged"] == 1
        assert work["channel_details"]["user"] == read["channel_details"]["user"] == "guest"
        assert work["channel_details"]["number"] == read["channel_details"]["number"] == 1
        assert (read["ack_required"], read["queue"]) == (False, {"name": "q", "vhost": "/"})
        told = read["penstock"]
        assert (told["kind"], told["state"], told["lag"]) == ("replay", "live", 0)
        assert int(told["bookmark"].split("|")[1]) >= int(last.split("|")[1])
        every = json.loads(fetch(broker, "/api/consumers"))
        assert {one["consumer_tag"] for one in every} == {"work", "read", "test"}
        assert json.loads(fetch(broker, "/api/consumers/%2F")) == every
        connection.close()
        assert [one["consumer_tag"] for one in json.loads(fetch(broker, "/api/consumers"))] == ["test"]
