"""One warm Spark session for all tests here, and a server with the Flight door in this process for each test file."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flight_house import FlightHouse

import penstock
from penstock.client import Client

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}
"""A JVM that starts sooner and is not meant to run for long."""


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

    made = session("local[2]", memory="1g", conf=QUICK)
    yield made
    made.stop()


class Lab:
    """A server, a client of it, and Spark."""

    def __init__(self, spark: Any, house: FlightHouse, client: Client) -> None:
        self.spark = spark
        self.house = house
        self.client = client

    def declare(self, *queues: str, **settings: object) -> None:
        for queue in queues:
            self.client.declare(queue, **settings)

    def publish(self, topic: str, ids: Sequence[int], **columns: Any) -> None:
        bodies = [json.dumps({"id": i, "region": "EU" if i % 2 else "US", "total": i / 2}).encode() for i in ids]
        self.client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary()), **columns}))

    def read(self, columns: str | None = None, /, **options: object) -> Any:
        reader = self.spark.read.format("penstock").option("url", self.house.url)
        if columns is not None:
            reader = reader.schema(columns)
        return reader.options(**options).load()

    def stream(self, **options: object) -> Any:
        return self.spark.readStream.format("penstock").option("url", self.house.url).options(**options).load()

    def write(self, frame: Any, checkpoint: Path, **options: object) -> Any:
        """Run a stream into a queue or topic with what there is now, to its end."""
        writer = frame.writeStream.format("penstock").option("url", self.house.url).options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def ids(self, queue: str) -> list[int]:
        """What waits in a queue, by the field `id`."""
        return sorted(json.loads(message.body)["id"] for message in self.client.peek(queue, count=1_000_000))

    def counts(self, queue: str) -> tuple[int, int, int]:
        stats = self.client.queue(queue)
        return stats["ready"], stats["leased"], stats["acked"]


@pytest.fixture(scope="module")
def lab(spark: Any) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-spark-"))
    with FlightHouse(folder) as house, penstock.connect(house.url) as client:
        yield Lab(spark, house, client)
    shutil.rmtree(folder)


def sentence(error: BaseException) -> str:
    """What our own code said in an error of Spark's."""
    from penstock.spark.driver import short

    return short(str(error))
