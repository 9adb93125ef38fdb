"""Queues that let no duplicates in: by the keys that they took of late, by the keys of what they have."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.testing import Broker


def told(number: object) -> bytes:
    return b'{"id": %s}' % str(number).encode()


def window(**settings: object) -> Broker:
    return Broker({"queue": [{"name": "q", "dedup_key": "/id", "dedup_window": "1m", **settings}]})


def unique(**settings: object) -> Broker:
    return Broker({"queue": [{"name": "q", "dedup_key": "/id", "unique": True, **settings}]})


def waiting(broker: Broker, queue: str = "q") -> list[bytes]:
    return [record.body for record in broker.sow(queue)]


def again(broker: Broker, how: str) -> None:
    if how == "crash":
        broker.crash()
    broker.restart()


def test_a_key_that_was_taken_of_late_does_not_enter() -> None:
    with window() as broker:
        for number in (1, 2, 1, 3, 2):
            broker.publish("q", told(number))
        assert waiting(broker) == [told(1), told(2), told(3)]
        stats = broker.stats("q")
        assert (stats["duplicates"], stats["dedup_keys"]) == (2, 3)
        assert 0 < int(str(stats["dedup_bytes"])) <= 3 * 160


def test_the_window_ends_and_begins_anew() -> None:
    with window() as broker:
        broker.publish("q", told(1))
        broker.advance(59.0)
        broker.publish("q", told(1))
        assert len(waiting(broker)) == 1
        broker.advance(1.0)
        broker.publish("q", told(1))
        broker.publish("q", told(1))
        assert len(waiting(broker)) == 2


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_the_window_outlives_a_restart_and_the_message(how: str) -> None:
    with window() as broker:
        broker.publish("q", told(1))
        [message] = broker.subscribe("q").take()
        message.ack()
        again(broker, how)
        broker.publish("q", told(1))
        broker.publish("q", told(2))
        assert waiting(broker) == [told(2)]
        broker.advance(61.0)
        broker.publish("q", told(1))
        assert waiting(broker) == [told(2), told(1)]


def test_without_a_key_a_message_is_no_duplicate() -> None:
    with window() as broker:
        for _ in range(2):
            broker.publish("q", b"no json")
            broker.publish("q", told("null"))
        assert broker.stats("q")["ready"] == 4


def test_the_header_is_the_key_where_there_is_a_window() -> None:
    with window() as broker:
        broker.publish("q", told(1), headers={"x-dedup-key": "a"})
        broker.publish("q", told(2), headers={"x-dedup-key": "a"})
        broker.publish("q", told(1))
        broker.publish("q", told(3), headers={"x-dedup-key": 1})
        assert waiting(broker) == [told(1), told(1)]
    with Broker({"queue": [{"name": "q", "dedup_window": "1m"}, {"name": "plain"}]}) as broker:
        for queue in ("q", "plain"):
            for body in (b"a", b"b"):
                broker.publish(queue, body, headers={"x-dedup-key": "k"})
        assert waiting(broker) == [b"a"]
        [first, _] = broker.subscribe("plain", max_backlog=2).take()
        assert first.headers["x-dedup-key"] == "k"


def test_other_queues_of_the_publish_take_it() -> None:
    with Broker(
        {
            "queue": [
                {"name": "q", "dedup_key": "/id", "dedup_window": "1m"},
                {"name": "all", "underlying_topic": "q"},
            ]
        }
    ) as broker:
        assert broker.publish("q", told(1))
        assert broker.publish("q", told(1))
        assert len(waiting(broker)) == 1
        assert len(waiting(broker, "all")) == 2


def test_the_publisher_is_told_that_it_was_a_duplicate() -> None:
    with window() as broker:
        assert broker.publish("q", told(1))
        assert broker.publish("q", told(1)) == ""


@pytest.mark.parametrize("how", ["", "crash", "restart"])
def test_unique_holds_while_queued_and_while_leased_and_ends_with_the_ack(how: str) -> None:
    with unique() as broker:
        broker.publish("q", told(1))
        broker.publish("q", told(1))
        if how:
            again(broker, how)
            broker.publish("q", told(1))
        assert waiting(broker) == [told(1)]
        [message] = broker.subscribe("q", max_backlog=1).take()
        broker.publish("q", told(1))
        assert (broker.stats("q")["ready"], broker.stats("q")["leased"]) == (0, 1)
        message.ack()
        broker.publish("q", told(1))
        assert broker.stats("q")["leased"] == 1


def test_what_comes_back_or_waits_for_its_time_keeps_its_key() -> None:
    with unique() as broker:
        broker.publish("q", told(1), delay=5.0)
        broker.publish("q", told(1))
        assert (broker.stats("q")["ready"], broker.stats("q")["delayed"]) == (0, 1)
        broker.advance(6.0)
        subscription = broker.subscribe("q", max_backlog=1)
        subscription.take()
        subscription.close()
        broker.publish("q", told(1))
        assert broker.stats("q")["ready"] == 1


def test_what_gave_way_to_a_limit_or_expired_is_not_there_any_more() -> None:
    with unique(max_length=1) as broker:
        for number in (1, 2, 1, 1):
            broker.publish("q", told(number))
        assert waiting(broker) == [told(1)]
        assert broker.stats("q")["duplicates"] == 1
    with unique(message_ttl="5s") as broker:
        broker.publish("q", told(1))
        broker.advance(6.0)
        assert broker.publish("q", told(1))


def test_a_message_that_a_full_queue_refused_took_no_key() -> None:
    with window(max_length=1, overflow="reject-publish") as broker:
        broker.publish("q", told(1))
        with pytest.raises(PenstockError):
            broker.publish("q", told(2))
        assert broker.publish("q", told(1)) == ""
        [message] = broker.subscribe("q", max_backlog=1).take()
        message.ack()
        assert broker.publish("q", told(2))


def test_both_hold_together_and_beside_last_values_and_groups() -> None:
    with unique(dedup_window="10s", last_value_key="/s") as broker:
        broker.publish("q", b'{"id": 1, "s": "a"}')
        broker.publish("q", b'{"id": 2, "s": "a"}')
        broker.publish("q", b'{"id": 1, "s": "b"}')
        assert waiting(broker) == [b'{"id": 2, "s": "a"}']
        broker.advance(11.0)
        broker.publish("q", b'{"id": 1, "s": "b"}')
        broker.publish("q", b'{"id": 2, "s": "b"}')
        assert len(waiting(broker)) == 2
    with unique(group_key="/id") as broker:
        broker.publish("q", told(1))
        broker.publish("q", told(1))
        assert broker.stats("q")["ready"] == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"dedup_key": "/id"}, "it needs dedup_window or unique beside it"),
        ({"unique": True}, "it needs dedup_key beside it"),
        ({"dedup_window": "1m", "recovery_point": "epoch"}, "older messages have no key"),
        ({"dedup_key": "/id >", "unique": True}, "dedup_key"),
    ],
)
def test_duplicates_are_refused_settings_that_could_not_hold(settings: dict[str, object], why: str) -> None:
    with pytest.raises(PenstockError, match=why):
        Broker({"queue": [{"name": "q", **settings}]}).__enter__()


def test_uniqueness_changes_only_while_the_queue_is_empty() -> None:
    with window() as broker:
        broker.publish("q", told(1))
        with pytest.raises(PenstockError, match="cannot change while it has messages"):
            broker.alter("q", unique=True)
        broker.alter("q", dedup_window=0, dedup_key=None)
        assert broker.publish("q", told(1))
        assert broker.stats("q")["dedup_keys"] == 0


def test_a_duplicate_in_a_transaction_is_committed_and_does_not_enter() -> None:
    with window() as broker:
        with broker.transaction() as transaction:
            for number in (1, 2, 1):
                transaction.publish("q", told(number))
        assert waiting(broker) == [told(1), told(2)]
        with broker.transaction() as transaction:
            transaction.publish("q", told(2))
            transaction.publish("q", told(3))
        broker.crash()
        broker.restart()
        broker.publish("q", told(3))
        assert waiting(broker) == [told(1), told(2), told(3)]


def test_what_the_server_writes_itself_is_no_duplicate() -> None:
    queues = [
        {"name": "q", "dedup_key": "/id", "dedup_window": "1h", "unique": True,
         "dead_letter_exchange": "", "dead_letter_routing_key": "dead"},
        {"name": "dead", "dedup_key": "/kind", "dedup_window": "1h"},
    ]  # fmt: skip
    with Broker({"queue": queues}) as broker:
        for number in (1, 2):
            broker.publish("q", b'{"id": %d, "kind": "same"}' % number)
        subscription = broker.subscribe("q", max_backlog=2)
        for message in subscription.take():
            message.expire()
        subscription.close()
        assert broker.stats("dead")["ready"] == 2
        assert broker.redrive("dead")["moved"] == 2
        assert broker.stats("q")["ready"] == 2
        assert broker.publish("q", b'{"id": 1}') == ""


def test_a_refused_message_takes_no_key_as_a_dead_letter() -> None:
    queues = [
        {"name": "q", "dedup_key": "/id", "dedup_window": "1h", "max_length": 1, "overflow": "reject-publish-dlx",
         "dead_letter_exchange": "", "dead_letter_routing_key": "dead"},
        {"name": "dead", "dedup_key": "/id", "dedup_window": "1h"},
    ]  # fmt: skip
    with Broker({"queue": queues}) as broker:
        broker.publish("q", told(1))
        with pytest.raises(PenstockError):
            broker.publish("q", told(2))
        assert broker.stats("dead")["ready"] == 1
        assert broker.stats("dead")["dedup_keys"] == 0
        assert broker.publish("dead", told(2))
