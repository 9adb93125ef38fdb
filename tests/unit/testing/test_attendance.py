"""Who attends to a queue: one active consumer, waiting for others, unused queues, deliveries that nobody settles."""

from __future__ import annotations

import pytest

from penstock.errors import AccessRefused, NotFound
from penstock.testing import Broker, Message


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def broker_of(**settings: object) -> Broker:
    return Broker({"queue": [{"name": "q", **settings}]})


# -- priorities


def test_higher_levels_go_first_and_what_is_above_the_highest_counts_as_it() -> None:
    with broker_of(max_priority=5) as broker:
        for text, priority in ((b"a", None), (b"b", 3), (b"c", 5), (b"d", 200), (b"e", 0), (b"f", 3)):
            broker.publish("q", text, priority=priority)
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [b"c", b"d", b"b", b"f", b"a", b"e"]


def test_what_comes_back_has_its_place_in_its_level() -> None:
    with broker_of(max_priority=5) as broker:
        for text, priority in ((b"a", 1), (b"b", 2), (b"c", 2), (b"d", 2)):
            broker.publish("q", text, priority=priority)
        subscription = broker.subscribe("q", max_backlog=2)
        first, _ = subscription.take()
        assert first.body == b"b"
        first.cancel()
        [again] = subscription.take()
        assert again.body == b"b"
        assert again.redelivered


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_levels_and_ages_outlive_a_restart(how: str) -> None:
    with Broker(
        {"queue": [{"name": "q", "max_priority": 5}, {"name": "aged", "max_priority": 5, "priority_ageing": "10s"}]}
    ) as broker:
        for queue in ("q", "aged"):
            for text, priority, wait in ((b"old", 0, 25.0), (b"two", 2, 0.0), (b"three", 3, 0.0)):
                broker.publish(queue, text, priority=priority)
                broker.advance(wait)
        if how == "crash":
            broker.crash()
        broker.restart()
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [b"three", b"two", b"old"]
        assert bodies(broker.subscribe("aged", max_backlog=None).take()) == [b"three", b"old", b"two"]


def test_levels_can_come_and_go() -> None:
    with broker_of() as broker:
        for text, priority in ((b"a", 0), (b"b", 9), (b"c", 9)):
            broker.publish("q", text, priority=priority)
        broker.alter("q", max_priority=10)
        subscription = broker.subscribe("q", max_backlog=1)
        [message] = subscription.take()
        assert message.body == b"b"
        broker.alter("q", max_priority=0)
        message.ack()
        assert bodies(subscription.take()) == [b"a"]


def test_what_entered_a_ring_at_its_head_has_its_own_place_in_its_level() -> None:
    with broker_of(ring_size=9) as broker:
        broker.publish("q", b"due", delay=5.0)
        broker.publish("q", b"younger")
        broker.advance(6.0)
        broker.alter("q", max_priority=3)
        broker.publish("q", b"urgent", priority=2)
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [b"urgent", b"due", b"younger"]


def test_priorities_compose_with_filters_and_expiry() -> None:
    with broker_of(max_priority=9) as broker:
        for number in range(6):
            broker.publish("q", b'{"id": %d}' % number, priority=number, expiration=5.0 if number == 5 else None)
        broker.advance(6.0)
        subscription = broker.subscribe("q", filter="/id % 2 = 0", max_backlog=None)
        assert bodies(subscription.take()) == [b'{"id": 4}', b'{"id": 2}', b'{"id": 0}']


# -- one active consumer


def test_the_first_consumer_gets_all_and_the_next_takes_over_at_once() -> None:
    with broker_of(single_active_consumer=True) as broker:
        first = broker.subscribe("q", name="one", max_backlog=2)
        second = broker.subscribe("q", name="two", max_backlog=None)
        third = broker.subscribe("q", name="three", max_backlog=None)
        for text in (b"a", b"b", b"c", b"d"):
            broker.publish("q", text)
        held = first.take()
        assert bodies(held) == [b"a", b"b"]
        assert not second.take()
        assert broker.stats("q")["consumers"] == 3
        first.close()
        assert bodies(second.take()) == [b"a", b"b", b"c", b"d"]
        broker.disconnect("two")
        assert bodies(third.take()) == [b"a", b"b", b"c", b"d"]
        assert all(message.redelivered for message in third.take())


