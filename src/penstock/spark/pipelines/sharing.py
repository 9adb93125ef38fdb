"""Folders that the machines of a cluster must share: where executors write what the driver reads, and each other.

Spark itself does not look.  An executor that does not see such a folder makes one of its own on its disk: the driver
then renames an empty table into place, and sums that another executor kept are begun anew.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import SettingsError

TASKS_EACH = 2
"""Tasks for each core, so that every executor there is gets one."""


def refuse_unshared(spark: Any, folders: Sequence[Path], pipeline: str) -> None:
    """SettingsError when an executor does not see one of these folders as this process does.

    Executors that come later are not asked.  Costs one small job; nothing where all runs on this machine.
    """
    context = spark.sparkContext
    if not folders or str(context.master).startswith("local"):
        return
    marks = {str(folder / f".penstock-{uuid.uuid4().hex}"): folder for folder in dict.fromkeys(folders)}
    try:
        for mark, folder in marks.items():
            folder.mkdir(parents=True, exist_ok=True)
            Path(mark).touch()
        tasks = TASKS_EACH * int(context.defaultParallelism)
        found = context.parallelize(range(tasks), tasks).mapPartitions(_missing(list(marks))).collect()
    finally:
        for mark in marks:
            Path(mark).unlink(missing_ok=True)
    for host, mark in found:
        raise SettingsError(
            f"pipeline {pipeline}: the executor on {host} does not see {marks[mark]} of {socket.gethostname()}; with "
            f"master {context.master}, tables and the checkpoints of pipelines that remember something must lie on "
            "storage that all machines share: set spark.checkpoints, or the table, to a folder there"
        )


def _missing(marks: list[str]) -> Callable[[Iterable[int]], Iterator[tuple[str, str]]]:
    def look(_: Iterable[int]) -> Iterator[tuple[str, str]]:
        return ((socket.gethostname(), mark) for mark in marks if not os.path.exists(mark))

    return look
