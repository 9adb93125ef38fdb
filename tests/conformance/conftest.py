"""Unmodified clients of others against a real server.

One real server process for each module, with a second vhost; a fresh connection and queue for each test.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance import clients_page
from flight_house import FlightHouse
from live_server import LiveServer
from rabbitmq_server import RabbitMQ

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it reports each refusal that a test asks for
_numbers = itertools.count(1)

_outcomes: dict[str, str] = {}
_cases: dict[str, int] = {}  # of a test that runs the suite of others: how many of theirs passed


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What became of each test, for the page of clients."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome
        _cases.update((report.nodeid, value) for name, value in report.user_properties if name == "cases")


def pytest_sessionfinish() -> None:
    if "PENSTOCK_CONFORMANCE" in os.environ:
        clients_page.write(_outcomes, _cases)


SETTINGS = """
[[vhost]]
name = "other"
"""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("server")
    config = folder / "penstock.toml"
    config.write_text(SETTINGS)
    live = LiveServer(folder, [str(config)])
    live.loads = getattr(request.module, "LOADS", False)
    live.http = getattr(request.module, "HTTP", live.http)
    with live:
        yield live
    assert live.process is not None
    assert live.process.returncode == 0, live.output()
    assert "Traceback" not in live.output(), live.output()


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq") / "it") as found:
        yield found


@pytest.fixture
def connect(server: LiveServer) -> Iterator[Callable[..., pika.BlockingConnection]]:
    yield server.connect
    server.bury()


@pytest.fixture
def channel(connect: Callable[..., pika.BlockingConnection]) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"c{next(_numbers)}"


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    """A durable queue of that name."""
    channel.queue_declare(name, durable=True)
    return name


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    """A server of the test's own, in its process, with Flight alone."""
    with FlightHouse(tmp_path) as house:
        yield house
