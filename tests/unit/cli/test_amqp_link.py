"""What the command line says of an AMQP broker that ends its connection."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from http_lab import Http
from penstock.cli.amqp_link import Link, read_address
from penstock.errors import Unavailable
from penstock.testing import Broker


def test_who_is_cut_off_is_told_to_try_again() -> None:
    """As by a broker that stops: nothing is wrong with what was asked."""
    with Broker() as broker, Link(read_address(broker.amqp_url)) as link:
        http = Http(broker)
        [connection] = http.get("connections")
        http.do("DELETE", f"connections/{quote(connection['name'], safe='')}")
        with pytest.raises(Unavailable, match="CONNECTION_FORCED"):
            link.read(20.0)
