"""Batch reads and writes: the same messages, a stable snapshot, columns by schema, filters in the server."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
)
from pyspark.sql.types import StructType

from spark_lab import Lab, sentence


def test_a_topic_is_read_as_it_was_published(lab: Lab) -> None:
    lab.declare("plain")
    headers = pa.array([[("n", str(i))] for i in range(1000)], pa.map_(pa.string(), pa.string()))
    lab.publish("plain", range(1000), headers=headers)
    rows = lab.read(topic="plain", minPartitions=3).orderBy("lsn").collect()
    told = list(lab.client.replay("plain"))
    assert [bytes(row.body) for row in rows] == [message.body for message in told]
    assert [(row.lsn, row.bookmark) for row in rows] == [(message.lsn, message.bookmark) for message in told]
    assert rows[7].headers == {"n": "7"}
    assert rows[7].topic == "plain"
    assert rows[7].time.timestamp() == pytest.approx(told[7].time.timestamp())
    assert lab.read(topic="plain", filter="/region = 'EU' AND /id < 100").count() == 50
    assert lab.read(topic="^pla.n$").count() == 1000
    middle = told[500].bookmark
    assert lab.read(topic="plain", startingBookmark=middle).count() == 499


def test_a_frame_is_a_snapshot(lab: Lab) -> None:
    lab.declare("moving")
    lab.publish("moving", range(200))
    topic, queue = lab.read(topic="moving"), lab.read(queue="moving")
    assert (topic.count(), queue.count()) == (200, 200)
    lab.publish("moving", range(200, 300))
    consumer = lab.client.consume("moving", backlog=50)
    arriving = iter(consumer)
    for _ in range(50):
        next(arriving).ack()
    consumer.close()
    assert (topic.count(), queue.count()) == (200, 200)
    assert queue.selectExpr("sum(length(body))").first()[0] == topic.selectExpr("sum(length(body))").first()[0]
    assert lab.read(topic="moving").count() == 300
    assert lab.read(queue="moving").count() == 250


def test_columns_by_schema(lab: Lab) -> None:
    lab.declare("wide")
    lab.publish("wide", range(10))
    frame = lab.read("topic string, lsn bigint, state string", queue="wide")
    assert frame.columns == ["topic", "lsn", "state"]
    assert {row.state for row in frame.collect()} == {"ready"}
    # Spark minds no case, so names may be written in any: those of messages and those of bodies that a schema has.
    frame = lab.read("ID bigint, LSN bigint, Parse_Error string, State string", queue="wide", schema="id bigint")
    assert frame.columns == ["ID", "LSN", "Parse_Error", "State"]
    assert [tuple(row)[::2] for row in frame.orderBy("lsn").collect()] == [(n, None) for n in range(10)]
    assert frame.where("lsn > 0 AND state = 'ready'").count() == 10
    assert lab.read("Topic string", topic="wide").distinct().collect() == [("wide",)]
    for schema, told in (
        ("lsn bigint, key string", "there is no column 'key'"),
        ("lsn int", "column 'lsn' is bigint, not int"),
    ):
        with pytest.raises((AnalysisException, PythonException)) as caught:
            lab.read(schema, topic="wide").count()
        assert told in sentence(caught.value)
    lab.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # what the session calls a timestamp
    try:
        told = lab.read(topic="wide", schema="id bigint").select("time", "id").collect()
        log = lab.read(log="true").where("time IS NULL").count()
    finally:
        lab.spark.conf.unset("spark.sql.timestampType")
    assert [(row.time is None, row.id) for row in told] == [(False, n) for n in range(10)]
    assert log == 0


def test_bodies_become_columns(lab: Lab) -> None:
    lab.declare("typed", "named", "named-too")
    lab.publish("typed", range(100))
    lab.client.publish("typed", b"no json")
    lab.client.publish("typed", b'{"id": "seven"}')
    frame = lab.read(topic="typed", schema="id bigint, region string, total double, missing date")
    good = frame.where("parse_error IS NULL")
    assert good.selectExpr("sum(id)", "sum(total)", "count(missing)").first() == (4950, 2475.0, 0)
    bad = frame.where("parse_error IS NOT NULL").orderBy("lsn").collect()
    assert [row.parse_error.split(":")[0] for row in bad] == ["no JSON", "field 'id' is 'seven', not bigint"]
    assert bad[1].id is None
    inferred = lab.read(topic="typed", parse="json")
    assert dict(inferred.dtypes)["total"] == "double"
    assert inferred.select("region").distinct().count() == 3  # with null
    lab.client.publish("named", {"topic": "mine", "lsn": 7})
    own = lab.read(topic="named", parse="json").select("topic", "lsn").first()
    assert tuple(own) == ("mine", 7)  # of the body, though a message has such columns too
    lab.client.publish("named-too", {"Topic": "mine", "LSN": 7})
    own = lab.read(topic="named-too", parse="json").select("topic", "lsn").first()
    assert tuple(own) == ("mine", 7)  # in another case, too: Spark minds none
    assert lab.read("id bigint, lsn bigint", topic="typed", parse="json").where("id IS NULL").count() == 1 + 1


def test_bad_bodies_go_to_a_topic_once_for_each_load(lab: Lab) -> None:
    lab.declare("mixed", "bad")
    lab.publish("mixed", range(50))
    lab.client.publish("mixed", b"no json")
    lab.client.publish("mixed", b'{"id": "seven"}')
    good = lab.read(topic="mixed", schema="id bigint", badRecordsTopic="bad", minPartitions=2)
    assert "parse_error" not in good.columns
    assert [good.count() for _ in range(2)] == [50, 50]
    told = [(message.body, message.headers["x-error"].split(":")[0]) for message in lab.client.peek("bad", count=10)]
    assert told == [(b"no json", "no JSON"), (b'{"id": "seven"}', "field 'id' is 'seven', not bigint")]


def test_rows_that_may_be_gone_are_told(lab: Lab) -> None:
    lab.declare("fleeting")
    lab.publish("fleeting", range(10))
    frame = lab.read(topic="fleeting")
    assert frame.count() == 10
    lab.house.clock.ahead += 700_000_000  # the read is forgotten after ten minutes
    assert frame.count() == 10  # retention has not come so far
    lab.house.clock.ahead += 700_000_000
    lab.house.log.base_floor, before = 1 << 40, lab.house.log.base_floor
    try:
        with pytest.raises(PythonException) as caught:
            frame.count()
        assert "topic 'fleeting': a part of this read begins at LSN" in sentence(caught.value)
        assert lab.read(topic="fleeting", failOnDataLoss="false").count() == 10
    finally:
        lab.house.log.base_floor = before


def test_the_log_itself(lab: Lab) -> None:
    lab.declare("recorded")
    lab.publish("recorded", range(2))
    frame = lab.read(log="true")
    assert {"kind", "name", "route"} <= set(frame.columns)
    assert frame.where("kind = 3").count() == 1  # the start of the server
    first = frame.agg({"lsn": "min"}).first()[0]
    assert lab.read(log="true", endingLsn=first + 2).count() == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topci": "x"}, "unknown option 'topci'; did you mean 'topic'?"),
        ({}, "say what to read: option topic, queue, view, or log = true"),
        ({"topic": "a", "queue": "b"}, "options topic and queue exclude each other"),
        ({"view": "v"}, "option view: there is no view 'v', and no declared topic 'v'"),
        ({"topic": "a", "schema": "id bigit"}, "option schema: column 'id' has the type 'bigit'; there are boolean"),
        ({"topic": "a", "direct": "maybe"}, "option direct is 'maybe'; there are auto, true, false"),
        ({"topic": "a", "minPartitions": "0"}, "option minPartitions is '0', not a whole number of at least 1"),
        ({"topic": "a", "minPartitions": "10001"}, "option minPartitions is 10001, and at most 10000 is allowed"),
        ({"queue": "nowhere"}, "no queue 'nowhere'"),
        ({"topic": "a", "filter": "/x = "}, "option filter, '/x = ' at character 5: "),
        ({"topic": "a", "startingBookmark": "soon"}, "option startingBookmark: 'soon' is no bookmark: write <origin>"),
        ({"topic": "a", "endingBookmark": "late"}, "option endingBookmark: 'late' is no bookmark"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(lab: Lab, options: dict[str, str], told: str) -> None:
    with pytest.raises((AnalysisException, PythonException)) as caught:
        lab.read(**options).count()
    assert told in str(caught.value)


def test_no_server_is_told(lab: Lab) -> None:
    nowhere = {"url": "penstock://127.0.0.1:9", "topic": "a", "patience": "0s"}
    with pytest.raises((AnalysisException, PythonException)) as caught:
        lab.spark.read.format("penstock").options(**nowhere).load().count()
    assert (
        "penstock.errors.Unavailable: no server answers at penstock://guest@127.0.0.1:9/ (0 s, option patience): "
        in str(caught.value)
    )


def test_a_batch_write_is_visible_at_once_and_in_order(lab: Lab) -> None:
    lab.declare("written")
    frame = lab.spark.range(0, 5000, 1, 3).selectExpr("id", "cast(id % 10 as smallint) AS priority")
    frame.write.format("penstock").option("url", lab.house.url).option("queue", "written").mode("append").save()
    told = lab.client.peek("written", count=10_000)
    assert [message.json()["id"] for message in told] == list(range(5000))
    commits = lab.read(log="true").where("kind = 34")
    assert commits.count() == 1


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["body", "lsn"], "column 'lsn' has no place beside 'body'"),
        (["cast(body AS string) AS body", "'x' AS priority"], "column 'priority' is string, not tinyint"),
        (["lsn AS body"], "column 'body' is bigint, not binary or string"),
        (["headers"], "there is nothing for a body among the columns headers"),
    ],
)
def test_a_wrong_column_is_named_when_the_write_is_planned(lab: Lab, columns: list[str], told: str) -> None:
    lab.declare("wide", "refusing")
    frame = lab.read(topic="wide").selectExpr(*columns)
    with pytest.raises((AnalysisException, PythonException)) as caught:
        frame.write.format("penstock").option("url", lab.house.url).option("queue", "refusing").mode("append").save()
    assert told in sentence(caught.value)
    assert lab.counts("refusing") == (0, 0, 0)


def test_pushed_filters_still_leak(lab: Lab) -> None:
    """Spark 4.3 applies filters of one query to the next one on the same frame.

    When this is skipped, Spark has mended it: `pushFilters` may be reconsidered in `penstock.spark.source`.
    """

    class Reader(DataSourceReader):
        low = 0

        def pushFilters(self, filters: list[Filter]) -> Any:  # noqa: N802
            for one in filters:
                if isinstance(one, GreaterThanOrEqual):
                    self.low = one.value
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.low)]

        def read(self, partition: InputPartition) -> Any:
            yield from ((i,) for i in range(partition.value, 100))

    class Leaking(DataSource):
        @classmethod
        def name(cls) -> str:
            return "leaking"

        def schema(self) -> str:
            return "n long"

        def reader(self, schema: StructType) -> Reader:
            return Reader()

    spark = lab.spark.newSession()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Leaking)
    frame = spark.read.format("leaking").load()
    assert frame.count() == 100
    assert frame.where("n >= 90").count() == 10
    again = frame.count()
    if again == 100:
        pytest.skip("this Spark no longer leaks pushed filters: penstock.spark.source may take them (pushFilters)")
    assert again == 10


def test_dead_letters_say_why_they_died(lab: Lab) -> None:
    lab.declare("dead")
    lab.declare("dying", dead_letter_exchange="", dead_letter_routing_key="dead")
    lab.publish("dying", [1, 2])
    lab.publish("dead", [3])
    with lab.client.consume("dying", timeout=20) as consumer:
        for why, message in zip(("no stock", None), consumer, strict=False):  # in this order it waits for no third
            message.reject(reason=why)
        consumer.flush()
    columns = "death_reason string, body binary"
    for frame in (lab.read(columns, queue="dead"), lab.read(columns, topic="dead")):
        reasons = {json.loads(row.body)["id"]: row.death_reason for row in frame.collect()}
        assert reasons == {1: "no stock", 2: "rejected", 3: None}
    assert {json.loads(one.body)["id"]: one.reason for one in lab.client.peek("dead")} == reasons
