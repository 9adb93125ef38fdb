"""What a batch waits for, and has at most, without Spark: a reader asked as Spark asks it, in both modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructType

import penstock
from flight_house import FlightHouse
from penstock.client import Client
from penstock.errors import InvalidArgument
from penstock.spark.options import read_options
from penstock.spark.reading import queue_stream, stream
from penstock.spark.reading.columns import layout
from penstock.spark.reading.queue_stream import QueueStreamReader
from penstock.spark.reading.stream import LogStreamReader, StreamReader

SCHEMA = StructType().add("lsn", LongType()).add("body", BinaryType())
MODES = ("queue", "log")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path) as made:
        yield made


@pytest.fixture
def client(house: FlightHouse) -> Iterator[Client]:
    with penstock.connect(house.url) as made:
        made.declare("q")
        yield made


class Clock:
    """Of the reader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(stream, "time", self)
        monkeypatch.setattr(stream, "IDLE_S", 0.0)
        monkeypatch.setattr(queue_stream, "IDLE_S", 0.0)

    def monotonic(self) -> float:
        return self.now


def reader_of(house: FlightHouse, mode: str, **options: object) -> StreamReader:
    what = {"queue": "q"} if mode == "queue" else {"topic": "q"}
    given = {"url": house.url, "stream": "s", "mode": mode, **what} | {name: str(one) for name, one in options.items()}
    read = read_options(given)
    made: type[StreamReader] = QueueStreamReader if mode == "queue" else LogStreamReader
    return made(read, layout(read, SCHEMA, None))


def publish(client: Client, count: int) -> None:
    for number in range(count):
        client.publish("q", {"id": number})


def rows(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> int:
    parts = reader.partitions(start, end)
    return sum(batch.num_rows for part in parts for batch in reader.read(part))


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_waits_for_its_messages_or_for_the_delay(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    clock = Clock(monkeypatch)
    reader: Any = reader_of(house, mode, minRowsPerTrigger=10, maxTriggerDelay="1m")
    publish(client, 3)
    limit = ReadMaxRows(100)
    first = reader.latestOffset(begin := reader.initialOffset(), limit)
    assert rows(reader, begin, first) == 3, "the first batch of a run takes what there is"
    publish(client, 9)
    assert reader.latestOffset(first, limit) == first
    if mode == "queue":
        assert client.queue("q")["acked"] == 3, "what is done is settled while the next batch waits"
    publish(client, 1)
    second = reader.latestOffset(first, limit)
    assert rows(reader, first, second) == 10
    publish(client, 1)
    clock.now += 59
    assert reader.latestOffset(second, limit) == second
    clock.now += 1
    third = reader.latestOffset(second, limit)
    assert rows(reader, second, third) == 1
    clock.now += 59
    assert reader.latestOffset(third, limit) == third, "the delay begins anew with each batch"
    clock.now += 2
    assert reader.latestOffset(third, limit) == third, "without a message there is no batch"


@pytest.mark.parametrize("mode", MODES)
def test_what_was_planned_before_and_runs_that_end_do_not_wait(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    Clock(monkeypatch)
    publish(client, 2)
    reader: Any = reader_of(house, mode, minRowsPerTrigger=10)
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    publish(client, 4)
    assert reader.latestOffset(first, ReadMaxRows(100)) == first
    whole = reader.latestOffset(first, ReadAllAvailable())
    assert rows(reader, first, whole) == 4, "trigger(once=True)"
    assert reader.latestOffset(first, ReadMaxRows(100)) == whole, "it is the same batch again"
    publish(client, 5)
    other: Any = reader_of(house, mode, minRowsPerTrigger=10)
    other.prepareForTriggerAvailableNow()
    assert rows(other, whole, last := other.latestOffset(whole, ReadMaxRows(3))) == 3
    assert rows(other, last, other.latestOffset(last, ReadMaxRows(3))) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_full_waits_for_nothing(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    Clock(monkeypatch)
    publish(client, 1)
    reader: Any = reader_of(house, mode, minRowsPerTrigger=8, maxRowsPerTrigger=9, maxBytesPerTrigger=40)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    publish(client, 8)
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert 0 < rows(reader, first, second) < 8, "40 bytes hold fewer bodies of ten"


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_has_so_many_bytes_at_most_whatever_came_first(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Of a queue the mean of its first 200 messages stood for all that ever came: large ones were one batch."""
    Clock(monkeypatch)
    sizes = [10] * 250 + [3_000] * 5 + [10] * 3 + [20_000] + [10] * 2
    client.publish_table("q", pa.table({"body": [b"x" * size for size in sizes]}))
    reader: Any = reader_of(house, mode, maxBytesPerTrigger=7_000)
    reader.prepareForTriggerAvailableNow()
    batches, limit = list[list[int]](), reader.getDefaultReadLimit()
    end = reader.initialOffset()
    while (start := end) != (end := reader.latestOffset(start, limit)):
        found = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        batches.append([len(body) for batch in found for body in batch.column("body").to_pylist()])
    assert [size for batch in batches for size in batch] == sizes
    assert [len(batch) for batch in batches] == [251, 2, 5, 1, 2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"minRowsPerTrigger": 0}, "not a whole number of at least 1"),
        ({"minRowsPerTrigger": 5, "maxRowsPerTrigger": 4}, "is 5, and a batch has 4 messages at most"),
        ({"maxTriggerDelay": "5m"}, "goes with minRowsPerTrigger"),
        ({"minRowsPerTrigger": 5, "maxTriggerDelay": "soon"}, "option maxTriggerDelay: "),
    ],
)
def test_options_that_say_nothing(options: dict[str, object], told: str) -> None:
    given = {"queue": "q", "stream": "s"} | {name: str(one) for name, one in options.items()}
    with pytest.raises(InvalidArgument, match=told):
        read_options(given)
