"""The Python processes that Spark uses again and again, for tasks and for plans: which task one runs, and its garbage.

After each task and each plan Spark's loop has Python look through all objects for garbage: with pyarrow, pyspark and
our modules that is 50 ms of CPU, more than it takes to read 100,000 rows.  Modules never are garbage, so they are put
out of its sight.

What Arrow and numpy make of a batch is some hundred kilobytes a column, which the C library gives back to the system
as soon as it is freed and gets again, page by page, for the next batch.  That is half the CPU of reading JSON, so a
process that does it keeps what it frees.

Run as a module this is the process that forks them, where they talk to Java over Unix sockets (`sessions`).  It is
PySpark's, but for one thing.  A process that waits for a task when its session ends is told so by a closed
socket, and has a last word for Java.  TCP takes that word, and nobody reads it; a Unix socket refuses it, and PySpark
prints a stack of calls.  Spark starts processes that plan by PySpark's own module, so those are told in themselves.
It also has loaded what tasks take before it forks the first of them (`load_for_tasks`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias

from pyspark import TaskContext, daemon

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


end_quietly()  # whatever of ours Spark asks for in a process of its own, the source, a reader or a writer, loads this

_known = 0  # modules when it was last done


def spare_modules() -> None:
    """At the end of a task or a plan: what was imported since the last one is not looked through again.

    Only in a process of Spark's loop: a driver belongs to who runs it.
    """
    global _known
    if len(sys.modules) == _known or not _is_of_a_loop():
        return
    _known = len(sys.modules)
    if TaskContext.get() is not None:  # a plan has made nothing yet that would be garbage
        gc.collect()
    gc.freeze()


LOOPS = frozenset({"pyspark.daemon", "penstock.spark.executor"})

FOR_TASKS = ("penstock.spark.reading.batch", "penstock.spark.reading.queue_stream", "penstock.spark.pipelines.outputs")
"""What reads, streams and writes take, with Arrow and its Flight.  None of it starts a thread of ours or connects."""


def load_for_tasks() -> None:
    """Load it once, in the process that forks the others, where each would take half a second of CPU for it.

    Half of that is pandas, which pyarrow loads, where it is installed, with the first array of Python's values.
    """
    global _known
    for name in FOR_TASKS:
        import_module(name)
    with suppress(ImportError):
        import_module("pandas")
    os.register_at_fork(after_in_child=import_module("numpy.random").seed)  # else all draw the same numbers
    _known = len(sys.modules)
    gc.freeze()


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
KEPT_BYTES = 64 * 2**20
LARGE_BYTES = 16 * 2**20
"""Memory of this size and more goes back at once."""


def keep_freed() -> bool:
    """Have this process use again what memory it frees, up to a bound; whether it does.

    Only in a process of Spark's loop, and only with a C library that can be told.
    """
    if not _is_of_a_loop():
        return False
    set_option: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(MMAP_THRESHOLD, LARGE_BYTES) and set_option(TRIM_THRESHOLD, KEPT_BYTES))


def _is_of_a_loop() -> bool:
    """Whether this process was forked by PySpark's daemon or ours."""
    main: Any = getattr(sys.modules["__main__"], "__spec__", None)
    return (main is not None and main.name in LOOPS) or TaskContext.get() is not None


def task_of() -> tuple[str, int] | None:
    """The query and its batch that this task belongs to; None outside a streaming query."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if query is None or batch is None else (str(query), int(batch))


if __name__ == "__main__":
    daemon.worker = QuietWorker(daemon.worker)
    import_module("penstock.spark.executor").load_for_tasks()  # as the module that tasks know, which this one is not
    daemon.manager()
