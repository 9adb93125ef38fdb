"""A part whose beginning retention has removed: told, or read as far as it is left, whichever way its rows come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from flight_house import FlightHouse
from penstock import connect
from penstock.errors import PenstockError
from penstock.spark.options import read_options
from penstock.spark.reading.columns import layout
from penstock.spark.reading.fetching import fetch
from penstock.spark.reading.parts import ContentPart, LogPart, ReplayPart

MIB = 1 << 20
COLUMNS = StructType([StructField("lsn", LongType())])


READS: dict[str, tuple[dict[str, str], Callable[[int, int], object]]] = {
    "stream": ({"topic": "t", "stream": "s"}, lambda origin, end: ReplayPart(origin, 1, end, 0)),
    "topic": ({"topic": "t"}, lambda origin, end: ReplayPart(origin, 1, end, 0, held="mine")),
    "log": ({"log": "true"}, lambda origin, end: LogPart(1, end, "mine")),
    "queue": ({"queue": "t"}, lambda origin, end: ContentPart(origin, "", [(1, end, 1, "ready")])),
}


@pytest.mark.parametrize("direct", ["true", "false", "auto"])
@pytest.mark.parametrize("read", READS)
def test_a_part_whose_beginning_is_gone_has_what_is_left_if_that_is_asked_for(
    tmp_path: Path, direct: str, read: str
) -> None:
    with FlightHouse(tmp_path, segment=MIB) as house, connect(house.url) as client:
        client.declare("t")
        for _ in range(12):
            client.publish("t", b"x" * 400_000)
        client.purge("t")
        first, end = house.retire(2 * MIB), house.log.durable + 1
        assert first > 1
        what, made = READS[read]
        part, given = made(house.log.origin, end), {"url": house.url, "direct": direct, **what}
        with pytest.raises(PenstockError, match=r"(begin|retention has (passed|removed)).*failOnDataLoss"):
            lsns(given, part)
        left = lsns({**given, "failOnDataLoss": "false"}, part)
        assert left
        assert min(left) >= first


def lsns(given: dict[str, str], part: object) -> list[int]:
    options = read_options(given)
    rows = fetch(options, layout(options, COLUMNS, None), part)
    return [lsn for batch in rows for lsn in batch.column(0).to_pylist()]
