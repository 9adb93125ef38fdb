"""Spark's reader of a queue, driven as Spark drives it, without Spark: its calls, its parts and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

import penstock
from flight_house import FlightHouse
from message_samples import SAMPLES, Sample
from penstock.client import Client
from penstock.errors import PreconditionFailed
from penstock.spark.options import ReadOptions, read_options
from penstock.spark.reading import bodies, fetching
from penstock.spark.reading.batch import SnapshotReader
from penstock.spark.reading.columns import layout
from penstock.spark.reading.queue_stream import ChangesStreamReader, QueueStreamReader, settle_source
from penstock.spark.reading.stream import LogStreamReader
from penstock.spark.record_batches import values
from penstock.spark.remote import Remote

SCHEMA = StructType().add("lsn", LongType()).add("body", BinaryType())


class Query:
    """A query as Spark keeps it: what is in its offset log, and in its commit log."""

    def __init__(self, house: FlightHouse, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        self.url = house.url
        self.given: dict[str, str] = {"url": house.url, "queue": "q", "stream": "s", "mode": "queue"}
        self.given |= {name: str(value) for name, value in options.items()}
        self.logged: list[dict[str, Any]] = [{"batch": 0}]
        self.committed = 0
        self.out: list[int] = []
        self.parts: list[list[int]] = []
        monkeypatch.setattr(fetching, "task_of", lambda: ("query", len(self.logged) - 2))

    def reader(self) -> QueueStreamReader:
        options = read_options(self.given)
        return QueueStreamReader(options, layout(options, SCHEMA, None))

    def run(self, bad: int | None = None) -> bool:
        """One start, until nothing is ready; False when the bad row comes."""
        reader = self.reader()
        reader.prepareForTriggerAvailableNow()
        while True:
            if self.committed == len(self.logged) - 1:
                end = reader.latestOffset(self.logged[-1], ReadMaxRows(100))
                if end == self.logged[-1]:
                    return True
                self.logged.append(json.loads(json.dumps(end)))
            parts = reader.partitions(self.logged[-2], self.logged[-1])
            self.parts = [self.ids(reader.read(part)) for part in parts]
            rows = [one for part in self.parts for one in part]
            if bad in rows:
                return False
            self.out += rows
            self.committed += 1

    @staticmethod
    def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
        return [int(json.loads(body)["id"]) for batch in batches for body in batch.column("body").to_pylist()]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path) as made:
        yield made


@pytest.fixture
def client(house: FlightHouse) -> Iterator[Client]:
    with penstock.connect(house.url) as made:
        made.declare("dead")
        made.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", max_deliveries=2)
        yield made


def publish(client: Client, start: int, end: int) -> None:
    for number in range(start, end):
        client.publish("q", {"id": number, "k": f"k{number % 5}"})


def test_a_poison_row_is_put_aside(house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(client, 0, 40)
    query = Query(house, monkeypatch, poisonAfter=2)
    failures = 0
    while not query.run(bad=25):
        failures += 1
        assert failures < 10
    assert failures == 2 + 1 + 2, "the batch of 40, three of them, and the row"
    assert query.out == [number for number in range(40) if number != 25]
    assert [json.loads(message.body)["id"] for message in client.peek("dead")] == [25]
    stats = client.queue("q")
    assert (stats["ready"], stats["leased"], stats["acked"]) == (0, 0, 39)


def test_without_poison_after_a_batch_stays(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, 0, 20)
    query = Query(house, monkeypatch)
    for _ in range(4):
        assert not query.run(bad=3)
        assert query.parts == [list(range(20))]


def test_rows_of_a_key_are_in_one_part(house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(client, 0, 60)
    query = Query(house, monkeypatch, orderBy="/k", minPartitions=3)
    assert query.run()
    assert sorted(query.out) == list(range(60))
    assert len(query.parts) == 3
    assert sum(len({number % 5 for number in part}) for part in query.parts) == 5
    assert all(part == sorted(part) for part in query.parts)


@pytest.mark.parametrize(("name", "sample"), SAMPLES.items(), ids=SAMPLES.keys())
def test_a_key_is_read_from_bodies_of_every_type(
    name: str, sample: Sample, house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a header of the message has the id of its body's schema; a body whose schema is unknown has no key."""
    client.declare(name, message_type=sample.name)
    orders = [{"id": f"a-{n}", "total": n, "region": f"r{n % 5}"} for n in range(20)]
    for order in orders:
        client.publish(name, sample.body(order), headers=sample.headers)
    strangers = [f"stranger {n}".encode() for n in range(6)]
    for body in strangers:
        client.publish(name, body)
    query = Query(house, monkeypatch, queue=name, orderBy=sample.path("region"), minPartitions=3)
    region = {sample.body(order): order["region"] for order in orders}
    monkeypatch.setattr(query, "ids", lambda batches: [one for batch in batches for one in values(batch, "body")])
    assert query.run()
    assert sorted(query.out) == sorted([*region, *strangers])
    assert len(query.parts) == 3
    assert sum(len({region[body] for body in part if body in region}) for part in query.parts) == 5
    sent = [*region, *strangers]
    assert all(part == sorted(part, key=sent.index) for part in query.parts)


