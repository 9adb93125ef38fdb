"""One subscription over several queues, replacing it, its backlog, and leases that are told and lengthened."""

from __future__ import annotations

import pytest

from penstock import InvalidArgument, NotFound
from penstock.errors import ExpressionError
from penstock.testing import Broker, Subscription


def several(*names: str, **settings: object) -> dict[str, object]:
    return {"queue": [{"name": name, **settings} for name in names]}


def taken(subscription: Subscription) -> list[str]:
    return [message.body.decode() for message in subscription.take()]


def fill(broker: Broker, name: str, *bodies: str) -> None:
    for body in bodies:
        broker.publish(name, body)


# --- several queues ---------------------------------------------------------------------------------------------------


def test_one_backlog_for_all_queues_that_a_pattern_matches() -> None:
    with Broker(several("jobs.a", "jobs.b", "other")) as broker:
        fill(broker, "jobs.a", "a1", "a2", "a3")
        fill(broker, "jobs.b", "b1", "b2")
        fill(broker, "other", "o1")
        subscription = broker.subscribe("^jobs", max_backlog=2)
        first = subscription.take()
        assert len(first) == subscription.outstanding == 2
        seen = [message.body.decode() for message in first]
        while messages := subscription.take() or first:
            first = []
            for message in messages:
                assert message.queue == "jobs." + message.body.decode()[0]
                assert message.ack()
                seen += taken_later(subscription, seen)
        assert sorted(seen) == ["a1", "a2", "a3", "b1", "b2"]
        assert broker.stats("other")["ready"] == 1


def taken_later(subscription: Subscription, seen: list[str]) -> list[str]:
    assert subscription.outstanding <= 2
    messages = subscription.take()
    for message in messages:
        message.ack()
    return [message.body.decode() for message in messages]


def test_freed_backlog_serves_the_queues_in_turn() -> None:
    with Broker(several("jobs.a", "jobs.b")) as broker:
        subscription = broker.subscribe("^jobs", max_backlog=1)
        fill(broker, "jobs.a", "a1", "a2", "a3")
        fill(broker, "jobs.b", "b1", "b2", "b3")
        seen = list[str]()
        for _ in range(6):
            [message] = subscription.take()
            seen.append(message.body.decode())
            message.ack()
        assert seen == ["a1", "b1", "a2", "b2", "a3", "b3"]


def test_a_pattern_is_of_queues_and_of_topics() -> None:
    settings = {
        "queue": [{"name": "work", "underlying_topic": "orders.eu"}, {"name": "orders.us"}],
        "topic": [{"name": "orders.asia"}, {"name": "other"}],
    }
    with Broker(settings) as broker:
        broker.publish("orders.asia", "before")
        subscription = broker.subscribe("^(work|orders)", max_backlog=None, filter="/n IS NULL OR /n > 0")
        for topic in ("orders.eu", "orders.us", "orders.asia", "other"):
            broker.publish(topic, topic)
        broker.publish("orders.asia", '{"n": 0}')
        came = [(message.topic, message.queue, message.ack()) for message in subscription.take()]
        assert sorted(came) == [
            ("orders.asia", "^(work|orders)", False),  # nothing to settle
            ("orders.eu", "^(work|orders)", False),  # queue and topic have two names: both deliver
            ("orders.eu", "work", True),
            ("orders.us", "orders.us", True),  # the name is the queue's
        ]
        subscription.replace(topic="^orders.asia$|^work$", filter="")
        for topic in ("orders.eu", "orders.asia"):
            broker.publish(topic, '{"n": 0}')
        assert sorted(message.topic for message in subscription.take()) == ["orders.asia", "orders.eu"]
        subscription.replace(topic="work")
        broker.publish("orders.asia", "no more")
        assert subscription.take() == []
        subscription.close()
        broker.publish("orders.eu", "closed")
        assert subscription.take() == []


def test_a_dot_alone_makes_no_pattern() -> None:
    with Broker(several("jobs.a", "jobs_a")) as broker:
        fill(broker, "jobs_a", "other")
        fill(broker, "jobs.a", "mine")
        assert taken(broker.subscribe("jobs.a", max_backlog=5)) == ["mine"]


def test_a_queue_of_exactly_that_name_comes_before_a_pattern() -> None:
    with Broker(several("a+", "aa")) as broker:
        fill(broker, "a+", "mine")
        fill(broker, "aa", "other")
        assert taken(broker.subscribe("a+", max_backlog=5)) == ["mine"]


def test_queues_join_when_they_are_declared_and_leave_when_they_are_deleted() -> None:
    with Broker(several("jobs.a", "jobs.b")) as broker:
        subscription = broker.subscribe("^jobs", max_backlog=3, name="w")
        fill(broker, "jobs.b", "b1")
        assert taken(subscription) == ["b1"]
        instance = broker.instance
        assert instance is not None
        core, now = instance.core, instance.engine.now
        broker.command(lambda _: core.delete_queue(now(), core.queue("/", "jobs.b")))
        assert subscription.outstanding == 0
        settings = core.queue("/", "jobs.a").settings
        broker.command(lambda _: core.declare_queue(now(), "/", "jobs.c", settings))
        fill(broker, "jobs.c", "c1", "c2")
        fill(broker, "jobs.a", "a1", "a2")
        assert taken(subscription) == ["c1", "c2", "a1"]
        broker.disconnect("w")
        assert broker.stats("jobs.c")["ready"] == 2


