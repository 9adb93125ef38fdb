"""On a cluster of two workers: tasks on both read the server, one dies in a batch, and each result is there once.

Their order matters: the last one stops the session that the others use.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from cluster.conftest import Site
from progress import ran
from spark_cluster import NODES, PATIENCE_S, bare_python, may_hide
from spark_lab import sentence

JOB = Path(__file__).with_name("bare_job.py")
ROWS = 4_000
MASTER = "spark://spark-master:7077"


def publish(site: Site, topic: str, count: int) -> None:
    bodies = [json.dumps({"id": i}).encode() for i in range(count)]
    site.client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary())}))


def test_both_workers_read_and_neither_needs_the_files(site: Site, spark: Any) -> None:
    def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # in here, so that its code travels
        for batch in batches:
            yield pa.record_batch({"node": pa.array([os.environ["PENSTOCK_NODE"]] * batch.num_rows)})

    site.client.declare_topic("numbers")
    publish(site, "numbers", ROWS)
    read = spark.read.format("penstock").options(url=site.url, topic="numbers", minPartitions=4)
    frame = read.options(schema="id bigint", filter="/id >= 100").load()
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(100, ROWS))
    assert {row.node for row in frame.mapInArrow(placed, "node string").distinct().collect()} == set(NODES)
    if not may_hide():  # no right to hide the server's folder from the workers: then they read it
        assert read.option("direct", "true").load().count() == ROWS
        return
    with pytest.raises(PythonException) as caught:
        read.option("direct", "true").load().count()
    assert "option direct is true, and the log's files cannot be read here" in sentence(caught.value)
    assert "has no folder" in sentence(caught.value)


def test_a_worker_dies_in_a_batch(site: Site, spark: Any) -> None:
    site.client.declare("jobs")
    site.client.declare("done")
    publish(site, "jobs", ROWS)
    marks = site.folder / "marks"
    marks.mkdir()

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (marks / f"{os.environ['PENSTOCK_NODE']}-{time.time_ns()}").touch()
            time.sleep(1.0)  # a task long enough to be killed in
            yield batch

    stream = spark.readStream.format("penstock")
    stream = stream.options(url=site.url, queue="jobs", stream="jobs", schema="id bigint", minPartitions=4)
    frame = stream.option("maxRowsPerTrigger", 1_500).load().select("id").mapInArrow(slow, "id bigint")
    writer = frame.writeStream.format("penstock").options(url=site.url, queue="done", unroutable="fail")
    writer = writer.option("checkpointLocation", str(site.folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        site.cluster.until(lambda: list(marks.glob("two-*")) or not query.isActive)
        site.cluster.kill("two")
        assert query.isActive  # the kill came in time
        site.cluster.until(lambda: query.awaitTermination(1))
    finally:
        query.stop()
        site.cluster.start("two")
    assert sum(batch["numInputRows"] > 0 for batch in query.recentProgress) >= 3
    found = sorted(json.loads(message.body)["id"] for message in site.client.peek("done", count=2 * ROWS))
    assert found == list(range(ROWS))
    stats = site.client.queue("jobs")
    assert (stats["ready"], stats["leased"], stats["acked"]) == (0, 0, ROWS)


def test_the_page(site: Site, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text().replace(MASTER, site.cluster.url)
    site.client.declare_topic("orders")
    publish(site, "orders", 10)
    names: dict[str, Any] = {"url": site.url}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if "builder.remote" not in block and "create_sink" not in block:  # those test_connect and test_declarative run
            exec(block, names)
    assert names["spark"].sparkContext.master == site.cluster.url
    assert names["orders"].count() == 10


def test_the_package_travels_where_it_is_not_installed(site: Site, spark: Any, tmp_path: Path) -> None:
    """`install`: neither the executors nor the Python that Spark starts beside the driver has Penstock."""
    site.client.declare_topic("packed")
    publish(site, "packed", ROWS)
    spark.stop()  # its executors would hold both cores
    python = bare_python(tmp_path / "bare")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environ.pop("PYTHONPATH", None)
    unseen = site.folder / "hidden" / "tmp"  # what the driver makes there is not simply found by the workers
    unseen.mkdir()
    environ |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "TMPDIR": str(unseen)}
    job = [str(python), str(JOB), site.cluster.url, site.url, str(tmp_path / "checkpoint")]
    ended = ran(job, patience=PATIENCE_S, env=environ)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == {"read": ROWS, "streamed": ROWS, "nodes": sorted(NODES)}
    assert site.client.queue("copied")["ready"] == ROWS
