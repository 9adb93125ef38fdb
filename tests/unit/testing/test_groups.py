"""Group keys: of the messages with one key one is leased at a time, the oldest."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.errors import PenstockError
from penstock.testing import Broker

QUEUE = {"name": "q", "group_key": "/key", "lease_period": "30s"}


def broker(**more: object) -> Broker:
    return Broker(config={"queue": [{**QUEUE, **more}]})


def publish(broker: Broker, *keys: str | None, **more: Any) -> list[str]:
    """A message for each key; its body says which of them it is."""
    return [broker.publish("q", orjson.dumps({"key": key, "n": n}), **more) for n, key in enumerate(keys)]


def numbers(messages: Any) -> list[int]:
    return [orjson.loads(message.body)["n"] for message in messages]


def test_one_lease_a_key_at_a_time_and_a_key_in_use_is_skipped() -> None:
    with broker() as b:
        publish(b, "a", "a", "b", "a", "b", "c")
        one = b.subscribe("q", max_backlog=10)
        held = one.take()
        assert numbers(held) == [0, 2, 5]
        assert b.stats("q")["ready"] == 3
        held[1].ack()
        held[0].ack()
        assert numbers(one.take()) == [4, 1]


def test_several_consumers_share_the_keys_and_none_is_held_twice() -> None:
    with broker() as b:
        one, two = b.subscribe("q", max_backlog=5), b.subscribe("q", max_backlog=5)
        publish(b, *"abababab")
        first, second = one.take(), two.take()
        assert sorted(numbers(first) + numbers(second)) == [0, 1]
        seen = list[int]()
        while messages := first + second:
            for message in messages:
                seen += numbers([message])
                message.ack()
            first, second = one.take(), two.take()
        assert [n for n in seen if n % 2 == 0] == [0, 2, 4, 6]
        assert [n for n in seen if n % 2] == [1, 3, 5, 7]


def test_what_returns_comes_before_the_younger_ones_of_its_key() -> None:
    with broker() as b:
        publish(b, "a", "a", "a")
        one = b.subscribe("q", max_backlog=10)
        [message] = one.take()
        message.cancel()
        [message] = one.take()
        assert (numbers([message]), message.attempt) == ([0], 2)
        b.advance(31.0)  # its lease ends
        [message] = one.take()
        assert (numbers([message]), message.attempt) == ([0], 3)
        message.expire()
        assert numbers(one.take()) == [1]


def test_a_key_waits_for_its_oldest_message_while_that_is_in_back_off() -> None:
    with broker(retry={"initial": "10s", "jitter": 0.0}) as b:
        publish(b, "a", "a", "b")
        one = b.subscribe("q", max_backlog=10)
        first, other = one.take()
        assert numbers([first, other]) == [0, 2]
        first.cancel()
        other.ack()
        assert one.take() == []
        b.advance(10.0)
        assert numbers(one.take()) == [0]


def test_without_a_key_a_message_waits_for_nobody() -> None:
    with broker() as b:
        publish(b, None, None, "a", "a")
        assert numbers(b.subscribe("q", max_backlog=10).take()) == [0, 1, 2]


def test_order_within_a_key_holds_across_filters() -> None:
    """A younger message does not overtake an older one of its key that its own consumer has no room for."""
    with broker() as b:
        even = b.subscribe("q", max_backlog=1, filter="/n IN (0, 2, 4)")
        odd = b.subscribe("q", max_backlog=10, filter="/n IN (1, 3, 5)")
        publish(b, "a", "b", "b", "b", "c", "c")
        assert numbers(even.take()) == [0]
        [b1] = odd.take()
        assert numbers([b1]) == [1]
        b1.ack()
        assert odd.take() == []  # 2 stands before 3, and 4 before 5
        b.disconnect("")
        even.close()
        anybody = b.subscribe("q", max_backlog=10)
        assert numbers(anybody.take()) == [0, 2, 4]


@pytest.mark.parametrize("more", [{}, {"priority_expression": "/p"}])
def test_a_filter_knows_those_in_line_when_they_are_let_go(more: dict[str, Any]) -> None:
    """Else a consumer with a filter would get every other one of a later key, or of a lower priority."""
    with broker(**more) as b:
        one = b.subscribe("q", max_backlog=1, filter="/n >= 0")
        for n, key in enumerate("aaaabbb"):
            b.publish("q", orjson.dumps({"key": key, "n": n, "p": 9 if key == "a" else 1}))
        late = b.subscribe("q", max_backlog=1, filter="/n >= 6")
        seen = list[int]()
        while messages := [*one.take(), *late.take()]:
            seen += numbers(messages)
            for message in messages:
                message.ack()
        assert seen == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("last", ["a", "b"])
def test_several_of_one_key_give_way_to_a_large_message(last: str) -> None:
    """The second stands behind the first, which has gone already."""
    with broker(max_length_bytes="100B") as b:
        for n in range(3):
            b.publish("q", orjson.dumps({"key": "a", "n": n, "pad": "x" * 10}))
        b.publish("q", orjson.dumps({"key": last, "n": 3, "pad": "x" * 60}))
        assert (b.stats("q")["ready"], b.stats("q")["dropped"]) == (1, 3)
        assert numbers(b.subscribe("q", max_backlog=9).take()) == [3]


def test_what_enters_a_ring_at_its_head_comes_before_the_others_of_its_key() -> None:
    with broker(ring_size=3) as b:
        publish(b, "a", delay=5.0)
        b.publish("q", orjson.dumps({"key": "a", "n": 1}))
        b.publish("q", orjson.dumps({"key": "b", "n": 2}))
        b.advance(5.0)
        held = b.subscribe("q", max_backlog=9).take()
        assert numbers(held) == [0, 2]


def test_what_enters_a_ring_at_its_head_comes_first_of_its_key_though_that_is_told_later() -> None:
    """After a start the keys of what is scheduled are not known before it is due."""
    with broker(ring_size=4) as b:
        publish(b, "a", delay=5.0)
        b.publish("q", orjson.dumps({"key": "a", "n": 1}), delay=10.0)
        b.restart()
        b.publish("q", orjson.dumps({"key": "a", "n": 2}))
        b.publish("q", orjson.dumps({"key": "b", "n": 3}))
        b.advance(5.0)
        b.advance(5.0)
        one = b.subscribe("q", max_backlog=9)
        seen = list[int]()
        while messages := one.take():
            seen += numbers(messages)
            for message in messages:
                message.ack()
        assert seen == [1, 3, 0, 2]


def test_keys_are_worked_out_again_after_a_restart() -> None:
    with broker(retry={"initial": "10s", "jitter": 0.0}) as b:
        publish(b, "a", "a", "b", "b")
        one = b.subscribe("q", max_backlog=10)
        first, _ = one.take()
        first.cancel()  # its back-off outlives the restart, and its key waits for it
        b.restart()
        one = b.subscribe("q", max_backlog=10)
        assert numbers(one.take()) == [2]
        publish(b, "a")
        assert one.take() == []
        b.advance(10.0)
        assert numbers(one.take()) == [0]


def test_keys_after_a_crash() -> None:
    with broker() as b:
        publish(b, "a", "a", "b", "b", "a")
        b.subscribe("q", max_backlog=10).take()
        b.crash()
        b.restart()
        one = b.subscribe("q", max_backlog=10)
        messages = one.take()
        assert numbers(messages) == [0, 2]
        messages[0].ack()
        assert numbers(one.take()) == [1]


def test_a_delayed_message_takes_its_place_in_its_key_when_it_is_due() -> None:
    with broker() as b:
        publish(b, "a", delay=5.0)
        [_, second] = publish(b, "b", "a")
        assert second
        one = b.subscribe("q", max_backlog=10)
        held = one.take()
        assert numbers(held) == [0, 1]
        b.advance(5.0)
        assert one.take() == []  # its key is in use
        held[1].ack()
        assert numbers(one.take()) == [0]


def test_keys_come_and_go_on_a_living_queue() -> None:
    with Broker(config={"queue": [{"name": "q"}]}) as b:
        publish(b, "a", "a", "a", "b")
        one = b.subscribe("q", max_backlog=2)
        held = one.take()
        assert numbers(held) == [0, 1]
        b.alter("q", group_key="/key")
        two = b.subscribe("q", max_backlog=10)
        assert numbers(two.take()) == [3]
        held[0].ack()
        assert two.take() == []
        held[1].ack()
        assert numbers(one.take() + two.take()) == [2]
        b.alter("q", group_key=None)
        publish(b, "b", "b")
        assert len(one.take() + two.take()) == 2


def test_settling_a_message_that_waits_behind_its_key() -> None:
    with broker() as b:
        bookmarks = publish(b, "a", "a", "a")
        one = b.subscribe("q", max_backlog=10)
        [message] = one.take()
        assert b.ack("q", [bookmarks[1]], by="other") == 1
        message.ack()
        assert numbers(one.take()) == [2]


def test_it_is_refused_where_it_could_not_hold() -> None:
    for more in (
        {"semantics": "at-most-once"},
        {"priority_expression": "/p", "last_value_key": "/v"},
        {"max_priority": 3, "recovery_point": "epoch"},
        {"target_queue_depth": 1000},
        {"barrier_expression": "/b = 1"},
    ):
        with pytest.raises(PenstockError, match="group_key"):
            broker(**more)
    with broker(max_length=2, overflow="reject-publish") as b:
        publish(b, "a", "a")
        with pytest.raises(PenstockError):
            publish(b, "a")


def test_the_oldest_of_all_gives_way_to_a_limit_even_in_line_behind_one_that_is_out() -> None:
    with broker(max_length=2) as b:
        publish(b, "a")
        one = b.subscribe("q", max_backlog=1)
        [held] = one.take()
        publish(b, "a", "b", "a")
        assert b.stats("q")["dropped"] == 1
        held.ack()
        assert [message.topic for message in one.take()] == ["q"]
        assert b.stats("q")["ready"] == 1


def test_a_last_value_is_replaced_in_line_too() -> None:
    with broker(last_value_key="/v") as b:
        publish(b, "a")
        one = b.subscribe("q", max_backlog=1)
        [held] = one.take()
        for value in (1, 2, 1):
            b.publish("q", orjson.dumps({"key": "a", "v": value}))
        assert b.stats("q")["replaced"] == 1
        seen = list[object]()
        while True:
            held.ack()
            taken = one.take()
            if not taken:
                break
            [held] = taken
            seen.append(orjson.loads(held.body)["v"])
        assert seen == [2, 1]


def test_it_is_told_which_key_is_held_by_whom_until_when() -> None:
    with broker() as b:
        bookmarks = publish(b, "a", "a")
        b.subscribe("q", max_backlog=10, name="worker").take()
        codes = {reason.code: reason.text for reason in b.explain("q")}
        assert codes["group_key"] == "1 of its messages wait behind others of their keys"
        [reason, *_] = b.explain("q", bookmarks[1])
        assert reason.code == "group_key"
        assert "its key 'a' is in use by the message at LSN" in reason.text
        assert "leased by consumer" in reason.text
        assert "until" in reason.text
        assert b.stats("q")["group_keys"] == 1
        assert b.stats("q")["group_waiting"] == 1


def test_a_key_that_two_had_when_it_was_set_is_free_when_both_are_back() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        for number in (1, 2):
            broker.publish("q", b'{"k": "a", "n": %d}' % number)
        subscription = broker.subscribe("q", max_backlog=5)
        older, younger = subscription.take()
        broker.alter("q", group_key="/k")
        younger.retry(delay=60.0)
        older.release()
        assert subscription.take() == []
        broker.advance(61)
        [first] = subscription.take()
        assert first.body == older.body
        first.ack()
        [second] = subscription.take()
        assert second.body == younger.body
