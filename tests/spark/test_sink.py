"""The sink: a batch is visible whole or not at all, in order when asked, and its input is settled with it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock.records.kinds import Kind
from penstock.spark import register
from spark_lab import Lab, forget_last_commit, sentence

COLUMNS = "id bigint, region string, total double"


def bodies(lab: Lab, queue: str) -> list[Any]:
    return [json.loads(message.body) for message in lab.client.peek(queue, count=1_000_000)]


def save(lab: Lab, frame: Any, **options: object) -> None:
    frame.write.format("penstock").option("url", lab.house.url).options(**options).mode("append").save()


def records(lab: Lab, since: int) -> list[list[Kind]]:
    """The kinds of the records from an LSN on, one list for each batch of the log, that is for whole groups."""
    out: list[list[Kind]] = []
    for batch in lab.house.log.batches(since, lab.house.log.durable + 1, ["kind"]):
        out.append([Kind(kind) for kind in batch.column(0).to_pylist()])
    return out


def test_sql_inserts_through_a_view_that_names_its_columns(lab: Lab) -> None:
    lab.declare("by-sql")
    options = f"OPTIONS (url '{lab.house.url}', queue 'by-sql')"
    lab.spark.sql(f"CREATE TEMPORARY VIEW by_sql (id bigint, Name string) USING penstock {options}")
    lab.spark.sql("INSERT INTO by_sql VALUES (1, 'x'), (2, NULL)")
    lab.spark.sql("INSERT INTO by_sql BY NAME SELECT 'y' AS name, 3 AS ID")
    lab.spark.catalog.dropTempView("by_sql")
    with pytest.raises(Exception, match="CREATE TABLE ... AS SELECT") as caught:
        lab.spark.sql(f"CREATE TABLE made USING penstock {options} AS SELECT 'by-sql' AS topic, 4 AS id")
    assert "a write without any option" in sentence(caught.value)
    assert sorted((row["id"], row["Name"]) for row in bodies(lab, "by-sql")) == [(1, "x"), (2, None), (3, "y")]
    assert not lab.spark.catalog.tableExists("made")


def test_a_thread_that_registers_the_format_writes_and_starts_streams(lab: Lab, tmp_path: Path) -> None:
    """Spark looks for formats of Python in the thread's own session alone: each write there found no such format."""
    lab.declare("by-thread", "by-stream")
    frame = lab.spark.range(3).select("id")

    def work() -> None:
        register(lab.spark)
        save(lab, frame, queue="by-thread")
        lab.write(
            lab.stream(queue="by-thread", stream="s", schema="id bigint").select("id"), tmp_path, queue="by-stream"
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert lab.ids("by-stream") == [0, 1, 2]


def test_a_full_queue_is_waited_for_and_takes_nothing_before(lab: Lab) -> None:
    lab.declare("narrow", max_length=6, overflow="reject-publish")
    lab.declare("wide")
    lab.client.publish("narrow", b"in the way")
    rows = "id, if(id % 2 = 0, 'narrow', 'wide') AS topic"
    frame = lab.spark.range(12).selectExpr(*rows.split(", ", 1))
    with pytest.raises(Exception, match="QueueFull") as caught:
        save(lab, frame, patience="300ms")
    told = sentence(caught.value)
    assert "nothing of batch 0 of query 'write-" in told
    assert "queue 'narrow' in vhost '/' takes no more: max_length is 6, 1 messages are ready" in told
    assert "option patience" in told
    assert told.endswith("Consume, raise the limit, or retry later.")
    assert (lab.counts("narrow")[0], lab.counts("wide")[0]) == (1, 0)
    assert lab.client.action("stages")["stages"] == []

    asked = threading.Event()
    rejected = lab.house.door.actions._commit

    def commit(*args: Any) -> None:
        try:
            rejected(*args)
        finally:
            asked.set()

    def make_room() -> None:
        asked.wait(60)
        lab.client.action("purge", queue="narrow")

    lab.house.door.actions._commit = commit
    thread = threading.Thread(target=make_room)
    thread.start()
    try:
        save(lab, frame, patience="60s")
    finally:
        lab.house.door.actions._commit = rejected
        asked.set()
        thread.join()
    assert [row["id"] for row in bodies(lab, "narrow")] == [0, 2, 4, 6, 8, 10]
    assert [row["id"] for row in bodies(lab, "wide")] == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        ({"queue": "tiny"}, ["id"], "brings 20 messages to queue 'tiny' in vhost '/', which may never hold"),
        ({"topic": "misspelt"}, ["id"], "no queue takes topic 'misspelt' in vhost '/' and no topic of that name"),
        ({"queue": "misspelt"}, ["id"], "no queue 'misspelt' in vhost '/'; what is no queue is written to with option"),
        ({"queue": "tiny-topic"}, ["id"], "no queue 'tiny-topic' in vhost '/'; what is no queue is written to with op"),
        ({"topic": "no/such", "exchange": "nowhere"}, ["id"], "no exchange 'nowhere'"),
        ({"queue": "tiny"}, ["id", "map('x-dedup-key', '') AS headers"], "invalid header 'x-dedup-key'"),
    ],
)
def test_what_no_patience_helps_is_told_at_once(
    lab: Lab, options: dict[str, str], columns: list[str], told: str
) -> None:
    lab.declare("tiny", max_length=5, overflow="reject-publish")
    lab.client.declare_topic("tiny-topic")
    with pytest.raises(Exception, match="penstock") as caught:
        save(lab, lab.spark.range(20).selectExpr(*columns), patience="60s", **options)
    assert told in sentence(caught.value)
    assert lab.counts("tiny")[0] == 0


