"""Who is told that a message was rejected finds its dead letter: after a crash, and when its body has to be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing import Broker
from penstock.testing.inbox import Message

CONFIG = {"queue": [{"name": "failed"}, {"name": "q", "dead_letter_exchange": "", "dead_letter_routing_key": "failed"}]}


def rejected(broker: Broker, message: Message) -> None:
    assert message.reject("why")


def acked(broker: Broker, message: Message) -> None:
    assert broker.ack("q", message.bookmark, option="expire") == 1


def matched(broker: Broker, message: Message) -> None:
    assert broker.ack_filter("q", "TRUE", option="expire") == 1


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("way", [rejected, acked, matched])
def test_who_is_told_that_it_is_rejected_finds_the_letter_after_a_crash(
    way: Callable[[Broker, Message], None], cold: bool
) -> None:
    with Broker(CONFIG) as broker:
        broker.publish("q", b"x")
        [message] = broker.subscribe("q").take()
        if cold:
            assert broker.instance is not None
            broker.instance.engine.bodies.shrink(1 << 40)
        way(broker, message)
        broker.crash()
        broker.restart()
        assert [broker.stats(name)["ready"] for name in ("q", "failed")] == [0, 1]
