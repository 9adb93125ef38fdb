"""Arguments that JSON has no form for: who declares with them does not take the lists of a vhost from the others."""

from __future__ import annotations

from decimal import Decimal

import penstock
from scenario import amqp, broker_of


def test_lists_tell_of_arguments_of_every_type() -> None:
    odd = {"x-bytes": b"\xff", "x-decimal": Decimal("1.5"), "x-nested": {"in": [b"ok"]}}
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel, penstock.connect(broker.flight_url) as client:
        channel.exchange_declare("e", "fanout", durable=True, arguments=odd)
        channel.queue_bind("q", "e", "k", arguments=odd)
        told = {"x-bytes": "\ufffd", "x-decimal": "1.5", "x-nested": {"in": ["ok"]}}
        assert [one["arguments"] for one in client.exchanges() if one["name"] == "e"] == [told]
        assert [one["arguments"] for one in client.bindings() if one["source"] == "e"] == [told]
