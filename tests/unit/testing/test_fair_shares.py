"""Tenants of one queue take turns; how many are leased, and how many go in a time."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.errors import PenstockError
from penstock.testing import Broker


def broker(**more: object) -> Broker:
    return Broker(config={"queue": [{"name": "q", **more}]})


def publish(broker: Broker, keys: str) -> None:
    for n, key in enumerate(keys):
        broker.publish("q", orjson.dumps({"t": key, "n": n}))


def tenants(messages: Any) -> str:
    return "".join(orjson.loads(message.body)["t"] for message in messages)


def numbers(messages: Any) -> list[int]:
    return [orjson.loads(message.body)["n"] for message in messages]


def test_tenants_take_turns_by_their_weights() -> None:
    with broker(fairness_key="/t", weights={"a": 2}) as b:
        publish(b, "aaaaaaaabbbbcc")
        messages = b.subscribe("q", max_backlog=12).take()
        assert tenants(messages) == "aabcaabcaaba"
        assert [n for n in numbers(messages) if n < 8] == sorted(n for n in numbers(messages) if n < 8)


def test_one_busy_tenant_does_not_hold_up_the_others() -> None:
    with broker(fairness_key="/t") as b:
        publish(b, "a" * 200 + "b")
        one = b.subscribe("q", max_backlog=2)
        assert tenants(one.take()) == "ab"


def test_who_waits_gets_what_comes_in_the_order_of_arrival() -> None:
    with broker(fairness_key="/t", weights={"a": 3}) as b:
        one = b.subscribe("q", max_backlog=10)
        publish(b, "abacab")
        assert numbers(one.take()) == [0, 1, 2, 3, 4, 5]


def test_so_many_of_a_tenant_are_leased_at_once() -> None:
    with broker(fairness_key="/t", max_leased={"queue": 4, "key": 2}) as b:
        publish(b, "aaaabc")
        one, two = b.subscribe("q", max_backlog=10), b.subscribe("q", max_backlog=10)
        held = one.take() + two.take()
        assert sorted(tenants(held)) == ["a", "a", "b", "c"]
        next(message for message in held if tenants([message]) == "b").ack()
        assert one.take() + two.take() == []  # two of a are out
        next(message for message in held if tenants([message]) == "a").ack()
        assert tenants(one.take() + two.take()) == "a"
    with broker(max_leased=2) as b:
        publish(b, "abc")
        assert len(b.subscribe("q", max_backlog=10).take()) == 2


def test_a_restart_forgets_the_ring_and_keeps_the_shares() -> None:
    with broker(fairness_key="/t", weights={"b": 2}) as b:
        publish(b, "aaaabbbb")
        b.restart()
        assert tenants(b.subscribe("q", max_backlog=6).take()) == "abbabb"


def test_shares_and_groups_together() -> None:
    with broker(fairness_key="/t", group_key="/t") as b:
        publish(b, "aabbc")
        one = b.subscribe("q", max_backlog=10)
        held = one.take()
        assert numbers(held) == [0, 2, 4]
        held[1].ack()
        assert numbers(one.take()) == [3]


def test_so_many_messages_in_a_time() -> None:
    with broker(rate_limit="10/s") as b:
        one = b.subscribe("q", max_backlog=100)
        publish(b, "x" * 40)
        assert len(one.take()) == 10
        b.advance(0.5)
        assert len(one.take()) == 5
        b.advance(1.0)
        assert len(one.take()) == 10
        b.alter("q", rate_limit=None)
        assert len(one.take()) == 15


def test_a_rate_for_each_tenant_outlives_its_messages() -> None:
    with broker(fairness_key="/t", rate_limit={"key": "2/s"}) as b:
        one = b.subscribe("q", max_backlog=100)
        publish(b, "aaaab")
        first = one.take()
        assert sorted(tenants(first)) == ["a", "a", "b"]
        b.advance(1.0)
        rest = one.take()
        assert tenants(rest) == "aa"
        for message in first + rest:
            message.ack()
        publish(b, "aab")
        assert tenants(one.take()) == "b"  # its bucket is empty still
        b.advance(1.0)
        assert tenants(one.take()) == "aa"


def test_weights_and_limits_change_on_a_living_queue() -> None:
    with broker(fairness_key="/t") as b:
        publish(b, "aaaabbbb")
        b.alter("q", weights={"a": 3})
        one = b.subscribe("q", max_backlog=5)
        assert tenants(one.take()) == "aaaba"
        b.alter("q", fairness_key=None, weights=None)
        assert tenants(b.subscribe("q", max_backlog=5).take()) == "bbb"


def test_shares_are_refused_where_they_could_not_hold() -> None:
    for more in (
        {"weights": {"a": 2}},
        {"max_leased": {"key": 2}},
        {"rate_limit": {"key": "2/s"}},
        {"rate_limit": "2"},
        {"rate_limit": "2/fortnight"},
        {"fairness_key": "/t", "weights": {"a": 0}},
        {"fairness_key": "/t", "barrier_expression": "/p = 1"},
        {"fairness_key": "/t", "target_queue_depth": 10},
        {"fairness_key": "/t", "max_priority": 3, "recovery_point": "epoch"},
        {"fairness_key": "/t", "max_priority": 3, "last_value_key": "/v"},
        {"fairness_key": "/t", "max_leased": {"key": 1}, "semantics": "at-most-once"},
    ):
        with pytest.raises(PenstockError):
            broker(**more)
    with pytest.raises(PenstockError, match="it has queue and key"):
        broker(rate_limit={"k": "1/s"})
    with broker(fairness_key="/t") as b, pytest.raises(PenstockError, match="fairness_key"):
        b.subscribe("q", filter="/n = 1")


def test_the_oldest_of_all_tenants_gives_way_to_a_limit() -> None:
    with broker(fairness_key="/t", max_length=3) as b:
        publish(b, "abaab")
        assert tenants(b.subscribe("q", max_backlog=5).take()) == "aba"


def test_it_is_told_why_tenants_and_rates_wait() -> None:
    with broker(fairness_key="/t", max_leased={"key": 1}) as b:
        publish(b, "aab")
        b.subscribe("q", max_backlog=10).take()
        assert "tenants" in {reason.code for reason in b.explain("q")}
        assert b.stats("q")["tenants"] == 2
    with broker(rate_limit="1/s") as b:
        publish(b, "aa")
        b.subscribe("q", max_backlog=10).take()
        [text] = [reason.text for reason in b.explain("q") if reason.code == "rate_limit"]
        assert text == "its rate_limit of 1 in 1s is used up, the next may go in 1s"


URGENT = [("a", 0), ("a", 2), ("b", 1), ("a", 1), ("b", 2), ("b", 0), ("c", 0)]


def publish_urgent(broker: Broker) -> None:
    for n, (tenant, priority) in enumerate(URGENT):
        broker.publish("q", orjson.dumps({"t": tenant, "n": n}), priority=priority)


def test_each_tenant_has_its_own_priorities_and_none_gets_more_by_them() -> None:
    with broker(fairness_key="/t", max_priority=2) as b:
        publish_urgent(b)
        messages = b.subscribe("q", max_backlog=10).take()
        assert tenants(messages) == "abcabab"
        assert numbers(messages) == [1, 4, 6, 3, 2, 0, 5]


def test_priorities_and_tenants_outlive_a_restart_and_what_is_given_back() -> None:
    with broker(fairness_key="/t", max_priority=2) as b:
        publish_urgent(b)
        one = b.subscribe("q", max_backlog=3)
        assert numbers(one.take()) == [1, 4, 6]
        b.crash()
        b.restart()
        assert numbers(b.subscribe("q", max_backlog=10).take()) == [1, 4, 6, 3, 2, 0, 5]


def test_priorities_and_tenants_come_and_go_on_a_living_queue() -> None:
    with broker(max_priority=2) as b:
        publish_urgent(b)
        b.alter("q", fairness_key="/t")
        assert numbers(b.subscribe("q", max_backlog=3).take()) == [1, 4, 6]
    with broker(fairness_key="/t") as b:
        publish_urgent(b)
        b.alter("q", max_priority=2)
        assert numbers(b.subscribe("q", max_backlog=3).take()) == [1, 4, 6]
    with broker(fairness_key="/t", max_priority=2) as b:
        publish_urgent(b)
        b.alter("q", max_priority=0)
        assert numbers(b.subscribe("q", max_backlog=3).take()) == [0, 2, 6]
    with broker(fairness_key="/t", max_priority=2) as b:
        publish_urgent(b)
        b.alter("q", fairness_key=None)
        assert numbers(b.subscribe("q", max_backlog=3).take()) == [1, 4, 2]


def test_of_groups_the_most_urgent_front_goes_first_and_each_keeps_its_order() -> None:
    with broker(group_key="/t", max_priority=2) as b:
        publish_urgent(b)
        one = b.subscribe("q", max_backlog=10)
        first = one.take()
        assert numbers(first) == [2, 0, 6]  # b's first is more urgent than a's, whatever waits behind that
        first[1].ack()
        [after] = one.take()
        assert numbers([after]) == [1]


def test_the_oldest_of_the_lowest_gives_way_whosever_it_is() -> None:
    with broker(fairness_key="/t", max_priority=2, max_length=4) as b:
        publish_urgent(b)
        assert sorted(numbers(b.subscribe("q", max_backlog=10).take())) == [1, 2, 3, 4]


def test_who_may_have_no_more_is_not_asked_again_and_again() -> None:
    """More wait than one step gives out, and their tenant has out all that it may: nothing is left to do at once."""
    with broker(fairness_key="/t", max_leased={"key": 1}) as b:
        b.command(lambda one: setattr(one.core.queue("/", "q"), "dispatch_most", 3))
        publish(b, "aaaaaaaa")
        assert tenants(b.subscribe("q", max_backlog=100).take()) == "a"
        assert b.command(lambda one: one.core.queue("/", "q").next_deadline()[1]) != 0


def test_what_comes_due_after_a_start_is_offered_before_it_gives_way_to_a_limit() -> None:
    with broker(fairness_key="/t", max_length=2) as b:
        for n in range(6):
            b.publish("q", orjson.dumps({"t": "ab"[n % 2], "n": n}), delay=10.0)
        b.restart()  # keys of what is scheduled are not known
        one = b.subscribe("q", max_backlog=5)
        b.advance(11.0)
        assert sorted(numbers(one.take())) == [0, 1, 2, 3, 4]
        assert (b.stats("q")["ready"], b.stats("q")["dropped"]) == (1, 0)


def test_what_nobody_has_room_for_gives_way_at_once_whatever_its_key() -> None:
    with broker(fairness_key="/t", max_length=2) as b:
        for n in range(6):
            b.publish("q", orjson.dumps({"t": "ab"[n % 2], "n": n}), delay=10.0)
        b.restart()
        b.advance(11.0)
        assert (b.stats("q")["ready"], b.stats("q")["dropped"]) == (2, 4)


def delivered(one: Any) -> str:
    """Tenants of what a consumer is given, acknowledging each."""
    seen = ""
    while messages := one.take():
        seen += tenants(messages)
        for message in messages:
            message.ack()
    return seen


def test_who_had_all_that_waited_taken_away_enters_behind_the_others_again() -> None:
    with broker(fairness_key="/t") as b:
        publish(b, "a")
        b.publish("q", b'{"t": "a"}', expiration=5.0)
        publish(b, "bb")
        one = b.subscribe("q", max_backlog=1)
        [first] = one.take()
        b.advance(6.0)  # nothing of a waits
        publish(b, "ca")
        first.ack()
        assert delivered(one) == "bcab"


def test_who_may_have_no_more_after_a_change_enters_behind_the_others_again() -> None:
    with broker(fairness_key="/t", max_leased={"key": 2}) as b:
        publish(b, "aabb")
        one = b.subscribe("q", max_backlog=1)
        [first] = one.take()
        b.alter("q", max_leased={"key": 1})
        publish(b, "c")
        assert tenants(b.subscribe("q", max_backlog=1).take()) == "b"
        first.ack()
        assert delivered(one) == "ca"
