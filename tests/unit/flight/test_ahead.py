"""An upload that begins with the call: what crosses between door and server, and what becomes of what was refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from flight_house import FlightHouse, house_with_a_queue
from penstock.client import kept_uploads
from penstock.errors import NotFound
from penstock.server.doors import line
from penstock.server.doors.line import HEAD, Kind
from penstock.server.flight import uploads
from penstock.server.flight.grpc_server import AHEAD_MOST
from waiting import eventually

BODIES = pa.record_batch({"body": [b"a", b"b"]})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with house_with_a_queue(tmp_path) as house:
        yield house


def put(client: Any, topic: str) -> tuple[Any, Any]:
    command = json.dumps({"publish": {"topic": topic}}).encode()
    return client._link.put(command, BODIES.schema)


def answers(reader: Any) -> list[dict[str, Any]]:
    said = list[dict[str, Any]]()
    while (one := reader.read()) is not None:
        said.append(json.loads(one.to_pybytes()))
    return said


def test_a_small_publish_crosses_four_times(house: FlightHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time a thread of the server waits for Python's lock; it was eight times."""
    sent = list[list[Kind]]()
    send = line._send

    def counted(sock: Any, pieces: list[Any], size: int) -> None:
        heads = [HEAD.unpack(one) for one in pieces if isinstance(one, bytes) and len(one) == HEAD.size]
        sent.append([Kind(head[1]) for head in heads if head[1] in line.KINDS and head[2] == line.VERSION])
        send(sock, pieces, size)

    monkeypatch.setattr(kept_uploads, "KEPT_S", 0.0)  # a call for each
    with penstock.connect(house.url) as client:
        client.publish("q", b"first")
        monkeypatch.setattr(line, "_send", counted)
        client.publish("q", b"second")
    crossed = [kinds for kinds in sent if Kind.CONTROL not in kinds]
    assert crossed == [
        [Kind.CALL, Kind.SCHEMA, Kind.BATCH],
        [Kind.WELCOME, Kind.WORDS, Kind.MORE],
        [Kind.WORDS, Kind.END],
        [Kind.WORDS, Kind.DONE],
    ]


def test_who_waits_for_each_answer_gets_it(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        writer, reader = put(client, "q")
        for number in range(3):
            writer.write_batch(BODIES)
            assert json.loads(reader.read().to_pybytes())["batch"] == number
        writer.write_metadata(b'{"end": {"rows": 6}}')
        writer.done_writing()
        [end] = answers(reader)
        assert end["complete"]
        writer.close()


def test_what_is_refused_is_told_and_the_line_goes_on(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        for _ in range(3):
            with pytest.raises(NotFound):
                client.publish("q", b"x", exchange="none")
            assert client.publish("q", b"x").outcome == "stored"


def test_a_schema_that_is_none_of_an_upload_is_refused(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        command = b'{"publish": {"topic": "q"}}'
        writer, _ = client._link.put(command, pa.schema([("strange", pa.int8())]))
        with pytest.raises(pa.ArrowException, match="strange"):
            writer.close()
        assert client.publish("q", b"x").outcome == "stored"


def test_who_says_nothing_but_words_is_asked_now_and_then(house: FlightHouse) -> None:
    """They wait for what follows them, but not without a bound."""
    many = 3 * uploads.KEPT_MOST // uploads.KEPT_LEAST
    with penstock.connect(house.url) as client:
        writer, reader = put(client, "q")
        for _ in range(many):
            writer.write_metadata(b'{"end": {"rows": 2}}')
        writer.write_batch(BODIES)
        assert json.loads(reader.read().to_pybytes())["stored"] == 2
        for _ in range(many):
            writer.write_metadata(b'{"end": {"rows": 2}}')
        writer.done_writing()
        [end] = answers(reader)
        assert end["complete"]
        writer.close()


def test_an_upload_without_a_batch_ends(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        writer, reader = put(client, "q")
        writer.done_writing()
        [end] = answers(reader)
        assert end["rows"] == 0
        writer.close()


def test_a_client_that_leaves_before_its_first_batch_leaves_nothing_behind(house: FlightHouse) -> None:
    raw = flight.FlightClient(f"grpc://127.0.0.1:{house.port}")
    options = flight.FlightCallOptions(headers=[raw.authenticate_basic_token("guest", "guest")])
    descriptor = flight.FlightDescriptor.for_command(b'{"publish": {"topic": "q"}}')
    list(raw.do_action(flight.Action("health", b"{}"), options))
    _, reader = raw.do_put(descriptor, BODIES.schema, options)
    del reader
    raw.close()
    with penstock.connect(house.url) as client:
        assert client.publish("q", b"x").outcome == "stored"


def test_uploads_without_a_batch_are_counted_but_for_a_few(house: FlightHouse) -> None:
    """The server bounds those of each user; what it has not heard of has a thread of gRPC's nonetheless."""
    raw = flight.FlightClient(f"grpc://127.0.0.1:{house.port}")
    options = flight.FlightCallOptions(headers=[raw.authenticate_basic_token("guest", "guest")])
    descriptor = flight.FlightDescriptor.for_command(b'{"publish": {"topic": "q"}}')
    list(raw.do_action(flight.Action("health", b"{}"), options))
    open_ = [raw.do_put(descriptor, BODIES.schema, options) for _ in range(AHEAD_MOST + 4)]
    eventually(lambda: house.door.calls.streams >= 4)
    with penstock.connect(house.url) as client:
        assert client.publish("q", b"x").outcome == "stored"  # the long way
    for writer, reader in open_:
        writer.done_writing()
        [end] = answers(reader)
        assert end["rows"] == 0
        writer.close()
    eventually(lambda: not house.door.calls.streams)  # its end is told before its place is given back
    raw.close()
