"""One warm Spark session for all tests here, and a server with the Flight door in this process for each test file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from flight_house import FlightHouse
from penstock.server.flight import stream_actions
from spark_java import conf, home, lightened
from spark_lab import Lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:py4j"))
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from penstock.spark import session

    os.environ.update(home())
    made = lightened(session("local[2]", memory="1g", conf=conf()))
    yield made
    made.stop()


@pytest.fixture(scope="session", autouse=True)
def short_waits() -> Iterator[None]:
    """A stream that finds nothing asks again after a tenth of a second.  Each query that is run until its input is used
    up asks once more, and half a second of each was spent on that.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_actions, "PLAN_WAIT_MAX_US", WAIT_US)
        patch.setattr(stream_actions, "WAIT_MAX_US", WAIT_US)
        yield


WAIT_US = 100_000


@pytest.fixture(scope="module")
def lab(spark: Any) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-spark-"))
    with FlightHouse(folder) as house, penstock.connect(house.url) as client:
        yield Lab(spark, house, client)
    shutil.rmtree(folder)
