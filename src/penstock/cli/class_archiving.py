"""The archive of Spark's classes, made beside pipelines that have run for a while, so that their next start takes less.

Half of what a driver of pipelines costs until its first results is the loading of classes (`spark.sessions`).  Java
keeps them in an archive once it was asked to, which takes a minute of CPU and some hundred megabytes of memory.  So it
is a process of its own that everybody else goes before, ten minutes after the drivers have begun: what lives shorter, a
trial or a test, does not pay for a start that never comes.  It looks by itself whether there is an archive already.
Where there is no memory for it now it is put off.  One that fails is tried again an hour later, twice: on a machine
that is busy with others Spark may not get the process of Python that it waits ten seconds for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.cli.child_process import Say
from penstock.server.base.allowed import Machine
from penstock.spark.sessions import takes_archive

AFTER_S = 600.0
"""How long drivers have run before it is begun, and before memory is looked at again."""

AGAIN_S, TRIES = 3600.0, 3
"""After one that failed; and how many there are in all."""

MEMORY_BYTES = 2 << 30
"""What has to be free: its Java takes half of it, and the drivers may grow meanwhile."""

MAKER = (sys.executable, "-m", "penstock.spark.class_archive", "--beside")


def is_wanted(spark: Any) -> bool:
    """Whether drivers of these settings (`[spark]`) would take an archive that is there."""
    return bool(spark.class_archive) and takes_archive({"spark.master": spark.master, **spark.conf})


class ClassArchiving:
    """At most one process at a time, until there is an archive."""

    def __init__(
        self,
        folder: Path,
        say: Say,
        *,
        command: Sequence[str] = MAKER,
        memory_left: Callable[[], int | None] | None = None,
    ) -> None:
        """folder: for what it and its Java print."""
        self._log = folder / "class_archive.log"
        self._say = say
        self._command = command
        self._memory_left = memory_left or Machine().memory_left
        self._environ = dict(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._due = time.monotonic() + AFTER_S
        self._left = TRIES

    def look(self, now: float, *, wanted: bool) -> None:
        """One round.  now: on the clock of `time.monotonic`.  wanted: drivers run that would take an archive."""
        if self._process is not None:
            if (status := self._process.poll()) is not None:
                self._ended(status, now)
        elif not wanted:
            self._due = max(self._due, now + AFTER_S)
        elif self._left and now >= self._due:
            self._due = now + AFTER_S
            left = self._memory_left()
            if left is None or left >= MEMORY_BYTES:
                self._begin()

    def stop(self) -> None:
        """End it at once, with its Java: what it has made by then is nothing."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def _begin(self) -> None:
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environ,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._failed(str(error))

    def _ended(self, status: int, now: float) -> None:
        self._close()
        if status:
            self._due = now + AGAIN_S
            self._failed(f"see {self._log}")
        else:
            self._left = 0

    def _failed(self, why: str) -> None:
        if self._left == TRIES:
            self._say(f"penstock: the archive of Spark's classes is not made, and starts are as they were: {why}")
        self._left -= 1

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
