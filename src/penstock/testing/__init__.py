"""Penstock in a test: the whole server in this process, on a memory disk and a clock that moves when told.

    from penstock.testing import Broker

    with Broker({"queue": [{"name": "jobs", "lease_period": "30s"}]}) as broker:
        broker.publish("jobs", b"one")
        [message] = broker.subscribe("jobs").take()
        broker.advance(31)
        assert message.ack()

Nothing here knows a rule of queues: core, log, engine and doors are the server's own, with other ports.  Names are
loaded when they are first used, so that the pytest plugin costs a test run nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client import names_of

if TYPE_CHECKING:
    from penstock.testing.broker import Broker, Event
    from penstock.testing.expressions import evaluate
    from penstock.testing.inbox import Message, Subscription
    from penstock.testing.instance import FakeClock
    from penstock.testing.process import ServerProcess

__all__ = ["Broker", "Event", "FakeClock", "Message", "ServerProcess", "Subscription", "evaluate"]


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "penstock.testing.broker": ("Broker", "Event"),
            "penstock.testing.expressions": ("evaluate",),
            "penstock.testing.inbox": ("Message", "Subscription"),
            "penstock.testing.instance": ("FakeClock",),
            "penstock.testing.process": ("ServerProcess",),
        },
        __all__,
    )
