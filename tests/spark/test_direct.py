"""Parts read from the segments' files: the rows that Flight gives, only for who may, whatever upkeep does meanwhile."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException

import penstock
from live_server import LiveServer
from penstock.client import Client
from spark_lab import sentence

CONFIG = """
[log]
segment = "64KiB"
compress_cold = true
retention = { bytes = "1B" }

[[user]]
name = "guest"
password = "guest"
tags = ["administrator"]

[[user]]
name = "half"
password = "half"

[[queue]]
name = "orders"

[[queue]]
name = "other"

[[topic]]
name = "people"
key = ["/id"]
schema = "id bigint, name string, address struct<city: string, zip: string>, tags array<string>"

[[view]]
name = "by-region"
source = "orders"
select = "/region, COUNT(/id) AS /n, SUM(/total) AS /total"
group_by = ["/region"]

[[entitlement]]
tag = "administrator"
read = true
write = true

[[entitlement]]
user = "half"
topic = "orders"
read = "/region = 'EU'"

[[entitlement]]
user = "half"
topic = "other"
read = true

[[entitlement]]
user = "half"
queue = "other"
read = true

[[entitlement]]
user = "half"
queue = "orders"
read = "/id < 2500"
"""


class Place:
    """A real server in its own folder, and Spark."""

    def __init__(self, spark: Any, server: LiveServer, url: str, client: Client) -> None:
        self.spark, self.server, self.url, self.client = spark, server, url, client

    def read(self, columns: str | None = None, /, user: str = "guest", **options: object) -> Any:
        reader = self.spark.read.format("penstock").options(url=self.url, user=user, password=user)
        if columns is not None:
            reader = reader.schema(columns)
        return reader.options(**options).load()

    def both(self, columns: str | None = None, /, **options: object) -> list[Any]:
        """The rows, which are the same from files and through Flight, in the order of partitions."""
        frames = [self.read(columns, direct=direct, minPartitions=2, **options) for direct in ("true", "false")]
        files, flight = (frame.collect() for frame in frames)
        assert files == flight
        return list(files)

    def publish(self, topic: str, ids: range, **columns: Any) -> None:
        bodies = [json.dumps({"id": i, "region": "EU" if i % 2 else "US", "total": i / 2, "x": "y" * 60}) for i in ids]
        table: Any = pa.table({"body": pa.array(bodies), **columns})
        for start in range(0, len(ids), 250):
            self.client.publish_table(topic, table.slice(start, 250))

    def fill(self) -> None:
        """What each test finds, whichever ran before it."""
        headers = pa.array([[("n", str(i))] for i in range(1500)], pa.map_(pa.string(), pa.string()))
        self.publish("orders", range(1500), headers=headers)
        self.publish("other", range(300))
        self.publish("orders", range(1500, 3000))
        self.wait_for_upkeep()  # files as they were written, and such as were rewritten
        for one in PEOPLE:
            self.client.publish("people", one)

    def wait_for_upkeep(self) -> None:
        """Until some segments are rewritten and compressed: nobody reads yet, so nothing holds them."""
        until = time.monotonic() + 60
        while not any(one["generation"] and one["compressed"] for one in self.client.action("segments")["segments"]):
            assert time.monotonic() < until
            time.sleep(0.1)

    def drain(self, queue: str, count: int) -> None:
        with self.client.consume(queue, backlog=500) as consumer:
            for _, message in zip(range(count), consumer, strict=False):
                message.ack()


PEOPLE = (
    {"id": 1, "name": "Ada", "address": {"city": "Oslo"}, "tags": ["a", "b"]}, {"id": 2, "name": "Bo", "tags": []},
    {"id": 1, "name": "Ada", "address": {"city": "Bergen", "zip": "5003"}}, {"id": 3, "name": 7.5, "tags": "none"},
)  # fmt: skip


@pytest.fixture(scope="module")
def place(spark: Any) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-direct-"))
    (folder / "penstock.toml").write_text(CONFIG)
    with LiveServer(folder, [str(folder / "penstock.toml")], flight=True) as server:
        url = f"penstock://guest:guest@{server.ready['flight']}"
        with penstock.connect(url) as client:
            place = Place(spark, server, url.replace("guest:guest@", ""), client)
            place.fill()
            yield place
    shutil.rmtree(folder)


def test_files_and_flight_give_the_same_rows(place: Place) -> None:
    assert len(place.client.action("segments")["segments"]) > 4
    rows = place.both(topic="orders")
    assert [json.loads(row.body)["id"] for row in rows] == list(range(3000))
    assert (rows[7].headers, rows[7].topic) == ({"n": "7"}, "orders")
    everything = "lsn bigint, bookmark string, topic string, exchange string, time timestamp, attempt int, "
    everything += "headers map<string,string>, priority smallint, properties binary, body binary"
    assert len(place.both(everything, topic="^o")) == 3300
    assert len(place.both(topic="orders", filter="/region = 'EU' AND /id < 100")) == 50
    log = place.both(log="true", endingLsn=rows[-1].lsn + 1)
    assert [row.lsn for row in log if row.kind <= 2 and row.name == "orders"] == [row.lsn for row in rows]
    assert len(place.both(queue="other")) == 300
    assert len(place.both(queue="orders", filter="/id < 10")) == 10


def test_what_a_frame_may_read_stays_where_it_is(place: Place) -> None:
    held = place.read("lsn bigint, body binary", topic="orders", direct="true", minPartitions=4)
    before = held.collect()
    place.drain("orders", 2000)
    assert not place.client.action("compact")["planned"]  # the frame holds them
    place.publish("orders", range(3000, 3100))
    assert held.collect() == before  # the same parts
    assert len(place.both(topic="orders")) == 3100


def test_files_are_for_who_may_read_all_of_a_topic(place: Place) -> None:
    everybody = {row.body for row in place.read(topic="orders", direct="true").collect()}
    mine = place.read(user="half", topic="orders").collect()  # by itself through Flight, where each row is judged
    assert 0 < len(mine) < len(everybody)
    assert {json.loads(row.body)["region"] for row in mine} == {"EU"}
    for refused, told in (
        ({"topic": "orders"}, "user 'half' may read a part of it"),
        ({"topic": "^o"}, "user 'half' may read a part of it"),
        ({"topic": "people"}, "no right to read"),
        ({"log": "true"}, "for users with the tag 'administrator'"),
    ):
        with pytest.raises((AnalysisException, PythonException)) as caught:
            place.read(user="half", direct="true", **refused).count()
        assert told in sentence(caught.value)
    assert place.read(user="half", topic="other", direct="true").count() == 300
    assert place.read(user="half", queue="other", direct="true").count() == 300
    waiting = {json.loads(row.body)["id"] for row in place.read(queue="orders").collect()}
    allowed = place.read(user="half", queue="orders").collect()  # also what he may not read of the topic
    assert {json.loads(row.body)["id"] for row in allowed} == {i for i in waiting if i < 2500} != set()
    assert {row.state for row in allowed} == {"ready"}


def test_files_that_are_not_here_are_not_needed(place: Place, spark: Any) -> None:
    hidden = place.server.data.with_name("elsewhere")
    frame = place.read("lsn bigint", topic="other", direct="auto", minPartitions=2)
    sure = place.read("lsn bigint", topic="other", direct="true", minPartitions=2)
    place.server.data.rename(hidden)
    try:
        assert frame.count() == 300
        with pytest.raises(PythonException) as caught:
            sure.count()
        assert "option direct is true, and the log's files cannot be read here" in sentence(caught.value)
        assert "has no folder" in sentence(caught.value)
    finally:
        hidden.rename(place.server.data)
    assert sure.count() == 300


def test_views_and_records(place: Place) -> None:
    people = place.read(view="people")
    assert [json.loads(row.body)["id"] for row in people.orderBy("lsn").collect()] == [2, 1, 3]
    assert people.columns == ["sow_key", "lsn", "bookmark", "topic", "time", "headers", "body"]
    typed = place.read(view="people", schema="registered").orderBy("id").collect()
    assert [(row.name, row.address, row.tags) for row in typed if row.parse_error is None] == [
        ("Ada", ("Bergen", "5003"), None),
        ("Bo", None, []),
    ]
    wrong = [row.parse_error for row in typed if row.parse_error]
    assert wrong == ["field 'tags' is 'none', not a list"]
    view = place.read(view="by-region", parse="json", filter="/n > 0").orderBy("region")
    assert view.columns == ["sow_key", "topic", "body", "region", "n", "total", "parse_error"]
    expected = {row.json()["region"]: row.json() for row in place.client.sow("by-region")}
    assert [(row.region, row.n, row.total) for row in view.collect()] == [
        (name, one["n"], one["total"]) for name, one in sorted(expected.items())
    ]
    once = place.read(view="people", parse="json")  # the declared schema wins over what could be found out
    place.client.publish("people", {"id": 4, "name": "Di"})
    count = once.count()
    place.client.publish("people", {"id": 5, "name": "Ed"})
    assert once.count() == count
    for options, told in (
        ({"view": "nowhere"}, "no declared topic 'nowhere'"),
        ({"queue": "other", "schema": "registered"}, "topic 'other' has no declared schema"),
        ({"topic": "^o", "schema": "registered"}, "topic '^o' shows many topics"),
        (
            {"view": "people", "startingBookmark": "EPOCH"},
            "option startingBookmark has no effect in a batch read of a view",
        ),
    ):
        with pytest.raises((AnalysisException, PythonException)) as caught:
            place.read(**options).count()
        assert told in sentence(caught.value)


def test_many_records_are_read_by_their_places(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.reading.batch.VIEW_BYTES", 1000)
    from pyspark.sql.types import _parse_datatype_string

    from penstock.spark.options import read_options
    from penstock.spark.reading.batch import SnapshotReader
    from penstock.spark.reading.columns import layout

    rows = {row.sow_key: bytes(row.body) for row in place.client.sow("people")}
    for direct in ("true", "false"):
        given = {"url": place.url, "user": "guest", "password": "guest", "view": "people", "direct": direct}
        options = read_options({**given, "minPartitions": "2"})
        reader = SnapshotReader(options, layout(options, _parse_datatype_string("sow_key string, body binary"), None))
        parts = reader.partitions()
        assert len(parts) == 2
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert {row["sow_key"]: row["body"] for row in found} == rows
        assert len(found) == len(rows)