def test_rows_become_visible_in_the_order_of_a_column(lab: Lab) -> None:
    lab.declare("lined", "apart", "by-name")
    lab.client.declare_topic("by-key")
    frame = lab.spark.range(0, 400, 1, 4).selectExpr("399 - id AS at", "id % 5 AS k").repartition(3, "k")
    save(lab, frame, queue="lined", ordered="at")
    assert [row["at"] for row in bodies(lab, "lined")] == list(range(400))
    # Partition by partition without it, and a column beside a body is no part of the message.
    body = frame.selectExpr("to_json(struct(*)) AS body", "timestamp_micros(at) AS at")
    save(lab, body, queue="apart", ordered="at")
    assert [row["at"] for row in bodies(lab, "apart")] == list(range(400))
    named = frame.selectExpr("concat('n-', at) AS name")
    save(lab, named, queue="by-name", ordered="name")
    assert [row["name"] for row in bodies(lab, "by-name")] == sorted(f"n-{at}" for at in range(400))
    with pytest.raises(Exception, match="option ordered") as caught:
        save(lab, frame.selectExpr("if(at > 5, at, NULL) AS at"), queue="lined", ordered="at")
    assert "nulls, which have no place" in sentence(caught.value)


def test_queue_to_queue_is_one_record(lab: Lab, tmp_path: Path) -> None:
    lab.declare("from", "into")
    lab.publish("from", range(40))

    def run(**options: str) -> None:
        frame = lab.stream(queue="from", stream="across", schema=COLUMNS, maxRowsPerTrigger=25).select("id")
        lab.write(frame, tmp_path, queue="into", **options)

    since = lab.house.log.durable + 1
    run()
    groups = [group for group in records(lab, since) if Kind.SINK_COMMIT in group]
    assert len(groups) == 2
    for group in groups:
        assert {Kind.SINK_COMMIT, Kind.PUBLISH, Kind.PLAN_SETTLE, Kind.SETTLE} <= set(group)
    assert lab.ids("into") == list(range(40))
    assert lab.counts("from") == (0, 0, 40)
    forget_last_commit(tmp_path)  # it runs again, and is out and settled already
    lab.publish("from", range(40, 50))
    since = lab.house.log.durable + 1
    run(settleStream="off")
    assert all(Kind.SETTLE not in group for group in records(lab, since) if Kind.SINK_COMMIT in group)
    assert lab.ids("into") == list(range(50))
    assert lab.counts("from") == (0, 0, 50)


