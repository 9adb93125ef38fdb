"""The Flight door as any pyarrow client meets it: answers, bad input, clients that vanish or stand still."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from flight_house import FlightHouse
from penstock.errors import LogDamaged
from penstock.records.message_bodies import PackedBodies, held_by
from penstock.server.base.faults import TOLD
from penstock.server.flight import downstream
from penstock.server.flight.door import FlightLimits
from penstock.wire.flight.commands import SETTLE
from waiting import eventually

pytestmark = pytest.mark.conformance

BODIES = pa.record_batch({"body": [b"a", b"b"]})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, FlightLimits(streams=8)) as house:
        with penstock.connect(house.url) as client:
            client.declare("q")
        yield house


class Raw:
    """A pyarrow client that has logged in."""

    def __init__(self, house: FlightHouse, **options: int) -> None:
        """options: of gRPC's channel."""
        self.client = flight.FlightClient(f"grpc://127.0.0.1:{house.port}", generic_options=list(options.items()))
        token = self.client.authenticate_basic_token("guest", "guest")
        self.options = flight.FlightCallOptions(headers=[token])

    def put(self, command: bytes, schema: pa.Schema = BODIES.schema) -> tuple[Any, Any]:
        return self.client.do_put(flight.FlightDescriptor.for_command(command), schema, self.options)

    def exchange(self, command: bytes) -> tuple[Any, Any]:
        return self.client.do_exchange(flight.FlightDescriptor.for_command(command), self.options)

    def get(self, ticket: bytes) -> pa.Table:
        return self.client.do_get(flight.Ticket(ticket), self.options).read_all()


@pytest.fixture
def raw(house: FlightHouse) -> Iterator[Raw]:
    raw = Raw(house)
    yield raw
    raw.client.close()


def consuming(raw: Raw, queue: str) -> tuple[Any, Any]:
    """The two ends of a consumer without a limit."""
    writer, reader = raw.exchange(json.dumps({"consume": {"queue": queue, "backlog": 0}}).encode())
    writer.begin(SETTLE)
    return writer, reader


def read_rows(reader: Any, rows: int) -> None:
    while rows > 0:
        chunk = reader.read_chunk()
        if chunk.data is not None:
            rows -= chunk.data.num_rows


def read_to_the_end(reader: Any) -> None:
    """Read until the stream fails; a stream that ends raises StopIteration."""
    while True:
        reader.read_chunk()


def test_each_batch_is_answered_when_it_is_durable(house: FlightHouse, raw: Raw) -> None:
    writer, reader = raw.put(b'{"publish": {"topic": "q"}}')
    writer.write_batch(BODIES)
    first = json.loads(reader.read().to_pybytes())
    assert (first["batch"], first["stored"], first["last"] - first["first"]) == (0, 2, 1)
    assert (first["duplicates"], first["refused"]) == (0, [])
    assert house.log.durable >= first["last"]
    writer.write_batch(BODIES)
    second = json.loads(reader.read().to_pybytes())
    assert second["first"] == first["last"] + 1
    writer.write_metadata(b'{"end": {"rows": 4}}')
    writer.done_writing()
    end = json.loads(reader.read().to_pybytes())
    assert (end["end"], end["complete"], end["rows"], end["stored"]) == (True, True, 4, 4)
    writer.close()


def test_an_upload_holds_no_more_memory_than_is_counted(tmp_path: Path) -> None:
    batch = pa.record_batch({"body": [b"x" * 100] * 2000})
    budget = 1 << 20
    with FlightHouse(tmp_path, memory=budget) as house:
        with penstock.connect(house.url) as client:
            client.declare("q")
        raw = Raw(house)
        gc.collect()
        gc.disable()  # nothing of an upload may wait for the collector of cycles
        try:
            writer, reader = raw.put(b'{"publish": {"topic": "q"}}')
            for _ in range(20):
                writer.write_batch(batch)
                reader.read()
            held = [one for one in gc.get_objects() if isinstance(one, PackedBodies)]
            sizes, memory = [one.size for one in held], [held_by(one.array) for one in held]
            used = house.run(lambda: house.engine.bodies.used)
            writer.close()
        finally:
            gc.enable()
            raw.client.close()
    assert used <= budget
    assert 0 < sum(sizes) <= budget + batch.nbytes
    assert sum(memory) <= sum(sizes) * 9 // 8


def test_an_end_that_counts_wrong_is_an_error_and_the_rows_stay(raw: Raw) -> None:
    writer, _ = raw.put(b'{"publish": {"topic": "q"}}')
    writer.write_batch(BODIES)
    writer.write_metadata(b'{"end": {"rows": 3}}')
    with pytest.raises(flight.FlightServerError, match="says 3 rows and 2 came; 2 of them are stored"):
        writer.close()
    assert raw.get(b'{"queue": {"name": "q"}}').num_rows == 2


