"""Configuration reference of queues, element by element: leases, limits, order and recovery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.log.log import Log
from penstock.log.reader import Rows
from penstock.testing import Broker
from scenario import Worker, amqp, bodies, broker_of, publish, waiting

WORK = {"name": "Work"}


# --- leases ---------------------------------------------------------------------------------------------------------


def test_a_publish_to_the_queue_is_one_to_its_topic() -> None:
    with broker_of({"name": "q", "underlying_topic": "Work"}, {"name": "other", "underlying_topic": "Work"}) as broker:
        broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        assert (message.queue, message.topic) == ("q", "Work")
        assert bodies(broker.subscribe("other").take()) == [b"one"]


def test_a_message_whose_lease_has_ended_goes_to_another_in_its_old_place() -> None:
    with broker_of({"name": "q", "lease_period": "30s", "fairness_model": "fast"}) as broker:
        slow = broker.subscribe("q", name="slow")
        for n in range(3):
            broker.publish("q", f"{n}")
        assert bodies(slow.take()) == [b"0"]
        slow.replace(max_backlog=0)
        broker.advance(30)
        assert slow.take() == []
        other = broker.subscribe("q", max_backlog=3, name="other")
        taken = other.take()
        assert [(message.body, message.attempt) for message in taken] == [(b"0", 2), (b"1", 1), (b"2", 1)]


def test_a_lease_runs_from_the_sending_and_not_from_the_publish() -> None:
    with broker_of({"name": "q", "lease_period": "30s"}) as broker:
        broker.publish("q", b"one")
        broker.advance(25)
        worker = broker.subscribe("q")
        [message] = worker.take()
        assert message.lease_until == broker.now() + 30
        broker.advance(29)
        assert worker.take() == []
        broker.advance(1)
        [again] = worker.take()
        assert (again.attempt, again.lease_until) == (2, broker.now() + 30)


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_a_message_is_with_one_subscriber_at_a_time(semantics: str) -> None:
    with broker_of({"name": "q", "semantics": semantics}) as broker:
        workers = [broker.subscribe("q", max_backlog=10, name=f"w{n}") for n in range(3)]
        for n in range(9):
            broker.publish("q", f"{n}")
        inboxes = [bodies(worker.take()) for worker in workers]
        assert sorted(body for inbox in inboxes for body in inbox) == [b"%d" % n for n in range(9)]
        assert all(inboxes)
        assert [worker.take() for worker in workers] == [[], [], []]


def test_nobody_is_told_of_an_expiration_during_a_lease() -> None:
    with broker_of({"name": "q", "expiration": "10s"}) as broker, amqp(broker) as channel:
        publish(channel, "q", "one")
        worker = Worker(channel, "q")
        [(method, _)] = worker.take(1)
        broker.advance(60)
        assert worker.nothing()
        channel.basic_ack(method.delivery_tag)
        assert worker.nothing()
        assert broker.stats("q")["acked"] == 1


# --- limits and defaults --------------------------------------------------------------------------------------------


def test_a_backlog_limits_what_is_held_and_not_what_waits() -> None:
    with broker_of({"name": "q", "max_backlog": 3, "max_per_subscription_backlog": 2}) as broker:
        worker = broker.subscribe("q", max_backlog=10)
        for n in range(500):
            assert broker.publish("q", f"{n}")
        assert len(worker.take()) == 2
        assert (broker.stats("q")["leased"], broker.stats("q")["ready"]) == (2, 498)
        assert len(broker.subscribe("q", max_backlog=10).take()) == 1
        assert (broker.stats("q")["leased"], broker.stats("q")["ready"]) == (3, 497)


def test_without_a_backlog_of_the_queue_all_may_be_held() -> None:
    with broker_of({"name": "q"}) as broker:
        for n in range(500):
            broker.publish("q", f"{n}")
        assert len(broker.subscribe("q", max_backlog=300).take()) == 300
        assert len(broker.subscribe("q", max_backlog=None).take()) == 200


def test_the_expiration_of_the_message_counts_unless_a_model_says_otherwise() -> None:
    with broker_of({"name": "q", "expiration": "10s"}) as broker:
        broker.publish("q", b"long", expiration=20)
        broker.publish("q", b"short", expiration=5)
        broker.publish("q", b"none")
        seen = list[list[bytes]]()
        for _ in range(4):
            seen.append(waiting(broker, "q"))
            broker.advance(5)
        assert seen == [[b"long", b"short", b"none"], [b"long", b"none"], [b"long"], [b"long"]]
        assert waiting(broker, "q") == []


def test_a_filter_is_for_its_own_queue_and_without_one_everything_enters() -> None:
    filtered: dict[str, object] = {"name": "few", "underlying_topic": "Work", "filter": "/n = 1"}
    with broker_of(filtered, {"name": "all", "underlying_topic": "Work"}) as broker:
        texts = [b'{"n": 1}', b'{"n": 2}', b"no json", b""]
        for text in texts:
            broker.publish("Work", text)
        assert waiting(broker, "all") == texts
        assert waiting(broker, "few") == texts[:1]


@pytest.mark.parametrize(
    ("semantics", "shares"), [("at-least-once", [1, 2, 3]), ("at-most-once", [2, 2, 2])], ids=["least", "most"]
)
def test_the_default_is_proportional_and_round_robin_where_it_is_at_most_once(
    semantics: str, shares: list[int]
) -> None:
    with broker_of({"name": "q", "semantics": semantics}) as broker:
        subscriptions = [broker.subscribe("q", max_backlog=backlog) for backlog in (2, 4, 8)]
        for n in range(6):
            broker.publish("q", f"{n}")
        assert [len(one.take()) for one in subscriptions] == shares


@pytest.mark.parametrize("clean", [True, False])
def test_deliveries_are_counted_over_a_restart(clean: bool) -> None:
    with broker_of({"name": "q", "max_deliveries": 2, "lease_period": "30s"}) as broker:
        mark = broker.publish("q", b"poison")
        [first] = broker.subscribe("q").take()
        first.cancel()
        if not clean:
            broker.crash()
        broker.restart()
        assert broker.subscribe("q", name="second").take() == []
        last = broker.story(mark)[-1]
        assert (last.event, last.details["reason"]) == ("delivery_limit", "max_deliveries")


# --- order, barriers and depth --------------------------------------------------------------------------------------


def test_a_priority_is_a_whole_number_of_64_bits_and_the_three_highest_are_one() -> None:
    values = [2**63, 2**64 - 4, 2**63 - 1, 1, 2**63 + 1, 2**64 - 3]
    with broker_of({"name": "q", "priority_expression": "/p"}) as broker:
        for value in [*values, 2**64 - 1, 2**64 - 2]:
            broker.publish("q", f'{{"p": {value}}}')
        taken = [message.json()["p"] for message in broker.subscribe("q", max_backlog=10).take()]
        assert taken[:3] == [2**64 - 3, 2**64 - 1, 2**64 - 2]  # alike, so the older first
        assert taken[3:] == sorted(values, reverse=True)[1:]


def test_what_is_inactive_is_not_read_and_later_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = list[int]()
    read = Log.read

    def reading(log: Log, lsns: Sequence[int], *options: Any, **named: Any) -> Rows:
        looked_at.extend(lsns)
        return read(log, lsns, *options, **named)

    monkeypatch.setattr(Log, "read", reading)
    with broker_of({"name": "q", "target_queue_depth": 1000}) as broker:
        marks = [broker.publish("q", b'{"n": %d}' % n) for n in range(1500)]
        positions = [int(mark.split("|")[1]) for mark in marks]
        broker.restart()  # nothing is in memory
        assert broker.stats("q")["inactive"] == 500
        worker = broker.subscribe("q", max_backlog=2000)
        taken = worker.take()
        assert sorted(looked_at) == positions[:1000]
        for message in taken[:300]:
            message.ack()
        assert len(worker.take()) == 300
        assert sorted(looked_at) == positions[:1300]


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_does_not_ask_again_what_is_a_barrier(clean: bool) -> None:
    queue: dict[str, object] = {"name": "q", "barrier_expression": "/isSyncPoint IS NOT NULL"}
    with broker_of(queue) as broker:
        for text in (b'{"n": 1}', b'{"isSyncPoint": 1}', b'{"other": 1}'):
            broker.publish("q", text)
        if not clean:
            broker.crash()
        broker.restart({"queue": [{**queue, "barrier_expression": "/other IS NOT NULL"}]})
        one, two = (broker.subscribe("q", max_backlog=5, name=name) for name in ("one", "two"))
        [first] = [*one.take(), *two.take()]
        assert first.body == b'{"n": 1}'
        first.ack()
        inboxes = [bodies(worker.take()) for worker in (one, two)]
        assert [inbox[0] for inbox in inboxes] == [b'{"isSyncPoint": 1}'] * 2  # it was one as it entered
        assert [body for inbox in inboxes for body in inbox[1:]] == [b'{"other": 1}']  # and this was none


# --- recovery -------------------------------------------------------------------------------------------------------


def test_creation_is_the_time_when_the_queue_was_created() -> None:
    queue = {"name": "q", "underlying_topic": "Work", "recovery_point": "creation"}
    with broker_of(topic=[WORK]) as broker:
        broker.publish("Work", b"before")
        for body in (b"1", b"2"):
            broker.restart({"topic": [WORK], "queue": [queue]})
            broker.publish("Work", body)
        assert waiting(broker, "q") == [b"1", b"2"]  # also what came before the second start


def test_now_does_not_count_again_at_the_next_start() -> None:
    settings: dict[str, Any] = {
        "topic": [WORK],
        "queue": [{"name": "q", "underlying_topic": "Work", "recovery_point": "now"}],
    }
    with Broker(settings) as broker:
        for n in range(3):
            broker.publish("Work", f"{n}")
        [message] = broker.subscribe("q").take()
        message.ack()
        broker.restart(settings)
        assert broker.instance is not None
        assert broker.instance.recovered_records == 0  # from the saved state, not from the log
        assert waiting(broker, "q") == [b"1", b"2"]
