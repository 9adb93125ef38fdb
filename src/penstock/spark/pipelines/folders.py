"""Where pipelines run: the server, the folder of their checkpoints, its locks, and whether a cluster sees it.

One process at a time runs a pipeline, whoever started it.  The machines of a cluster must share the folders where
executors write what the driver reads, and each other; Spark itself does not look.  An executor that does not see such a
folder makes one of its own on its disk: the driver then renames an empty table into place, and sums that another
executor kept are begun anew.

A driver is handed its jobs through its standard input, a line of JSON each, whose end is the end of the parent: a job
holds a password, so it goes through no file, no argument and no environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import DataFolderInUse, SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.remote import Where


def itself(where: Where) -> Where:
    """Tasks on this machine log in as the driver does."""
    return where


@dataclass(frozen=True, slots=True)
class Place:
    """Where pipelines run: a server, and the folder of their checkpoints."""

    where: Where
    folder: Path
    tasks: Callable[[Where], Where] = itself  # who tasks log in as, which may run elsewhere


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


CHUNK_BYTES = 1 << 16

FOLLOWED = frozenset({"user", "password", "patience", "pipelines"})
"""What a running driver takes from a newer job (`Driver.take`); everything else of a job holds for its process."""


def of_process(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[str]:
    """What differs in two jobs that only a new process can take: the names, sorted."""
    names = (older.keys() | newer.keys()) - FOLLOWED
    return sorted(name for name in names if older.get(name) != newer.get(name))


def line_of(job: Mapping[str, Any]) -> bytes:
    """A job as the line that a parent writes."""
    return json.dumps(job).encode() + b"\n"


class Inbox:
    """What the parent has handed over; a thread of its own reads, so the pipe never fills up for long."""

    def __init__(self, descriptor: int, gone: Callable[[], object]) -> None:
        """descriptor: of the pipe from the parent.  gone: called once, when it has ended."""
        self._descriptor = descriptor
        self._gone = gone
        self._came = threading.Condition()
        self._newest: bytes | None = None
        self._ended = False
        threading.Thread(target=self._read, name="penstock-inbox", daemon=True).start()

    def first(self) -> dict[str, Any]:
        """The job to begin with.  EOFError when the parent ends without a word, ValueError when it is no JSON."""
        with self._came:
            self._came.wait_for(lambda: self._newest is not None or self._ended)
        found = self.newer()
        if found is None:
            raise EOFError("the parent ended before it handed a job over")
        return found

    def newer(self) -> dict[str, Any] | None:
        """The newest job that came since the last look, if one did.  ValueError when it is no JSON."""
        with self._came:
            line, self._newest = self._newest, None
        if line is None:
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._descriptor, CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                with self._came:
                    self._newest = lines[-1]
                    self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()
        self._gone()