def test_the_end_has_the_sum_of_what_nobody_takes(raw: Raw) -> None:
    writer, reader = raw.put(b'{"publish": {"topic": "nobody-takes-this"}}')
    for _ in range(2):
        writer.write_batch(BODIES)
        assert json.loads(reader.read().to_pybytes())["unroutable"] == 2
    writer.done_writing()
    assert json.loads(reader.read().to_pybytes())["unroutable"] == 4
    writer.close()


def test_an_upload_without_an_end_is_not_complete(raw: Raw) -> None:
    writer, reader = raw.put(b'{"publish": {"topic": "q"}}')
    writer.write_batch(BODIES)
    writer.done_writing()
    reader.read()
    assert json.loads(reader.read().to_pybytes())["complete"] is False
    writer.close()


@pytest.mark.parametrize(
    ("command", "schema", "code"),
    [
        (b"", BODIES.schema, "PS105"),
        (b"\xff\xfe", BODIES.schema, "PS105"),
        (b'{"publish": {"topic": "q", "vhost": "none"}}', BODIES.schema, "PS101"),
        (b'{"publish": {"topic": "q"}}', pa.schema([("bodi", pa.binary())]), "PS105"),
        (b'{"publish": {"topic": "q"}}', pa.schema([("body", pa.dictionary(pa.int8(), pa.binary()))]), "PS105"),
        (b'{"publish": {"topic": "q", "exchange": "none"}}', BODIES.schema, "PS101"),
        (b'{"publish": {}}', BODIES.schema, "PS105"),
    ],
)
def test_wrong_uploads_are_refused_with_our_code(raw: Raw, command: bytes, schema: pa.Schema, code: str) -> None:
    writer, _ = raw.put(command, schema)
    try:
        if schema == BODIES.schema:
            writer.write_batch(BODIES)
    except pa.ArrowException:
        pass  # the server was faster
    with pytest.raises(flight.FlightServerError) as caught:
        writer.close()
    assert json.loads(caught.value.extra_info)["code"] == code
    assert f"[{code}]" in str(caught.value)


@pytest.mark.parametrize("ticket", [b"", b"x", b'{"sql": ""}', b'{"queue": {"name": "none"}}', b'{"log": 1}'])
def test_wrong_tickets_are_refused_with_our_code(raw: Raw, ticket: bytes) -> None:
    with pytest.raises(flight.FlightServerError, match=r"\[PS10[15]\]"):
        raw.get(ticket)


def test_actions_are_listed_and_unknown_ones_refused(raw: Raw) -> None:
    names = {action.type for action in raw.client.list_actions(raw.options)}
    assert {"declare", "plan", "sink_commit", "health"} <= names
    with pytest.raises(flight.FlightServerError, match="did you mean 'declare'"):
        list(raw.client.do_action(flight.Action("declar", b"{}"), raw.options))
    with pytest.raises(flight.FlightServerError, match="unknown field 'queu'"):
        list(raw.client.do_action(flight.Action("stats", b'{"queue": "q", "queu": 1}'), raw.options))


def test_queues_are_flights(raw: Raw) -> None:
    [info] = list(raw.client.list_flights(b"", raw.options))
    assert info.descriptor.path == [b"/", b"queue", b"q"]
    assert info.total_records == 0
    again = raw.client.get_flight_info(flight.FlightDescriptor.for_path("queue", "q"), raw.options)
    assert again.schema == info.schema
    assert raw.client.do_get(again.endpoints[0].ticket, raw.options).read_all().num_rows == 0
    schema = raw.client.get_schema(flight.FlightDescriptor.for_command(b'{"log": {"columns": ["lsn"]}}'), raw.options)
    assert schema.schema.names == ["lsn"]
    with pytest.raises(flight.FlightServerError, match="no queue 'none'"):
        raw.client.get_flight_info(flight.FlightDescriptor.for_path("queue", "none"), raw.options)


def test_a_topic_tells_the_schema_of_its_bodies(raw: Raw) -> None:
    settings = b'{"topic": "orders", "settings": {"schema": "id bigint, total double"}}'
    list(raw.client.do_action(flight.Action("declare_topic", settings), raw.options))
    path = flight.FlightDescriptor.for_path("topic", "orders")
    told = raw.client.get_schema(path, raw.options).schema
    assert told.metadata == {b"penstock.schema": b"id bigint, total double"}
    info = raw.client.get_flight_info(path, raw.options)
    assert raw.client.do_get(info.endpoints[0].ticket, raw.options).read_all().schema == told
    wrong = b'{"topic": "orders", "settings": {"schema": "id number"}}'
    with pytest.raises(flight.FlightServerError, match="schema: column 'id' has the type 'number'"):
        list(raw.client.do_action(flight.Action("declare_topic", wrong), raw.options))
    with pytest.raises(flight.FlightServerError, match="no declared topic 'none'"):
        raw.client.get_flight_info(flight.FlightDescriptor.for_path("topic", "none"), raw.options)


