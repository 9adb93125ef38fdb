"""Dead letters of `expect` and bad bodies over tries of a batch, without Spark: tasks and driver as Spark runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

import penstock
from flight_house import FlightHouse
from penstock.client import Client
from penstock.errors import InvalidArgument, NotFound
from penstock.server.flight.decided import GroupLimits
from penstock.server.flight.door import FlightLimits
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.options import read_options
from penstock.spark.pipelines.definition import Check, Output
from penstock.spark.pipelines.expectations import MET, Letters, Separator
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.reading import parts
from penstock.spark.reading.columns import layout
from penstock.spark.reading.queue_stream import QueueStreamReader
from penstock.spark.reading.stream import LogStreamReader
from penstock.spark.record_batches import values
from penstock.spark.remote import Where, remote

SCHEMA = StructType().add("lsn", LongType()).add("body", BinaryType())
EVEN = Check("id % 2 = 0", "dead-letter", "bad", "even")

Task = tuple[int, int, int]
"""Spark's batch, partition, attempt."""


class Context:
    """What `TaskContext.get()` gives in a task."""

    def __init__(self, task: Task) -> None:
        self.batch, self.partition, self.attempt = task

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.partition

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        return self.attempt

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(self.batch)}[name]


class Accumulator:
    """Spark's: a task's own is merged with its success."""

    def __init__(self, value: Any, param: Any) -> None:
        self.value, self._param = value, param
        self._mine = param.zero(value)

    def add(self, term: Any) -> None:
        self._mine = self._param.addInPlace(self._mine, term)

    def end(self, *, success: bool) -> None:
        if success:
            self.value = self._param.addInPlace(self.value, self._mine)
        self._mine = self._param.zero(self.value)


class Driver:
    """A query over queue `q` and its checkpoint: each `run` is one start of it."""

    def __init__(self, house: FlightHouse, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.where = Where(house.url)
        self.options = {"url": house.url, "queue": "q", "stream": "s", "mode": "queue", **options}
        self.checkpoint = Checkpoint(folder)
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text('{"id": "query"}')
        self.logged: list[Any] = [{"batch": 0}]
        self.done = 0
        self.out: list[int] = []
        self._patch = monkeypatch
        self._attempts = 0
        self.begin()

    def begin(self) -> None:
        """The driver starts: it knows what is in the checkpoint."""
        self.accumulators: list[Accumulator] = []
        self.letters = Letters(self.where, self)
        self.outputs = Outputs(
            self.where, [], self.checkpoint, settles=("s",), complete=False, mandatory=False, letters=self.letters
        )

    def accumulator(self, value: Any, param: Any) -> Accumulator:
        self.accumulators.append(Accumulator(value, param))
        return self.accumulators[-1]

    def __hash__(self) -> int:
        return id(self.letters) if hasattr(self, "letters") else 0

    def __eq__(self, other: object) -> bool:
        return False  # each start has a context of its own

    def task(self, batch: int, partition: int, *rows: Iterable[pa.RecordBatch], success: bool = True) -> list[int]:
        """An attempt that computes these parts of the input; the ids that pass."""
        self._attempts += 1
        context = Context((batch, partition, self._attempts))
        self._patch.setattr(TaskContext, "get", staticmethod(lambda: context))
        out: list[int] = []
        for part in rows:
            passed = Separator(self.letters.post, "expect/p/0", EVEN)(map(judged, part))
            out += [one for batch in passed for one in ids(batch)]
        self.letters.post.reports.end(success=success)
        return out

    def run(self, poison: int, order: Callable[[int], Any]) -> bool:
        """Until nothing is ready; False when a task meets the row on which the code raises."""
        self.begin()
        options = read_options(self.options)
        reader = QueueStreamReader(options, layout(options, SCHEMA, None))
        reader.prepareForTriggerAvailableNow()
        while True:
            if self.done == len(self.logged) - 1:
                end = reader.latestOffset(self.logged[-1], ReadMaxRows(1000))
                if end == self.logged[-1]:
                    return True
                (self.checkpoint.folder / "offsets" / str(self.done)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
                self.logged.append(end)
            planned = list(enumerate(reader.partitions(self.logged[-2], self.logged[-1])))
            rows: list[int] = []
            for place, part in sorted(planned, key=lambda one: order(one[0])):
                rows += self.task(self.done, place, reader.read(part))
                if poison in rows:
                    return False
            self.outputs.commit("query", self.done, [])
            self.out += rows
            self.done += 1


def ids(batch: pa.RecordBatch) -> list[int]:
    return [int(json.loads(body)["id"]) for body in values(batch, "body")]


def judged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column(MET, pa.array([number % 2 == 0 for number in ids(batch)]))


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"body": [b'{"id": %d}' % number for number in numbers]})]


def letters(client: Client) -> list[int]:
    return sorted(int(message.json()["id"]) for message in client.replay("bad", "EPOCH"))


