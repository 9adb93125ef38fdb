"""`explain`: one sentence for every reason why a queue or a message is not being delivered now."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import penstock
from penstock.core.queue.explaining import told
from penstock.errors import NotFound
from penstock.testing import Broker
from scenario import amqp, broker_of, publish


def at(seconds: float) -> str:
    return told(round(seconds * 1e6))


def codes(broker: Broker, queue: str, bookmark: str | None = None) -> list[str]:
    return [reason.code for reason in broker.explain(queue, bookmark)]


def texts(broker: Broker, queue: str, bookmark: str | None = None) -> list[str]:
    return [reason.text for reason in broker.explain(queue, bookmark)]


def test_times_are_told_in_utc() -> None:
    assert told(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"
    assert datetime.fromisoformat(at(1e9)) == datetime.fromtimestamp(1e9, UTC)
    assert told(1 << 61) == f"{(1 << 61) // 1_000_000} s after 1970"


def test_an_empty_queue_and_a_queue_without_consumers() -> None:
    with broker_of({"name": "q"}) as broker:
        assert texts(broker, "q") == ["the queue is empty", "it has no consumer"]
        mark = broker.publish("q", "x")
        assert texts(broker, "q") == ["it has no consumer"]
        assert texts(broker, "q", mark) == ["it is ready", "it has no consumer"]


def test_nothing_holds_back_a_queue_that_could_deliver() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.subscribe("q", max_backlog=10)
        broker.publish("q", "x")
        assert codes(broker, "q") == ["none_ready", "leased"]


def test_no_credit() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.subscribe("q", max_backlog=1, name="worker")
        broker.publish("q", "x")
        mark = broker.publish("q", "y")
        assert broker.explain("q")[1].code == "no_credit"
        assert texts(broker, "q")[1] == "consumer 'worker' has no credit: it holds 1 of 1"
        assert codes(broker, "q", mark) == ["ready", "no_credit"]


def test_a_backlog_of_nothing() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.subscribe("q", max_backlog=0)
        broker.publish("q", "x")
        assert texts(broker, "q")[0].endswith("asked for a backlog of 0")


def test_max_backlog_reached() -> None:
    with broker_of({"name": "q", "max_backlog": 2}) as broker:
        broker.subscribe("q", max_backlog=9)
        for _ in range(3):
            broker.publish("q", "x")
        assert "its max_backlog of 2 is reached: 2 are outstanding" in texts(broker, "q")


def test_paused_until_a_time_or_a_word() -> None:
    with broker_of({"name": "q"}) as broker:
        mark = broker.publish("q", "x")
        broker.pause("q", 60)
        assert texts(broker, "q")[0] == f"the queue is paused until {at(broker.now() + 60)}"
        assert "paused" in codes(broker, "q", mark)
        broker.pause("q")
        assert texts(broker, "q")[0] == "the queue is paused until somebody resumes it"


def test_a_filter_that_matches_none() -> None:
    with broker_of({"name": "q"}) as broker:
        broker.subscribe("q", filter="/n > 5", max_backlog=5)
        mark = broker.publish("q", '{"n": 1}')
        assert texts(broker, "q") == ["the filter '/n > 5' matches none of the 1 that wait"]
        assert "the filter '/n > 5' does not match it" in texts(broker, "q", mark)


def test_delayed_until() -> None:
    with broker_of({"name": "q", "retry": {"initial": "30s", "jitter": 0.0, "attempts": 3}}) as broker:
        mark = broker.publish("q", "x", delay=20)
        due = at(broker.now() + 20)
        assert texts(broker, "q", mark) == [f"it is delayed until {due}"]
        assert f"1 message is delayed, the next until {due}" in texts(broker, "q")
        broker.advance(20)
        broker.subscribe("q").take()[0].cancel()
        assert texts(broker, "q", mark) == [
            f"it is delayed until {at(broker.now() + 30)}, after 1 failure; retry.attempts allows 3 deliveries"
        ]


def test_leased_by_whom_until_when() -> None:
    with broker_of({"name": "q", "lease_period": "45s"}, {"name": "for-ever"}) as broker:
        for queue, end in (
            ("q", f" until {at(broker.now() + 45)}, attempt 1"),
            ("for-ever", "lease has no end, attempt 1"),
        ):
            mark = broker.publish(queue, "x")
            broker.subscribe(queue, name="me")
            [text] = texts(broker, queue, mark)
            assert text.startswith("it is leased by consumer 'me'")
            assert text.endswith(end)


def test_behind_a_barrier() -> None:
    with broker_of({"name": "q", "barrier_expression": "/b = 1"}) as broker:
        broker.subscribe("q", max_backlog=1)
        broker.publish("q", '{"n": 1}')
        barrier = broker.publish("q", '{"b": 1}')
        behind = broker.publish("q", '{"n": 2}')
        lsn = barrier.split("|")[1]
        assert (
            f"the barrier at LSN {lsn} waits until all before it is settled, and holds back 1 message behind it"
            in texts(broker, "q")
        )
        assert texts(broker, "q", barrier) == ["it is a barrier, and waits until all before it is settled"]
        assert texts(broker, "q", behind) == [f"it is held back by the barrier at LSN {lsn}"]


def test_inactive_behind_the_target_depth() -> None:
    with broker_of({"name": "q", "target_queue_depth": 1000}) as broker:
        marks = [broker.publish("q", "x") for _ in range(1001)]
        assert texts(broker, "q", marks[-1]) == ["it is inactive behind the target depth of 1000"]
        assert "1 message is inactive behind the target depth of 1000" in texts(broker, "q")
        assert "1 message is ready before it" in texts(broker, "q", marks[1])


def test_settled_expired_dropped_and_purged_when_and_by_whom() -> None:
    with broker_of({"name": "q", "dead_letter_exchange": "", "dead_letter_routing_key": "d"}, {"name": "d"}) as broker:
        settled, expired, dropped, purged = (broker.publish("q", "x") for _ in range(4))
        now = at(broker.now())
        broker.ack("q", [settled], by="me")
        broker.ack("q", [expired], by="me", option="expire")
        broker.cancel_message(dropped)
        broker.command(lambda instance: instance.core.purge_queue(instance.engine.now(), instance.core.queue("/", "q")))
        assert texts(broker, "q", settled) == [f"it was settled {now} by 'me'"]
        letter = broker.story(expired)[-1].details["letters"][0]  # type: ignore[index]
        told = f"it was rejected {now} by 'me': forced_expire; what came of it is {letter}"
        assert texts(broker, "q", expired) == [told]
        assert texts(broker, "q", dropped) == [f"it was dropped {now} by 'test': cancelled"]
        assert texts(broker, "q", purged) == [f"it was purged {now}"]


def test_not_routed_to_this_queue() -> None:
    with broker_of({"name": "a"}, {"name": "b"}) as broker:
        mark = broker.publish("a", "x")
        assert texts(broker, "b", mark) == ["it was not routed to queue 'b'; it went to 'a'"]


def test_a_consumer_that_stands_by() -> None:
    with broker_of(
        {"name": "s", "single_active_consumer": True}, {"name": "n", "consumers_before_dispatch": 2}
    ) as broker:
        broker.subscribe("s", max_backlog=1, name="first")
        broker.subscribe("s", max_backlog=1, name="second")
        for _ in range(2):
            broker.publish("s", "x")
        assert "consumer 'second' waits: consumer 'first' is the single active consumer" in texts(broker, "s")
        broker.subscribe("n", name="alone")
        broker.publish("n", "x")
        assert "consumer 'alone' waits for other consumers: 1 of 2 are there" in texts(broker, "n")


def test_no_such_message() -> None:
    with broker_of({"name": "q"}) as broker:
        mark = broker.publish("q", "x")
        origin = mark.split("|")[0]
        assert codes(broker, "q", f"{origin}|1|") == ["unknown"]
        with penstock.connect(broker.flight_url) as client, pytest.raises(NotFound):
            client.explain("q", bookmark=10**9)


def test_a_connection_that_takes_no_more_and_prefetch_over_amqp() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None, consumer_tag="pika-1")
        publish(channel, "q", "one", "two")
        assert any("consumer 'pika-1'" in text and "it holds 1 of 1" in text for text in texts(broker, "q"))


def test_waiting_for_its_commit() -> None:
    """What is sent only when it is on the disk says so until it is."""
    from penstock.core.queue.explaining import explain_message

    with broker_of({"name": "q", "deliver": "durable"}) as broker:
        mark = broker.publish("q", "x")
        lsn = int(mark.split("|")[1])

        def look(instance: object) -> list[str]:
            core = instance.core  # type: ignore[attr-defined]
            queue = core.queue("/", "q")
            return [one.text for one in explain_message(queue, lsn, instance.engine.now(), lsn - 1)]  # type: ignore[attr-defined]

        assert f"it waits for its commit: the log is on disk up to LSN {lsn - 1}" in broker.command(look)


def test_by_the_sdk_for_a_queue_a_message_and_all_its_queues() -> None:
    with (
        Broker({"queue": [{"name": "a", "underlying_topic": "t"}, {"name": "b", "underlying_topic": "t"}]}) as broker,
        penstock.connect(broker.flight_url) as client,
    ):
        mark = broker.publish("t", "x", delay=5)
        broker.ack("a", [mark], by="me")
        assert client.explain("b")["reasons"][0] == {"code": "none_ready", "text": "nothing is ready"}
        told_ = client.explain(bookmark=mark)
        assert [(one["queue"], one["reasons"][0]["code"]) for one in told_["queues"]] == [
            ("b", "delayed"), ("a", "settled"),
        ]  # fmt: skip
        story = client.story(mark)
        assert [event["event"] for event in story["events"]] == ["published", "settled"]
        assert not story["whole"]
        client.cancel(mark)
        assert client.story(mark)["whole"]
        assert client.story(mark)["events"][-1]["details"] == {"reason": "cancelled", "by": "guest"}