@pytest.mark.parametrize(
    "header", [None, b"Basic !!!", b"Basic Z3Vlc3Q=", b"Bearer nothing", b"Digest x", b"Basic Z3Vlc3Q6eA=="]
)
def test_nobody_enters_without_a_login(house: FlightHouse, header: bytes | None) -> None:
    with flight.FlightClient(f"grpc://127.0.0.1:{house.port}") as client:
        options = flight.FlightCallOptions(headers=[] if header is None else [(b"authorization", header)])
        with pytest.raises(flight.FlightUnauthenticatedError, match=r"\[PS102\]"):
            list(client.do_action(flight.Action("health", b""), options))
        with pytest.raises(flight.FlightUnauthenticatedError, match=r"\[PS102\]"):
            client.do_get(flight.Ticket(b'{"log": {}}'), options).read_all()


def test_settles_that_are_wrong_end_the_stream(raw: Raw) -> None:
    for columns, said in (
        ({"lsn": [1], "verb": ["akc"]}, "did you mean 'ack'"),
        ({"lsn": [1], "verb": pa.array([None], pa.string())}, "verb None"),
        ({"lsn": [1]}, "column 'verb' is missing"),
        ({"lsn": [1], "verb": ["retry"], "delay": [-1]}, "delay is -1 us"),
        ({"lsn": [1], "verb": ["extend"]}, "extend needs a delay"),
    ):
        writer, reader = raw.exchange(b'{"consume": {"queue": "q"}}')
        batch = pa.record_batch(columns)
        writer.begin(batch.schema)
        writer.write_batch(batch)
        with pytest.raises(flight.FlightServerError, match=said):
            read_to_the_end(reader)


def subscribed(reader: Any) -> Any:
    """The first thing that a consumer is told: on which terms it consumes."""
    return json.loads(reader.read_chunk().app_metadata.to_pybytes())["subscribed"]


def test_a_stale_settle_is_counted_and_no_error(house: FlightHouse, raw: Raw) -> None:
    writer, reader = raw.exchange(b'{"consume": {"queue": "q"}}')
    writer.begin(SETTLE)
    batch = pa.record_batch({"lsn": [10**9], "attempt": pa.array([1], pa.int32()), "verb": ["ack"],
                             "delay": pa.nulls(1, pa.int64()), "reason": pa.nulls(1, pa.string()),
                             "queue": pa.nulls(1, pa.string())})  # fmt: skip
    told = subscribed(reader)
    assert told.pop("consumer")  # its name in a transaction
    assert told == {
        "effective_backlog": None,
        "queues": ["q"],
        "lease_period": None,
        "strict": False,
        "leased": True,
        "term": 0,
    }
    writer.write_with_metadata(batch, b'{"number": 1}')
    said = json.loads(reader.read_chunk().app_metadata.to_pybytes())
    assert said == {"answer": 1, "affected": 0, "stale": 1}
    writer.done_writing()
    writer.close()


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (LogDamaged("log/1 is not what was written"), "PS503", "log/1 is not what was written"),
        (pa.ArrowInvalid("ours"), "PS000", TOLD),
    ],
)
def test_a_delivery_that_cannot_be_read_ends_the_stream_with_its_error(
    house: FlightHouse, raw: Raw, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, told: str
) -> None:
    def damaged(*_: object) -> pa.RecordBatch:
        raise error

    monkeypatch.setattr(downstream, "delivery_batch", damaged)
    with penstock.connect(house.url) as client:
        client.publish("q", b"x")
        writer, reader = raw.exchange(b'{"consume": {"queue": "q"}}')
        writer.begin(SETTLE)
        subscribed(reader)
        assert json.loads(reader.read_chunk().app_metadata.to_pybytes()) == {"ended": told}
        writer.done_writing()
        with pytest.raises(flight.FlightServerError, match=rf"\[{code}\].*{told[:14]}"):
            read_to_the_end(reader)
        eventually(lambda: client.queue("q")["ready"] == 1)


