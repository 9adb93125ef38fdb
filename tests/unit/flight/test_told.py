"""What the server says of a queue that is there, and not as asked.

Arguments that JSON has no form for: who declares with them does not take the lists of a vhost from the others.
"""

from __future__ import annotations

import re
from decimal import Decimal
from types import SimpleNamespace
from typing import cast

import pytest

import penstock
from penstock.core.queue.queue import Queue
from penstock.errors import PreconditionFailed
from penstock.operations.queues import refuse_different
from penstock.records.queue_settings import QueueSettings, Retry
from scenario import amqp, broker_of


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (QueueSettings(lease_period=40_000_000), "is there with lease_period = 30s, not 40s"),
        (QueueSettings(lease_period=0), "is there with lease_period = 30s, not 0s"),
        (
            QueueSettings(lease_period=30_000_000, retry=Retry(initial=2_000_000)),
            "is there with retry = none, not { initial = 2s, factor = 2.0, max = 5m, jitter = 0.2, attempts = 0 };",
        ),
        (QueueSettings(lease_period=30_000_000, filter="/a"), "is there with filter = none, not /a;"),
        (QueueSettings(lease_period=30_000_000, expiration=86_400_000_000), "with expiration = none, not 1d"),
        (QueueSettings(lease_period=30_000_000, max_backlog=5), "with max_backlog = 0, not 5"),
        (QueueSettings(lease_period=30_000_000, recovery_point="epoch"), "with recovery_point = now, not epoch;"),
    ],
)
def test_a_difference_is_told_as_people_write_settings(asked: QueueSettings, said: str) -> None:
    there = SimpleNamespace(
        name="q",
        vhost="/",
        durable=True,
        auto_delete=False,
        settings=QueueSettings(lease_period=30_000_000),
        ruling=None,
    )
    with pytest.raises(PreconditionFailed, match=re.escape(said)):
        refuse_different(cast("Queue", there), asked, True, False)
    refuse_different(cast("Queue", there), there.settings, True, False)


def test_lists_tell_of_arguments_of_every_type() -> None:
    odd = {"x-bytes": b"\xff", "x-decimal": Decimal("1.5"), "x-nested": {"in": [b"ok"]}}
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel, penstock.connect(broker.flight_url) as client:
        channel.exchange_declare("e", "fanout", durable=True, arguments=odd)
        channel.queue_bind("q", "e", "k", arguments=odd)
        told = {"x-bytes": "\ufffd", "x-decimal": "1.5", "x-nested": {"in": ["ok"]}}
        assert [one["arguments"] for one in client.exchanges() if one["name"] == "e"] == [told]
        assert [one["arguments"] for one in client.bindings() if one["source"] == "e"] == [told]
