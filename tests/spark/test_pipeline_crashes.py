"""A pipeline that dies between the commit of a batch and Spark's own, at every batch: each row once, lineage exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from choices import EFFORT
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.lineage import Batch, read
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.remote import Where, remote
from pipeline_lab import define
from spark_lab import Lab


def through(lab: Lab, folder: Path, look: Callable[[], object] = int, **given: Any) -> list[Batch]:
    """Run a pipeline to its end; it dies after the commit of each batch.  Its batches as the log tells them.

    look: called when a batch is committed.
    """
    died = set[int]()

    class Dying(Outputs):
        def commit(self, query: str, batch: int, stages: Sequence[str]) -> None:
            super().commit(query, batch, stages)
            look()
            if batch not in died:
                died.add(batch)
                raise RuntimeError("died after the commit")

    pipeline = Pipeline(define(**given), Place(Where(lab.house.url), folder))
    pipeline.outputs_class = Dying
    for _ in range(20):
        query = pipeline.start(lab.spark, once=True)
        deaths = len(died)
        try:
            query.awaitTermination()
        except StreamingQueryException:
            assert len(died) == deaths + 1, query.exception()
        else:
            break
    return read(remote(pipeline.where), pipeline.definition.name)


def test_two_queues_are_settled_with_the_output(lab: Lab, tmp_path: Path) -> None:
    lab.declare("left", "right", "both")
    lab.publish("left", range(5))
    lab.publish("right", range(100, 103))
    inputs = {name: {"queue": name, "columns": "id BIGINT", "max_rows": 3} for name in ("left", "right")}
    leased = list[int]()
    batches = through(
        lab, tmp_path, lambda: leased.append(lab.counts("left")[1] + lab.counts("right")[1]), name="both",
        sql="SELECT id FROM left UNION ALL SELECT id FROM right", to=[{"topic": "both"}], **{"from": inputs},
    )  # fmt: skip
    assert set(leased) == {0}  # a commit has settled both
    assert lab.ids("both") == [0, 1, 2, 3, 4, 100, 101, 102]
    assert (lab.counts("left"), lab.counts("right")) == ((0, 0, 5), (0, 0, 3))
    given = [{one.name: one.rows for one in batch.inputs} for batch in batches]
    assert {name: sum(one.get(name) or 0 for one in given) for name in inputs} == {"left": 5, "right": 3}
    assert [sum(one.rows for one in batch.outputs) for batch in batches] == [
        sum(map(int, one.values())) for one in given
    ]


AGAIN = (True,) if EFFORT == 1 else (False, True)
"""A run that goes on after a restart begins as one that ends before."""


@pytest.mark.parametrize("again", AGAIN, ids=lambda again: "live after a restart" if again else "past then live")
def test_the_hand_over_of_a_backfill(lab: Lab, tmp_path: Path, again: bool) -> None:
    topic, out = f"past-{again}", f"copies-{again}"
    lab.declare(topic, out)
    lab.publish(topic, range(12))
    given: dict[str, Any] = {"name": f"catch-up-{again}", "sql": "SELECT id FROM input", "to": [{"topic": out}]}
    given["from"] = {"topic": topic, "columns": "id BIGINT", "max_rows": 3}
    given["backfill"] = {"from": "earliest", "max_rows": 8}
    if again:
        through(lab, tmp_path, **given)
        lab.publish(topic, range(12, 18))
    batches = through(lab, tmp_path, **given)
    count = 18 if again else 12
    assert lab.ids(out) == list(range(count))
    assert [sum(one.rows for one in batch.outputs) for batch in batches] == [8, 4, *([3, 3] if again else [])]
    ranges = [pair for batch in batches for one in batch.inputs for pair in one.pairs]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges)), ranges
    lsns = [message.lsn for message in lab.client.replay(topic, "EPOCH")]
    found = [sum(a <= lsn < b for lsn in lsns) for a, b in ranges]
    assert found == [sum(one.rows for one in batch.outputs) for batch in batches]