def test_keyed_topics_take_upserts_and_deltas(lab: Lab) -> None:
    lab.client.action("declare_topic", topic="people", settings={"key": ["/id"]})
    frame = lab.spark.range(30).selectExpr("id % 10 AS id", "id AS n", "'x' AS name")
    save(lab, frame.coalesce(1), topic="people")
    save(lab, lab.spark.range(3).selectExpr("id", "'y' AS name"), topic="people", delta="true")
    got = {row["id"]: (row["n"], row["name"]) for row in (json.loads(m.body) for m in lab.client.sow("people"))}
    assert got == {i: (20 + i, "y" if i < 3 else "x") for i in range(10)}
    with pytest.raises(Exception, match="people") as caught:
        save(lab, lab.spark.range(3).selectExpr("1 AS other"), topic="people")
    assert "nothing of batch 0" in sentence(caught.value)


def test_columns_beside_the_body_do_what_they_say(lab: Lab) -> None:
    lab.declare("ranked", max_priority=9)
    lab.declare("once", dedup_window="1h")
    frame = lab.spark.range(6).selectExpr(
        "id", "CAST(id AS INT) AS priority", "map('region', 'EU', 'by', CAST(NULL AS STRING)) AS headers",
        "if(id = 5, current_timestamp() + INTERVAL 1 HOUR, NULL) AS not_before",
        "if(id = 4, current_timestamp() + INTERVAL 1 HOUR, NULL) AS expires_at",
    )  # fmt: skip
    save(lab, frame, queue="ranked")
    with lab.client.consume("ranked", backlog=10) as consumer:
        arriving = iter(consumer)
        messages = [next(arriving) for _ in range(5)]
        assert [message.json()["id"] for message in messages] == [4, 3, 2, 1, 0]
        assert messages[0].headers["region"] == "EU"
        assert lab.read("headers map<string,string>", topic="ranked").first().headers == {"region": "EU", "by": None}
        for message in messages:
            message.ack()
    assert lab.client.queue("ranked")["delayed"] == 1
    doubled = lab.spark.range(10).selectExpr("id % 4 AS id", "map('x-dedup-key', CAST(id % 4 AS STRING)) AS headers")
    save(lab, doubled.coalesce(1), queue="once")
    assert lab.ids("once") == [0, 1, 2, 3]


def test_a_sink_is_listed_with_its_name_and_what_it_committed_is_nowhere_else(lab: Lab, tmp_path: Path) -> None:
    lab.declare("listed-in", "listed-out", "listed-else")
    lab.publish("listed-in", range(5))
    frame = lab.stream(topic="listed-in", stream="listed", schema=COLUMNS).select("id")
    writer = frame.writeStream.queryName("to-the-list").format("penstock").option("url", lab.house.url)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    running = writer.option("queue", "listed-out").start()
    running.awaitTermination()
    [mine] = [one for one in lab.client.action("sinks")["sinks"] if one["query"] == running.id]
    assert (mine["name"], mine["batch"], mine["once"], mine["stages"]) == ("to-the-list", 0, False, 0)
    forget_last_commit(tmp_path)  # as a copy of the checkpoint that was made before it
    with pytest.raises(StreamingQueryException) as caught:
        writer.option("queue", "listed-else").start().awaitTermination()
    assert "has committed batch 0 to 'listed-out' in vhost '/', and now it goes to 'listed-else'" in sentence(
        caught.value
    )
    save(lab, lab.spark.range(1), queue="listed-out")
    assert any(one["once"] for one in lab.client.action("sinks")["sinks"])


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_rows_are_appended_never_replaced(lab: Lab, tmp_path: Path, mode: str) -> None:
    frame = lab.stream(topic="lined", stream="appended", schema=COLUMNS).groupBy("region").count()
    writer = frame.writeStream.format("penstock").option("url", lab.house.url).option("topic", "lined").outputMode(mode)
    with pytest.raises(Exception, match="append" if mode == "complete" else "[Uu]pdate"):
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
