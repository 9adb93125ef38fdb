"""Batch reads by Spark, beside Spark's own Parquet reader on the same rows.

    python benchmarks/bench_spark_read.py [--messages 5000000] [--repeat 3]

Messages with bodies of 100 bytes are published to a topic; the same columns of the same rows are written as Parquet by
Spark itself.  Then both are read by turns, in one session: all columns into Spark's sink that keeps nothing (`noop`),
and a sum over two of them, which Parquet finds out and Penstock is told by `.schema(...)`.  Penstock is read from the
segments' files and, for comparison, through Flight.

Every read is checked: rows, and the sum of all LSNs and body lengths.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Server, Wrong, emit, parse, parser, work_folder

BODY = 100
UPLOAD = 100_000
RATIO = 0.5
"""Of the speed of Parquet."""

TWO = "lsn bigint, body binary"
SUM = ("count(*)", "sum(lsn)", "sum(length(body))")


def publish(url: str, messages: int) -> None:
    """Bodies that differ, so that Parquet gains nothing by a dictionary."""
    import penstock

    with penstock.connect(url) as client:
        client.declare_topic("bench")
        publish_to(client, "bench", messages)


def publish_to(client: Any, topic: str, messages: int) -> None:
    """The same to any topic."""
    random = np.random.default_rng(1)
    for start in range(0, messages, UPLOAD):
        count = min(UPLOAD, messages - start)
        data = random.integers(32, 127, count * BODY, dtype=np.uint8).tobytes()
        offsets = np.arange(0, (count + 1) * BODY, BODY, dtype=np.int32)
        bodies: Any = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        client.publish_table(topic, pa.table({"body": bodies}))


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure."""
    given = parse(parser(__doc__ or "", messages=5_000_000, repeat=3, quick=20_000))
    from penstock.spark import session

    with work_folder(given.folder) as folder, Server(folder, amqp=False, flight=True) as server:
        host, port = server.address("flight")
        url = f"penstock://{host}:{port}"
        publish(url, given.messages)
        spark = session("local[2]", memory="3g", folder=folder / "spark")
        try:
            measure(spark, url, given.messages, given.repeat, folder / "parquet")
        finally:
            spark.stop()
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def measure(spark: Any, url: str, messages: int, repeat: int, parquet: Path) -> None:
    """All ways, by turns."""

    def penstock(direct: str, columns: str | None = None) -> Any:
        source = spark.read.format("penstock").option("url", url)
        source = source if columns is None else source.schema(columns)
        return source.options(topic="bench", direct=direct).load()

    penstock("true").write.parquet(str(parquet))
    ways: dict[str, Callable[[str | None], Any]] = {
        "Parquet": lambda _: spark.read.parquet(str(parquet)),
        "direct": lambda columns: penstock("true", columns),
        "Flight": lambda columns: penstock("false", columns),
    }
    expected = tuple(spark.read.parquet(str(parquet)).selectExpr(*SUM).first())
    if expected[0] != messages or expected[2] != messages * BODY:
        raise Wrong(f"{messages} messages were published, and Spark has {expected}")
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(repeat + 1):  # the first one warms up
        for way, frame in ways.items():
            kept = timed(lambda frame=frame: frame(None).write.format("noop").mode("overwrite").save())
            sums = list[Any]()
            summed = timed(lambda frame=frame, sums=sums: sums.append(tuple(frame(TWO).selectExpr(*SUM).first())))
            if sums != [expected]:
                raise Wrong(f"{way} gives {sums[0]}, Parquet {expected}")
            if turn:
                found.setdefault((way, "all columns"), []).append(messages / kept)
                found.setdefault((way, "sum"), []).append(messages / summed)
    settings: dict[str, object] = {"messages": messages, "body": BODY, "master": "local[2]"}
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
