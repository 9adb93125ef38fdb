"""What a task knows of the streaming query that it belongs to."""

from __future__ import annotations

from typing import Any

from pyspark import TaskContext


def task_of() -> tuple[str, int] | None:
    """The query and its batch that this task belongs to; None outside a streaming query."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if query is None or batch is None else (str(query), int(batch))
