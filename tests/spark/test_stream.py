"""Streams: the same rows after a restart, competing consumers, and every state a checkpoint can be found in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from penstock.spark.checkpoint import Checkpoint
from spark_lab import Lab, forget_last_commit, sentence

COLUMNS = "id bigint, region string, total double"


def test_log_mode_goes_on_where_it_stopped(lab: Lab, tmp_path: Path) -> None:
    lab.declare("events", "copy", "bad")
    lab.publish("events", range(300))

    def run() -> None:
        frame = lab.stream(
            topic="events", stream="log-1", schema=COLUMNS, maxRowsPerTrigger=120, badRecordsTopic="bad",
            filter="/region IS NULL OR /region = 'EU'",
        )  # fmt: skip
        lab.write(frame.select("id"), tmp_path, topic="copy")

    run()
    assert lab.ids("copy") == list(range(1, 300, 2))
    lab.publish("events", range(300, 500))
    lab.client.publish("events", b"bad body")
    run()
    assert lab.ids("copy") == list(range(1, 500, 2))
    assert [message.body for message in lab.client.peek("bad")] == [b"bad body"]
    assert lab.client.peek("bad")[0].headers["x-error"].startswith("no JSON")
    # The last batch runs again: its rows and its bad body are there once all the same.
    forget_last_commit(tmp_path)
    run()
    assert lab.ids("copy") == list(range(1, 500, 2))
    assert len(lab.client.peek("bad")) == 1
    assert lab.counts("events")[0] == 501, "log mode consumes nothing"


def test_a_log_stream_may_start_now(lab: Lab, tmp_path: Path) -> None:
    lab.declare("late", "late-copy")
    lab.publish("late", range(50))

    def run() -> None:
        frame = lab.stream(topic="late", stream="log-2", schema=COLUMNS, startingOffsets="latest")
        lab.write(frame.select("id"), tmp_path, topic="late-copy")

    run()
    lab.publish("late", range(50, 80))
    run()
    assert lab.ids("late-copy") == list(range(50, 80))


def test_queue_mode_shares_the_queue_and_settles_the_last_batch(lab: Lab, tmp_path: Path) -> None:
    lab.declare("work", "done")
    lab.publish("work", range(400))
    consumer = lab.client.consume("work", backlog=37)
    arriving = iter(consumer)
    mine = [next(arriving) for _ in range(37)]
    frame = lab.stream(queue="work", stream="queue-1", schema=COLUMNS, maxRowsPerTrigger=150)
    query = lab.write(frame.select("id"), tmp_path, topic="done")
    assert [progress["numInputRows"] for progress in query.recentProgress][:3] == [150, 150, 63]
    taken = sorted(message.json()["id"] for message in mine)
    assert sorted([*lab.ids("done"), *taken]) == list(range(400))
    for message in mine:
        message.ack()
    consumer.close()
    assert lab.counts("work") == (0, 0, 400)
    lab.write(lab.stream(queue="work", stream="queue-1", schema=COLUMNS).select("id"), tmp_path, topic="done")
    assert lab.ids("done") == sorted(set(range(400)) - set(taken))


def test_settled_in_the_commit_of_the_sink(lab: Lab, tmp_path: Path) -> None:
    lab.declare("in", "out")
    lab.publish("in", range(100))

    def run() -> None:
        frame = lab.stream(queue="in", stream="queue-2", schema=COLUMNS)
        lab.write(frame.select("id"), tmp_path, topic="out", settleStream="queue-2")

    run()
    assert lab.counts("in") == (0, 0, 100)
    assert lab.ids("out") == list(range(100))
    # Killed in its very first batch, which is settled already: first Spark's commit is lost, then its offset as well.
    lab.publish("in", range(100, 110))
    for lost in (("commits",), ("commits", "offsets")):
        for folder in lost:
            shutil.rmtree(tmp_path / folder)
            (tmp_path / folder).mkdir()
        if "offsets" in lost:
            break
        run()
        assert lab.ids("out") == list(range(110))


def test_every_state_of_a_checkpoint(lab: Lab, tmp_path: Path) -> None:
    lab.declare("source", "sink")
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"

    def run(rows: int = 50, **options: object) -> None:
        frame = lab.stream(queue="source", stream="queue-3", schema=COLUMNS, maxRowsPerTrigger=rows, **options)
        lab.write(frame.select("id"), checkpoint, topic="sink")

    lab.publish("source", range(100))
    run()
    shutil.copytree(checkpoint, old)
    assert lab.ids("sink") == list(range(100))

    # The last commit file is gone: the batch runs again with the same rows, and the sink has it already.
    last = forget_last_commit(checkpoint)
    run()
    assert lab.ids("sink") == list(range(100))

    # Its offset file too: the server answers with the batch it planned, whatever the limit is now.
    forget_last_commit(checkpoint)
    (checkpoint / "offsets" / str(last)).unlink()
    (checkpoint / "offsets" / f".{last}.crc").unlink(missing_ok=True)
    run(rows=7)
    assert lab.ids("sink") == list(range(100))
    assert lab.counts("source") == (0, 0, 100)

    # An empty offset file stops Spark; the sweep before a start removes it.
    lab.publish("source", range(100, 130))
    (checkpoint / "offsets" / str(last + 1)).touch()
    assert [path.name for path in Checkpoint(checkpoint).sweep()] == [str(last + 1)]
    run()
    assert lab.ids("sink") == list(range(130))

    # An old checkpoint is put back: the messages are gone, and nothing is skipped in silence.
    for start in (130, 160):
        lab.publish("source", range(start, start + 30))
        run(rows=30)
    shutil.rmtree(checkpoint)
    shutil.copytree(old, checkpoint)
    with pytest.raises(StreamingQueryException) as caught:
        run()
    told = sentence(caught.value)
    assert "acknowledged messages are not delivered again" in told
    assert "at batch 2" in told
    assert "the stream at 5" in told
    assert lab.ids("sink") == list(range(190))

    # A lost checkpoint: a new query goes on where the stream stands.
    shutil.rmtree(checkpoint)
    lab.publish("source", range(190, 200))
    run(onLostCheckpoint="continue")
    assert lab.ids("sink") == list(range(200))
    assert lab.counts("source") == (0, 0, 200)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "source"}, "option stream is missing"),
        ({"queue": "source", "stream": "x", "filter": "/id = 1"}, "the queue's own filter decides"),
        ({"queue": "source", "stream": "x", "mode": "log"}, "mode log reads a topic"),
        ({"queue": "source", "stream": "x", "direct": "true"}, "mode queue reads through Flight alone"),
        ({"queue": "source", "stream": "of-a-topic"}, "stream 'of-a-topic' reads the log"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(lab: Lab, tmp_path: Path, options: dict[str, str], told: str) -> None:
    lab.declare("source", "sink")
    lab.act("stream_open", stream="of-a-topic", topic="source")
    with pytest.raises(Exception, match="INVALID|penstock|stream") as caught:
        lab.write(lab.stream(**options).select("body"), tmp_path, topic="sink")
    assert told in sentence(caught.value)
    assert "UnboundLocalError" not in str(caught.value), "what Spark says of a reader that was never made"


def test_two_readers_of_one_stream(lab: Lab, tmp_path: Path) -> None:
    lab.declare("contested", "contested-out")
    frame = lab.stream(queue="contested", stream="queue-4", schema=COLUMNS).select("id")
    writer = frame.writeStream.format("penstock").option("url", lab.house.url).option("topic", "contested-out")
    query = writer.option("checkpointLocation", str(tmp_path / "first")).start()
    lab.publish("contested", range(10))
    query.processAllAvailable()
    other = lab.stream(queue="contested", stream="queue-4", schema=COLUMNS, onLostCheckpoint="continue").select("id")
    lab.write(other, tmp_path / "second", topic="contested-out")
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(120)
    assert "stream 'queue-4' is now read by spark on" in sentence(caught.value)
    assert json.loads(lab.client.peek("contested-out")[0].body) == {"id": 0}
