"""A queue is paused: nothing is delivered, publishes go on, it ends by itself or by a word, and it lasts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import penstock
from penstock.errors import InvalidArgument
from penstock.testing import Broker
from scenario import amqp, bodies, broker_of, get, publish


def test_nothing_is_delivered_while_publishes_go_on() -> None:
    with broker_of({"name": "q"}) as broker:
        subscription = broker.subscribe("q", max_backlog=10)
        broker.pause("q")
        broker.publish("q", "one")
        broker.publish("q", "two")
        assert subscription.take() == []
        assert (broker.stats("q")["ready"], broker.stats("q")["paused"]) == (2, True)
        assert broker.resume("q")
        assert bodies(subscription.take()) == [b"one", b"two"]
        assert not broker.resume("q")


def test_it_ends_by_itself_at_its_time() -> None:
    with broker_of({"name": "q"}) as broker:
        subscription = broker.subscribe("q", max_backlog=10)
        broker.pause("q", 60)
        broker.publish("q", "one")
        assert broker.stats("q")["paused_until"] == broker.now() + 60
        broker.advance(59.9)
        assert subscription.take() == []
        broker.advance(0.1)
        assert bodies(subscription.take()) == [b"one"]
        assert not broker.stats("q")["paused"]


def test_a_time_and_a_duration_at_once_are_refused() -> None:
    with broker_of({"name": "q"}) as broker:
        until = broker.clock.wall() + 60_000_000
        with pytest.raises(InvalidArgument, match="`until`, or how long to `wait`"):
            broker.act("pause", queue="q", until=until, wait=5_000_000)
        assert not broker.stats("q")["paused"]


def test_get_and_consume_alike_get_nothing_over_amqp() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        publish(channel, "q", "one")
        broker.pause("q")
        assert get(channel, "q") is None
        broker.resume("q")
        assert get(channel, "q") == b"one"


@pytest.mark.parametrize("clean", [True, False])
def test_it_outlives_a_restart_and_a_crash(clean: bool) -> None:
    with broker_of({"name": "q"}, {"name": "r"}) as broker:
        broker.pause("q")
        broker.pause("r", 30)
        broker.publish("q", "one")
        broker.publish("r", "two")
        if not clean:
            broker.crash()
        broker.restart()
        on_q, on_r = broker.subscribe("q"), broker.subscribe("r")
        assert on_q.take() == on_r.take() == []
        broker.advance(30)
        assert (bodies(on_q.take()), bodies(on_r.take())) == ([], [b"two"])
        broker.restart()
        assert not broker.stats("r")["paused"]
        broker.resume("q")
        assert bodies(broker.subscribe("q").take()) == [b"one"]


def test_a_pause_that_ended_while_the_server_was_down_is_over() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.pause("q", 30)
        broker.publish("q", "one")
        broker.crash()
        broker.advance(31)
        broker.restart()
        assert bodies(broker.subscribe("q").take()) == [b"one"]
        assert not broker.stats("q")["paused"]


def test_acks_delays_and_expiry_go_on() -> None:
    with broker_of({"name": "q"}) as broker:
        held = broker.subscribe("q", max_backlog=1)
        broker.publish("q", "held")
        [message] = held.take()
        broker.publish("q", "short", expiration=5)
        broker.publish("q", "late", delay=5)
        broker.pause("q")
        assert message.ack()
        broker.advance(5.1)
        assert (broker.stats("q")["ready"], broker.stats("q")["delayed"]) == (1, 0)
        broker.resume("q")
        assert bodies(held.take()) == [b"late"]


@pytest.mark.parametrize(
    "settings",
    [
        {"priority_expression": "/p"}, {"barrier_expression": "/b = 1"}, {"target_queue_depth": 1000},
        {"semantics": "at-most-once", "fairness_model": "round-robin"}, {"max_backlog": 2},
    ],
)  # fmt: skip
def test_every_kind_of_queue_obeys(settings: dict[str, object]) -> None:
    with broker_of({"name": "q", **settings}) as broker:
        plain, some = broker.subscribe("q", max_backlog=5), broker.subscribe("q", filter="/p > 1", max_backlog=5)
        broker.pause("q")
        for n in range(4):
            broker.publish("q", f'{{"p": {n}, "b": {int(n == 2)}}}')
        assert plain.take() == some.take() == []
        broker.resume("q")
        assert plain.take() + some.take()


def test_a_time_that_is_over_is_refused() -> None:
    said = r"cannot be paused until \d{4}-\S+Z: it is \d{4}-\S+Z now"
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as client:
        with pytest.raises(InvalidArgument, match=said):
            client.pause("q", datetime(2020, 1, 1, tzinfo=UTC))
        assert not client.queue("q")["paused"]


def test_no_time_at_all_is_refused() -> None:
    said = "seconds is 0, which is not between 1us and 1,000 years"
    with broker_of({"name": "q"}) as broker, pytest.raises(InvalidArgument, match=said):
        broker.pause("q", 0)


def test_by_the_sdk() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as client:
        assert client.pause("q")["paused_until"] is None
        assert client.queue("q")["paused"]
        assert client.resume("q")
        client.pause("q", "1m")
        assert client.queue("q")["paused_until"] == pytest.approx(broker.now() + 60)
        broker.advance(60)
        assert not client.resume("q")
