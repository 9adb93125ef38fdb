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

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.broker import Broker, Event
    from penstock.testing.expressions import evaluate
    from penstock.testing.inbox import Message, Subscription
    from penstock.testing.instance import FakeClock
    from penstock.testing.process import ServerProcess

_LAZY = {
    "Broker": "penstock.testing.broker",
    "Event": "penstock.testing.broker",
    "FakeClock": "penstock.testing.instance",
    "Message": "penstock.testing.inbox",
    "ServerProcess": "penstock.testing.process",
    "Subscription": "penstock.testing.inbox",
    "evaluate": "penstock.testing.expressions",
}

__all__ = ["Broker", "Event", "FakeClock", "Message", "ServerProcess", "Subscription", "evaluate"]


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there

    def __getattr__(name: str) -> object:
        module = _LAZY.get(name)
        if module is None:
            raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
        value: object = getattr(import_module(module), name)
        globals()[name] = value  # the next access does not come here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