def test_the_smallest_limit_of_its_queues_holds() -> None:
    config = {
        "queue": [
            {"name": "jobs.a", "max_per_subscription_backlog": 7},
            {"name": "jobs.b", "max_per_subscription_backlog": 3},
            {"name": "jobs.c"},
        ]
    }
    with Broker(config) as broker:
        subscription = broker.subscribe("^jobs", max_backlog=10)
        assert subscription.effective_backlog == 3
        fill(broker, "jobs.c", *"12345")
        assert len(subscription.take()) == 3
        broker.alter("jobs.b", max_per_subscription_backlog=5)
        assert subscription.effective_backlog == 5
        assert len(subscription.take()) == 2
        assert broker.subscribe("^jobs", max_backlog=2).effective_backlog == 2
        assert broker.subscribe("jobs.a", max_backlog=10).effective_backlog == 7
        assert broker.subscribe("jobs.c", max_backlog=10).effective_backlog == 10
        assert broker.subscribe("jobs.c", max_backlog=None).effective_backlog is None
        assert broker.subscribe("jobs.c").effective_backlog == 1


def test_a_backlog_of_nothing_gets_nothing() -> None:
    with Broker(several("jobs.a")) as broker:
        alone, many = broker.subscribe("jobs.a", max_backlog=0), broker.subscribe("^jobs", max_backlog=0)
        fill(broker, "jobs.a", "a1")
        assert (alone.effective_backlog, many.effective_backlog) == (0, 0)
        assert taken(alone) == taken(many) == []


def test_proportional_looks_at_the_whole_of_a_subscription() -> None:
    with Broker(several("jobs.a", "jobs.b")) as broker:
        many = broker.subscribe("^jobs", max_backlog=4, name="many")
        fill(broker, "jobs.b", "b1", "b2")  # 2 of 4
        alone = broker.subscribe("jobs.a", max_backlog=3, name="alone")
        fill(broker, "jobs.a", "a1", "a2")  # 0 of 3, then 1 of 3, both less than 2 of 4
        assert (taken(many), taken(alone)) == (["b1", "b2"], ["a1", "a2"])


def test_a_pattern_that_cannot_be_used_is_refused() -> None:
    with Broker(several("q")) as broker:
        subscription = broker.subscribe("q")
        with pytest.raises(InvalidArgument, match="cannot be used"):
            subscription.replace(topic="(unclosed")
        with pytest.raises(NotFound):
            subscription.replace(topic="nothing")
        assert subscription.queue == "q"
        fill(broker, "q", "1")
        assert taken(subscription) == ["1"]


def test_the_same_message_in_two_queues_is_two_deliveries() -> None:
    with Broker(several("q1", "q2", underlying_topic="t", lease_period="30s")) as broker:
        broker.publish("t", b"one")
        one, two = broker.subscribe("^q", max_backlog=5).take()
        assert (one.queue, two.queue, one.bookmark == two.bookmark) == ("q1", "q2", True)
        assert one.ack()
        assert (broker.stats("q1")["leased"], broker.stats("q2")["leased"]) == (0, 1)
        assert two.extend(60)
        assert two.cancel()


# --- replacing --------------------------------------------------------------------------------------------------------


def test_a_new_filter_holds_for_what_comes_and_leaves_leases_alone() -> None:
    with Broker(several("q")) as broker:
        subscription = broker.subscribe("q", filter="/n < 5", max_backlog=3)
        for n in (1, 7, 2, 8):
            broker.publish("q", b'{"n": %d}' % n)
        held = subscription.take()
        assert [message.json()["n"] for message in held] == [1, 2]
        subscription.replace(filter="/n > 5")
        assert [message.json()["n"] for message in subscription.take()] == [7]
        assert subscription.outstanding == 3
        assert held[0].ack()  # still its own, though it does not match any more
        assert [message.json()["n"] for message in subscription.take()] == [8]
        subscription.replace(filter="")
        assert held[1].cancel()
        assert [message.json()["n"] for message in subscription.take()] == [2]
        with pytest.raises(ExpressionError):
            subscription.replace(filter="/n >")


def test_more_may_be_outstanding_than_the_new_backlog_allows() -> None:
    with Broker(several("q")) as broker:
        subscription = broker.subscribe("q", max_backlog=10)
        fill(broker, "q", *map(str, range(12)))
        held = subscription.take()
        assert len(held) == 10
        subscription.replace(max_backlog=5)
        assert (subscription.effective_backlog, subscription.outstanding) == (5, 10)
        for message in held[:5]:
            message.ack()
            assert taken(subscription) == []
        held[5].ack()
        assert taken(subscription) == ["10"]


