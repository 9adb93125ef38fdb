"""What clients of Flight leave lying in the server's memory gives way once that is short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.errors import MemoryShort
from penstock.memory import PATIENCE_US
from penstock.memory.slab import Piece
from penstock.server.flight.downstream import Delivery, Downstream
from penstock.server.flight.handover import Outlet
from penstock.wire.flight.commands import PUBLISH
from penstock.wire.flight.tickets import command
from waiting import eventually

MIB = 1 << 20
SECOND = 1_000_000
BODY = bytes(100_000)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path, memory=32 * MIB) as house:
        yield house


def counted(house: FlightHouse, name: str) -> int:
    return house.run(lambda: house.engine.bodies.budget.by_name().get(name, 0))


def short(house: FlightHouse) -> None:
    """Somebody else keeps all memory, for as long as anybody's patience."""
    engine = house.engine
    hoard = house.run(lambda: engine.bodies.budget.account("somebody's"))

    def beat() -> None:
        house.clock.ahead += SECOND
        hoard.bytes = engine.bodies.budget.limit
        engine.bodies.keep_to_budget()
        assert engine.bodies.tight
        engine.relief.beat()
        hoard.bytes = 0
        engine.arm()

    for _ in range(PATIENCE_US // SECOND + 1):
        house.run(beat)


def test_a_transaction_that_stands_open_is_forgotten_and_its_next_word_is_told(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("out")
        writer, reader = client.open_transaction(command("transact"), PUBLISH)
        values = {"body": BODY, "topic": "out"}
        columns: list[Any] = [pa.array([values.get(field.name)] * 10, field.type) for field in PUBLISH]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PUBLISH))
        eventually(lambda: counted(house, "transactions") > 10 * len(BODY), "the batch came")
        short(house)
        assert house.engine.relief.counts()["transactions"] == 1
        assert counted(house, "transactions") == 0
        writer.write_metadata(b'{"commit":{"rows":10}}')
        writer.done_writing()
        assert reader.read() is None
        with pytest.raises(pa.ArrowException, match="the transaction of .* had .* bytes and gave none back for 10 s"):
            writer.close()
        assert client.queue("out")["ready"] == 0


def test_a_consumer_that_does_not_read_is_ended_and_what_it_held_is_ready_again(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client, penstock.connect(house.url) as other:
        client.declare("in")
        for _ in range(30):  # 60 MB: the client's transport has taken 24 by itself
            other.publish_table("in", pa.table({"body": [BODY] * 20}))
        consumer = client.consume("in", backlog=10_000)
        eventually(lambda: counted(house, "flight") > MIB, "deliveries wait for the client")

        def given_up() -> bool:
            short(house)
            return house.engine.relief.counts()["flight"] > 0

        eventually(given_up, "the client's own buffers are full, and it takes nothing more")
        eventually(lambda: other.queue("in")["ready"] == 600, "all are ready again")
        assert counted(house, "flight") <= 3 * MIB, "what was being written may stay"
        consumer.close()


class Texts(Outlet[list[bytes]]):
    def cost(self, portion: list[bytes]) -> int:
        return sum(map(len, portion))

    def batch(self, portions: list[list[bytes]], schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"body": [one for portion in portions for one in portion]})

    def completed(self, *, last: bool) -> bytes:
        return b"last" if last else b"level"


def test_a_reader_that_stands_still_has_nothing_but_what_is_being_written() -> None:
    outlet = Texts(1, lambda: MIB, "ann", "10.0.0.1:5")
    pieces = outlet.batches(pa.schema([("body", pa.binary())]), lambda: False, lambda: None)
    outlet.take([b"x" * 5000])
    next(pieces)
    outlet.take([b"y" * 3000])
    outlet.level()
    outlet.take([b"z" * 2000])
    held = outlet.held()
    assert (held.user, held.bytes, held.moved) == ("ann", 10_000, 0)
    assert "10.0.0.1:5" in held.name
    held.cut(MemoryShort("there is no memory"))
    assert outlet.queued == 5000
    assert outlet.held().bytes == 0, "it is cut once"
    with pytest.raises(MemoryShort):
        next(pieces)
    assert outlet.queued == 0
    assert outlet.sent == 5000


def test_what_waits_for_a_consumer_is_not_counted_once_it_ends() -> None:
    def nothing(*_: object) -> None:
        pass

    down = Downstream(None, "q", most=lambda: MIB, on_room=nothing, on_gone=nothing, on_unreadable=nothing)  # type: ignore[arg-type]
    for lsn in (1, 2):
        piece = Piece(range(lsn, lsn + 1), None, b"", [BODY], len(BODY))  # type: ignore[arg-type]
        down.deliver(Delivery(piece, 1, redelivered=False, lease_until=0, time=0))
    down.say(b"words")
    assert down.queued > 2 * len(BODY)
    down.finish(MemoryShort("there is no memory"))
    assert down.queued == 0
