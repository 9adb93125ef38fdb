"""With speculation on, tasks run twice and executors die among them: each row of a queue is in the sink once.

A task waits until Spark has started a copy of it on the other node, and then the executor of the one or of the other is
killed, or its whole node, or nothing; with a shuffle before the sink and without.  Twice here, and 20 times in `make
soak-spark`.  `PENSTOCK_SEED` repeats the choices.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from choices import SEED
from cluster.conftest import Site
from progress import descendants
from spark_cluster import CONF
from spark_lab import command_of

RUNS = 2
"""Of all cases together; ten times as many in `make soak-spark`."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "50ms",
}

CASES = ("the first", "the copy", "the node of the first", "the node of the copy", "nobody")
"""Who dies when both run."""


@pytest.fixture
def speculative(site: Site, spark: Any) -> Iterator[Any]:
    from penstock.spark import session

    spark.stop()  # its executors would hold both cores
    made = session(site.cluster.url, memory="512m", conf=CONF | SPECULATION)
    yield made
    made.stop()


class Marks:
    """Files by which tasks say that they run, and wait."""

    def __init__(self, folder: Path, turn: int) -> None:
        self.folder = folder / f"turn-{turn}"
        self.folder.mkdir(parents=True)
        self.go = self.folder / "go"

    def running(self) -> list[str]:
        """The nodes that run the task that waits, the first one first; fewer than two while there is no copy."""
        found = {path.name.split("-")[1]: path.name.split("-")[2] for path in self.folder.glob("task-*")}
        return [found[attempt] for attempt in sorted(found, key=int)]


def waits(marks: Path, go: Path) -> Any:
    """Of each batch the first part, in both of its runs: says where it is, and waits for the word."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # in here, so that its code travels
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        attempt, pause = context.attemptNumber(), threading.Event()
        if context.partitionId() == 0 and attempt < 2 and not go.exists():
            (marks / f"task-{attempt}-{os.environ['PENSTOCK_NODE']}").touch()
            while marks.exists() and not go.exists():
                pause.wait(0.05)
        yield from batches

    return rows


def test_rows_are_there_once_when_tasks_run_twice_and_die(site: Site, speculative: Any, effort: int) -> None:
    chance, cluster, client, published = random.Random(SEED), site.cluster, site.client, 0
    for queue in ("twice", "twice-out"):
        client.declare(queue)
    cases = (list(CASES) * effort)[: max(RUNS * effort, 2)]
    chance.shuffle(cases)
    for turn, case in enumerate(cases):
        where, shuffled = f"when {case} dies, turn {turn}, seed {SEED}", chance.random() < 0.5
        count = chance.randint(200, 600)
        bodies = [json.dumps({"id": i}).encode() for i in range(published, published + count)]
        client.publish_table("twice", pa.table({"body": pa.array(bodies, pa.binary())}))
        published += count

        marks = Marks(site.folder / f"speculation-{SEED}", turn)
        stream = speculative.readStream.format("penstock").options(url=site.url, queue="twice", stream="twice")
        frame = stream.options(schema="id bigint", minPartitions=4, maxRowsPerTrigger=300).load().select("id")
        frame = frame.mapInArrow(waits(marks.folder, marks.go), "id bigint")
        if shuffled:
            frame = frame.repartition(3, "id")
        writer = frame.writeStream.format("penstock").options(url=site.url, queue="twice-out", ordered="id")
        writer = writer.option("checkpointLocation", str(site.folder / f"speculation-{SEED}" / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        killed = None
        try:
            cluster.until(lambda marks=marks, query=query: len(marks.running()) > 1 or not query.isActive)
            assert query.isActive, f"{where}: {query.exception()}"
            first, copy = marks.running()
            assert first != copy, where
            node = {"first": first, "copy": copy, "nobody": None}[case.split()[-1]]
            if "node" in case:
                cluster.kill(killed := str(node))
            elif node is not None:
                kill_executor(site, node)
            marks.go.touch()
            cluster.until(lambda query=query: query.awaitTermination(1))
        finally:
            marks.go.touch()
            query.stop()
            if killed is not None:
                cluster.start(killed)
        found = [json.loads(message.body)["id"] for message in client.peek("twice-out", count=2 * published)]
        assert found == list(range(published)), where
        stats = client.queue("twice")
        assert (stats["ready"], stats["leased"], stats["acked"]) == (0, 0, published), where
    assert client.action("stages")["stages"] == []


def kill_executor(site: Site, node: str) -> None:
    """Its Java process, at once; the worker stays and starts another."""
    [pid] = [
        one
        for one in descendants(site.cluster.processes[node].pid)
        if b"CoarseGrainedExecutorBackend" in command_of(one)
    ]
    os.kill(pid, signal.SIGKILL)
