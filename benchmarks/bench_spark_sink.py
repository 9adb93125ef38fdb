"""Writes by Spark: rows of Parquet into a queue as bodies and as JSON, and from a topic through Spark into a queue.

    python benchmarks/bench_spark_sink.py [--messages 2000000] [--repeat 3]

Bodies have 100 bytes, JSON objects about as many.  A write ends when its last row is confirmed, on disk, and visible.
`one group` is a write small enough to become visible in one step (under 64 MiB); larger ones are decided and copied.
Spark's own Parquet reader into Spark's sink that keeps nothing (`noop`) stands beside them: what Spark alone needs.

Every write is checked: as many messages wait in the queue as rows were written, of as many bytes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Server, Wrong, emit, parse, parser, work_folder

BODY = 100
UPLOAD = 100_000
GROUP_ROWS = 400_000
"""Rows of 100 bytes that one group holds."""

SINK, THROUGH = 700_000, 500_000
"""Rows a second that are wanted of 2 cores."""

JSON = ("monotonically_increasing_id() AS id", "'EU' AS region", "length(body) / 8 AS total", "left(body, 55) AS text")


def publish(client: Any, messages: int) -> None:
    """Bodies that differ."""
    random = np.random.default_rng(1)
    client.declare_topic("bench")
    for start in range(0, messages, UPLOAD):
        count = min(UPLOAD, messages - start)
        data = random.integers(97, 122, count * BODY, dtype=np.uint8).tobytes()
        offsets = np.arange(0, (count + 1) * BODY, BODY, dtype=np.int32)
        bodies: Any = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        client.publish_table("bench", pa.table({"body": bodies}))


def main() -> None:
    """Measure."""
    given = parse(parser(__doc__ or "", messages=2_000_000, repeat=3, quick=20_000))
    import penstock
    from penstock.spark import session

    with work_folder(given.folder) as folder, Server(folder, amqp=False, flight=True) as server:
        host, port = server.address("flight")
        url = f"penstock://{host}:{port}"
        spark = session("local[2]", memory="3g", folder=folder / "spark")
        try:
            with penstock.connect(url) as client:
                publish(client, given.messages)
                measure(spark, url, client, given.messages, given.repeat, str(folder / "parquet"))
        finally:
            spark.stop()
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def measure(spark: Any, url: str, client: Any, messages: int, repeat: int, parquet: str) -> None:
    """All ways, by turns; the first turn warms up."""
    topic = spark.read.format("penstock").option("url", url).option("topic", "bench").load().select("body")
    topic.write.parquet(parquet)
    few = min(messages, GROUP_ROWS)
    topic.limit(few).repartition(2).write.parquet(f"{parquet}-few")

    def stored() -> Any:
        return spark.read.parquet(parquet)

    ways: dict[str, tuple[int, float | None, Callable[[], Any]]] = {
        "Parquet into noop": (messages, None, stored),
        "sink, bodies": (messages, SINK, stored),
        "sink, bodies, one group": (few, None, lambda: spark.read.parquet(f"{parquet}-few")),
        "sink, JSON of four columns": (messages, None, lambda: stored().selectExpr("CAST(body AS STRING) AS body")
                                       .selectExpr(*JSON)),
        "Flight to Spark to Flight": (messages, THROUGH, lambda: topic),
    }  # fmt: skip
    found: dict[str, list[float]] = {}
    for turn in range(repeat + 1):
        for what, (rows, _, frame) in ways.items():
            given = frame()
            started = time.perf_counter()
            if what.endswith("noop"):
                given.write.format("noop").mode("overwrite").save()
                spent = time.perf_counter() - started
            else:
                spent = written(given, url, client, rows)
            if turn:
                found.setdefault(what, []).append(rows / spent)
    for what, (rows, budget, _) in ways.items():
        settings: dict[str, object] = {"messages": rows, "body": BODY, "master": "local[2]"}
        emit(f"Spark: {what}", found[what], "rows/s", budget=budget, sense="at least", settings=settings)


def written(frame: Any, url: str, client: Any, rows: int) -> float:
    """Seconds that a write takes.  Raises Wrong unless all rows wait in the queue then."""
    client.declare("out")
    started = time.perf_counter()
    frame.write.format("penstock").option("url", url).option("queue", "out").mode("append").save()
    spent = time.perf_counter() - started
    ready = client.queue("out")["ready"]
    client.action("delete", queue="out")
    if ready != rows:
        raise Wrong(f"{rows} rows were written, and {ready} wait")
    return spent


if __name__ == "__main__":
    main()
