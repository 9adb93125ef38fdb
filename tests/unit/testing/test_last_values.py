"""Queues in which a message replaces the waiting one with the same key, and queues whose consumers remove nothing."""

from __future__ import annotations

import pytest

from penstock.core.queue.last_values import NO_KEY, key_of
from penstock.errors import PenstockError
from penstock.testing import Broker, Message


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def waiting(broker: Broker) -> list[bytes]:
    """What a query of the queue shows: nothing is leased by it."""
    return [record.body for record in broker.sow("q")]


def quote(symbol: object, price: int) -> bytes:
    text = b"null" if symbol is None else b'"%s"' % str(symbol).encode()
    return b'{"s": %s, "p": %d}' % (text, price)


def broker_of(**settings: object) -> Broker:
    return Broker({"queue": [{"name": "q", "last_value_key": "/s", **settings}]})


def test_a_newcomer_removes_the_waiting_older_one_and_goes_to_the_tail() -> None:
    with broker_of() as broker:
        for symbol, price in (("a", 1), ("b", 2), ("c", 3), ("a", 4), ("b", 5)):
            broker.publish("q", quote(symbol, price))
        assert waiting(broker) == [quote("c", 3), quote("a", 4), quote("b", 5)]
        assert broker.stats("q")["replaced"] == 2
        assert broker.stats("q")["ready"] == 3


def test_messages_without_key_are_ordinary() -> None:
    with broker_of() as broker:
        for price in range(3):
            broker.publish("q", quote(None, price))
        broker.publish("q", b"no json")
        assert broker.stats("q")["ready"] == 4


def test_what_is_out_stays_out_and_is_removed_on_return_when_a_newer_one_exists() -> None:
    with broker_of() as broker:
        broker.publish("q", quote("a", 1))
        subscription = broker.subscribe("q", max_backlog=1)
        [old] = subscription.take()
        broker.publish("q", quote("a", 2))
        assert broker.stats("q")["leased"] == 1
        subscription.close()
        assert waiting(broker) == [quote("a", 2)]
        assert not old.ack()


def test_what_is_out_can_be_acked_and_returns_when_the_newer_one_is_gone() -> None:
    with broker_of() as broker:
        broker.publish("q", quote("a", 1))
        one = broker.subscribe("q", max_backlog=1)
        [old] = one.take()
        broker.publish("q", quote("a", 2))
        two = broker.subscribe("q", max_backlog=1)
        [new] = two.take()
        assert new.ack()
        old.cancel()  # nothing newer exists: it is the last value again
        [again] = two.take() or one.take()
        assert again.body == quote("a", 1)


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_a_restart_keeps_it(how: str) -> None:
    with broker_of() as broker:
        for symbol, price in (("a", 1), ("b", 2), ("a", 3)):
            broker.publish("q", quote(symbol, price))
        one = broker.subscribe("q", max_backlog=1)
        assert bodies(one.take()) == [quote("b", 2)]
        broker.publish("q", quote("b", 4))
        if how == "crash":
            broker.crash()
        broker.restart()
        assert waiting(broker) == [quote("a", 3), quote("b", 4)]  # the one that was out is replaced now
        broker.publish("q", quote("a", 5))
        assert waiting(broker) == [quote("b", 4), quote("a", 5)]


def test_what_fell_due_too_late_while_the_server_was_down_replaces_nothing() -> None:
    with broker_of(dead_letter_exchange="graveyard") as broker:
        broker.publish("q", quote("a", 1))
        broker.publish("q", quote("a", 2), delay=10.0, expiration=5.0)
        broker.crash()
        broker.advance(11.0)
        broker.restart()
        assert waiting(broker) == [quote("a", 1)]


def test_what_returns_and_gives_way_to_a_limit_at_once_is_the_last_of_nothing() -> None:
    with broker_of(max_length=1) as broker:
        broker.publish("q", quote("a", 1))
        one = broker.subscribe("q", max_backlog=1)
        [old] = one.take()
        later = broker.publish("q", quote("a", 2))
        assert broker.reschedule_message(later, 60.0) == ["q"]
        broker.publish("q", quote("b", 3))
        old.release()
        assert bodies(one.take()) == [quote("b", 3)]