def test_the_active_consumer_is_told_and_changes_with_the_setting() -> None:
    with broker_of() as broker:
        one = broker.subscribe("q", max_backlog=1)
        two = broker.subscribe("q", max_backlog=1)
        assert broker.stats("q")["single_active_consumer_tag"] is None
        broker.alter("q", single_active_consumer=True)
        assert broker.stats("q")["single_active_consumer_tag"]
        broker.publish("q", b"a")
        broker.publish("q", b"b")
        assert bodies(one.take()) == [b"a"]
        assert not two.take()
        broker.alter("q", single_active_consumer=False)
        assert bodies(two.take()) == [b"b"]


def test_a_filter_of_the_active_consumer_holds_others_back_too() -> None:
    with broker_of(single_active_consumer=True) as broker:
        one = broker.subscribe("q", filter="/id = 1", max_backlog=None)
        two = broker.subscribe("q", filter="/id = 2", max_backlog=None)
        broker.publish("q", b'{"id": 2}')
        broker.publish("q", b'{"id": 1}')
        assert bodies(one.take()) == [b'{"id": 1}']
        assert not two.take()
        one.close()
        assert bodies(two.take()) == [b'{"id": 2}']


# -- enough consumers


def test_dispatch_waits_for_so_many_consumers_and_anew_when_all_have_left() -> None:
    with broker_of(consumers_before_dispatch=2) as broker:
        broker.publish("q", b"a")
        one = broker.subscribe("q", max_backlog=1)
        assert not one.take()
        two = broker.subscribe("q", max_backlog=1)
        assert bodies(one.take() + two.take()) == [b"a"]
        one.close()
        two.close()
        three = broker.subscribe("q", max_backlog=1)
        assert not three.take()
        broker.subscribe("q", max_backlog=0)
        assert bodies(three.take()) == [b"a"]


def test_dispatch_waits_no_longer_than_the_delay() -> None:
    with broker_of(consumers_before_dispatch=2, delay_before_dispatch="5s") as broker:
        broker.publish("q", b"a")
        one = broker.subscribe("q", max_backlog=1)
        broker.advance(4.9)
        assert not one.take()
        broker.advance(0.2)
        assert bodies(one.take()) == [b"a"]


@pytest.mark.parametrize("settings", [{}, {"max_priority": 3}])
def test_whose_filter_comes_last_takes_part_from_the_first_message_on(settings: dict[str, object]) -> None:
    with broker_of(consumers_before_dispatch=2, fairness_model="round-robin", **settings) as broker:
        for number in range(4):
            broker.publish("q", b'{"id": %d}' % number)
        plain = broker.subscribe("q", max_backlog=None)
        choosy = broker.subscribe("q", max_backlog=None, filter="/id > 0")
        assert bodies(plain.take()) == [b'{"id": 0}', b'{"id": 2}']
        assert bodies(choosy.take()) == [b'{"id": 1}', b'{"id": 3}']


def test_a_filter_that_changes_or_goes_does_not_keep_dispatch_from_beginning() -> None:
    with broker_of(consumers_before_dispatch=2) as broker:
        broker.publish("q", b'{"id": 1}')
        one = broker.subscribe("q", filter="/id = 2", max_backlog=None)
        two = broker.subscribe("q", filter="/id = 3", max_backlog=None)
        one.replace(filter="/id = 1")
        assert bodies(one.take()) == [b'{"id": 1}']
        assert not two.take()


def test_another_setting_does_not_lengthen_the_wait_for_consumers() -> None:
    with broker_of(consumers_before_dispatch=2, delay_before_dispatch="5s") as broker:
        broker.publish("q", b"1")
        one = broker.subscribe("q", max_backlog=10)
        broker.advance(4.0)
        broker.alter("q", max_backlog=3)
        assert one.take() == []
        broker.advance(1.0)
        assert len(one.take()) == 1


def test_one_consumer_too_many_is_refused() -> None:
    with broker_of(max_consumers=1) as broker:
        one = broker.subscribe("q")
        with pytest.raises(AccessRefused, match="max_consumers is 1"):
            broker.subscribe("q")
        one.close()
        broker.subscribe("q")


