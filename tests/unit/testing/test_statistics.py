"""The figures of a queue at every door: broker, Flight, HTTP, metrics, command line."""

from __future__ import annotations

import base64
import json
import urllib.request

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import penstock
from penstock.cli.tree import whole
from penstock.testing import Broker

NAMED = (
    "queue_depth", "inactive_message_count", "backlog", "age_of_oldest_lease", "seconds_behind", "expired_leases",
    "deferred_ack_count", "owned", "transferred_in", "transferred_out", "proxied_transfer", "max_backlog",
    "target_queue_depth", "message_type", "topic",
)  # fmt: skip
"""Every metric of the documents."""


def fetch(broker: Broker, path: str) -> bytes:
    login = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(f"{broker.http_url}{path}", headers={"authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
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
        result = CliRunner().invoke(whole(), ["queue", "show", "q", "--json", "--url", broker.flight_url])
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
        assert value(each, "penstock_queue_expired", reason="time_limit", **queue) == 0
        assert value(each, "penstock_queue_lease_to_ack_seconds", quantile="0.99", **queue) >= 0
        assert value(summed, "penstock_action_runs", action="tell") == 1
        assert value(summed, "penstock_action_failures", action="tell") == 0


def figures_at(broker: Broker, path: str) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(fetch(broker, path).decode())}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The first sample with these labels."""
    return next(one.value for one in families[name].samples if labels.items() <= one.labels.items())


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
        result = CliRunner().invoke(whole(), ["queue", "show", "q", "--details", "--url", broker.flight_url])
        assert "worker" in result.output
