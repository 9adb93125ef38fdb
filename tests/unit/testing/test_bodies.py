"""Bodies that a broker in this process takes."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.testing import Broker


def test_a_body_is_no_larger_than_a_server_would_take() -> None:
    with Broker(config={"amqp": {"message_max": "1KiB"}, "queue": [{"name": "q"}]}) as broker:
        broker.publish("q", b"x" * 1024)
        with pytest.raises(InvalidArgument, match="the body has 1025 bytes; at most 1024 are taken"):
            broker.publish("q", b"x" * 1025)
        assert broker.stats("q")["ready"] == 1