def test_a_scheduled_message_replaces_when_it_is_due() -> None:
    with broker_of() as broker:
        broker.publish("q", quote("a", 1), delay=10.0)
        broker.publish("q", quote("a", 2))
        broker.publish("q", quote("b", 3))
        broker.advance(11.0)
        assert waiting(broker) == [quote("a", 1), quote("b", 3)]
        broker.crash()
        broker.restart()
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [quote("b", 3), quote("a", 1)]


def publish_late(broker: Broker, *what: tuple[str, int]) -> None:
    """Each is due after as many seconds as its price says."""
    for symbol, price in what:
        broker.publish("q", quote(symbol, price), delay=float(price))


def left(broker: Broker) -> list[bytes]:
    """What is delivered now, in order."""
    return bodies(broker.subscribe("q", max_backlog=None).take())


@pytest.mark.parametrize("at_once", [True, False])
def test_of_several_due_at_once_the_last_is_the_last_value_of_a_ring_too(at_once: bool) -> None:
    with broker_of(ring_size=3) as broker:
        publish_late(broker, ("a", 3), ("a", 2), ("b", 1), ("a", 1))
        for _ in range(1 if at_once else 3):
            broker.advance(3 if at_once else 1)
        assert sorted(left(broker)) == [quote("a", 3), quote("b", 1)]
        assert broker.stats("q")["replaced"] == 2


def test_what_is_due_takes_the_room_of_the_value_it_replaces_in_a_full_ring() -> None:
    with broker_of(ring_size=2) as broker:
        broker.publish("q", quote("b", 9))
        broker.publish("q", quote("a", 9))
        publish_late(broker, ("a", 3), ("a", 2), ("c", 1))
        broker.advance(3)
        assert left(broker) == [quote("a", 3), quote("b", 9)]  # no room for c


def test_in_a_full_ring_they_are_let_in_one_by_one_the_last_first() -> None:
    """Room that an earlier one makes, by replacing its older value, comes too late for a later one."""
    with broker_of(ring_size=1) as broker:
        broker.publish("q", quote("a", 9))
        publish_late(broker, ("a", 1), ("c", 2))
        broker.advance(3)
        assert left(broker) == [quote("a", 1)]


def test_what_finds_no_room_in_a_ring_replaces_nothing() -> None:
    with broker_of(ring_size=1) as broker:
        broker.publish("q", quote("a", 9))
        one = broker.subscribe("q", max_backlog=1)
        [out] = one.take()
        broker.publish("q", quote("b", 9))
        publish_late(broker, ("a", 1))
        broker.advance(1)
        assert left(broker) == [quote("b", 9)]
        out.release()
        assert bodies(one.take()) == [quote("a", 9)]


def test_nobody_gives_way_in_a_ring_to_what_returns_outdated() -> None:
    with broker_of(ring_size=2) as broker:
        one = broker.subscribe("q", max_backlog=2)
        broker.publish("q", quote("b", 1))
        broker.publish("q", quote("a", 1))
        assert len(one.take()) == 2
        broker.publish("q", quote("a", 2))
        one.close()
        assert left(broker) == [quote("b", 1), quote("a", 2)]
        assert broker.stats("q")["replaced"] == 1


def test_of_what_returns_to_a_ring_the_newest_of_a_key_stays_if_none_lives_that_is_newer() -> None:
    with broker_of(ring_size=2, retry={"initial": "5s", "jitter": 0.0}) as broker:
        one = broker.subscribe("q", max_backlog=4)
        for symbol, price in (("b", 1), ("a", 1), ("a", 2), ("a", 3)):
            broker.publish("q", quote(symbol, price))
        messages = one.take()
        assert messages.pop().ack()
        one.close()
        assert left(broker) == [quote("b", 1), quote("a", 2)]


def test_nothing_gives_way_to_a_limit_for_what_is_replaced_when_it_is_due_or_returns() -> None:
    with broker_of(max_length=2) as broker:
        broker.publish("q", quote("b", 1))
        broker.publish("q", quote("a", 1))
        broker.publish("q", quote("a", 2), delay=5.0)
        broker.advance(5)
        [out, _] = messages = broker.subscribe("q", max_backlog=2).take()
        assert bodies(messages) == [quote("b", 1), quote("a", 2)]
        broker.publish("q", quote("c", 1))
        broker.publish("q", quote("b", 2))
        out.release()
        stats = broker.stats("q")
        assert (stats["ready"], stats["leased"], stats["replaced"], stats["dropped"]) == (1, 2, 2, 0)