def stages(driver: Driver) -> int:
    return len(remote(driver.where).act("stages")["stages"])


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path / "data", getattr(request, "param", None)) as made:
        yield made


@pytest.fixture
def client(house: FlightHouse) -> Iterator[Client]:
    with penstock.connect(house.url) as made:
        made.declare("q")
        made.declare_topic("bad")
        yield made


@pytest.fixture
def driver(house: FlightHouse, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """With one batch of eight messages, whose end is in the checkpoint."""
    for number in range(8):
        client.publish("q", {"id": number})
    made = Driver(house, tmp_path / "checkpoint", monkeypatch)
    reader = QueueStreamReader(read_options(made.options), layout(read_options(made.options), SCHEMA, None))
    made.logged.append(reader.latestOffset({"batch": 0}, ReadMaxRows(100)))
    (tmp_path / "checkpoint" / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(made.logged[-1])}")
    return made


@pytest.mark.parametrize("second_first", [False, True], ids=["in order", "the second part first"])
def test_a_batch_that_is_narrowed_has_each_letter_once(
    house: FlightHouse, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_first: bool
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 4)
    for number in range(64):
        client.publish("q", {"id": number})
    driver = Driver(house, tmp_path / "checkpoint", monkeypatch, poisonAfter="1")
    failures = 0
    while not driver.run(38, lambda place: (place != 1, -place) if second_first else place):
        failures += 1
        assert failures < 10
    assert failures == 3
    assert sorted(driver.out) == [number for number in range(0, 64, 2) if number != 38]
    assert letters(client) == list(range(1, 64, 2))
    assert stages(driver) == 0


def test_one_attempt_of_a_partition_is_taken(client: Client, driver: Driver) -> None:
    for _ in range(2):
        assert driver.task(0, 0, rows(0, 1, 2, 3)) == [0, 2]  # the second is speculation, or lost shuffle files
    driver.task(0, 1, rows(4, 5, 6, 7), success=False)
    driver.task(0, 1, rows(4, 5, 6, 7))
    assert (letters(client), stages(driver)) == ([], 4)
    driver.outputs.commit("query", 0, [])
    assert (letters(client), stages(driver)) == ([1, 3, 5, 7], 0)
    assert client.queue("q")["acked"] == 8
    [first, *_] = client.replay("bad", "EPOCH")
    assert first.headers == {"x-failed-check": "even"}


def test_parts_that_one_task_computes_all_have_their_letters(client: Client, driver: Driver) -> None:
    driver.task(0, 0, rows(0, 1), rows(2, 3), rows(4, 6), rows(5, 7))  # as after coalesce(1)
    driver.outputs.commit("query", 0, [])
    assert letters(client) == [1, 3, 5, 7]


def test_a_kill_before_the_commit_leaves_no_letter_of_that_try(client: Client, driver: Driver) -> None:
    driver.task(0, 0, rows(0, 1, 3, 5))
    driver.begin()
    driver.task(0, 0, rows(0, 1, 2, 3))  # under other rules, or fewer rows
    driver.task(0, 1, rows(4, 5, 6, 7))
    driver.outputs.commit("query", 0, [])
    assert (letters(client), stages(driver)) == ([1, 3, 5, 7], 0)


def test_a_batch_that_is_out_has_no_letters_any_more(
    client: Client, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.task(0, 0, rows(*range(8)))
    driver.outputs.commit("query", 0, [])
    driver.begin()

    def run(frame: object) -> None:
        driver.task(0, 0, rows(*range(8)))

    monkeypatch.setattr("penstock.spark.pipelines.outputs.run", run)
    driver.outputs(None, 0)  # as after a kill before Spark's own commit
    assert (letters(client), stages(driver)) == ([1, 3, 5, 7], 0)


def test_a_batch_that_fails_drops_its_letters(client: Client, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(frame: object) -> None:
        driver.task(0, 0, rows(*range(8)))
        raise ValueError("a row of partition 1")

    driver.outputs.targets = (Output("t", None),)
    monkeypatch.setattr(driver.outputs, "staged", lambda frame, *_: fail(frame))
    with pytest.raises(ValueError, match="a row of partition 1"):
        driver.outputs(None, 0)
    assert (letters(client), stages(driver)) == ([], 0)


@pytest.mark.parametrize(
    "house", [None, FlightLimits(group=GroupLimits(group_bytes=1))], indirect=True, ids=["one group", "decided"]
)
def test_a_topic_that_nobody_keeps_refuses_the_batch(client: Client, driver: Driver) -> None:
    client.delete_topic("bad")
    driver.task(0, 0, rows(*range(8)))
    with pytest.raises(NotFound, match="no queue takes topic 'bad' in vhost '/'"):
        driver.outputs.commit("query", 0, [])  # whatever `unroutable` says
    assert (client.queue("q")["acked"], stages(driver)) == (0, 1)
    client.declare_topic("bad")
    driver.outputs.commit("query", 0, [])
    assert (letters(client), client.queue("q")["acked"]) == ([1, 3, 5, 7], 8)


def test_bad_bodies_of_a_batch_that_is_narrowed_are_all_put_aside(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(32):
        client.publish("q", b"bad %d" % number if number % 2 else b'{"id": %d}' % number)
    given = {"url": house.url, "queue": "q", "stream": "s", "mode": "queue", "schema": "id bigint"}
    options = read_options({**given, "badRecordsTopic": "bad", "minPartitions": "2", "poisonAfter": "1"})
    schema = StructType().add("id", LongType())
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context((0, 0, 1))))
    first = QueueStreamReader(options, layout(options, schema, options.ddl))
    end = first.latestOffset({"batch": 0}, ReadMaxRows(100))
    list(first.read(first.partitions({"batch": 0}, end)[1]))  # and then the driver is killed
    again = QueueStreamReader(options, layout(options, schema, options.ddl))
    good = [values(batch, "id") for part in again.partitions({"batch": 0}, end) for batch in again.read(part)]
    assert good == [[0], []]
    again.latestOffset(end, ReadMaxRows(100))
    bad = [message.body for message in client.replay("bad", "EPOCH")]
    assert b"bad 1" in bad
    assert set(bad) == {b"bad 1", *(b"bad %d" % number for number in range(17, 32, 2))}


@pytest.mark.parametrize("mode", ["queue", "log"])
def test_bad_bodies_under_another_schema_are_all_put_aside(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Found by reading: they had the numbers of those under the first one, and passed for stored."""
    bodies = [b'{"id": 1, "n": "x"}', b'{"id": "y", "n": 2}', b'{"id": "z", "n": 3}', b'{"id": 4, "n": null}']
    for body in bodies:
        client.publish("q", body)
    source = {"queue": "q"} if mode == "queue" else {"topic": "q", "startingBookmark": "EPOCH"}
    given = {"url": house.url, **source, "stream": "s", "mode": mode, "badRecordsTopic": "bad"}
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context((0, 0, 1))))
    kind = QueueStreamReader if mode == "queue" else LogStreamReader
    start: Any = None
    end: Any = None
    for column in ("id", "n", "n"):  # the driver is killed after the first and the second
        options = read_options({**given, "schema": f"{column} bigint"})
        reader = kind(options, layout(options, StructType().add(column, LongType()), options.ddl))
        start = reader.initialOffset() if start is None else start
        end = reader.latestOffset(start, ReadMaxRows(100)) if end is None else end
        for part in reader.partitions(start, end):
            list(reader.read(part))
    assert [message.body for message in client.replay("bad", "EPOCH")] == [bodies[1], bodies[2], bodies[0]]


def test_a_bad_body_says_which_message_it_was_and_a_queue_with_a_window_takes_that_once(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.declare("once", underlying_topic="bad", dedup_window="1h")
    for body in (b"no json", b'{"id": 1}', b"no json"):  # two messages, though alike
        client.publish("q", body)
    given = {"url": house.url, "queue": "q", "stream": "s", "mode": "queue", "badRecordsTopic": "bad"}
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context((0, 0, 1))))
    end: Any = None
    for ddl in ("id bigint", "id int", "id bigint"):  # the driver is killed after the first and the second
        options = read_options({**given, "schema": ddl})
        kind = LongType() if "big" in ddl else IntegerType()
        reader = QueueStreamReader(options, layout(options, StructType().add("id", kind), options.ddl))
        end = reader.latestOffset({"batch": 0}, ReadMaxRows(100)) if end is None else end
        for part in reader.partitions({"batch": 0}, end):
            list(reader.read(part))
    messages = {message.bookmark for message in client.replay("q", "EPOCH") if message.body == b"no json"}
    marks = [message.headers["x-bookmark"] for message in client.replay("bad", "EPOCH")]
    assert len(marks) == 4, "both came again under another schema"
    assert set(marks) == messages
    assert {message.headers["x-bookmark"] for message in client.peek("once", count=100)} == messages
    assert client.queue("once")["ready"] == 2


def test_what_a_queue_shows_is_no_place_for_its_bad_bodies(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.declare("shown", underlying_topic="source")
    client.publish("source", b"no json")
    given = {"url": house.url, "queue": "shown", "stream": "s", "mode": "queue", "badRecordsTopic": "source"}
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context((0, 0, 1))))
    options = read_options({**given, "schema": "id bigint"})
    reader = QueueStreamReader(options, layout(options, StructType().add("id", LongType()), options.ddl))
    end = reader.latestOffset({"batch": 0}, ReadMaxRows(100))
    [part] = reader.partitions({"batch": 0}, end)
    with pytest.raises(InvalidArgument, match="badRecordsTopic is 'source', which queue 'shown' shows"):
        list(reader.read(part))
    assert client.queue("shown")["published"] == 1
