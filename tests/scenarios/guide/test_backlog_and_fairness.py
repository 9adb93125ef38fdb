"""User guide, "Subscription backlog" and "Delivery fairness", and MaxBacklog of the reference."""

from __future__ import annotations

import pytest

from penstock.errors import SettingsError
from penstock.testing import Subscription
from scenario import Worker, amqp, bodies, broker_of, publish


@pytest.mark.parametrize(
    ("queue_most", "asked", "effective"),
    [(1, None, 1), (1, 10, 1), (10, None, 1), (10, 10, 10), (5, 10, 5), (10, 5, 5)],
)
def test_the_backlog_is_the_smaller_of_both(queue_most: int, asked: int | None, effective: int) -> None:
    with broker_of({"name": "q", "max_per_subscription_backlog": queue_most}) as broker:
        for n in range(20):
            broker.publish("q", f"{n}")
        worker = broker.subscribe("q") if asked is None else broker.subscribe("q", max_backlog=asked)
        assert worker.effective_backlog == effective
        assert len(worker.take()) == effective


def test_max_backlog_over_amqp() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        publish(channel, "q", *map(str, range(20)))
        worker = Worker(channel, "q", x_max_backlog=10)
        held = worker.take(10)
        assert worker.nothing()
        channel.basic_ack(held[0][0].delivery_tag)
        assert [body for _, body in worker.take(1)] == [b"10"]


def test_with_two_the_next_message_is_there_while_one_is_acknowledged() -> None:
    with broker_of({"name": "q"}) as broker:
        for n in range(3):
            broker.publish("q", f"{n}")
        worker = broker.subscribe("q", max_backlog=2)
        first, second = worker.take()
        first.ack()
        assert bodies([second, *worker.take()]) == [b"1", b"2"]


def test_several_queues_the_smallest_limit_counts() -> None:
    queues = [
        {"name": "north", "max_per_subscription_backlog": 4},
        {"name": "south", "max_per_subscription_backlog": 2},
    ]
    with broker_of(*queues) as broker:
        for n in range(4):
            broker.publish("north", f"n{n}")
            broker.publish("south", f"s{n}")
        worker = broker.subscribe("^(north|south)$", max_backlog=10)
        assert worker.effective_backlog == 2
        assert len(worker.take()) == 2  # of both together


def _three(model: str) -> list[dict[str, object]]:
    return [{"name": "q", "fairness_model": model}]


def _held(subscription: Subscription, count: int) -> None:
    """Have so many of what it holds acknowledged that `count` stay."""
    for message in subscription.take()[count:]:
        message.ack()


def test_proportional_the_table_of_the_guide() -> None:
    """Inky holds 1 of 2, Blinky 3 of 4, Clyde 4 of 10: the next message is Clyde's."""
    with broker_of({"name": "q", "fairness_model": "proportional"}) as broker:
        names = {"Inky": (1, 2), "Blinky": (3, 4), "Clyde": (4, 10)}
        workers = {name: broker.subscribe("q", max_backlog=most, name=name) for name, (_, most) in names.items()}
        for n in range(2 + 4 + 10):
            broker.publish("q", f"{n}")
        for name, (held, _) in names.items():
            _held(workers[name], held)
        assert {name: worker.outstanding for name, worker in workers.items()} == {"Inky": 1, "Blinky": 3, "Clyde": 4}
        broker.publish("q", b"new")
        assert {name: bodies(worker.take()) for name, worker in workers.items()} == {
            "Inky": [],
            "Blinky": [],
            "Clyde": [b"new"],
        }


def test_proportional_the_table_over_amqp() -> None:
    with broker_of({"name": "q", "fairness_model": "proportional"}) as broker, amqp(broker) as channel:
        names = {"Inky": (1, 2), "Blinky": (3, 4), "Clyde": (4, 10)}
        workers = {name: Worker(channel, "q", x_max_backlog=most) for name, (_, most) in names.items()}
        publish(channel, "q", *map(str, range(2 + 4 + 10)))
        for name, (held, most) in names.items():
            for method, _ in workers[name].take(most)[held:]:
                channel.basic_ack(method.delivery_tag)
        publish(channel, "q", "new")
        assert [body for _, body in workers["Clyde"].take(1)] == [b"new"]
        assert workers["Inky"].nothing()
        assert workers["Blinky"].nothing()


def test_proportional_of_equals_the_first_found_is_taken() -> None:
    with broker_of(*_three("proportional")) as broker:
        first, second = (broker.subscribe("q", max_backlog=4, name=name) for name in ("first", "second"))
        broker.publish("q", b"one")
        assert (bodies(first.take()), bodies(second.take())) == ([b"one"], [])
        broker.publish("q", b"two")
        assert (bodies(first.take()), bodies(second.take())) == ([], [b"two"])


def test_fast_fills_the_first_that_has_room() -> None:
    with broker_of(*_three("fast")) as broker:
        first, second = (broker.subscribe("q", max_backlog=3, name=name) for name in ("first", "second"))
        for n in range(4):
            broker.publish("q", f"{n}")
        assert (bodies(first.take()), bodies(second.take())) == ([b"0", b"1", b"2"], [b"3"])


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_round_robin_goes_to_the_next_that_has_room(semantics: str) -> None:
    with broker_of({"name": "q", "fairness_model": "round-robin", "semantics": semantics}) as broker:
        workers = [broker.subscribe("q", max_backlog=most, name=f"w{most}") for most in (1, 3, 3)]
        for n in range(7):
            broker.publish("q", f"{n}")
        assert [bodies(worker.take()) for worker in workers] == [[b"0"], [b"1", b"3", b"5"], [b"2", b"4", b"6"]]


def test_defaults_and_what_cannot_be_chosen() -> None:
    with broker_of({"name": "least"}, {"name": "most", "semantics": "at-most-once"}) as broker:
        # `fast` would give 0 and 1 to the first of each, `round-robin` 0 and 2, `proportional` 0 alone
        for queue, expected in (("least", [[b"0"], [b"1", b"2"]]), ("most", [[b"0", b"2"], [b"1"]])):
            workers = [broker.subscribe(queue, max_backlog=most, name=f"{queue}-{most}") for most in (2, 4)]
            for n in range(3):
                broker.publish(queue, f"{n}")
            assert [bodies(worker.take()) for worker in workers] == expected
    for model in ("fast", "proportional"):
        with pytest.raises(SettingsError, match="at-most-once"):
            broker_of({"name": "q", "semantics": "at-most-once", "fairness_model": model})


def test_the_limit_of_the_whole_queue_is_none_of_its_capacity() -> None:
    with broker_of({"name": "q", "max_backlog": 3}) as broker:
        a, b = broker.subscribe("q", max_backlog=2, name="a"), broker.subscribe("q", max_backlog=10, name="b")
        for n in range(100):
            broker.publish("q", f"{n}")
        held = a.take() + b.take()
        assert len(held) == 3
        assert broker.stats("q")["ready"] == 97
        held[0].ack()
        assert len(a.take() + b.take()) == 1
