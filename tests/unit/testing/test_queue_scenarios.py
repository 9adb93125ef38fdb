"""What a queue does, told as a user would: publish, take, settle, wait.  Each test is one rule.

The rules are those of AMPS queues where they have one, and RabbitMQ's dead letters; time is fake.
"""

from __future__ import annotations

import pytest

from penstock.errors import NotFound, SettingsError
from penstock.testing import Broker, Message
from penstock.testing.process import Config


def queue(name: str = "q", **settings: object) -> dict[str, object]:
    return {"name": name, **settings}


def broker_of(*queues: dict[str, object], **sections: object) -> Broker:
    return Broker({"queue": list(queues), **sections})


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def take_all(broker: Broker, name: str = "q") -> list[Message]:
    """What a new client without any limit is given at once."""
    return broker.subscribe(name, max_backlog=None).take()


# --- order and backlog --------------------------------------------------------------------------------------------


def test_messages_come_in_the_order_they_were_published() -> None:
    with broker_of(queue()) as broker:
        for n in range(5):
            broker.publish("q", f"{n}")
        assert bodies(take_all(broker)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_subscription_has_a_backlog_of_one_unless_it_asks_for_more() -> None:
    with broker_of(queue()) as broker:
        for n in range(3):
            broker.publish("q", f"{n}")
        one = broker.subscribe("q")
        [first] = one.take()
        assert one.effective_backlog == 1
        assert one.take() == []
        first.ack()
        assert bodies(one.take()) == [b"1"]


@pytest.mark.parametrize(
    ("of_the_queue", "asked", "effective"),
    [(0, 1, 1), (0, None, None), (3, 10, 3), (10, 3, 3), (3, None, 3), (3, 0, 0)],
)
def test_the_smaller_backlog_holds(of_the_queue: int, asked: int | None, effective: int | None) -> None:
    with broker_of(queue(max_per_subscription_backlog=of_the_queue)) as broker:
        for n in range(5):
            broker.publish("q", f"{n}")
        subscription = broker.subscribe("q", max_backlog=asked)
        assert subscription.effective_backlog == effective
        assert len(subscription.take()) == (5 if effective is None else effective)


def test_the_queue_wide_backlog_limits_what_all_hold_together() -> None:
    with broker_of(queue(max_backlog=3)) as broker:
        for n in range(10):
            broker.publish("q", f"{n}")
        a, b = broker.subscribe("q", max_backlog=2), broker.subscribe("q", max_backlog=10)
        held = a.take() + b.take()
        assert len(held) == 3
        held[0].ack()
        assert len(a.take() + b.take()) == 1


# --- leases -------------------------------------------------------------------------------------------------------


def test_a_lease_ends_by_time_and_the_message_goes_out_again() -> None:
    with broker_of(queue(lease_period="30s")) as broker:
        broker.publish("q", b"one")
        subscription = broker.subscribe("q")
        [first] = subscription.take()
        assert first.lease_until == broker.now() + 30
        assert (first.attempt, first.redelivered) == (1, False)
        broker.advance(29.999)
        assert subscription.take() == []
        broker.advance(0.001)
        [again] = subscription.take()
        assert (again.attempt, again.redelivered, again.bookmark) == (2, True, first.bookmark)
        assert broker.stats("q")["expired_leases"] == 1


def test_a_lease_without_a_period_ends_with_its_holder_alone() -> None:
    with broker_of(queue()) as broker:
        broker.publish("q", b"one")
        [held] = broker.subscribe("q", name="worker").take()
        other = broker.subscribe("q")
        broker.advance(10 * 86_400)
        assert held.lease_until is None
        assert other.take() == []
        assert broker.disconnect("worker") == 1
        [again] = other.take()
        assert again.redelivered


def test_what_returns_takes_its_own_place_before_newer_messages() -> None:
    with broker_of(queue()) as broker:
        for n in range(4):
            broker.publish("q", f"{n}")
        first = broker.subscribe("q", max_backlog=2)
        first.take()
        first.close()
        assert bodies(take_all(broker)) == [b"0", b"1", b"2", b"3"]


def test_unsubscribing_returns_what_was_held_uncounted_and_disconnecting_counts_the_oldest() -> None:
    with broker_of(queue(delivery_limit=0)) as broker:
        for n in range(3):
            broker.publish("q", f"{n}")
        first = broker.subscribe("q", max_backlog=10)
        first.take()
        first.close()
        second = broker.subscribe("q", max_backlog=10, name="second")
        assert bodies(second.take()) == [b"0", b"1", b"2"]
        broker.disconnect("second")
        assert bodies(take_all(broker)) == [b"1", b"2"]  # the oldest may have caused the crash of its worker


# --- settling -----------------------------------------------------------------------------------------------------


def test_an_ack_is_for_ever_and_a_second_one_is_stale() -> None:
    with broker_of(queue(lease_period="30s")) as broker:
        broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        assert message.ack()
        assert not message.ack()
        assert not message.cancel()
        broker.advance(100)
        assert take_all(broker) == []
        assert broker.stats("q")["acked"] == 1


def test_a_cancelled_message_goes_out_again_at_once() -> None:
    with broker_of(queue()) as broker:
        broker.publish("q", b"one")
        subscription = broker.subscribe("q")
        [message] = subscription.take()
        assert message.cancel()
        [again] = subscription.take()
        assert again.attempt == 2
        assert not message.cancel()  # this delivery is over; the new one is not touched
        assert again.ack()


def test_an_expired_message_leaves_at_once() -> None:
    with broker_of(queue()) as broker:
        broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        assert message.expire()
        assert broker.stats("q")["ready"] == 0
        assert take_all(broker) == []


def test_bookmarks_settle_many_at_once() -> None:
    with broker_of(queue()) as broker:
        marks = [broker.publish("q", f"{n}") for n in range(6)]
        assert broker.ack("q", marks[:2]) == 2
        assert broker.ack("q", ",".join(marks[1:4])) == 2  # one of them was gone
        assert broker.ack("q", [marks[4]], option="expire") == 1
        assert bodies(take_all(broker)) == [b"5"]


def test_sublet_lets_anybody_acknowledge() -> None:
    with broker_of(queue(lease_period="30s")) as broker:
        for body in (b"one", b"two"):
            broker.publish("q", body)
        holder = broker.subscribe("q", name="holder")
        [message] = holder.take()
        assert broker.ack("q", [message.bookmark], by="somebody") == 1
        assert not message.ack()
        assert bodies(holder.take()) == [b"two"]  # its slot was freed


def test_sublet_takes_the_late_ack_of_a_former_holder() -> None:
    with broker_of(queue(lease_period="30s")) as broker:
        broker.publish("q", b"one")
        former, present = broker.subscribe("q"), broker.subscribe("q")
        [late] = former.take()
        former.close()
        [held] = present.take()
        assert late.ack()
        assert not held.ack()
        assert broker.stats("q")["leased"] == 0


def test_strict_takes_acks_from_the_holder_alone() -> None:
    with broker_of(queue(leasing="strict", lease_period="30s")) as broker:
        broker.publish("q", b"one")
        holder = broker.subscribe("q", name="holder")
        [message] = holder.take()
        assert broker.ack("q", [message.bookmark], by="somebody") == 0
        assert broker.ack("q", [message.bookmark], by="somebody", option="cancel") == 0
        assert broker.ack("q", [message.bookmark], by="holder") == 1


def test_strict_lets_anybody_acknowledge_what_nobody_holds() -> None:
    with broker_of(queue(leasing="strict")) as broker:
        mark = broker.publish("q", b"one")
        assert broker.ack("q", [mark], by="somebody") == 1
        assert take_all(broker) == []


@pytest.mark.parametrize("how", ["cancel", "lease", "disconnect"])
def test_without_limits_a_message_comes_back_as_often_as_it_fails(how: str) -> None:
    with broker_of(queue(lease_period="30s")) as broker:
        broker.publish("q", b"one")
        worker = broker.subscribe("q", name="worker")
        for attempt in range(1, 51):
            [message] = worker.take()
            assert message.attempt == attempt
            if how == "cancel":
                message.cancel()
            elif how == "lease":
                broker.advance(30)
            else:
                broker.disconnect("worker")
                worker = broker.subscribe("q", name="worker")
        assert bodies(worker.take()) == [b"one"]


def test_strict_ignores_the_late_ack_of_a_former_holder() -> None:
    with broker_of(queue(leasing="strict", lease_period="30s")) as broker:
        broker.publish("q", b"one")
        former = broker.subscribe("q")
        [late] = former.take()
        broker.advance(30)  # the same client is granted it again: the earlier delivery is over all the same
        [held] = former.take()
        assert not late.ack()
        assert held.ack()


def test_strict_lets_anybody_settle_what_nobody_holds() -> None:
    with broker_of(queue(leasing="strict")) as broker:
        mark = broker.publish("q", b"one")
        assert broker.ack("q", [mark], by="somebody") == 1


# --- limits -------------------------------------------------------------------------------------------------------


def test_the_nth_cancel_expires_a_message() -> None:
    with broker_of(queue(max_cancels=3)) as broker:
        mark = broker.publish("q", b"poison")
        subscription = broker.subscribe("q")
        for _ in range(3):
            [message] = subscription.take()
            assert message.cancel()
        assert subscription.take() == []
        assert broker.story(mark)[-1].details["reason"] == "max_cancels"


def test_leases_that_end_are_no_cancels() -> None:
    with broker_of(queue(max_cancels=1, lease_period="1s")) as broker:
        broker.publish("q", b"slow")
        subscription = broker.subscribe("q")
        for attempt in range(1, 5):
            [message] = subscription.take()
            assert message.attempt == attempt
            broker.advance(1)


def test_max_deliveries_allows_so_many_whatever_ends_them() -> None:
    with broker_of(queue(max_deliveries=3, lease_period="10s")) as broker:
        mark = broker.publish("q", b"poison")
        subscription = broker.subscribe("q")
        subscription.take()
        broker.advance(10)  # by time
        [second] = subscription.take()
        second.cancel()  # by cancel
        subscription.take()
        broker.advance(10)
        assert subscription.take() == []
        last = broker.story(mark)[-1]
        assert (last.event, last.details["reason"]) == ("delivery_limit", "max_deliveries")


def test_a_limit_that_is_set_while_running_counts_what_was_before() -> None:
    with broker_of(queue()) as broker:
        broker.publish("q", b"one")
        subscription = broker.subscribe("q")
        for _ in range(2):
            [message] = subscription.take()
            message.cancel()
        broker.alter("q", max_cancels=3)
        [message] = subscription.take()
        message.cancel()
        assert subscription.take() == []


# --- at most once -------------------------------------------------------------------------------------------------


def test_an_at_most_once_message_is_never_seen_again() -> None:
    with broker_of(queue(semantics="at-most-once")) as broker:
        broker.publish("q", b"one")
        subscription = broker.subscribe("q", name="worker")
        [message] = subscription.take()
        assert message.lease_until is None
        assert broker.stats("q")["ready"] == broker.stats("q")["leased"] == 0
        broker.disconnect("worker")
        broker.crash()
        broker.restart()
        assert take_all(broker) == []


@pytest.mark.parametrize("verb", ["ack", "cancel", "expire"])
def test_at_most_once_fills_the_backlog_until_it_is_settled_in_any_way(verb: str) -> None:
    with broker_of(queue(semantics="at-most-once")) as broker:
        broker.publish("q", b"one")
        broker.publish("q", b"two")
        subscription = broker.subscribe("q", name="worker")
        [message] = subscription.take()
        assert subscription.take() == []
        if verb == "ack":
            assert broker.ack("q", [message.bookmark], by="worker") == 1
        else:
            assert getattr(message, verb)()
        assert bodies(subscription.take()) == [b"two"]


# --- filters ------------------------------------------------------------------------------------------------------


def test_the_queue_takes_what_its_filter_lets_in() -> None:
    with broker_of(queue(underlying_topic="orders", filter="/total > 5")) as broker:
        assert broker.publish("orders", b'{"total": 9}')
        assert broker.publish("orders", b'{"total": 1}') == ""  # nobody wants it, so it is not stored
        assert [message.json()["total"] for message in take_all(broker)] == [9]


def test_a_subscription_gets_the_oldest_message_that_it_wants() -> None:
    with broker_of(queue()) as broker:
        for n in range(6):
            broker.publish("q", f'{{"n": {n}}}')
        odd = broker.subscribe("q", filter="/n IN (1, 3, 5)", max_backlog=2)
        assert [message.json()["n"] for message in odd.take()] == [1, 3]
        rest = broker.subscribe("q", max_backlog=10)
        assert [message.json()["n"] for message in rest.take()] == [0, 2, 4, 5]


def test_a_message_that_nobody_matches_holds_up_nobody() -> None:
    with broker_of(queue()) as broker:
        subscription = broker.subscribe("q", filter="/kind = 'a'", max_backlog=10)
        for kind in "bab":
            broker.publish("q", f'{{"kind": "{kind}"}}')
        assert len(subscription.take()) == 1
        assert broker.stats("q")["ready"] == 2


def test_several_queues_on_one_topic_are_independent() -> None:
    with broker_of(queue("a", underlying_topic="t"), queue("b", underlying_topic="t")) as broker:
        mark = broker.publish("t", b"one")
        assert broker.ack("a", [mark]) == 1
        assert bodies(take_all(broker, "b")) == [b"one"]


def test_publishing_to_the_name_of_a_queue_goes_to_its_target() -> None:
    with broker_of(queue(underlying_topic="^orders-", default_publish_target="orders-new")) as broker:
        broker.publish("q", b"one")
        broker.publish("orders-old", b"two")
        assert [message.topic for message in take_all(broker)] == ["orders-new", "orders-old"]


# --- fairness -----------------------------------------------------------------------------------------------------


def test_proportional_serves_the_lowest_share_of_its_backlog() -> None:
    """The document's vector: of 1/2, 3/4 and 4/10 outstanding the third is served."""
    with broker_of(queue(fairness_model="proportional")) as broker:
        sizes = {"a": (2, 1), "b": (4, 3), "c": (10, 4)}
        subscriptions = {
            name: broker.subscribe("q", filter=f"/for IN ('{name}', 'any')", max_backlog=backlog)
            for name, (backlog, _) in sizes.items()
        }
        for name, (_, outstanding) in sizes.items():
            for _ in range(outstanding):
                broker.publish("q", f'{{"for": "{name}"}}')
        assert [len(one.take()) for one in subscriptions.values()] == [1, 3, 4]
        broker.publish("q", b'{"for": "any"}')
        assert [len(one.take()) for one in subscriptions.values()] == [0, 0, 1]


@pytest.mark.parametrize(
    ("model", "shares"),
    [("fast", [2, 4, 0]), ("round-robin", [2, 2, 2]), ("proportional", [1, 2, 3])],
)
def test_each_model_deals_six_messages_its_own_way(model: str, shares: list[int]) -> None:
    with broker_of(queue(fairness_model=model)) as broker:
        subscriptions = [broker.subscribe("q", max_backlog=backlog) for backlog in (2, 4, 8)]
        for n in range(6):
            broker.publish("q", f"{n}")
        assert [len(one.take()) for one in subscriptions] == shares


def test_at_most_once_allows_round_robin_only() -> None:
    with pytest.raises(SettingsError, match="round-robin"):
        broker_of(queue(semantics="at-most-once", fairness_model="fast"))


def test_a_subscription_without_backlog_gets_nothing_and_disturbs_nobody() -> None:
    with broker_of(queue()) as broker:
        idle, busy = broker.subscribe("q", max_backlog=0), broker.subscribe("q", max_backlog=2)
        for n in range(3):
            broker.publish("q", f"{n}")
        assert (len(idle.take()), len(busy.take())) == (0, 2)


# --- expiration ---------------------------------------------------------------------------------------------------

LONG, SHORT = 20.0, 10.0


@pytest.mark.parametrize(
    ("model", "of_the_queue", "of_the_message", "ends_after"),
    [
        ("default", "10s", LONG, LONG),
        ("default", "10s", None, SHORT),
        ("default", None, LONG, LONG),
        ("default", None, None, None),
        ("default", "10s", 0, None),  # the message says: never
        ("queue", "20s", SHORT, LONG),
        ("queue", None, SHORT, None),
        ("latest", "10s", LONG, LONG),
        ("latest", "20s", SHORT, LONG),
        ("latest", "10s", None, SHORT),
        ("latest", None, SHORT, None),
        ("earliest", "10s", LONG, SHORT),
        ("earliest", "20s", SHORT, SHORT),
        ("earliest", "10s", None, SHORT),
        ("earliest", None, SHORT, SHORT),
        ("earliest", None, None, None),
    ],
)
def test_expiration_models(
    model: str, of_the_queue: str | None, of_the_message: float | None, ends_after: float | None
) -> None:
    settings: dict[str, object] = {"expiration_model": model}
    if of_the_queue is not None:
        settings["expiration"] = of_the_queue
    with broker_of(queue(**settings)) as broker:
        broker.publish("q", b"one", expiration=of_the_message)
        if ends_after is None:
            broker.advance(400 * 86_400)
            assert broker.stats("q")["ready"] == 1
        else:
            broker.advance(ends_after - 0.001)
            assert broker.stats("q")["ready"] == 1
            broker.advance(0.001)
            assert broker.stats("q")["ready"] == 0


def test_a_leased_message_that_expires_stays_with_its_holder_until_it_would_return() -> None:
    with broker_of(queue(expiration="10s")) as broker:
        mark = broker.publish("q", b"one")
        subscription = broker.subscribe("q")
        [message] = subscription.take()
        broker.advance(60)
        assert broker.stats("q")["leased"] == 1
        assert message.cancel()
        assert subscription.take() == []
        assert broker.story(mark)[-1].details["reason"] == "time_limit"


def test_an_ack_wins_over_an_expiration_that_passed_during_the_lease() -> None:
    with broker_of(queue(expiration="10s")) as broker:
        mark = broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        broker.advance(60)
        assert message.ack()
        assert [event.event for event in broker.story(mark)][-1] == "settled"
        assert broker.stats("q")["expirations"] == {}


def test_the_clock_of_an_expiration_does_not_stop_while_the_broker_is_down() -> None:
    with broker_of(queue(expiration="10s")) as broker:
        broker.publish("q", b"one")
        broker.crash()
        broker.advance(10)
        broker.restart()
        assert broker.stats("q")["ready"] == 0


# --- delays and retries -------------------------------------------------------------------------------------------


def test_a_delayed_message_waits_and_takes_its_place_when_it_is_due() -> None:
    with broker_of(queue()) as broker:
        broker.publish("q", b"late", delay=10)
        broker.publish("q", b"early")
        assert (broker.stats("q")["ready"], broker.stats("q")["delayed"]) == (1, 1)
        broker.advance(10)
        broker.publish("q", b"after")
        assert bodies(take_all(broker)) == [b"early", b"late", b"after"]


def test_a_delay_survives_a_crash() -> None:
    with broker_of(queue()) as broker:
        broker.publish("q", b"late", delay=10)
        broker.crash()
        broker.advance(4)
        broker.restart()
        broker.advance(5.999)
        assert broker.stats("q")["ready"] == 0
        broker.advance(0.001)
        assert broker.stats("q")["ready"] == 1


def test_failures_back_off_further_each_time_up_to_the_maximum() -> None:
    retry = {"initial": "1s", "factor": 2.0, "max": "3s", "jitter": 0.0}
    with broker_of(queue(retry=retry)) as broker:
        broker.publish("q", b"flaky")
        subscription = broker.subscribe("q")
        for wait in (1, 2, 3, 3):
            [message] = subscription.take()
            message.cancel()
            broker.advance(wait - 0.001)
            assert subscription.take() == []
            broker.advance(0.001)
        [message] = subscription.take()
        assert message.attempt == 5


def test_a_back_off_survives_a_crash_and_attempts_end_it() -> None:
    retry = {"initial": "10s", "factor": 1.0, "jitter": 0.0, "attempts": 2}
    with broker_of(queue(retry=retry)) as broker:
        mark = broker.publish("q", b"flaky")
        [message] = broker.subscribe("q").take()
        message.cancel()
        broker.crash()
        broker.restart()
        subscription = broker.subscribe("q")
        broker.advance(9.999)
        assert subscription.take() == []
        broker.advance(0.001)
        [message] = subscription.take()
        assert (message.attempt, message.redelivered) == (2, True)
        message.cancel()
        broker.advance(60)
        assert subscription.take() == []
        assert broker.story(mark)[-1].event == "delivery_limit"


# --- dead letters -------------------------------------------------------------------------------------------------


def test_a_dead_letter_goes_to_the_exchange_with_its_history() -> None:
    dead = {"dead_letter_exchange": "", "dead_letter_routing_key": "graveyard"}
    with broker_of(queue(max_cancels=1, **dead), queue("graveyard")) as broker:
        mark = broker.publish("q", b"poison", headers={"trace": "t1"}, priority=3)
        [message] = broker.subscribe("q").take()
        message.cancel()
        [letter] = take_all(broker, "graveyard")
        assert (letter.body, letter.priority, letter.headers["trace"]) == (b"poison", 3, "t1")
        [death] = letter.headers["x-death"]  # type: ignore[misc, union-attr]
        assert (death["queue"], death["reason"], death["count"]) == ("q", "delivery_limit", 1)  # type: ignore[index, call-overload]
        assert broker.story(mark)[-1].details["letters"] == [letter.bookmark]
        assert broker.story(letter.bookmark)[0].details["of"] == mark


@pytest.mark.parametrize(("how", "reason"), [("expire", "rejected"), ("cancel", "delivery_limit"), ("time", "expired")])
def test_the_reason_of_a_dead_letter(how: str, reason: str) -> None:
    settings = {"max_cancels": 1, "expiration": "10s", "dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    with broker_of(queue(**settings), queue("dead")) as broker:
        broker.publish("q", b"one")
        if how == "time":
            broker.advance(10)
        else:
            [message] = broker.subscribe("q").take()
            getattr(message, how)()
        [letter] = take_all(broker, "dead")
        assert letter.headers["x-first-death-reason"] == reason


def test_an_action_publishes_what_its_template_says() -> None:
    action = {
        "on": {"queue": "q", "event": "expire", "reason": ["max_deliveries", "max_cancels"]},
        "do": {"publish": {"topic": "dead", "data": '{"why": "{{AMPS_REASON}}", "message": {{AMPS_DATA}}}'}},
    }
    with broker_of(queue(max_deliveries=1), queue("dead"), action=[action]) as broker:
        broker.publish("q", b'{"id": 1}')
        [message] = broker.subscribe("q").take()
        message.cancel()
        [letter] = take_all(broker, "dead")
        assert letter.json() == {"why": "max_deliveries", "message": {"id": 1}}


def test_an_action_on_one_reason_is_deaf_to_others() -> None:
    action = {
        "on": {"queue": "q", "event": "expire", "reason": ["time_limit"]},
        "do": {"publish": {"topic": "dead"}},
    }
    with broker_of(queue(expiration="1s"), queue("dead"), action=[action]) as broker:
        broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        message.expire()
        assert broker.stats("dead")["ready"] == 0
        broker.publish("q", b"two")
        broker.disconnect("client-1")
        broker.advance(1)
        assert bodies(take_all(broker, "dead")) == [b"two"]


def test_a_message_and_its_dead_letter_are_one_step_for_a_crash() -> None:
    dead = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    for seed in range(10):
        with Broker({"queue": [queue(**dead), queue("dead")]}, seed=seed) as broker:
            broker.publish("q", b"one")
            [message] = broker.subscribe("q").take()
            message.expire()
            broker.crash()
            broker.restart()
            assert (broker.stats("q")["ready"], broker.stats("dead")["ready"]) == (0, 1)


# --- crash and restart --------------------------------------------------------------------------------------------


def test_confirmed_messages_and_durable_acks_outlive_a_crash() -> None:
    with broker_of(queue()) as broker:
        for n in range(6):
            broker.publish("q", f"{n}")
        held = broker.subscribe("q", max_backlog=4).take()
        held[1].ack()
        held[3].ack()
        broker.crash()
        broker.restart()
        again = take_all(broker)
        assert bodies(again) == [b"0", b"2", b"4", b"5"]
        assert all(message.redelivered for message in again)


@pytest.mark.parametrize("clean", [True, False])
def test_counts_outlive_a_restart(clean: bool) -> None:
    with broker_of(queue(max_cancels=3)) as broker:
        broker.publish("q", b"poison")
        for attempt in (1, 3, 5):  # each cancelled message goes out again at once, to a client that loses it
            [message] = broker.subscribe("q").take()
            assert message.attempt == attempt
            message.cancel()
            if not clean:
                broker.crash()
            broker.restart()
        assert broker.stats("q")["ready"] == 0


def test_leases_do_not_outlive_a_restart() -> None:
    with broker_of(queue(lease_period="1h")) as broker:
        broker.publish("q", b"one")
        [before] = broker.subscribe("q").take()
        broker.restart()
        [after] = take_all(broker)
        assert after.redelivered
        assert before.ack()  # a late ack of a former holder
        assert not after.ack()


def test_settings_may_change_with_a_restart() -> None:
    first: Config = {"queue": [queue(lease_period="1h")]}
    with Broker(first) as broker:
        broker.publish("q", b"one")
        broker.restart({"queue": [queue(lease_period="10s")]})
        [message] = broker.subscribe("q").take()
        assert message.lease_until == broker.now() + 10


def test_a_queue_that_does_not_exist_is_named() -> None:
    with broker_of(queue()) as broker, pytest.raises(NotFound, match="'nope'"):
        broker.subscribe("nope")
