"""Typed JSON: four columns of each body, beside the same columns in Parquet.

    python benchmarks/bench_spark_typed.py [--messages 3000000] [--repeat 3]

Bodies such as `{"id":17,"region":"EU","total":8.5,"customer":"c17"}` are published to a topic; Spark writes their four
columns as Parquet.  Then both are read by turns, in one session, the same columns by the same query:

all columns   into Spark's sink that keeps nothing (`noop`)
a sum         of what stands under a condition, which Spark evaluates for both
one column    of the four: Parquet's reader finds out, Penstock is told by `.schema(...)`

Penstock reads the segments' files, and by turns through Flight.  `from_json` over the plain bodies stands beside
them, and what no source in Python comes beyond: one that has nothing to do, as its typed batches are in memory
(`floor`).  Then all columns of other bodies, a sixth as many of each: with fields that are not always there, an object
that no column has, escapes, exponents, long texts, decimals and dates.

A time is that of the whole: planning, tasks, the rows' way into Java, parsing.  CPU is that of all processes, Java,
Python and the server.  Every read is checked: rows, and sums over all columns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from harness import Wrong, emit, parse, parser, usage
from spark_house import MASTER, UPLOAD, House, house, noop

RATIO = 0.6
"""Of the speed of Parquet."""

COLUMNS = "id bigint, region string, total double, customer string"
CHECK = ("count(*)", "sum(id)", "sum(total)", "sum(length(region))", "count(DISTINCT left(customer, 3))")
SUM = "round(sum(if(region = 'EU' AND total > 100, total, 0)), 2)"
REGIONS = ("EU", "US", "ASIA", "AF")


def order(n: int) -> bytes:
    return b'{"id":%d,"region":"%s","total":%d.5,"customer":"c%06d"}' % (
        n, REGIONS[n % 4].encode(), n * 7919 % 1000, n * 104729 % 1000000,
    )  # fmt: skip


OTHERS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "optional fields": (
        COLUMNS, lambda n: order(n) if n % 3 else b'{"id":%d,"total":%d.5,"customer":"","gift":true}' % (n, n % 999),
    ),
    "an object beside": (COLUMNS, lambda n: order(n)[:-1] + b',"at":{"city":"Bern","geo":[%d,7.5]}}' % (n % 90)),
    "escapes in one of a hundred": (COLUMNS, lambda n: order(n) if n % 100 else order(n)[:-2] + b' \\"x\\""}'),
    "escapes in all": (COLUMNS, lambda n: order(n)[:-2] + b' \\u00e9"}'),
    "exponents": (COLUMNS, lambda n: b'{"id":%d,"region":"EU","total":%d.5e-3,"customer":"c%d"}' % (n, n % 997, n)),
    "long texts": (COLUMNS, lambda n: order(n)[:-1] + b',"text":"%s"}' % (b"lorem ipsum dolor " * (8 + n % 8))),
    "decimals and dates": (
        "id bigint, total decimal(12,2), day date",
        lambda n: b'{"id":%d,"total":%d.25,"day":"2026-11-%02d"}' % (n, n % 9973, 1 + n % 28),
    ),
}  # fmt: skip
"""Columns and bodies."""


def publish(client: Any, messages: int, topic: str = "orders", made: Callable[[int], bytes] = order) -> None:
    """Bodies that differ."""
    client.declare_topic(topic)
    for start in range(0, messages, UPLOAD):
        bodies = [made(n) for n in range(start, min(start + UPLOAD, messages))]
        client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary())}))


def main() -> None:
    """Measure."""
    given = parse(parser(__doc__ or "", messages=3_000_000, repeat=3, quick=20_000))
    with house(given.folder) as made:
        publish(made.client, given.messages)
        measure(made, given.messages, given.repeat)
        for name, (columns, body) in OTHERS.items():
            measure_others(made, name, columns, body, max(given.messages // 6, 1), given.repeat)


def measure_others(
    house: House, name: str, columns: str, body: Callable[[int], bytes], messages: int, repeat: int
) -> None:
    """All columns of other bodies, beside the same in Parquet, by turns; the first turn warms up."""
    topic, parquet = name.replace(" ", "-"), str(house.folder / name.replace(" ", "-"))
    publish(house.client, messages, topic, body)

    def penstock() -> Any:
        return house.spark.read.format("penstock").options(url=house.url, topic=topic, schema=columns).load()

    if (count := penstock().where("parse_error IS NULL").count()) != messages:
        raise Wrong(f"{messages} messages were published, and {count} are good: {name}")
    names = [one.split()[0] for one in columns.split(", ")]
    penstock().select(*names).write.parquet(parquet)
    ways: dict[str, Callable[[], Any]] = {
        "Penstock": lambda: penstock().select(*names),
        "Parquet": lambda: house.spark.read.parquet(parquet),
    }
    cpu = {way: list[float]() for way in ways}
    for turn in range(repeat + 1):
        for way, made in ways.items():
            before = usage(os.getpid()).cpu_s
            noop(made())
            if turn:
                cpu[way].append((usage(os.getpid()).cpu_s - before) / messages * 1e6)
    for way in ways:
        emit(f"typed JSON, {name}: {way}, CPU", cpu[way], "us a row", settings={"messages": messages})


def measure(house: House, messages: int, repeat: int) -> None:
    """All ways, by turns; the first turn warms up."""
    spark, parquet = house.spark, str(house.folder / "parquet")

    def penstock(columns: str = COLUMNS, direct: str = "auto") -> Any:
        source = spark.read.format("penstock").options(url=house.url, topic="orders", schema=COLUMNS, direct=direct)
        return source.schema(columns).load()

    def from_json(columns: str = COLUMNS) -> Any:
        bodies = spark.read.format("penstock").options(url=house.url, topic="orders").schema("body binary").load()
        return bodies.selectExpr(f"from_json(CAST(body AS STRING), '{columns}') AS o").select("o.*")

    penstock().write.parquet(parquet)
    ready = batches_in(house, parquet)

    def floor(columns: str = COLUMNS) -> Any:
        return spark.read.format(FLOOR).schema(columns).load(ready)

    ways: dict[str, Callable[..., Any]] = {
        "Parquet": lambda columns=COLUMNS: spark.read.schema(columns).parquet(parquet),
        "Penstock": penstock,
        "Flight": lambda columns=COLUMNS: penstock(columns, "false"),
        "from_json": from_json,
        "floor": floor,
    }
    told = {way: spark_row(made(), CHECK) for way, made in ways.items()}
    if len(set(told.values())) > 1 or told["Parquet"][0] != messages:
        raise Wrong(f"{messages} messages were published, and {told}")
    queries: dict[str, Callable[[Callable[..., Any]], object]] = {
        "all columns": lambda made: noop(made()),
        "a sum": lambda made: spark_row(made(), (SUM,)),
        "one column": lambda made: noop(made("total double")),
    }
    rates, cpu = dict[tuple[str, str], list[float]](), dict[tuple[str, str], list[float]]()
    for turn in range(repeat + 1):
        for what, query in queries.items():
            for way, made in ways.items():
                before, begun = usage(os.getpid()).cpu_s, time.perf_counter()
                query(made)
                spent = time.perf_counter() - begun
                if turn:
                    rates.setdefault((what, way), []).append(messages / spent)
                    used = (usage(os.getpid()).cpu_s - before) / messages * 1e6
                    cpu.setdefault((what, way), []).append(used)
    settings: dict[str, object] = {"messages": messages, "columns": COLUMNS, "master": MASTER}
    for what in queries:
        for way in ways:
            emit(f"typed JSON, {what}: {way}", rates[what, way], "rows/s", settings=settings)
            emit(f"typed JSON, {what}: {way}, CPU", cpu[what, way], "us a row", settings=settings)
            if way != "Parquet":
                ratios = [a / b for a, b in zip(rates[what, way], rates[what, "Parquet"], strict=True)]
                budget = RATIO if (what, way) == ("all columns", "Penstock") else None
                name = f"typed JSON, {what}: {way} beside Parquet"
                emit(name, ratios, "times", budget=budget, sense="at least", settings=settings)


FLOOR, FLOOR_ROWS = "typed_floor", 20_000
"""The name of the format whose batches are there already, and how many rows each has: as many as Penstock's."""