def test_what_was_due_and_over_while_nobody_served_replaces_nothing() -> None:
    """Its dead letter is still to be written, so it is there, and it never arrived."""
    with broker_of(dead_letter_exchange="", dead_letter_routing_key="dead") as broker:
        broker.publish("q", quote("a", 1))
        broker.publish("q", quote("a", 2), delay=10.0, expiration=10.0)
        broker.crash()
        broker.advance(60)
        broker.restart()
        assert waiting(broker) == [quote("a", 1)]


def test_what_goes_into_back_off_is_replaced_at_once() -> None:
    with broker_of(retry={"initial": "1h", "jitter": 0.0}) as broker:
        broker.publish("q", quote("a", 1))
        subscription = broker.subscribe("q", max_backlog=2)
        [old] = subscription.take()
        broker.publish("q", quote("a", 2))
        [new] = subscription.take()
        assert old.cancel()
        assert broker.stats("q")["delayed"] == 0
        assert broker.stats("q")["leased"] == 1
        assert new.ack()


def test_beside_a_limit_what_is_replaced_makes_room_first() -> None:
    with broker_of(max_length=2) as broker:
        for symbol, price in (("b", 1), ("a", 2), ("a", 3)):
            broker.publish("q", quote(symbol, price))
        assert waiting(broker) == [quote("b", 1), quote("a", 3)]
        assert broker.stats("q")["dropped"] == 0


def test_a_value_with_a_short_life_removes_a_key() -> None:
    with broker_of() as broker:
        broker.publish("q", quote("a", 1))
        broker.publish("q", quote("a", 2), expiration=5.0)
        broker.advance(6.0)
        assert waiting(broker) == []


def test_priorities_and_filters_compose() -> None:
    with broker_of(max_priority=5) as broker:
        broker.publish("q", quote("a", 1), priority=5)
        broker.publish("q", quote("b", 2), priority=3)
        broker.publish("q", quote("a", 3), priority=1)
        subscription = broker.subscribe("q", filter="/p > 1", max_backlog=None)
        assert bodies(subscription.take()) == [quote("b", 2), quote("a", 3)]


def test_the_key_changes_only_while_the_queue_is_empty() -> None:
    with broker_of() as broker:
        broker.publish("q", quote("a", 1))
        with pytest.raises(PenstockError, match="cannot change while it has messages"):
            broker.alter("q", last_value_key="/p")
        [message] = broker.subscribe("q").take()
        message.ack()
        broker.alter("q", last_value_key="/p")
        broker.publish("q", quote("a", 1))
        broker.publish("q", quote("b", 1))
        assert broker.stats("q")["ready"] == 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"barrier_expression": "/x = 1"}, "barrier_expression"),
        ({"target_queue_depth": 1000}, "target_queue_depth"),
        ({"recovery_point": "epoch"}, "recovery_point"),
    ],
)
def test_what_counts_on_messages_staying_is_refused(other: dict[str, object], why: str) -> None:
    with pytest.raises(PenstockError, match=why):
        broker_of(**other)


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_no_value_is_no_key(value: object) -> None:
    assert key_of(value) == NO_KEY


def test_equal_values_are_one_key_and_others_are_not() -> None:
    assert key_of(1) == key_of(1.0) == key_of([1])
    assert len({key_of(value) for value in (1, "1", True, 1.5, "a", "b")}) == 6


# -- consumers that remove nothing


def plain(**settings: object) -> Broker:
    return Broker({"queue": [{"name": "q", "non_destructive": True, **settings}]})


def test_every_consumer_sees_all_and_an_ack_removes_nothing() -> None:
    with plain() as broker:
        for text in (b"a", b"b"):
            broker.publish("q", text)
        one = broker.subscribe("q", max_backlog=None)
        two = broker.subscribe("q", max_backlog=1)
        first = one.take()
        assert bodies(first) == [b"a", b"b"]
        [message] = two.take()
        assert message.body == b"a"
        for each in (*first, message):
            each.ack()
        assert bodies(two.take()) == [b"b"]
        broker.publish("q", b"c")
        assert bodies(one.take()) == [b"c"]
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [b"a", b"b", b"c"]
        stats = broker.stats("q")
        assert (stats["ready"], stats["leased"]) == (3, 0)


