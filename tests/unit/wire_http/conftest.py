"""A broker and its HTTP door."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from http_lab import Http
from penstock.testing import Broker


@pytest.fixture
def http() -> Iterator[Http]:
    with Broker({"queue": [{"name": "q"}], "vhost": [{"name": "shop"}]}) as broker:
        yield Http(broker)
