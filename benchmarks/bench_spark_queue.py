"""Spark's stream over a queue: rows a second with everything that belongs to it, grants, reads and settlements.

    python benchmarks/bench_spark_queue.py [--messages 3000000] [--batch 500000]

Messages with bodies of 100 bytes are published to a queue; a query in mode `queue` takes them all in batches into
Spark's sink that keeps nothing (`noop`) and ends.  The time is that of its batches, from the first plan to the last
settlement.  A second figure is that of an empty micro-batch: what one message alone costs.

Every run is checked: rows and bytes of bodies that Spark saw, and that each message is acknowledged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench_spark_read import BODY, publish_to
from harness import Server, Span, Wrong, emit, parse, parser, work_folder

BUDGET = 500_000
"""Rows a second on two cores."""


def main() -> None:
    """Measure."""
    options = parser(__doc__ or "", messages=3_000_000, repeat=3, quick=20_000)
    options.add_argument("--batch", type=int, default=500_000, help="rows of a batch at most")
    given = parse(options)
    from penstock.spark import session

    with work_folder(given.folder) as folder, Server(folder, amqp=False, flight=True) as server:
        host, port = server.address("flight")
        url = f"penstock://{host}:{port}"
        spark = session("local[2]", memory="2g", folder=folder / "spark")
        settings: dict[str, object] = {
            "messages": given.messages, "body": BODY, "batch": given.batch, "master": "local[2]"
        }  # fmt: skip
        try:
            take(spark, server, url, "warm", min(given.messages, 200_000), given.batch, folder)
            rates, cpu = list[float](), list[float]()
            for turn in range(given.repeat):
                seconds, server_s = take(spark, server, url, f"bench-{turn}", given.messages, given.batch, folder)
                rates.append(given.messages / seconds)
                cpu.append(server_s / given.messages * 1e6)
            emit("stream, mode queue", rates, "rows/s", budget=BUDGET, sense="at least", settings=settings)
            emit("stream, mode queue: CPU of the server", cpu, "us a row", settings=settings)
            emit("stream, mode queue: a batch of one row", single(spark, url, folder), "ms", settings=settings)
        finally:
            spark.stop()
        server.stop()


def frame_of(spark: Any, url: str, queue: str, batch: int) -> Any:
    """The stream, with sums that progress reports tell."""
    stream = spark.readStream.format("penstock").option("url", url)
    frame = stream.options(queue=queue, stream=queue, maxRowsPerTrigger=batch).load()
    from pyspark.sql.functions import col, count, length, lit, sum

    return frame.observe("seen", count(lit(1)).alias("rows"), sum(length(col("body"))).alias("bytes"))


def take(
    spark: Any, server: Server, url: str, queue: str, messages: int, batch: int, folder: Path
) -> tuple[float, float]:
    """One run: seconds of its batches, CPU seconds of the server."""
    import penstock

    with penstock.connect(url) as client:
        client.declare(queue)
        publish_to(client, queue, messages)
        writer = frame_of(spark, url, queue, batch).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{queue}")).trigger(availableNow=True)
        with Span(server) as span:
            query = writer.start()
            query.awaitTermination()
        done = query.recentProgress
        seen = [one["observedMetrics"]["seen"] for one in done if one["numInputRows"]]
        rows, size = sum(one["rows"] for one in seen), sum(one["bytes"] for one in seen)
        stats = client.queue(queue)
        if (rows, size, stats["acked"]) != (messages, messages * BODY, messages):
            raise Wrong(f"{messages} messages: Spark saw {rows} with {size} bytes, {stats['acked']} are acknowledged")
    return sum(one["durationMs"]["triggerExecution"] for one in done) / 1000, span.server_s


def single(spark: Any, url: str, folder: Path, batches: int = 20) -> list[float]:
    """Milliseconds of batches of one row each."""
    import penstock

    with penstock.connect(url) as client:
        client.declare("single")
        for _ in range(batches):
            client.publish("single", b"x" * BODY)
    writer = frame_of(spark, url, "single", 1).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(folder / "checkpoint-single")).trigger(availableNow=True).start()
    query.awaitTermination()
    times = [float(one["durationMs"]["triggerExecution"]) for one in query.recentProgress if one["numInputRows"]]
    if len(times) != batches:
        raise Wrong(f"{batches} messages of one row each were {len(times)} batches")
    return times[2:]


if __name__ == "__main__":
    main()
