"""The Python process of an executor, which Spark uses for many tasks: which task it runs, and its garbage.

After each task Spark's loop has Python look through all objects for garbage: with pyarrow, pyspark and our modules that
is 50 ms of CPU, more than it takes to read 100,000 rows.  Modules never are garbage, so they are put out of its sight.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from pyspark import TaskContext

_known = 0  # modules when it was last done


def spare_modules() -> None:
    """At the end of a task: what was imported since the last one is not looked through again.

    Only in an executor's process: a driver belongs to who runs it.
    """
    global _known
    if len(sys.modules) == _known or TaskContext.get() is None:
        return
    _known = len(sys.modules)
    gc.collect()
    gc.freeze()


def task_of() -> tuple[str, int] | None:
    """The query and its batch that this task belongs to; None outside a streaming query."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if query is None or batch is None else (str(query), int(batch))
