"""Batch reads by Spark, beside Spark's own Parquet reader on the same rows.

    python benchmarks/bench_spark_read.py [--messages 5000000] [--repeat 3]

Messages with bodies of 100 bytes are published to a topic; the same columns of the same rows are written as Parquet by
Spark itself.  Then both are read by turns, in one session: all columns into Spark's sink that keeps nothing (`noop`),
and a sum over two of them, which Parquet finds out and Penstock is told by `.schema(...)`.  Penstock is read from the
segments' files and, for comparison, through Flight.

Every read is checked: rows, and the sum of all LSNs and body lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness import Wrong, emit, parse, parser
from spark_house import BODY, MASTER, House, house, noop, publish_bodies

RATIO = 0.5
"""Of the speed of Parquet."""

TWO = "lsn bigint, body binary"
SUM = ("count(*)", "sum(lsn)", "sum(length(body))")


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure."""
    given = parse(parser(__doc__ or "", messages=5_000_000, repeat=3, quick=20_000))
    with house(given.folder) as made:
        made.client.declare_topic("bench")
        publish_bodies(made.client, "bench", given.messages)
        measure(made, given.messages, given.repeat)


def measure(house: House, messages: int, repeat: int) -> None:
    """All ways, by turns."""
    spark, parquet = house.spark, str(house.folder / "parquet")

    def penstock(direct: str, columns: str | None = None) -> Any:
        source = spark.read.format("penstock").option("url", house.url)
        source = source if columns is None else source.schema(columns)
        return source.options(topic="bench", direct=direct).load()

    penstock("true").write.parquet(parquet)
    ways: dict[str, Callable[[str | None], Any]] = {
        "Parquet": lambda _: spark.read.parquet(parquet),
        "direct": lambda columns: penstock("true", columns),
        "Flight": lambda columns: penstock("false", columns),
    }
    expected = tuple(spark.read.parquet(parquet).selectExpr(*SUM).first())
    if expected[0] != messages or expected[2] != messages * BODY:
        raise Wrong(f"{messages} messages were published, and Spark has {expected}")
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(repeat + 1):  # the first one warms up
        for way, frame in ways.items():
            kept = timed(lambda frame=frame: noop(frame(None)))
            sums = list[Any]()
            summed = timed(lambda frame=frame, sums=sums: sums.append(tuple(frame(TWO).selectExpr(*SUM).first())))
            if sums != [expected]:
                raise Wrong(f"{way} gives {sums[0]}, Parquet {expected}")
            if turn:
                found.setdefault((way, "all columns"), []).append(messages / kept)
                found.setdefault((way, "sum"), []).append(messages / summed)
    settings: dict[str, object] = {"messages": messages, "body": BODY, "master": MASTER}
    for what in ("all columns", "sum"):
        base = found["Parquet", what]
        emit(f"batch read, {what}: Parquet", base, "rows/s", settings=settings)
        for way in ("direct", "Flight"):
            rates = found[way, what]
            emit(f"batch read, {what}: Penstock, {way}", rates, "rows/s", settings=settings)
            ratios = [rate / other for rate, other in zip(rates, base, strict=True)]
            budget = RATIO if way == "direct" else None
            emit(
                f"batch read, {what}: {way} beside Parquet", ratios, "times", budget=budget, sense="at least",
                settings=settings,
            )  # fmt: skip


if __name__ == "__main__":
    main()