def test_a_keyed_batch_is_sent_once(house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"k{number % 5}" for number in range(30)] + [3, 3.0, 2.5, True, None, "\u00e9"]
    for number, key in enumerate(keys):
        client.publish("q", {"id": number} if key is None else {"id": number, "k": key})
    sent, asked = list[int](), Remote.rows

    def counted(server: Remote, operation: str, skip: int = 0, /, **fields: object) -> Iterator[pa.RecordBatch]:
        for batch in asked(server, operation, skip, **fields):
            sent.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(Remote, "rows", counted)
    query = Query(house, monkeypatch, orderBy="/k", minPartitions=8)
    assert query.run()
    assert len(query.parts) == 8
    assert sum(sent) == len(keys) == len(query.out) == len(set(query.out))
    where = {number: place for place, part in enumerate(query.parts) for number in part}
    for key in (*(f"k{n}" for n in range(5)), 3):
        assert len({where[number] for number, one in enumerate(keys) if one == key}) == 1
    again = query.reader()
    again.opened()
    parts = again.partitions(query.logged[-2], query.logged[-1])
    assert [query.ids(again.read(part)) for part in parts] == query.parts


def test_a_lost_checkpoint_is_told_and_the_choice_taken(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, 0, 10)
    assert Query(house, monkeypatch).run()
    publish(client, 10, 20)
    with pytest.raises(PreconditionFailed, match="has settled 1 batches, and this query starts without a checkpoint"):
        Query(house, monkeypatch).run()
    other = Query(house, monkeypatch, onLostCheckpoint="continue")
    monkeypatch.setattr(fetching, "task_of", lambda: ("another query", len(other.logged) - 2))
    assert other.run()
    assert other.out == list(range(10, 20))
    assert client.queue("q")["acked"] == 20


def test_a_query_that_kept_its_id_and_lost_its_entries_is_refused(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, 0, 10)
    assert Query(house, monkeypatch).run()
    publish(client, 10, 20)
    with pytest.raises(PreconditionFailed, match="its checkpoint has lost entries"):
        Query(house, monkeypatch, onLostCheckpoint="continue").run()
    assert client.queue("q")["leased"] == 10


def test_what_a_progress_event_says_is_settled(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, 0, 10)
    query = Query(house, monkeypatch)
    reader = query.reader()
    end = reader.latestOffset({"batch": 0}, ReadMaxRows(100))
    assert client.queue("q")["leased"] == 10
    settle_source(reader.options.where, json.dumps({**end, "origin": end["origin"] + 1}))
    assert client.queue("q")["leased"] == 10  # a stream of the same name on another server
    for said in (None, "-", "[]", '{"lsn": 5}', '{"batch": 0}', json.dumps(end), json.dumps(end)):
        settle_source(reader.options.where, said)
    assert client.queue("q")["acked"] == 10
    settle_source(reader.options.where, '{"batch": 99, "stream": "s"}')  # refused by the server, and only told


