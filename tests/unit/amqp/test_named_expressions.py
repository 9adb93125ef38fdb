"""An expression that is none is told by the name of the argument that has it, whoever declares and consumes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from penstock.client import connect
from penstock.errors import ExpressionError
from penstock.testing import Broker

EXPRESSIONS = (
    "filter", "priority_expression", "barrier_expression", "group_key", "fairness_key", "last_value_key", "dedup_key",
)  # fmt: skip
BESIDE: dict[str, dict[str, object]] = {"dedup_key": {"unique": True}}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        yield broker


def argument(key: str) -> str:
    return f"x-{key.replace('_', '-')}"


def refused(broker: Broker, queue: str, arguments: dict[str, object], *, consumed: bool) -> str:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        ask: Any = partial(channel.basic_consume, queue, print) if consumed else partial(channel.queue_declare, queue)
        with pytest.raises(ChannelClosedByBroker) as caught:
            ask(arguments=arguments)
    assert caught.value.reply_code == 406
    return caught.value.reply_text


@pytest.mark.parametrize("key", EXPRESSIONS)
def test_over_amqp_by_the_argument_and_otherwise_by_the_setting(broker: Broker, key: str) -> None:
    beside = BESIDE.get(key, {})
    given = {argument(name): value for name, value in {**beside, key: "/a >"}.items()}
    told = refused(broker, "r", given, consumed=False)
    assert f"invalid arg '{argument(key)}' for queue 'r' in vhost '/': the expression ends" in told
    with connect(broker.flight_url) as client, pytest.raises(ExpressionError, match=f"^{key} of queue 'r' in vhost"):
        client.declare("r", **beside, **{key: "/a >"})  # type: ignore[arg-type]


def test_so_are_topics_that_are_none(broker: Broker) -> None:
    for topic, key in (("^a(", "underlying_topic"), ("^a", "default_publish_target")):
        told = refused(broker, "r", {"x-underlying-topic": topic}, consumed=False)
        assert f"invalid arg '{argument(key)}' for queue 'r'" in told


@pytest.mark.parametrize("more", [{}, {"x-bookmark": "EPOCH"}], ids=["of a queue", "from a bookmark"])
@pytest.mark.parametrize(("text", "why"), [("", "the expression is empty"), ("/a >", "the expression ends")])
def test_a_consumers_filter(broker: Broker, more: dict[str, object], text: str, why: str) -> None:
    told = refused(broker, "q", {"x-filter": text, **more}, consumed=True)
    assert f"consumer argument x-filter: {why}" in told
