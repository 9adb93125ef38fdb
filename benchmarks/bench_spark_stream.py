"""Streams by Spark in log mode: how fast, what a small batch costs, and how long a message is on its way.

    python benchmarks/bench_spark_stream.py [--messages 5000000] [--repeat 3] [--seconds 10]

throughput    messages of 100 bytes that are there already go into Spark's sink that keeps nothing, in batches of
              `--batch` rows; rows a second of the time that Spark gives its batches, planning and commits included;
              beside a batch read of the same rows.  Every row is counted.
small batch   the same in batches of 10 rows: the time of one, which is the overhead of any; beside one of Spark's own
              source of numbers, which is Spark's part of it
delay         1,000 messages a second are published to one topic, a stream writes them to another, and a follower
              reads them there: from publishing to reading, p50 and p99
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import Wrong, emit, parse, parser, percentile
from spark_house import MASTER, House, house, noop, publish_bodies

BUDGET = 1_000_000
"""Rows a second on two cores."""

SMALL = 10
RATE = 1_000
STEP_S = 0.01
PATIENCE_S = 120.0


def await_that(what: Callable[[], object], told: str) -> None:
    """Wait until it is true; Wrong when it is not in time."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > until:
            raise Wrong(f"in {PATIENCE_S:g} s it did not come to this: {told}")
        pause.wait(0.05)  # a query tells nobody of its progress who does not ask


def began(streams: list[dict[str, Any]], name: str) -> bool:
    """Whether the server has fixed where a stream begins."""
    return any(one["stream"] == name and one["start"] is not None for one in streams)


def stream(spark: Any, url: str, name: str, topic: str, **options: object) -> Any:
    """A stream of a topic."""
    return spark.readStream.format("penstock").options(url=url, topic=topic, stream=name, **options).load()


def drained(frame: Any, checkpoint: Path) -> list[Any]:
    """Run a stream over what there is; the progress of its batches with rows."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def counted(frame: Any, checkpoint: Path, batches: int) -> list[Any]:
    """Run a stream that never ends for so many batches; their progress."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    await_that(lambda: (query.lastProgress or {"batchId": 0})["batchId"] >= batches, f"a stream has {batches} batches")
    query.stop()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def throughput(house: House, given: argparse.Namespace) -> None:
    """Rows a second in large batches."""
    spark, url, folder = house.spark, house.url, house.folder
    rates, planning, beside = list[float](), list[float](), list[float]()
    for turn in range(given.repeat + 1):  # the first one warms up
        frame = stream(spark, url, f"t{turn}", "bench", maxRowsPerTrigger=given.batch)
        found = drained(frame, folder / f"t{turn}")
        rows = sum(one["numInputRows"] for one in found)
        if rows != given.messages:
            raise Wrong(f"{given.messages} messages were published, and the stream had {rows}")
        begun = time.perf_counter()
        whole = spark.read.format("penstock").options(url=url, topic="bench").load()
        noop(whole)
        batch = given.messages / (time.perf_counter() - begun)
        if turn:
            spent = sum(one["durationMs"]["triggerExecution"] for one in found) / 1000
            rates.append(rows / spent)
            planning.append(sum(one["durationMs"]["latestOffset"] for one in found) / 1000 / spent)
            beside.append(rates[-1] / batch)
    settings: dict[str, object] = {"messages": given.messages, "body": 100, "batch": given.batch, "master": MASTER}
    emit("log-mode stream", rates, "rows/s", budget=BUDGET, sense="at least", settings=settings)
    emit("log-mode stream beside a batch read of the same", beside, "times", settings=settings)
    emit("log-mode stream, share of planning", planning, "of the time", settings=settings)


def small(house: House, given: argparse.Namespace) -> None:
    """The time of a batch of a few rows."""
    spark, url, folder = house.spark, house.url, house.folder
    count = 20 if given.quick else 60
    house.client.declare_topic("few")
    house.client.publish_table("few", pa.table({"body": pa.array([b"x"] * (count * SMALL), pa.binary())}))
    found = drained(stream(spark, url, "few", "few", maxRowsPerTrigger=SMALL), folder / "few")
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=SMALL, numPartitions=1).load()
    own = counted(numbers, folder / "numbers", count)
    times = [one["durationMs"]["triggerExecution"] for one in found[5:]]
    asked = [one["durationMs"]["latestOffset"] for one in found[5:]]
    settings: dict[str, object] = {"batches": len(times), "rows": SMALL, "master": MASTER}
    emit("a batch of 10 rows", [statistics.median(times)], "ms", settings=settings)
    spent = [one["durationMs"]["triggerExecution"] for one in own[5:]]
    emit("a batch of 10 rows of Spark's own source", [statistics.median(spent)], "ms", settings=settings)
    emit("a batch of 10 rows: planning it", [statistics.median(asked)], "ms", settings=settings)


def delay(house: House, given: argparse.Namespace) -> None:
    """From publishing to reading, through Spark."""
    import penstock

    spark, url, client = house.spark, house.url, house.client
    total = RATE * (2 if given.quick else given.seconds)
    delays = list[float]()
    with penstock.connect(url) as other:
        client.declare_topic("from")
        client.declare_topic("to")
        frame = stream(spark, url, "delay", "from", startingOffsets="latest").select("body")
        writer = frame.writeStream.format("penstock").options(url=url, topic="to")
        query = writer.option("checkpointLocation", str(house.folder / "delay")).start()

        def follow() -> None:
            with other.replay("to", "EPOCH", follow=True) as replay:
                for message in replay:
                    delays.append(time.time() - float(message.body))
                    if len(delays) == total + SMALL:
                        return

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        await_that(lambda: began(client.streams(), "delay"), "the query has its beginning: what is there now is old")
        client.publish_table("from", pa.table({"body": [str(time.time()).encode()] * SMALL}))  # its first batch is slow
        await_that(lambda: len(delays) == SMALL, "the first messages come through")
        begun = time.monotonic()
        step = int(RATE * STEP_S)
        for sent in range(0, total, step):
            client.publish_table("from", pa.table({"body": [str(time.time()).encode()] * step}))
            time.sleep(max(0.0, begun + (sent + step) / RATE - time.monotonic()))
        reader.join(60)
        query.stop()
    if len(delays) != total + SMALL:
        raise Wrong(f"{total + SMALL} messages were published, and {len(delays)} came through")
    settings: dict[str, object] = {"messages": total, "rate": RATE, "master": MASTER}
    rest = delays[SMALL:]
    emit("end to end at 1,000 messages/s, p50", [percentile(rest, 0.5) * 1000], "ms", settings=settings)
    emit("end to end at 1,000 messages/s, p99", [percentile(rest, 0.99) * 1000], "ms", settings=settings)


def main() -> None:
    """Measure."""
    options = parser(__doc__ or "", messages=5_000_000, repeat=3, quick=20_000)
    options.add_argument("--batch", type=int, default=1_000_000, help="rows of a batch of the throughput")
    options.add_argument("--seconds", type=int, default=10, help="how long the delay is measured")
    given = parse(options)
    with house(given.folder) as made:
        made.client.declare_topic("bench")
        publish_bodies(made.client, "bench", given.messages)
        throughput(made, given)
        small(made, given)
        delay(made, given)


if __name__ == "__main__":
    main()
