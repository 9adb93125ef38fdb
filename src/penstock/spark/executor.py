"""The Python processes that Spark uses again and again, for tasks and for plans: which task one runs, and its garbage.

After each task and each plan Spark's loop has Python look through all objects for garbage: with pyarrow, pyspark and
our modules that is 50 ms of CPU, more than it takes to read 100,000 rows.  Modules never are garbage, so they are put
out of its sight.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from pyspark import TaskContext

_known = 0  # modules when it was last done


def spare_modules() -> None:
    """At the end of a task or a plan: what was imported since the last one is not looked through again.

    Only in a process of Spark's loop: a driver belongs to who runs it.
    """
    global _known
    if len(sys.modules) == _known or not _is_of_a_loop():
        return
    _known = len(sys.modules)
    gc.collect()
    gc.freeze()


def _is_of_a_loop() -> bool:
    """Whether this process was forked by `pyspark.daemon`."""
    main: Any = getattr(sys.modules["__main__"], "__spec__", None)
    return (main is not None and main.name == "pyspark.daemon") or TaskContext.get() is not None


def task_of() -> tuple[str, int] | None:
    """The query and its batch that this task belongs to; None outside a streaming query."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if query is None or batch is None else (str(query), int(batch))