def test_what_enters_a_ring_at_its_head_is_read_by_all_and_hides_nothing_from_them() -> None:
    with plain(ring_size=10) as broker:
        one, slow = broker.subscribe("q", max_backlog=None), broker.subscribe("q", max_backlog=1)
        for text, delay in ((b"a", None), (b"late", 1.0), (b"later", 2.0), (b"b", None)):
            broker.publish("q", text, delay=delay)
        assert bodies(one.take()) == [b"a", b"b"]
        broker.advance(1)
        broker.advance(1)
        assert bodies(one.take()) == [b"late", b"later"]
        broker.publish("q", b"c")
        assert bodies(one.take()) == [b"c"]
        read = list[bytes]()
        while found := slow.take():
            read += bodies(found)
            found[0].ack()
        assert read == [b"a", b"later", b"late", b"b", b"c"]
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [b"later", b"late", b"a", b"b", b"c"]


@pytest.mark.parametrize("verb", ["ack", "cancel", "expire"])
def test_however_a_delivery_ends_the_message_stays_and_is_not_sent_again(verb: str) -> None:
    with plain(dead_letter_exchange="amq.fanout", max_cancels=1) as broker:
        broker.publish("q", b"a")
        one = broker.subscribe("q", max_backlog=1)
        [message] = one.take()
        getattr(message, verb)()
        assert not one.take()
        broker.publish("q", b"b")
        assert bodies(one.take()) == [b"b"]
        assert broker.ack("q", [message.bookmark], by="somebody") == 0
        assert broker.stats("q")["ready"] == 2


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_what_nobody_removes_outlives_a_restart_and_is_read_anew(how: str) -> None:
    with plain() as broker:
        broker.publish("q", b"a")
        for message in broker.subscribe("q").take():
            message.ack()
        if how == "crash":
            broker.crash()
        broker.restart()
        assert bodies(broker.subscribe("q").take()) == [b"a"]


def test_it_is_bounded_by_last_values_expiry_and_limits() -> None:
    with plain(last_value_key="/s", max_length=2, expiration="60s") as broker:
        for symbol, price in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
            broker.publish("q", quote(symbol, price))
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [quote("a", 3), quote("c", 4)]
        broker.advance(61.0)
        assert broker.stats("q")["ready"] == 0


def test_a_scheduled_message_is_read_in_its_place_between_others() -> None:
    with plain() as broker:
        broker.publish("q", b"late", delay=5.0)
        for text in (b"a", b"b"):
            broker.publish("q", text)
        slow = broker.subscribe("q", max_backlog=1)
        broker.advance(6.0)
        broker.publish("q", b"c")
        seen = list[bytes]()
        while messages := slow.take():
            seen += bodies(messages)
            for message in messages:
                message.ack()
        assert seen == [b"a", b"b", b"late", b"c"]


def test_a_prefetch_and_one_active_consumer_hold_as_ever() -> None:
    with plain(single_active_consumer=True) as broker:
        one = broker.subscribe("q", max_backlog=2)
        two = broker.subscribe("q", max_backlog=None)
        for text in (b"a", b"b", b"c"):
            broker.publish("q", text)
        assert len(one.take()) == 2
        assert not two.take()
        one.close()
        assert bodies(two.take()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"semantics": "at-most-once"}, "at-most-once"),
        ({"priority_expression": "/p"}, "priority_expression"),
        ({"max_priority": 3}, "max_priority"),
        ({"group_key": "/g"}, "group_key"),
        ({"lease_period": "1s"}, "lease_period"),
        ({"consumer_timeout": "1s"}, "consumer_timeout"),
    ],
)
def test_what_needs_a_holder_is_refused_where_nobody_holds(other: dict[str, object], why: str) -> None:
    with pytest.raises(PenstockError, match=why):
        plain(**other)


def test_a_filter_of_a_consumer_that_removes_nothing_is_refused() -> None:
    with plain() as broker, pytest.raises(PenstockError, match="have no filter"):
        broker.subscribe("q", filter="/a = 1")
