"""A part whose beginning retention has removed: told, or read as far as it is left, whichever way its rows come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from flight_house import FlightHouse
from penstock import connect
from penstock.errors import NotFound, PenstockError
from penstock.server.flight import queue_rows
from penstock.spark.options import read_options
from penstock.spark.reading.columns import layout
from penstock.spark.reading.fetching import fetch
from penstock.spark.reading.parts import ContentPart, LogPart, PlanPart, ReplayPart

MIB = 1 << 20
COLUMNS = StructType([StructField("lsn", LongType())])


READS: dict[str, tuple[dict[str, str], Callable[[int, int, str], object]]] = {
    "stream": ({"topic": "t", "stream": "s"}, lambda origin, end, mine: ReplayPart(origin, 1, end, 0)),
    "topic": ({"topic": "t"}, lambda origin, end, mine: ReplayPart(origin, 1, end, 0, held=mine)),
    "log": ({"log": "true"}, lambda origin, end, mine: LogPart(1, end, mine)),
    "queue": ({"queue": "t"}, lambda origin, end, mine: ContentPart(origin, "", [(1, end, 1, "ready")])),
}


@pytest.fixture(scope="module")
def retired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FlightHouse, int]]:
    """A log whose beginning is gone, and the first LSN that is left."""
    with FlightHouse(tmp_path_factory.mktemp("retired"), segment=MIB) as house, connect(house.url) as client:
        client.declare("t")
        for _ in range(12):
            client.publish("t", b"x" * 400_000)
        client.purge("t")
        yield house, house.retire(2 * MIB)


@pytest.mark.parametrize("direct", ["true", "false", "auto"])
@pytest.mark.parametrize("read", READS)
def test_a_part_whose_beginning_is_gone_has_what_is_left_if_that_is_asked_for(
    retired: tuple[FlightHouse, int], direct: str, read: str
) -> None:
    house, first = retired
    assert first > 1
    what, made = READS[read]
    part, given = (
        made(house.log.origin, house.log.durable + 1, f"{read}-{direct}"),
        {"url": house.url, "direct": direct, **what},
    )
    with pytest.raises(PenstockError, match=r"(begin|retention has (passed|removed)).*failOnDataLoss"):
        lsns(given, part)
    left = lsns({**given, "failOnDataLoss": "false"}, part)
    assert left
    assert min(left) >= first


def lsns(given: dict[str, str], part: object) -> list[int]:
    options = read_options(given)
    rows = fetch(options, layout(options, COLUMNS, None), part)
    return [lsn for batch in rows for lsn in batch.column(0).to_pylist()]


def test_a_planned_batch_does_without_rows_that_are_gone_alone_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that was taken away, or an ended stream, was a batch without rows: what it had was passed over."""
    complete = queue_rows._complete
    with FlightHouse(tmp_path) as house, connect(house.url) as client:
        client.declare("t")
        client.publish("t", b"1")
        epoch = client.action("stream_open", stream="s", queue="t")["epoch"]
        client.action("plan", stream="s", epoch=epoch, start=0, max_rows=1)
        part, other = (PlanPart("s", batch, 0, 1, 0, None, epoch) for batch in (1, 7))
        given = {"url": house.url, "queue": "t", "stream": "s"}
        monkeypatch.setattr(queue_rows, "_complete", lambda *asked: complete(*asked[:-1], asked[-1] + 1))
        with pytest.raises(NotFound, match="retention has passed the others: set failOnDataLoss to false"):
            lsns(given, part)
        assert len(lsns({**given, "failOnDataLoss": "false"}, part)) == 1
        with pytest.raises(NotFound, match="knows no batch 7"):
            lsns({**given, "failOnDataLoss": "false"}, other)
