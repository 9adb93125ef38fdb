"""Every state in which a stop, a crash or a power cut can leave a query over a queue, one after another, row by row.

One query runs to its end, something is done to its checkpoint or its stream, more is published, and it runs again.
The rows in the sink are then what was published, each once, and every message is settled.  In `make soak` each case
comes 20 times, in random order; a usual run has what `test_every_state_of_a_checkpoint` has not.
`PENSTOCK_SEED` repeats the choices.  What kills processes is in `test_kills.py`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import raise_error

from choices import SEED
from penstock.spark.checkpoint import Checkpoint
from spark_lab import Lab, forget_last_commit, sentence

SOAK_RUNS = 2
"""Of each case with each step of more effort, so 20 in `make soak`."""


class Life:
    """One query, its queue, and what was published so far."""

    def __init__(self, lab: Lab, folder: Path, chance: random.Random, *, settles: bool) -> None:
        self.lab, self.folder, self.chance, self.settles = lab, folder, chance, settles
        self.name = "cases-a" if settles else "cases-b"
        self.checkpoint, self.copy = folder / "checkpoint", folder / "copy"
        self.published = 0
        lab.declare(self.name, f"{self.name}-out")

    def publish(self, least: int = 1, most: int = 40) -> None:
        count = self.chance.randint(least, most)
        self.lab.publish(self.name, range(self.published, self.published + count))
        self.published += count

    def run(self, change: Callable[[Any], Any] | None = None, **options: object) -> None:
        """To the end of what is ready, in batches of any size."""
        given = {"maxRowsPerTrigger": self.chance.choice((15, 1000)), "minPartitions": self.chance.randint(1, 3)}
        frame = self.lab.stream(
            queue=self.name, stream=self.name, schema="id bigint", **{**given, **options}
        ).select("id")  # fmt: skip
        settle = {} if self.settles else {"settleStream": "off"}
        frame = frame if change is None else change(frame)
        self.lab.write(frame, self.checkpoint, topic=f"{self.name}-out", **settle)

    def refused(self, told: str, **options: object) -> None:
        with pytest.raises(StreamingQueryException) as caught:
            self.run(**options)
        assert told in sentence(caught.value)

    def judge(self, case: str) -> None:
        where = f"after '{case}', seed {SEED}"
        assert self.lab.ids(f"{self.name}-out") == list(range(self.published)), where
        assert self.lab.counts(self.name) == (0, 0, self.published), where


def last_commit_entry_deleted(life: Life) -> None:
    """As a kill between the sink's commit and Spark's leaves it, too."""
    forget_last_commit(life.checkpoint)


def last_offset_entry_deleted(life: Life) -> None:
    last = forget_last_commit(life.checkpoint)
    for name in (str(last), f".{last}.crc"):
        (life.checkpoint / "offsets" / name).unlink(missing_ok=True)
    if not last:  # nothing says that this query ever ran: it starts anew
        lost_checkpoint(life)


def empty_offset_entry(life: Life) -> None:
    last = max(int(path.name) for path in (life.checkpoint / "offsets").iterdir() if path.name.isdigit())
    (life.checkpoint / "offsets" / str(last + 1)).touch()
    assert Checkpoint(life.checkpoint).sweep()


def killed_between_grant_and_offset(life: Life) -> None:
    """The server has planned a batch, and Spark never heard of it."""
    offsets = [int(path.name) for path in (life.checkpoint / "offsets").iterdir() if path.name.isdigit()]
    start = max((batch for _, batch, _ in Checkpoint(life.checkpoint).inputs(max(offsets))), default=0)
    life.publish()
    opened = life.lab.act("stream_open", stream=life.name, queue=life.name, mode="queue")
    rows = life.chance.randint(1, 30)
    assert life.lab.act("plan", stream=life.name, epoch=opened["epoch"], start=start, max_rows=rows)["rows"]


def definition_changed_while_stopped(life: Life) -> None:
    """A batch is in Spark's offsets, and comes to nothing; the query that goes on reads otherwise."""
    life.publish()
    with pytest.raises(StreamingQueryException):
        life.run(lambda frame: frame.select(raise_error("no").alias("id")), maxRowsPerTrigger=30)
    life.run(maxRowsPerTrigger=9, minPartitions=4, orderBy="/id")


def checkpoint_deleted(life: Life) -> None:
    shutil.rmtree(life.checkpoint)
    lost_checkpoint(life)


def lost_checkpoint(life: Life) -> None:
    life.publish()
    life.refused("this query starts without a checkpoint")
    shutil.rmtree(life.checkpoint)
    life.run(onLostCheckpoint="continue")
    shutil.rmtree(life.copy)
    shutil.copytree(life.checkpoint, life.copy)


def checkpoint_restored_from_an_old_copy(life: Life) -> None:
    life.publish(least=9)
    life.run(maxRowsPerTrigger=3)  # further than the two batches that are kept for a replay
    newest = life.folder / "newest"
    shutil.move(life.checkpoint, newest)
    shutil.copytree(life.copy, life.checkpoint)
    life.refused("acknowledged messages are not delivered again; put the newest checkpoint back, or delete this one")
    shutil.rmtree(life.checkpoint)
    shutil.move(newest, life.checkpoint)


def checkpoint_of_another_log(life: Life) -> None:
    """A batch of its number may be another's there, and would be settled unread."""
    life.publish()
    places = life.checkpoint / "offsets"
    last = places / str(max(int(path.name) for path in places.iterdir() if path.name.isdigit()))
    mine, origin = last.read_text(), str(life.lab.house.log.origin)
    assert origin in mine
    last.write_text(mine.replace(origin, "77"))
    (places / f".{last.name}.crc").unlink(missing_ok=True)
    life.refused(f"of log 77, and this server has log {origin}")
    last.write_text(mine)


CASES = (
    last_commit_entry_deleted, last_offset_entry_deleted, empty_offset_entry, killed_between_grant_and_offset,
    definition_changed_while_stopped, checkpoint_deleted, checkpoint_restored_from_an_old_copy,
    checkpoint_of_another_log,
)  # fmt: skip


FEW = killed_between_grant_and_offset, definition_changed_while_stopped, checkpoint_of_another_log


def test_rows_are_there_once_whatever_became_of_the_checkpoint(lab: Lab, tmp_path: Path, effort: int) -> None:
    chance = random.Random(SEED)
    lives = [Life(lab, tmp_path / str(settles), chance, settles=settles) for settles in (False, True)]
    for life in lives:
        life.publish()
        life.run()
        life.judge("a first run")
        shutil.copytree(life.checkpoint, life.copy)
    plan = [*FEW] if effort == 1 else [case for case in CASES for _ in range(SOAK_RUNS * effort)]
    chance.shuffle(plan)
    for turn, case in enumerate(plan):
        life = lives[turn % 2]
        case(life)
        life.publish()
        life.run()
        life.judge(case.__name__)
