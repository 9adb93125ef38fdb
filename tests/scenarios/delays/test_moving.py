"""What waits can be withdrawn and moved to another time, and only while it waits."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import PreconditionFailed
from penstock.testing import Broker
from scenario import bodies, broker_of


def test_a_delayed_message_is_withdrawn() -> None:
    with broker_of({"name": "q", "dead_letter_exchange": "", "dead_letter_routing_key": "d"}, {"name": "d"}) as broker:
        mark = broker.publish("q", "later", delay=3600)
        assert broker.cancel_message(mark) == ["q"]
        assert broker.stats("q")["delayed"] == broker.stats("d")["ready"] == 0
        broker.advance(3600)
        assert broker.subscribe("q").take() == []
        assert [event.event for event in broker.story(mark)] == ["published", "dropped"]
        assert broker.story(mark)[-1].details["reason"] == "cancelled"


def test_a_message_that_is_ready_is_withdrawn_from_all_its_queues_or_from_one() -> None:
    with broker_of(*({"name": name, "underlying_topic": "t"} for name in "abc")) as broker:
        mark = broker.publish("t", "x")
        assert broker.cancel_message(mark, "b") == ["b"]
        assert broker.cancel_message(mark) == ["a", "c"]


def test_what_is_leased_settled_or_withdrawn_cannot_be_withdrawn() -> None:
    with broker_of({"name": "q"}) as broker:
        mark = broker.publish("q", "x")
        [message] = broker.subscribe("q").take()
        for _ in range(2):
            with pytest.raises(PreconditionFailed):
                broker.cancel_message(mark)
            with pytest.raises(PreconditionFailed):
                broker.reschedule_message(mark, 5)
            message.ack()


def test_a_message_is_moved_to_a_later_and_to_an_earlier_time() -> None:
    with broker_of({"name": "q"}) as broker:
        subscription = broker.subscribe("q", max_backlog=10)
        first, second = broker.publish("q", "first", delay=10), broker.publish("q", "second", delay=20)
        broker.reschedule_message(first, 30)
        broker.reschedule_message(second, 5)
        broker.advance(5)
        assert bodies(subscription.take()) == [b"second"]
        broker.advance(24)
        assert subscription.take() == []
        broker.advance(1)
        assert bodies(subscription.take()) == [b"first"]


def test_now_is_a_time_too() -> None:
    with broker_of({"name": "q"}) as broker:
        subscription = broker.subscribe("q")
        mark = broker.publish("q", "x", delay=1e6)
        broker.reschedule_message(mark, 0)
        assert bodies(subscription.take()) == [b"x"]


def test_a_message_that_is_ready_goes_away_until_then() -> None:
    with broker_of({"name": "q"}) as broker:
        marks = [broker.publish("q", text) for text in ("a", "b", "c")]
        broker.reschedule_message(marks[0], 10)
        assert (broker.stats("q")["ready"], broker.stats("q")["delayed"]) == (2, 1)
        broker.advance(10)
        assert bodies(broker.subscribe("q", max_backlog=5).take()) == [b"b", b"c", b"a"]


def test_a_message_in_its_back_off_keeps_its_attempts_and_its_place() -> None:
    with broker_of({"name": "q", "retry": {"initial": "60s", "jitter": 0.0}}) as broker:
        subscription = broker.subscribe("q", max_backlog=2)
        mark = broker.publish("q", "failed")
        subscription.take()[0].cancel()
        subscription.close()
        broker.publish("q", "newer")
        broker.reschedule_message(mark, 1)
        broker.advance(1)
        found = broker.subscribe("q", max_backlog=2).take()
        assert [(message.body, message.attempt) for message in found] == [(b"failed", 2), (b"newer", 1)]


@pytest.mark.parametrize("clean", [True, False])
def test_it_outlives_a_restart_and_a_crash(clean: bool) -> None:
    with broker_of({"name": "q"}) as broker:
        gone, moved = broker.publish("q", "gone", delay=5), broker.publish("q", "moved", delay=5)
        ready = broker.publish("q", "ready")
        broker.cancel_message(gone)
        broker.reschedule_message(moved, 50)
        broker.reschedule_message(ready, 20)
        if not clean:
            broker.crash()
        broker.restart()
        subscription = broker.subscribe("q", max_backlog=5)
        broker.advance(19)
        assert subscription.take() == []
        broker.advance(1)
        assert bodies(subscription.take()) == [b"ready"]
        broker.advance(30)
        assert bodies(subscription.take()) == [b"moved"]


def test_by_the_sdk_with_a_sentence_for_what_does_not_wait() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as client:
        mark = broker.publish("q", "x", delay=60)
        lsn = int(mark.split("|")[1])
        assert client.reschedule(mark, "10s")["queues"] == ["q"]
        assert client.reschedule(lsn, 0)["queues"] == ["q"]
        subscription = broker.subscribe("q", name="me")
        [message] = subscription.take()
        with pytest.raises(PreconditionFailed, match="queue 'q': it is leased by consumer .* attempt 1"):
            client.cancel(mark)
        message.ack()
        with pytest.raises(PreconditionFailed, match=f"LSN {lsn} does not wait: queue 'q': it was settled .* by 'me'"):
            client.cancel(lsn)
