"""Who runs a pipeline: one process at a time, whoever started it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DataFolderInUse


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
