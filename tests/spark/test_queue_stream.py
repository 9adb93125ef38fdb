"""Mode queue by itself: poison rows, order within a key, settling on progress, lost checkpoints, odd moments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import udf

from penstock.spark import settle_on_progress
from spark_lab import Lab, sentence

COLUMNS = "id bigint, region string, total double"


def picky(bad: set[int]) -> Any:
    """A function of the user's that some rows are too much for."""

    def check(number: int) -> int:
        if number in bad:
            raise ValueError(f"cannot work with {number}")
        return number

    return udf(check, "bigint", useArrow=False)  # else Spark guesses by the type hints, and warns that it cannot


def run(
    lab: Lab, checkpoint: Path, stream: str, queue: str, topic: str, bad: set[int] | None = None, **options: object
) -> Any:
    frame = lab.stream(queue=queue, stream=stream, schema=COLUMNS, **options).select("id")
    if bad is not None:
        frame = frame.select(picky(bad)("id").alias("id"))
    return lab.write(frame, checkpoint, topic=topic)


def test_a_poison_row_is_put_aside_and_the_others_go_on(lab: Lab, tmp_path: Path) -> None:
    lab.declare("poison-dead", "poison-out")
    lab.declare("poison", dead_letter_exchange="", dead_letter_routing_key="poison-dead", max_deliveries=2)
    lab.publish("poison", range(6))
    failures = 0
    while True:
        try:
            run(lab, tmp_path, "poison-1", "poison", "poison-out", {2}, poisonAfter=1)
            break
        except StreamingQueryException as error:
            failures += 1
            told = str(error)
        assert failures < 10
        assert "cannot work with 2" in told
    assert failures == 2, "the batch, and the row"
    assert lab.ids("poison-out") == [n for n in range(6) if n != 2]
    assert lab.ids("poison-dead") == [2]
    assert lab.counts("poison") == (0, 0, 5)


def test_rows_of_a_key_are_in_one_partition_in_order(lab: Lab, tmp_path: Path) -> None:
    lab.declare("keyed")
    lab.client.publish_table("keyed", pa.table({"body": [b'{"id": %d, "k": "k%d"}' % (n, n % 11) for n in range(500)]}))
    seen: list[list[tuple[str, int]]] = []

    def collect(frame: Any, batch: int) -> None:
        seen.extend(_by_partition(frame))

    frame = lab.stream(
        queue="keyed", stream="keyed-1", schema="id bigint, k string", orderBy="/k", minPartitions=3,
    ).select("k", "id")  # fmt: skip
    query = (
        frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    )
    query.start().awaitTermination()
    assert len(seen) == 3
    assert sorted(number for part in seen for _, number in part) == list(range(500))
    assert sum(len({key for key, _ in part}) for part in seen) == 11, "each key is in one partition"
    for part in seen:
        assert [number for _, number in part] == sorted(number for _, number in part)