def test_another_queue_keeps_what_is_outstanding() -> None:
    config = {
        "queue": [
            {"name": "a", "max_per_subscription_backlog": 10},
            {"name": "b", "max_per_subscription_backlog": 5},
        ]
    }
    with Broker(config) as broker:
        subscription = broker.subscribe("a", max_backlog=10)
        fill(broker, "a", *map(str, range(11)))
        fill(broker, "b", "b0", "b1")
        held = subscription.take()
        subscription.replace(topic="b")
        assert (subscription.effective_backlog, subscription.outstanding, taken(subscription)) == (5, 10, [])
        assert broker.stats("a")["consumers"] == 0
        for message in held[:6]:
            assert message.ack()
        assert taken(subscription) == ["b0"]
        subscription.replace(topic="a")
        assert (subscription.effective_backlog, subscription.outstanding, taken(subscription)) == (10, 6, ["10"])
        subscription.replace(topic="^[ab]$")
        assert (subscription.effective_backlog, taken(subscription)) == (5, [])
        assert held[6].cancel()
        subscription.close()
        assert (broker.stats("a")["ready"], broker.stats("b")["ready"]) == (5, 2)


def test_replacing_is_atomic_for_a_second_consumer() -> None:
    with Broker(several("q")) as broker:
        first, second = broker.subscribe("q", filter="/n = 1"), broker.subscribe("q", filter="/n = 2")
        first.replace(filter="/n = 2")
        second.replace(filter="/n = 1")
        broker.publish("q", b'{"n": 1}')
        broker.publish("q", b'{"n": 2}')
        assert [message.json()["n"] for message in first.take()] == [2]
        assert [message.json()["n"] for message in second.take()] == [1]


def test_a_closed_subscription_cannot_be_replaced() -> None:
    with Broker(several("q")) as broker:
        subscription = broker.subscribe("q")
        subscription.close()
        with pytest.raises(InvalidArgument, match="closed"):
            subscription.replace(max_backlog=4)


# --- leases -----------------------------------------------------------------------------------------------------------


def test_the_end_of_a_lease_is_told_and_can_be_moved() -> None:
    with Broker(several("q", lease_period="30s")) as broker:
        broker.publish("q", b"one")
        subscription = broker.subscribe("q")
        [message] = subscription.take()
        assert message.lease_until == broker.now() + 30
        broker.advance(20)
        assert message.extend(60)
        assert message.lease_until == broker.now() + 60
        assert message.extend(5)  # never sooner than it would have ended
        assert message.lease_until == broker.now() + 60
        broker.advance(59)
        assert broker.stats("q")["leased"] == 1
        broker.advance(1)
        assert not message.extend(60)
        [again] = subscription.take()
        assert (again.attempt, broker.stats("q")["expired_leases"]) == (2, 1)
        assert again.ack()
        assert not again.extend(60)


def test_a_lease_without_end_stays_so() -> None:
    with Broker(several("q")) as broker:
        broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        assert message.lease_until is None
        assert message.extend(1)
        broker.advance(10)
        assert message.ack()


def test_a_filter_may_ask_who_asks() -> None:
    with Broker({"queue": [{"name": "q"}], "topic": [{"name": "t", "key": ["/id"]}]}) as broker:
        for owner in ("ann", "bob", "penstock-1", "ann"):
            broker.publish("q", f'{{"owner": "{owner}"}}')
            broker.publish("t", f'{{"id": 1, "owner": "{owner}"}}')
        mine = "/owner = CLIENT_NAME()"
        ann = broker.subscribe("q", filter=mine, name="ann", max_backlog=None)
        assert len(ann.take()) == 2
        ann.close()
        bob = broker.subscribe("q", bookmark="EPOCH", filter=mine, name="bob")
        assert taken(bob) == ['{"owner": "bob"}']
        assert broker.ack_filter("q", mine, by="ann") == 2
        assert broker.ack_filter("q", "/owner = AMPS_INSTANCE_NAME()", by="x") == 1
        [record] = broker.sow("t")
        assert broker.sow("t", f"SOW_KEY() = '{record.key}'") == [record]
        assert broker.sow("t", "SOW_KEY() = '1'") == []
        assert broker.sow_delete("t", filter=f"SOW_KEY() = '{record.key}'") == 1
        for text in ("USER() = 'x'", "LEASE_COUNT() > 1", "LAST_READ() > 1", "SOW_KEY() = '1'"):
            with pytest.raises(ExpressionError, match="cannot be used here: it asks for more than the message"):
                broker.subscribe("q", filter=text)
        with pytest.raises(ExpressionError, match="queries of records"):
            broker.sow("q", "SOW_KEY() = '1'")


def test_a_queues_own_filter_is_no_clients() -> None:
    with pytest.raises(ExpressionError, match="USER cannot be used here: .*who asks"):
        Broker({"queue": [{"name": "q", "filter": "USER() = 'ann'"}]})