def batches_in(house: House, parquet: str) -> str:
    """A file of Arrow batches with the rows of these Parquet files, and a format for it."""
    from pyarrow.parquet import read_table
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
        def __init__(self, file: str, names: list[str]) -> None:
            self.file, self.names = file, names

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(place) for place in range(2)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            with pa.memory_map(self.file) as there:
                batches: Any = pa.ipc.open_file(there)
                for place in range(partition.value, batches.num_record_batches, 2):
                    yield batches.get_batch(place).select(self.names)

    class Ready(DataSource):  # type: ignore[misc]  # pyspark is untyped here
        @classmethod
        def name(cls) -> str:
            return FLOOR

        def reader(self, schema: Any) -> Reader:
            return Reader(self.options["path"], schema.names)

    house.spark.dataSource.register(Ready)
    file = str(house.folder / "typed.arrow")
    rows: Any = read_table(parquet)
    with pa.ipc.new_file(file, rows.schema.remove_metadata()) as out:
        out.write_table(rows.replace_schema_metadata(None), max_chunksize=FLOOR_ROWS)
    return file


def spark_row(frame: Any, columns: tuple[str, ...]) -> tuple[Any, ...]:
    """The one row of some sums."""
    return tuple(frame.selectExpr(*columns).first())


if __name__ == "__main__":
    main()
