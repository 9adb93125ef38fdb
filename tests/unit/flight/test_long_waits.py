"""How long a settle may let a message, or its lease, wait: what no checkpoint could hold is refused, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import InvalidArgument
from penstock.server.flight.settles import read_settles
from penstock.testing import Broker
from penstock.units import LONGEST
from penstock.wire.flight.received import SETTLED, Bounds, receive

BEYOND = LONGEST + 1


def settle(verb: str, delay: int) -> Any:
    batch = pa.record_batch({"lsn": pa.array([1], pa.int64()), "verb": [verb], "delay": pa.array([delay], pa.int64())})
    return receive(batch, SETTLED, Bounds())


@pytest.mark.parametrize("verb", ["retry", "cancel", "extend"])
@pytest.mark.parametrize("delay", [-1, BEYOND, 2**63 - 1])
def test_the_server_refuses_it(verb: str, delay: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"delay is {delay} us, which is not between 0 and 1,000 years"):
        read_settles(settle(verb, delay))
    assert read_settles(settle(verb, LONGEST))[0]


WAYS: dict[str, Callable[[Any, Any, Any], object]] = {
    "retry": lambda client, consumer, message: message.retry(delay=BEYOND / 1e6 + 1),
    "extend": lambda client, consumer, message: message.extend("60000w"),
    "rows": lambda client, consumer, message: consumer.batch_of(message).retry(delay=BEYOND / 1e6 + 1),
    "extend rows": lambda client, consumer, message: consumer.batch_of(message).extend("60000w"),
    "transaction": lambda client, consumer, message: client.transaction().retry(message, delay="60000w"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_client_refuses_it_and_its_consumer_goes_on(way: str) -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        broker.publish("q", b"one")
        with penstock.connect(broker.flight_url) as client, client.consume("q") as consumer:
            message = consumer.take(20)
            assert message is not None
            with pytest.raises(InvalidArgument, match=r"which is not between 0 and 1,000 years"):
                WAYS[way](client, consumer, message)
            assert message.ack()
        assert broker.stats("q")["acked"] == 1
