"""Failed messages: the back-off and who may change it, the order afterwards, attempts and reasons that last."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.queue.settling.attempts import back_off
from penstock.records.queue_settings import Retry
from penstock.testing import Broker
from scenario import bodies, broker_of

RETRY = {"initial": "2s", "factor": 3.0, "max": "10s", "jitter": 0.0}


def waits(broker: Broker, queue: str, mark: str) -> float:
    return float(broker.story(mark)[-1].details["not_before"]) - broker.now()  # type: ignore[arg-type]


def test_the_delay_grows_by_its_factor_up_to_its_maximum() -> None:
    with broker_of({"name": "q", "retry": RETRY}) as broker:
        subscription = broker.subscribe("q")
        mark = broker.publish("q", "x")
        for expected in (2, 6, 10, 10):
            subscription.take()[0].retry()
            assert waits(broker, "q", mark) == pytest.approx(expected)
            broker.advance(expected)


@pytest.mark.parametrize("jitter", [0.0, 0.2, 1.0])
def test_jitter_takes_or_adds_at_most_its_share_and_is_the_same_each_time(jitter: float) -> None:
    retry = Retry(1_000_000, 2.0, 1 << 40, jitter)
    found = [back_off(retry, 3, 1, lsn) for lsn in range(2000)]
    assert all(4e6 * (1 - jitter) <= one <= 4e6 * (1 + jitter) for one in found)
    assert found == [back_off(retry, 3, 1, lsn) for lsn in range(2000)]
    if jitter:
        assert max(found) - min(found) > 4e6 * jitter * 1.9


def test_attempts_allow_so_many_deliveries_in_all() -> None:
    with broker_of(
        {"name": "q", "retry": {**RETRY, "attempts": 3}, "dead_letter_exchange": "", "dead_letter_routing_key": "d"},
        {"name": "d"},
    ) as broker:
        subscription = broker.subscribe("q")
        broker.publish("q", "x")
        for attempt in (1, 2, 3):
            [message] = subscription.take()
            assert message.attempt == attempt
            message.retry()
            broker.advance(10)
        [letter] = broker.subscribe("d").take()
        assert letter.headers["x-death"][0]["reason"] == "delivery_limit"  # type: ignore[index, call-overload]


def test_the_smallest_of_several_limits_wins_and_is_named() -> None:
    with broker_of(
        {"name": "q", "retry": {**RETRY, "attempts": 5}, "delivery_limit": 2, "max_deliveries": 4}
    ) as broker:
        subscription = broker.subscribe("q")
        mark = broker.publish("q", "x")
        subscription.take()[0].retry()
        assert broker.explain("q", mark)[0].text.endswith("after 1 failure; delivery_limit allows 3 deliveries")


def test_a_consumer_names_its_own_delay() -> None:
    with broker_of({"name": "q", "retry": RETRY}) as broker:
        subscription = broker.subscribe("q")
        mark = broker.publish("q", "x")
        subscription.take()[0].retry(delay=77)
        assert waits(broker, "q", mark) == pytest.approx(77)
        broker.advance(77)
        subscription.take()[0].retry(delay=0)
        assert subscription.take()[0].attempt == 3


def test_what_comes_back_takes_its_own_place() -> None:
    with broker_of({"name": "q", "retry": RETRY}) as broker:
        subscription = broker.subscribe("q", max_backlog=3)
        for text in "abc":
            broker.publish("q", text)
        first, second, third = subscription.take()
        third.retry(delay=1)
        first.retry(delay=2)
        second.ack()
        subscription.close()
        broker.publish("q", "d")
        broker.advance(5)
        assert bodies(broker.subscribe("q", max_backlog=9).take()) == [b"a", b"c", b"d"]


@pytest.mark.parametrize("clean", [True, False])
def test_attempts_back_off_and_reasons_last(clean: bool) -> None:
    with broker_of({"name": "q", "retry": RETRY}) as broker:
        mark = broker.publish("q", "x")
        broker.subscribe("q", name="me").take()[0].retry(delay=60, error="no route to host")
        if not clean:
            broker.crash()
        broker.restart()
        assert broker.stats("q")["delayed"] == 1
        [returned] = [event for event in broker.story(mark) if event.event == "returned"]
        assert returned.details["why"] == "no route to host"
        assert (returned.details["cause"], returned.details["failed"]) == ("cancel", True)
        broker.advance(60)
        [message] = broker.subscribe("q").take()
        assert message.attempt == 2
        message.reject(reason="gave up")
        assert broker.story(mark)[-1].details["reason"] == "gave up"


def test_the_sdk_says_delay_error_and_reason_too() -> None:
    with Broker({"queue": [{"name": "q", "retry": RETRY}]}) as broker, penstock.connect(broker.flight_url) as client:
        mark = broker.publish("q", "x")
        with client.consume("q", timeout=20) as consumer:
            message = next(iter(consumer))
            message.retry(delay="30s", error="later, please")
        events = client.story(mark)["events"]
        returned = next(event for event in events if event["event"] == "returned")
        assert returned["details"]["why"] == "later, please"
        assert returned["details"]["not_before"] == pytest.approx(broker.now() + 30, abs=1)
