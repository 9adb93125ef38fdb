"""Spark's stream over a queue: rows a second with everything that belongs to it, grants, reads and settlements.

    python benchmarks/bench_spark_queue.py [--messages 3000000] [--batch 500000]

Messages with bodies of 100 bytes are published to a queue; a query in mode `queue` takes them all in batches into
Spark's sink that keeps nothing (`noop`) and ends.  The time is that of its batches, from the first plan to the last
settlement.  A second figure is that of an empty micro-batch: what one message alone costs.  A third is what `orderBy`
costs: a tenth of the messages, with JSON of a thousand keys, is one batch of eight parts, by turns with and without it.

Every run is checked: rows and bytes of bodies that Spark saw, and that each message is acknowledged.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from harness import Span, Wrong, emit, parse, parser
from spark_house import BODY, MASTER, House, house, publish_bodies

BUDGET = 500_000
"""Rows a second on two cores."""

PARTS, KEYS = 8, 1_000


def main() -> None:
    """Measure."""
    options = parser(__doc__ or "", messages=3_000_000, repeat=3, quick=20_000)
    options.add_argument("--batch", type=int, default=500_000, help="rows of a batch at most")
    given = parse(options)
    settings: dict[str, object] = {
        "messages": given.messages, "body": BODY, "batch": given.batch, "master": MASTER
    }  # fmt: skip
    with house(given.folder, "2g") as made:
        take(made, "warm", min(given.messages, 200_000), given.batch)
        rates, cpu = list[float](), list[float]()
        for turn in range(given.repeat):
            seconds, server_s = take(made, f"bench-{turn}", given.messages, given.batch)
            rates.append(given.messages / seconds)
            cpu.append(server_s / given.messages * 1e6)
        emit("stream, mode queue", rates, "rows/s", budget=BUDGET, sense="at least", settings=settings)
        emit("stream, mode queue: CPU of the server", cpu, "us a row", settings=settings)
        emit("stream, mode queue: a batch of one row", single(made), "ms", settings=settings)
        ratios = ordered(made, given.messages // 10, given.repeat)
        settings |= {"messages": given.messages // 10, "parts": PARTS, "keys": KEYS}
        emit("stream, mode queue: a batch with orderBy beside one without", ratios, "times the time", settings=settings)


def frame_of(house: House, queue: str, batch: int, **options: object) -> Any:
    """The stream, with sums that progress reports tell."""
    stream = house.spark.readStream.format("penstock").option("url", house.url)
    frame = stream.options(queue=queue, stream=queue, maxRowsPerTrigger=batch, **options).load()
    from pyspark.sql.functions import col, count, length, lit, sum

    return frame.observe("seen", count(lit(1)).alias("rows"), sum(length(col("body"))).alias("bytes"))


def take(house: House, queue: str, messages: int, batch: int) -> tuple[float, float]:
    """One run: seconds of its batches, CPU seconds of the server."""
    house.client.declare(queue)
    publish_bodies(house.client, queue, messages)
    with Span(house.server) as span:
        done = taken(house, queue, batch)
    seen = [one["observedMetrics"]["seen"] for one in done if one["numInputRows"]]
    rows, size = sum(one["rows"] for one in seen), sum(one["bytes"] for one in seen)
    stats = house.client.queue(queue)
    if (rows, size, stats["acked"]) != (messages, messages * BODY, messages):
        raise Wrong(f"{messages} messages: Spark saw {rows} with {size} bytes, {stats['acked']} are acknowledged")
    return sum(one["durationMs"]["triggerExecution"] for one in done) / 1000, span.server_s


def taken(house: House, queue: str, batch: int, **options: object) -> list[Any]:
    """Work a queue off; the progress of the batches."""
    writer = frame_of(house, queue, batch, **options).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(house.folder / f"checkpoint-{queue}"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return list(query.recentProgress)


def ordered(house: House, messages: int, repeat: int) -> list[float]:
    """How many times as long a batch in parts takes when each has all rows of its keys; the first turn warms up."""
    bodies = [b'{"k":"k%d","id":%d}' % (n % KEYS, n) for n in range(messages)]
    found = list[float]()
    for turn in range(repeat + 1):
        seconds = list[float]()
        for options in ({}, {"orderBy": "/k"}):
            queue = f"parts-{turn}-{len(seconds)}"
            house.client.declare(queue)
            house.client.publish_table(queue, pa.table({"body": pa.array(bodies, pa.binary())}))
            done = taken(house, queue, messages, minPartitions=PARTS, **options)
            if (rows := sum(one["numInputRows"] for one in done)) != messages:
                raise Wrong(f"{messages} messages: Spark saw {rows}")
            seconds.append(sum(one["durationMs"]["triggerExecution"] for one in done) / 1000)
        if turn:
            found.append(seconds[1] / seconds[0])
    return found


def single(house: House, batches: int = 20) -> list[float]:
    """Milliseconds of batches of one row each."""
    house.client.declare("single")
    for _ in range(batches):
        house.client.publish("single", b"x" * BODY)
    done = taken(house, "single", 1)
    times = [float(one["durationMs"]["triggerExecution"]) for one in done if one["numInputRows"]]
    if len(times) != batches:
        raise Wrong(f"{batches} messages of one row each were {len(times)} batches")
    return times[2:]


if __name__ == "__main__":
    main()