def test_a_deleted_queue_ends_its_stream(house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(client, 0, 10)
    query = Query(house, monkeypatch)
    assert query.run()
    reader = query.reader()
    reader.opened()
    reader.server.act("delete", queue="q")
    with pytest.raises(Exception, match="stream 's' ended with its queue 'q', which was deleted"):
        reader.latestOffset(query.logged[-1], ReadMaxRows(100))
    client.declare("q")
    publish(client, 0, 5)
    with pytest.raises(PreconditionFailed, match="an earlier queue of this name.*penstock pipeline reset"):
        query.run()


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        ({}, {"lsn": 7, "origin": 1}),
        ({}, {"batch": 1, "stream": "another", "origin": 1}),
        ({"queue": "", "topic": "t", "mode": "log"}, {"batch": 1, "stream": "s", "origin": 1}),
        ({"mode": "changes"}, {"lsn": 7, "origin": 1}),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_before_anything_is_settled(
    house: FlightHouse, client: Client, options: dict[str, str], offset: dict[str, Any]
) -> None:
    publish(client, 0, 3)
    given = {"url": house.url, "queue": "q", "stream": "s", "mode": "queue", **options}
    read = read_options({name: value for name, value in given.items() if value})
    readers = {"queue": QueueStreamReader, "log": LogStreamReader, "changes": ChangesStreamReader}
    for call in ("latestOffset", "partitions"):
        reader: Any = readers[given["mode"]](read, layout(read, SCHEMA, None))
        arguments = (offset, ReadMaxRows(10)) if call == "latestOffset" else (offset, {**offset, "more": 1})
        with pytest.raises(PreconditionFailed, match="which is no place of stream 's' in mode"):
            getattr(reader, call)(*arguments)
    assert client.streams() == []


READS: dict[str, dict[str, str]] = {
    "a queue's content": {"queue": "o"},
    "a topic": {"topic": "o"},
    "records": {"view": "o"},
    "mode queue": {"queue": "o", "stream": "s", "mode": "queue"},
    "mode changes": {"queue": "o", "stream": "s", "mode": "changes"},
    "mode log": {"topic": "o", "stream": "s"},
}


def _first_rows(given: dict[str, str], asked: list[str]) -> list[dict[str, Any]]:
    """What a read has first; whoever asks what the bodies are while a batch of a stream is read is in `asked`."""
    options = read_options({**given, "schema": "id string, region string"})
    columns = StructType().add("id", StringType()).add("region", StringType())
    shown = layout(options, columns, "id string, region string")
    if options.stream is None:
        reader: Any = SnapshotReader(options, shown)
        parts = reader.partitions()
    else:
        kinds = {"queue": QueueStreamReader, "changes": ChangesStreamReader, "log": LogStreamReader}
        reader = kinds[given.get("mode", "log")](options, shown)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(100))
        del asked[:]
        parts = reader.partitions(start, end)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("read", READS)
def test_what_is_declared_anew_is_read_as_it_is_now(
    read: str, house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For up to a minute its bodies were read as what the one before was; and nothing more is asked for each batch."""
    asked, told = list[str](), bodies._asked

    def counted(server: Remote, options: ReadOptions) -> str:
        asked.append("asked")
        return told(server, options)

    monkeypatch.setattr(bodies, "_asked", counted)
    monkeypatch.setattr(fetching, "task_of", lambda: ("query", 0))
    given = {"url": house.url, **READS[read]}
    for kind in ("json", "nvfix", "msgpack"):
        if "view" in given:
            client.declare_topic("o", key=["/id"], message_type=kind)
        else:
            client.declare("o", message_type=kind)
        sent = client.publish("o", SAMPLES[kind].body({"id": f"a-{kind}", "total": 1, "region": "r"}))
        if "stream" in given:
            given["stream"] = f"s-{kind}"
        if "topic" in given:
            given["startingBookmark"] = str(sent.bookmark).replace(f"|{sent.lsn}|", f"|{sent.lsn - 1}|")
        assert {"id": f"a-{kind}", "region": "r"} in _first_rows(given, asked), kind
        if "view" in given:
            client.delete_topic("o")
        else:
            client.delete("o")
    assert len(asked) == (0 if "stream" in given else 3)
