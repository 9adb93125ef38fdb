"""What waits for Flight's clients that do not read: much for each of few, little for each of many."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.log.log import Log
from penstock.memory import Budget
from penstock.memory.slab import Piece
from penstock.server.engine import Engine
from penstock.server.flight.downstream import QUEUED_HIGH, Delivery, Downstream
from penstock.server.flight.handover import QUEUED_LEAST, QUEUED_MOST, Handover
from penstock.server.user_shares import THINGS, Shares

MIB = 1 << 20


def handover(memory: int, shares: Shares) -> Handover:
    engine = SimpleNamespace(shares=shares, bodies=SimpleNamespace(budget=Budget(memory)), on_broken=[])
    return Handover(cast("Engine", engine), lambda job: job())


@pytest.mark.parametrize("memory", [64 * MIB, 128 * MIB, 1024 * MIB])
def test_all_streams_that_there_may_be_leave_memory_for_publishers(memory: int) -> None:
    shares = Shares()
    door = handover(memory, shares)
    most = THINGS["flight_streams"].whole + THINGS["flight_streams_still"].whole
    waits = 0
    for number in range(most):  # each fills what it may have when it comes, and reads nothing ever
        name = "flight_streams" if number < THINGS["flight_streams"].whole else "flight_streams_still"
        shares.of(name).taken += 1
        waits += door.queued_most(QUEUED_HIGH)
    assert waits < memory * 5 // 8


def test_of_few_as_much_waits_as_ever() -> None:
    shares = Shares()
    door = handover(1024 * MIB, shares)
    shares.of("flight_streams").taken = 8
    assert (door.queued_most(QUEUED_HIGH), door.queued_most()) == (QUEUED_HIGH, QUEUED_MOST)
    shares.of("flight_streams").taken = 10_000
    assert door.queued_most(QUEUED_HIGH) == QUEUED_LEAST


class Written:
    """A client's end of a stream."""

    def __init__(self) -> None:
        self.rows = 0

    def write_batch(self, batch: Any) -> None:
        self.rows += batch.num_rows


def delivery(size: int) -> Delivery:
    piece = SimpleNamespace(bodies=[bytes(size)], chunk=range(1, 2))
    return Delivery(cast("Piece", piece), 1, False, 0, time=1)


def test_who_was_told_that_it_is_full_is_told_when_a_quarter_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told, most = io.StringIO(), 100_000
    down = Downstream(
        cast("Log", None), "q", most=lambda: most, on_room=lambda: cast("None", told.write("room ")),
        on_gone=lambda: None, on_unreadable=lambda _: None,
    )  # fmt: skip
    monkeypatch.setattr("penstock.server.flight.downstream.AT_ONCE", 1)  # each delivery is a batch of its own
    written = Written()
    monkeypatch.setattr(down, "_batch", lambda some: SimpleNamespace(num_rows=len(some)))
    assert not down.deliver(delivery(60_000))
    assert down.deliver(delivery(60_000))
    assert down.full
    down._answers.append(b"")  # one batch, then what else there is to do
    down._write_deliveries(written)
    assert (down.full, told.getvalue()) == (True, "")
    down._write_deliveries(written)
    assert (down.full, told.getvalue(), written.rows) == (False, "room ", 2)
