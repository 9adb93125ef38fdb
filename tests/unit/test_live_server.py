"""Connections of pika that tests make, and end when their servers have."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.exceptions import AMQPError

from live_server import Mortal
from penstock.testing import Broker


def seen_late(connection: Mortal) -> None:
    """Pika knows that it is closed, and has told nobody yet."""
    connection._impl._set_connection_state(connection._impl.CONNECTION_CLOSED)
    with pytest.raises(AMQPError):
        pika.BlockingConnection.close(connection)


def a_mistake(connection: Mortal) -> None:
    """Pika fails amid closing it."""

    def fails(*_: object) -> None:
        raise AssertionError

    connection._impl.close = fails


@pytest.mark.parametrize("state", [lambda one: None, Mortal.close, seen_late, a_mistake])
def test_whatever_a_connection_has_come_to_none_of_its_sockets_is_left(state: Callable[[Mortal], None]) -> None:
    """The garbage of a later test would tell of them, and fail that."""
    with Broker() as broker:
        connection = Mortal(pika.URLParameters(broker.amqp_url))
        poller, transport = connection._impl.ioloop._poller, connection._impl._transport
        sockets = [poller._r_interrupt, poller._w_interrupt, transport._sock]
        assert all(one.fileno() >= 0 for one in sockets)
        state(connection)
        connection.close()
        assert [one.fileno() for one in sockets] == [-1, -1, -1]