def test_without_consumers_nothing_is_kept() -> None:
    with broker_of(purge_on_no_consumers=True) as broker:
        broker.publish("q", b"nobody")
        assert broker.stats("q")["ready"] == 0
        one = broker.subscribe("q", max_backlog=1)
        assert not one.take()
        broker.publish("q", b"a")
        broker.publish("q", b"b")
        assert bodies(one.take()) == [b"a"]
        one.close()  # what it held comes back, and is removed with the rest
        assert (broker.stats("q")["ready"], broker.stats("q")["leased"]) == (0, 0)


# -- unused queues


def test_an_unused_queue_is_deleted_and_any_use_starts_its_time_anew() -> None:
    with broker_of(expires="10s", dead_letter_exchange="amq.fanout") as broker:
        broker.publish("q", b"a")
        broker.advance(9.0)
        one = broker.subscribe("q", max_backlog=0)
        broker.advance(100.0)
        one.close()
        broker.advance(9.0)
        broker.restart(config={"queue": []})
        broker.advance(9.9)  # its time begins with the start
        assert broker.stats("q")["ready"] == 1
        broker.advance(0.2)
        with pytest.raises(NotFound):
            broker.stats("q")
        broker.restart(config={"queue": []})
        with pytest.raises(NotFound):
            broker.stats("q")


def test_the_time_of_an_unused_queue_can_be_changed() -> None:
    with broker_of(queue_expires="10s") as broker:
        broker.alter("q", queue_expires=None)
        broker.advance(100.0)
        broker.alter("q", queue_expires="5s")
        broker.advance(4.0)
        broker.alter("q", queue_expires="8s")
        broker.advance(7.0)
        assert broker.stats("q")["ready"] == 0
        broker.advance(2.0)
        with pytest.raises(NotFound):
            broker.stats("q")


# -- deliveries that nobody settles


def test_an_overdue_delivery_goes_back_and_the_others_stay() -> None:
    with broker_of(consumer_timeout="30s", delivery_limit=1) as broker:
        slow = broker.subscribe("q", max_backlog=None)
        broker.publish("q", b"a")
        broker.advance(20.0)
        broker.publish("q", b"b")
        first, second = slow.take()
        broker.advance(9.0)
        assert broker.stats("q")["leased"] == 2
        broker.advance(1.5)
        assert bodies(slow.take()) == [b"a"]
        assert second.ack()
        assert first.ack()  # late, and as `leasing` allows
        assert broker.stats("q")["expired_leases"] == 1


def test_overdue_deliveries_count_against_the_limit() -> None:
    with broker_of(consumer_timeout="30s", delivery_limit=1) as broker:
        slow = broker.subscribe("q", max_backlog=None)
        broker.publish("q", b"a")
        broker.advance(31.0)
        broker.advance(31.0)
        assert len(slow.take()) == 2
        assert broker.stats("q")["leased"] == 0
        assert broker.stats("q")["expirations"] == {"max_deliveries": 1}


def test_what_is_settled_in_time_is_not_overdue_whatever_came_with_it() -> None:
    with broker_of(consumer_timeout="30s") as broker:
        busy = broker.subscribe("q", max_backlog=None)
        for _ in range(20):
            broker.publish("q", b"a")
            broker.advance(2.0)
            for message in busy.take():
                message.ack()
        assert broker.stats("q")["expired_leases"] == 0


def test_settings_that_cannot_be_together_are_refused_with_a_reason() -> None:
    for settings, why in (
        ({"max_priority": 5, "priority_expression": "/p"}, "one of them at most"),
        ({"max_priority": 256}, "0..255"),
        ({"priority_ageing": "1s"}, "needs max_priority"),
        ({"delay_before_dispatch": "1s"}, "needs consumers_before_dispatch"),
        ({"single_active_consumer": True, "consumers_before_dispatch": 2}, "one consumer gets all"),
        ({"max_consumers": 1, "consumers_before_dispatch": 2}, "never come"),
        ({"single_active_consumer": "yes"}, "true or false"),
        ({"expires": "0s"}, "ten years"),
    ):
        with pytest.raises(Exception, match=why):
            broker_of(**settings)