def _by_partition(frame: Any) -> list[list[tuple[str, int]]]:
    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            yield batch.append_column("part", pa.array([context.partitionId()] * batch.num_rows, pa.int32()))

    rows = frame.mapInArrow(number, "k string, id bigint, part int").collect()
    parts: dict[int, list[tuple[str, int]]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append((row["k"], row["id"]))
    return list(parts.values())


def test_a_finished_batch_is_settled_on_progress(lab: Lab, tmp_path: Path) -> None:
    lab.declare("soon")
    listener = settle_on_progress(lab.spark, lab.house.url)
    frame = lab.stream(queue="soon", stream="soon-1", schema=COLUMNS).select("id")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    lab.publish("soon", range(10))
    query = writer.trigger(processingTime="1 hour").start()
    try:
        lab.until(lambda: lab.counts("soon") == (0, 0, 10))
    finally:
        query.stop()
        lab.spark.streams.removeListener(listener)


@pytest.mark.parametrize(
    ("trigger", "after", "later"),
    [
        ({"processingTime": "100 milliseconds"}, (0, 0, 4), (0, 0, 4)),
        ({"availableNow": True}, (0, 0, 4), (0, 0, 4)),
        ({"once": True}, (0, 4, 0), (0, 0, 4)),
    ],
)
def test_a_quiet_queue_s_last_batch_is_settled_with_the_next_trigger(
    lab: Lab, tmp_path: Path, trigger: dict[str, Any], after: tuple[int, int, int], later: tuple[int, int, int]
) -> None:
    """With a sink that is not ours; no message comes after it."""
    [name] = trigger
    lab.declare(f"quiet-{name}")
    lab.publish(f"quiet-{name}", range(4))
    for wanted in (after, later):
        frame = lab.stream(queue=f"quiet-{name}", stream=f"quiet-{name}", schema=COLUMNS).select("id")
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(**trigger)
        query = writer.start()
        try:
            if name != "processingTime":
                query.awaitTermination()
                assert lab.counts(f"quiet-{name}") == wanted
            lab.until(lambda wanted=wanted: lab.counts(f"quiet-{name}") == wanted)
        finally:
            query.stop()


def test_a_lost_checkpoint_is_told_and_the_choice_taken(lab: Lab, tmp_path: Path) -> None:
    lab.declare("lost", "lost-out")
    lab.publish("lost", range(10))
    run(lab, tmp_path / "one", "lost-1", "lost", "lost-out")
    for waiting in (range(0), range(10, 20)):  # a run that ends with what there is says so as well when that is nothing
        lab.publish("lost", waiting)
        with pytest.raises(StreamingQueryException) as caught:
            run(lab, tmp_path / "two", "lost-1", "lost", "lost-out")
        told = sentence(caught.value)
        assert told.startswith("stream 'lost-1' has settled 1 batches, and this query starts without a checkpoint")
        assert "set option onLostCheckpoint to continue, and the query goes on with batch 2" in told
    shutil.rmtree(tmp_path / "two")
    run(lab, tmp_path / "two", "lost-1", "lost", "lost-out", onLostCheckpoint="continue")
    assert lab.ids("lost-out") == list(range(20))
    assert lab.counts("lost") == (0, 0, 20)


def test_several_streams_and_a_worker_share_a_queue_that_is_paused_and_purged(lab: Lab, tmp_path: Path) -> None:
    lab.declare("shared", "shared-a", "shared-b")
    lab.publish("shared", range(60))
    with lab.client.consume("shared", backlog=5) as consumer:
        mine = [message.json()["id"] for _, message in zip(range(5), consumer, strict=False)]
        run(lab, tmp_path / "a", "shared-1", "shared", "shared-a", maxRowsPerTrigger=20)
        lab.publish("shared", range(60, 80))
        run(lab, tmp_path / "b", "shared-2", "shared", "shared-b")
    assert sorted(mine + lab.ids("shared-a") + lab.ids("shared-b")) == list(range(80))
    lab.act("pause", queue="shared")
    lab.publish("shared", range(80, 90))
    run(lab, tmp_path / "b", "shared-2", "shared", "shared-b")
    assert lab.counts("shared")[0] >= 10
    lab.act("purge", queue="shared")
    lab.act("resume", queue="shared")
    run(lab, tmp_path / "b", "shared-2", "shared", "shared-b")
    assert not set(range(80, 90)) & set(lab.ids("shared-b"))


def test_a_queue_that_is_deleted_ends_its_stream_with_a_sentence(lab: Lab, tmp_path: Path) -> None:
    lab.declare("doomed", "doomed-out")
    lab.publish("doomed", range(10))
    run(lab, tmp_path, "doomed-1", "doomed", "doomed-out")
    lab.act("delete", queue="doomed")
    lab.declare("doomed")
    lab.publish("doomed", range(5))
    with pytest.raises(StreamingQueryException) as caught:
        run(lab, tmp_path, "doomed-1", "doomed", "doomed-out")
    assert "an earlier queue of this name" in sentence(caught.value)
    assert json.loads(lab.client.peek("doomed")[0].body)["id"] == 0
