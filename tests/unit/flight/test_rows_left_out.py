"""Rows that compaction leaves out behind a reader that holds the log no more: told, and never passed over in silence.

One message that nobody takes keeps the log's beginning, so where the log begins says nothing of what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import penstock
from flight_house import FlightHouse
from penstock.errors import NotFound
from penstock.server.bulk.process import Bulk
from penstock.server.flight import followed
from penstock.server.flight.calls import Caller
from penstock.server.people.access import Who
from penstock.wire.flight.tickets import command

MIB = 1 << 20
HOUR = 3_600_000_000
COLUMNS = StructType([StructField("lsn", LongType())])
BODY = b"x" * 250_000


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, segment=MIB) as house:
        yield house


@pytest.fixture
def client(house: FlightHouse) -> Iterator[penstock.Client]:
    with penstock.connect(house.url) as client:
        client.declare("t")
        client.declare("stuck")
        client.publish("stuck", b"still here")
        yield client


def fill(client: penstock.Client, count: int = 12) -> list[str]:
    """Messages that nobody needs; their bookmarks."""
    for _ in range(count):
        client.publish("t", BODY)
    marks = [message.bookmark for message in client.replay("t")][-count:]
    client.purge("t")
    return marks


def lapsed(house: FlightHouse, ahead: int = 2 * HOUR) -> int:
    """So much time passes, and compaction leaves out what nobody holds; rows that went."""
    house.clock.ahead += ahead
    house.run(house.engine.tick)
    return house.thin()


def test_a_replay_that_was_paused_for_long(client: penstock.Client, house: FlightHouse) -> None:
    fill(client)
    with client.replay("t", "EPOCH", rate="1") as replay:
        next(replay)
        replay.pause()
        assert not house.thin()
        assert lapsed(house)
        replay.resume("1000")
        with pytest.raises(NotFound, match=r"rows .* left out"):
            list(replay)


def test_a_replay_that_was_paused_for_long_where_nothing_went(client: penstock.Client, house: FlightHouse) -> None:
    """What it reads was left out of before it came, or lies behind it."""
    fill(client)
    assert lapsed(house)
    for _ in range(3):
        client.publish("t", b"waits")
    rows = len(list(client.replay("t")))
    with client.replay("t", "EPOCH", rate="1") as replay:
        next(replay)
        replay.pause()
        house.clock.ahead += 2 * HOUR
        house.thin()
        replay.resume("1000")
        assert len(list(replay)) == rows - 1


def test_a_replay_whose_client_stood_still_in_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place among the streams is another's then, and what it has not come to yet is held by nobody."""
    monkeypatch.setattr(followed, "PAST_LEAST", MIB)
    with FlightHouse(tmp_path, segment=MIB, bulk=Bulk(tmp_path)) as house, penstock.connect(house.url) as client:
        client.declare("t")
        client.declare("stuck")
        client.publish("stuck", b"still here")
        fill(client)
        ticket = command("replay", topic="t", follow=True)
        _, pieces = house.door.get(Caller(Who("guest"), "", lambda: False), ticket)
        assert sum(isinstance(next(pieces), pa.RecordBatch) for _ in range(2)) == 1  # it says where it begins
        fill(client)
        assert not house.thin()
        house.door.calls.abandon()
        assert house.thin()
        with pytest.raises(NotFound, match=r"rows .* left out"):
            all("completed" not in str(piece) for piece in pieces)
