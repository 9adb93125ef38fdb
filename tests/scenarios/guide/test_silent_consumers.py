"""User guide: "AMPS revokes the lease and the message is available to another subscriber", by each model of fairness.

Who hangs has room again when its leases end, and less outstanding than those that work.  It is served behind all others
until it says something.
"""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.testing import Broker
from scenario import Worker, amqp, bodies, broker_of

MODELS = ("fast", "proportional", "round-robin")

every_model = pytest.mark.parametrize("model", MODELS)


def queue(model: str, **more: Any) -> Broker:
    return broker_of({"name": "q", "lease_period": "30s", "fairness_model": model, **more})


@every_model
def test_what_a_hanging_consumer_let_end_goes_to_another(model: str) -> None:
    with queue(model) as broker:
        hanging, other = (broker.subscribe("q", name=name) for name in ("hanging", "other"))
        broker.publish("q", b"job")
        assert bodies(hanging.take()) == [b"job"]
        broker.advance(30)
        [again] = other.take()
        assert (again.body, again.redelivered, hanging.take()) == (b"job", True, [])
        assert again.ack()


@every_model
@pytest.mark.parametrize("mine", [None, "/n < 9"])
def test_it_goes_to_another_whose_filter_has_to_look_at_it_first(model: str, mine: str | None) -> None:
    with queue(model) as broker:
        hanging = broker.subscribe("q", filter=mine)
        broker.publish("q", b'{"n": 1}')
        assert bodies(hanging.take()) == [b'{"n": 1}']
        other = broker.subscribe("q", filter="/n > 0")
        broker.advance(30)
        assert (bodies(other.take()), hanging.take()) == ([b'{"n": 1}'], [])


@every_model
@pytest.mark.parametrize("filter", [None, "/n > 0"])
def test_new_messages_go_to_those_that_work_whatever_they_hold(model: str, filter: str | None) -> None:
    with queue(model) as broker:
        hanging, other = (broker.subscribe("q", filter=filter, max_backlog=4) for _ in range(2))
        broker.publish("q", b'{"n": 1}')
        assert len(hanging.take()) == 1
        broker.advance(30)
        for number in range(2, 7):
            broker.publish("q", b'{"n": %d}' % number)
        assert bodies(other.take()) == [b'{"n": %d}' % number for number in range(1, 5)]
        assert bodies(hanging.take()) == [b'{"n": 5}', b'{"n": 6}']  # nobody else has room


@every_model
@pytest.mark.parametrize("word", ["ack", "cancel"])
def test_a_word_brings_it_back_into_line(model: str, word: str) -> None:
    with queue(model) as broker:
        slow, other = (broker.subscribe("q", max_backlog=2) for _ in range(2))
        broker.publish("q", b"0")
        [held] = slow.take()
        broker.advance(30)
        [again] = other.take()
        getattr(held, word)()  # too late, but it lives
        again.ack()
        broker.publish("q", b"1")
        assert (bodies(slow.take()), bodies(other.take())) == ([b"1"], [])


@every_model
def test_with_nobody_else_it_gets_them_again(model: str) -> None:
    with queue(model) as broker:
        only = broker.subscribe("q")
        broker.publish("q", b"job")
        for attempt in (1, 2, 3):
            [message] = only.take()
            assert message.attempt == attempt
            broker.advance(30)


def test_details_say_who_is_silent() -> None:
    with queue("proportional") as broker, penstock.connect(broker.flight_url) as client:
        hanging, other = (broker.subscribe("q", name=name, max_backlog=2) for name in ("hanging", "other"))
        broker.publish("q", b"job")
        [held] = hanging.take()

        def states() -> dict[str, str]:
            return {one["client"]: one["state"] for one in client.details("q")["subscriptions"]}

        assert states() == {"hanging": "open", "other": "open"}
        broker.advance(30)
        assert states() == {"hanging": "silent", "other": "open"}
        assert bodies(other.take()) == [b"job"]
        held.ack()
        assert states() == {"hanging": "open", "other": "open"}


def test_two_that_hang_are_served_by_the_model_among_each_other() -> None:
    with queue("round-robin") as broker:
        workers = [broker.subscribe("q") for _ in range(2)]
        for number in range(2):
            broker.publish("q", f"{number}")
        assert [bodies(worker.take()) for worker in workers] == [[b"0"], [b"1"]]
        broker.advance(30)
        assert sorted(body for worker in workers for body in bodies(worker.take())) == [b"0", b"1"]


def test_a_priority_of_the_one_that_hangs_does_not_matter_over_amqp() -> None:
    with queue("round-robin") as broker, amqp(broker) as first, amqp(broker) as second:
        hanging = Worker(first, "q", prefetch=1, x_priority=9)
        other = Worker(second, "q", prefetch=1, x_priority=1)
        broker.publish("q", b"job")
        assert hanging.take(1)[0][1] == b"job"
        broker.advance(30)
        [(method, body)] = other.take(1)
        assert (body, method.redelivered, hanging.nothing()) == (b"job", True, True)


def test_acks_of_several_at_once_bring_each_back() -> None:
    with queue("fast") as broker, amqp(broker) as channel:
        workers = [Worker(channel, "q", prefetch=1) for _ in range(3)]
        for number in range(3):
            broker.publish("q", f"{number}")
        first = [worker.take(1)[0] for worker in workers]
        broker.advance(30)  # all were silent, and got them again
        again = [worker.take(1)[0] for worker in workers]
        assert [body for _, body in first] == [body for _, body in again] == [b"0", b"1", b"2"]
        channel.basic_ack(max(method.delivery_tag for method, _ in again), multiple=True)
        channel.basic_qos(prefetch_count=1)  # the server has read it
        with penstock.connect(broker.flight_url) as client:
            assert {one["state"] for one in client.details("q")["subscriptions"]} == {"open"}
        assert broker.stats("q")["queue_depth"] == 0
