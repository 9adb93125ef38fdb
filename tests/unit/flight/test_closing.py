"""A door that closes while clients have calls under way: who is waited for, and what becomes of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse, house_with_a_queue
from penstock.client.link import Link, rebuilt
from penstock.client.urls import parse_url
from penstock.errors import PenstockError, Unavailable
from penstock.server.flight.connections import Connections
from waiting import eventually

BODIES = pa.record_batch({"body": [b"a", b"b"]})
LONG_S = 30.0
"""Of a door's patience: nobody is waited for so long here."""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlightHouse]:
    """One that does not lose patience: the time after which all are cut does not come."""

    def lost_patience(_: Connections) -> int:
        raise AssertionError("the door waited for calls until its time was over")

    with house_with_a_queue(tmp_path) as house, monkeypatch.context() as patched:
        patched.setattr(Connections, "cut_all", lost_patience)
        yield house


def link(house: FlightHouse) -> Link:
    """A connection of its own."""
    return Link(parse_url(house.url), 20.0)


def put(link: Link, **command: object) -> tuple[Any, Any]:
    return link.put(json.dumps(command).encode(), BODIES.schema)


def stop(house: FlightHouse) -> None:
    """As a server does, with all the patience that there is."""
    house.run(house.door.stop)
    assert house.door.close(LONG_S)


def why(writer: Any) -> PenstockError:
    """What the client is told at the end."""
    with pytest.raises(pa.ArrowException) as told:
        writer.close()
    return rebuilt(told.value)


def test_an_upload_that_waits_for_its_client_is_not_waited_for(house: FlightHouse) -> None:
    """What was taken is answered, the rest is told Unavailable."""
    writer, reader = put(link(house), publish={"topic": "q"})
    writer.write_batch(BODIES)
    assert json.loads(reader.read().to_pybytes())["stored"] == 2
    stop(house)
    assert isinstance(why(writer), Unavailable)


@pytest.mark.parametrize(
    "command", [{"publish": {"topic": "q"}}, {"transact": {}}, {"stage": {"query": "s", "batch": 1, "partition": 0}}]
)
def test_nor_is_one_that_has_brought_nothing(house: FlightHouse, command: dict[str, object]) -> None:
    writer, _ = put(link(house), **command)
    eventually(lambda: house.door.calls.streams == 1)
    stop(house)
    assert isinstance(why(writer), Unavailable)


def test_a_consumer_that_stands_still_is_not_waited_for(house: FlightHouse) -> None:
    """A frozen process never ends its half of the stream: a stop took five seconds for each server that hears one."""
    writer, reader = link(house).exchange(json.dumps({"consume": {"queue": "q"}}).encode())
    writer.begin(pa.schema([]))
    eventually(lambda: house.door.exchanges)
    stop(house)
    with pytest.raises(pa.ArrowException):
        reader.read_chunk()


def test_one_that_waits_for_room_is_told(house: FlightHouse) -> None:
    """It would wait for a consumer, and none comes any more."""
    with penstock.connect(house.url) as client:
        client.declare("full", max_length=1, overflow="block")
        client.publish("full", b"x")
    writer, _ = put(link(house), publish={"topic": "full"})
    writer.write_batch(BODIES)
    eventually(lambda: house.run(lambda: house.engine.rooms.waiting) == 1)
    stop(house)
    told = why(writer)
    assert isinstance(told, Unavailable)
    assert "the server stops" in str(told)


def test_a_batch_that_comes_while_the_door_ends_is_not_taken(house: FlightHouse) -> None:
    """Its client would not hear what became of it: the door has it say so before anybody stores it."""
    writer, reader = put(link(house), publish={"topic": "q"})
    writer.write_batch(BODIES)
    reader.read()
    last = house.run(lambda: house.engine.core.last_lsn)
    unwritten = [BODIES]

    def write(connections: Connections, peers: object) -> None:
        if unwritten:  # the door looks again and again, and tells the client meanwhile
            writer.write_batch(unwritten.pop())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Connections, "cut_those", write)
        stop(house)
    told = why(writer)
    assert isinstance(told, Unavailable)
    assert "the server stops" in str(told)
    assert house.run(lambda: house.engine.core.last_lsn) == last
