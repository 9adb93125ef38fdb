"""Writes by Spark: rows of Parquet into a queue as bodies and as JSON, and from a topic through Spark into a queue.

    python benchmarks/bench_spark_sink.py [--messages 2000000] [--repeat 3]

Bodies have 100 bytes, JSON objects about as many.  A write ends when its last row is confirmed, on disk, and visible.
`one group` is a write small enough to become visible in one step (under 64 MiB); larger ones are decided and copied.
Spark's own Parquet reader into Spark's sink that keeps nothing (`noop`) stands beside them: what Spark alone needs.

Every write is checked: as many messages wait in the queue as rows were written, of as many bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness import Wrong, emit, parse, parser
from spark_house import BODY, MASTER, House, house, noop, publish_bodies

LETTERS = (97, 122)
"""Of bodies that are texts in JSON as well."""

GROUP_ROWS = 400_000
"""Rows of 100 bytes that one group holds."""

SINK, THROUGH = 700_000, 500_000
"""Rows a second that are wanted of 2 cores."""

JSON = ("monotonically_increasing_id() AS id", "'EU' AS region", "length(body) / 8 AS total", "left(body, 55) AS text")


def main() -> None:
    """Measure."""
    given = parse(parser(__doc__ or "", messages=2_000_000, repeat=3, quick=20_000))
    with house(given.folder) as made:
        made.client.declare_topic("bench")
        publish_bodies(made.client, "bench", given.messages, LETTERS)
        measure(made, given.messages, given.repeat)


def measure(house: House, messages: int, repeat: int) -> None:
    """All ways, by turns; the first turn warms up."""
    spark, parquet = house.spark, str(house.folder / "parquet")
    topic = spark.read.format("penstock").option("url", house.url).option("topic", "bench").load().select("body")
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
                noop(given)
                spent = time.perf_counter() - started
            else:
                spent = written(given, house, rows)
            if turn:
                found.setdefault(what, []).append(rows / spent)
    for what, (rows, budget, _) in ways.items():
        settings: dict[str, object] = {"messages": rows, "body": BODY, "master": MASTER}
        emit(f"Spark: {what}", found[what], "rows/s", budget=budget, sense="at least", settings=settings)


def written(frame: Any, house: House, rows: int) -> float:
    """Seconds that a write takes.  Raises Wrong unless all rows wait in the queue then."""
    client = house.client
    client.declare("out")
    started = time.perf_counter()
    frame.write.format("penstock").option("url", house.url).option("queue", "out").mode("append").save()
    spent = time.perf_counter() - started
    ready = client.queue("out")["ready"]
    client.action("delete", queue="out")
    if ready != rows:
        raise Wrong(f"{rows} rows were written, and {ready} wait")
    return spent


if __name__ == "__main__":
    main()
