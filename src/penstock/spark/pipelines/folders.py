"""Where pipelines run: the server, the folder of their checkpoints, its locks, and whether a cluster sees it.

One process at a time runs a pipeline, whoever started it.  The machines of a cluster must share the folders where
executors write what the driver reads, and each other; Spark itself does not look.  An executor that does not see such a
folder makes one of its own on its disk: the driver then renames an empty table into place, and sums that another
executor kept are begun anew.
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import DataFolderInUse, SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.remote import Where


@dataclass(frozen=True, slots=True)
class Place:
    """Where pipelines run."""

    where: Where
    folder: Path


@contextmanager
def locked(folder: Path, name: str) -> Generator[None]:
    """Hold the pipeline.  Raises DataFolderInUse, naming the process that has it."""
    with open(folder / f"{name}.lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip()
            who = f"process {holder}" if holder else "another process"
            raise DataFolderInUse(f"{who} runs pipeline {name} of {folder}: stop it first") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


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
