"""A queue whose semantics change, and nothing else: its fairness and its sending are as the new ones have them."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.records.queue_settings import Ruling
from penstock.testing import Broker

ALIKE = {"at-least-once": ("proportional", "early"), "at-most-once": ("round-robin", "durable")}


def in_force(broker: Broker) -> tuple[str, str]:
    """Fairness, and when it sends."""
    settings = broker.command(lambda instance: instance.core.queue("/", "q").settings)
    return settings.fairness_model, settings.deliver


def ruling(broker: Broker) -> Ruling:
    return broker.command(lambda instance: instance.core.ruling(instance.core.queue("/", "q")))


def sent_once(broker: Broker) -> None:
    broker.publish("q", b"1")
    subscription = broker.subscribe("q", name="worker")
    assert [message.body for message in subscription.take()] == [b"1"]
    broker.disconnect("worker")
    assert broker.stats("q")["ready"] == 0


@pytest.mark.parametrize("taken_back", [False, True])
def test_semantics_are_altered_alone(taken_back: bool) -> None:
    more = {"fairness_model": None} if taken_back else {}
    with Broker({"queue": [{"name": "q"}]}) as broker:
        broker.alter("q", semantics="at-most-once", **more)
        assert in_force(broker) == ALIKE["at-most-once"]
        sent_once(broker)
        broker.alter("q", semantics="at-least-once", **more)
        assert in_force(broker) == ALIKE["at-least-once"]
        broker.alter("q", semantics="at-most-once")
        broker.alter("q", semantics=None, **more)
        assert in_force(broker) == ALIKE["at-least-once"]


@pytest.mark.parametrize(
    "given", [{"fairness_model": "fast"}, {"fairness_model": "proportional"}, {"deliver": "early"}]
)
def test_what_was_said_stands_in_the_way(given: dict[str, str]) -> None:
    with Broker({"queue": [{"name": "q", **given}]}) as broker:
        with pytest.raises(InvalidArgument, match="needs at-least-once"):
            broker.alter("q", semantics="at-most-once")
        broker.alter("q", semantics="at-most-once", fairness_model="round-robin", deliver="durable")
        broker.alter("q", semantics="at-least-once")
        assert in_force(broker) == ("round-robin", "durable"), "that was said, too"


def test_a_policy_says_the_semantics_alone() -> None:
    policy = {"name": "p", "pattern": "q", "definition": {"semantics": "at-most-once"}}
    with Broker({"queue": [{"name": "q"}], "policy": [policy]}) as broker:
        assert in_force(broker) == ALIKE["at-most-once"]
        assert ruling(broker).policy == "p"
        sent_once(broker)
        broker.restart()
        assert in_force(broker) == ALIKE["at-most-once"]
        broker.restart(config={"queue": [{"name": "q"}]})
        assert in_force(broker) == ALIKE["at-least-once"], "the policy has left the file"


def test_a_policy_of_the_semantics_leaves_what_the_queue_says() -> None:
    policy = {"name": "p", "pattern": "q", "definition": {"semantics": "at-most-once"}}
    with Broker({"queue": [{"name": "q", "fairness_model": "fast"}], "policy": [policy]}) as broker:
        assert in_force(broker) == ("fast", "early")
        assert "needs at-least-once" in str(ruling(broker).unapplied)
