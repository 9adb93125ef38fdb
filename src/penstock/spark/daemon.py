"""The process that forks Spark's Python processes, where they talk to Java over Unix sockets (`sessions`).

It is PySpark's, but for one thing.  A process that waits for a task when its session ends is told so by a closed
socket, and has a last word for Java.  TCP takes that word, and nobody reads it; a Unix socket refuses it, and PySpark
prints a stack of calls.  Spark starts processes that plan by PySpark's own module, so those are told in themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark import daemon

PYSPARK = "pyspark.daemon"

Worker: TypeAlias = "Callable[[Any, bool], int]"
"""Does one task or one plan that comes over a socket; what it gives is not zero when it is the process's last."""


class QuietWorker:
    """One that ends where Java has left."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, connection: Any, authenticated: bool) -> int:
        try:
            return self._worker(connection, authenticated)
        except BrokenPipeError:
            return 1


def end_quietly() -> None:
    """Have this process, if PySpark's own module forked it, say nothing when Java has left before its next task."""
    main: Any = sys.modules["__main__"]
    spec, worker = getattr(main, "__spec__", None), getattr(main, "worker", None)
    if spec is not None and spec.name == PYSPARK and worker is not None and not isinstance(worker, QuietWorker):
        main.worker = QuietWorker(worker)


if __name__ == "__main__":
    daemon.worker = QuietWorker(daemon.worker)
    daemon.manager()
