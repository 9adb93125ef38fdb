"""User guide, "Message flow": the steps of both kinds of queues, from the publish to the end of a message."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from penstock.testing import Broker
from scenario import Worker, amqp, bodies, broker_of, get, waiting

ONCE: dict[str, Any] = {"name": "q", "semantics": "at-most-once"}
LEAST: dict[str, Any] = {"name": "q", "lease_period": "30s"}
POINT = b'{"isSyncPoint": 1}'

both = pytest.mark.parametrize("settings", [ONCE, LEAST], ids=["at-most-once", "at-least-once"])


def numbered(number: int) -> bytes:
    return b'{"n": %d}' % number


# --- who gets which message -------------------------------------------------------------------------------------------


@both
def test_a_publish_to_the_topic_is_available_in_the_queue(settings: dict[str, Any]) -> None:
    with broker_of({**settings, "underlying_topic": "Work"}) as broker:
        assert waiting(broker, "q") == []
        broker.publish("Work", b"job")
        assert waiting(broker, "q") == [b"job"]
        assert bodies(broker.subscribe("q").take()) == [b"job"]


@both
def test_a_message_goes_to_a_subscription_that_matches(settings: dict[str, Any]) -> None:
    with broker_of(settings) as broker:
        second = broker.subscribe("q", filter="/n = 2", max_backlog=10)
        for n in (1, 2):
            broker.publish("q", numbered(n))
        assert bodies(second.take()) == [numbered(2)]
        assert waiting(broker, "q") == [numbered(1)]


@both
def test_a_message_goes_to_a_subscription_whose_user_may_see_it(settings: dict[str, Any]) -> None:
    config = {
        "user": [{"name": name, "password": "p"} for name in ("admin", "north")],
        "queue": [settings],
        "entitlement": [
            {"user": "admin", "read": True, "write": True},
            {"user": "north", "queue": "q", "read": "/region = 'n'"},
        ],
    }
    with Broker(config) as broker:
        parts = urlsplit(broker.amqp_url)
        url = f"amqp://north:p@{parts.hostname}:{parts.port}/%2F"
        connection = pika.BlockingConnection(pika.URLParameters(url))
        worker = Worker(connection.channel(), "q", x_max_backlog=10)
        broker.publish("q", b'{"region": "s"}')
        broker.publish("q", b'{"region": "n"}')
        assert worker.take(1)[0][1] == b'{"region": "n"}'
        assert worker.nothing()
        assert waiting(broker, "q") == [b'{"region": "s"}']
        connection.close()


@both
def test_of_those_that_match_the_oldest_goes_first(settings: dict[str, Any]) -> None:
    with broker_of(settings) as broker:
        for n in range(6):
            broker.publish("q", numbered(n))
        odd = broker.subscribe("q", filter="/n IN (1, 3, 5)")
        for n in (1, 3, 5):
            [message] = odd.take()
            assert message.body == numbered(n)
            message.ack()


@both
def test_with_priorities_the_oldest_of_the_highest_goes_first(settings: dict[str, Any]) -> None:
    with broker_of({**settings, "priority_expression": "/p"}) as broker:
        texts = [b'{"p": %d, "n": %d}' % (p, n) for n, p in enumerate((1, 9, 5, 9))]
        for text in texts:
            broker.publish("q", text)
        worker = broker.subscribe("q", max_backlog=10)
        assert bodies(worker.take()) == [texts[1], texts[3], texts[2], texts[0]]


@both
def test_a_message_waits_for_room_in_the_backlog(settings: dict[str, Any]) -> None:
    with broker_of(settings) as broker:
        worker = broker.subscribe("q", max_backlog=2)
        for n in range(3):
            broker.publish("q", numbered(n))
        first, second = worker.take()
        assert (first.body, second.body) == (numbered(0), numbered(1))
        assert waiting(broker, "q") == [numbered(2)]
        second.ack()
        assert bodies(worker.take()) == [numbered(2)]


@both
def test_a_barrier_waits_for_every_ack_and_what_follows_waits_for_it(settings: dict[str, Any]) -> None:
    with broker_of({**settings, "barrier_expression": "/isSyncPoint IS NOT NULL"}) as broker:
        worker = broker.subscribe("q", max_backlog=10)
        for body in (numbered(1), numbered(2), POINT, numbered(3)):
            broker.publish("q", body)
        first, second = worker.take()
        second.ack()
        assert worker.take() == []
        first.ack()
        assert bodies(worker.take()) == [POINT, numbered(3)]


# --- how a message comes back and how it ends -------------------------------------------------------------------------


def test_a_lease_that_ends_gives_the_message_to_another() -> None:
    with broker_of({**LEAST, "fairness_model": "round-robin"}) as broker:
        first, second = (broker.subscribe("q", name=name) for name in ("first", "second"))
        broker.publish("q", b"job")
        assert bodies(first.take()) == [b"job"]
        broker.advance(29)
        assert second.take() == []
        broker.advance(1)
        [again] = second.take()
        assert (again.body, again.redelivered) == (b"job", True)
        broker.advance(29)
        assert again.ack()  # within the lease: nobody gets it any more
        broker.advance(60)
        assert first.take() == second.take() == []


def test_a_get_leaves_the_message_where_it_is_until_it_is_acknowledged() -> None:
    with broker_of(LEAST) as broker:
        broker.publish("q", b"insert")
        for _ in range(2):
            with amqp(broker) as channel:
                assert get(channel, "q", ack=False) == b"insert"
        with amqp(broker) as channel:
            assert [get(channel, "q"), get(channel, "q")] == [b"insert", None]


@pytest.mark.parametrize("end", ["ack", "expire", "time"])
def test_it_comes_again_until_it_is_acknowledged_removed_or_expired(end: str) -> None:
    with broker_of({**LEAST, "expiration": "5m"}) as broker:
        broker.publish("q", b"job")
        worker = broker.subscribe("q")
        for attempt in (1, 2, 3):
            [message] = worker.take()
            assert (message.body, message.attempt) == (b"job", attempt)
            broker.advance(30)
        [message] = worker.take()
        if end == "time":
            broker.advance(300)
            assert worker.take()  # until then it came at the end of each lease
        else:
            assert getattr(message, end)()
        broker.advance(60)
        assert worker.take() == []
        assert (broker.stats("q")["ready"], broker.stats("q")["leased"]) == (0, 0)


def test_beyond_its_expiration_a_message_goes_unless_it_is_leased() -> None:
    with broker_of({**LEAST, "lease_period": "1h", "expiration": "45s"}) as broker:
        worker = broker.subscribe("q")
        broker.publish("q", b"held")
        broker.publish("q", b"waits")
        [held] = worker.take()
        broker.advance(44)
        assert waiting(broker, "q") == [b"waits"]
        broker.advance(1)
        assert waiting(broker, "q") == []
        assert broker.stats("q")["leased"] == 1
        assert held.ack()


@pytest.mark.parametrize(("after", "again"), [(44, [b"job"]), (45, [])])
def test_a_cancel_gives_back_only_what_has_not_expired(after: float, again: list[bytes]) -> None:
    with broker_of({**LEAST, "lease_period": "1h", "expiration": "45s"}) as broker:
        broker.publish("q", b"job")
        worker = broker.subscribe("q")
        [message] = worker.take()
        broker.advance(after)
        assert message.cancel()
        assert bodies(worker.take()) == again
        assert broker.stats("q")["leased"] == len(again)


def test_a_job_is_acknowledged_when_the_next_queue_answers_for_it() -> None:
    with broker_of(LEAST, {"name": "next"}) as broker:
        broker.publish("q", b"job")
        broker.subscribe("q", name="first").take()
        broker.disconnect("first")  # before it handed the job on: nothing is lost
        [job] = broker.subscribe("q", name="second").take()
        broker.publish("next", job.body)
        assert job.ack()
        broker.crash()
        broker.restart()
        assert waiting(broker, "q") == []
        assert waiting(broker, "next") == [b"job"]