def test_a_silent_consumer_loses_its_leases(house: FlightHouse, raw: Raw) -> None:
    with penstock.connect(house.url) as client:
        client.publish("q", b"x")
        writer, reader = raw.exchange(b'{"consume": {"queue": "q", "heartbeat": "50s"}}')
        writer.begin(SETTLE)
        subscribed(reader)
        assert reader.read_chunk().data.num_rows == 1
        house.clock.ahead = 30_000_000
        house.beat()
        assert client.queue("q")["leased"] == 1
        writer.write_metadata(b'{"heartbeat": true}')
        eventually(lambda: all(e.heard_at > house.clock.mono() - 25_000_000 for e in house.door.exchanges))
        house.clock.ahead = 60_000_000
        house.beat()
        assert client.queue("q")["leased"] == 1
        house.clock.ahead = 120_000_000
        house.beat()
        counts = client.queue("q")
        assert (counts["leased"], counts["ready"], counts["consumers"]) == (0, 1, 0)
        health = client.health()
        assert (health["streams"], health["abandoned_streams"]) == (0, 1)
        writer.done_writing()
        with pytest.raises(flight.FlightUnavailableError, match="nothing was heard"):
            read_to_the_end(reader)
        eventually(lambda: client.health()["abandoned_streams"] == 0)


CONSUME = """
    import penstock, sys
    client = penstock.connect(sys.argv[1])
    consumer = client.consume("q", backlog=5, heartbeat="50s")
    print(consumer.take().body.decode(), flush=True)
    import time
    time.sleep(60)
"""


def run_client(code: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_killed_consumer_gives_its_messages_back(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.publish_table("q", pa.table({"body": ["1", "2"]}))
        process = run_client(CONSUME, house.url)
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert client.queue("q")["leased"] == 2
        process.kill()
        process.wait(30)
        process.stdout.close()
        eventually(lambda: client.queue("q")["ready"] == 2)
        eventually(lambda: client.health()["streams"] == 0)
        with client.consume("q", timeout=30) as consumer:
            assert [(m.body, m.attempt) for m in (consumer.take(), consumer.take()) if m] == [(b"1", 2), (b"2", 2)]


def test_a_stopped_consumer_is_given_up(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.publish_table("q", pa.table({"body": ["1", "2"]}))
        process = run_client(CONSUME, house.url)
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(signal.SIGSTOP)
        house.clock.ahead += 60_000_000
        house.beat()
        counts = client.queue("q")
        assert (counts["ready"], counts["leased"]) == (2, 0)
        assert client.health()["streams"] == 0
        process.kill()
        process.wait(30)
        process.stdout.close()
        eventually(lambda: client.health()["abandoned_streams"] == 0)


def test_a_reader_that_does_not_read_holds_a_bounded_queue(house: FlightHouse, raw: Raw) -> None:
    still = Raw(house, **{"grpc.http2.bdp_probe": 0})  # its window stays small: the kernel's buffers would take all
    rows = 15_000  # several grants of the core, which may give one before it hears that the first is not read
    with penstock.connect(house.url) as client:
        client.declare("beside")
        for queue in ("q", "beside"):
            client.publish_table(queue, pa.table({"body": [b"x" * 2_000] * rows}))
        writer, reader = consuming(still, "q")
        eventually(lambda: client.queue("q")["leased"] > 0)
        beside = consuming(raw, "beside")
        read_rows(beside[1], rows)  # meanwhile the other could have had as many
        assert client.queue("q")["leased"] < rows // 2, "the core was told to pause"
        read_rows(reader, rows)
        assert client.queue("q")["leased"] == rows
        for each in (writer, beside[0]):
            each.done_writing()
            each.close()
        still.client.close()


def test_a_read_that_is_left_gives_its_place_back(house: FlightHouse, raw: Raw) -> None:
    with penstock.connect(house.url) as client:
        client.publish_table("q", pa.table({"body": [b"x" * 10_000] * 1_000}))
        for _ in range(10):  # more than there are places
            reader = raw.client.do_get(flight.Ticket(b'{"replay": {"topic": "q"}}'), raw.options)
            reader.read_chunk()
            reader.cancel()
            del reader
        eventually(lambda: client.health()["streams"] == 0)


def test_still_streams_do_not_count_for_ever(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, FlightLimits(streams=1, stalled_s=-1.0)) as house:
        raw = Raw(house)
        writer, reader = raw.put(b'{"publish": {"topic": "q"}}')
        writer.write_batch(BODIES)
        assert reader.read() is not None
        house.beat()
        with penstock.connect(house.url) as client:
            assert client.publish("q", b"x", mandatory=False).outcome == "unroutable"
            writer.write_batch(BODIES)
            assert reader.read() is not None, "the still stream goes on where it stood"
        writer.done_writing()
        writer.close()
        raw.client.close()
