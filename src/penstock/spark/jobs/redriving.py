"""Redriving very many dead letters: Spark looks at them in parallel, the server moves them, each once.

    read   the queue's content in partitions, with the filter; of what matches only the LSNs reach the driver
    move   oldest first, some thousand a call; each step is one group of the log, and what is gone by then is left out

So a task that runs again, or a job that is started again after a crash, moves nothing twice, and the messages are in
the same order at their origin as if `penstock queue redrive` had moved them.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from penstock.client import connect
from penstock.errors import InvalidArgument

STEP = 5000
"""LSNs of a call."""


def redrive(
    spark: Any,
    url: str,
    queue: str,
    *,
    filter: str | None = None,
    count: int | None = None,
    parts: int = 0,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Dead letters of a queue back to where they died first, as `Client.redrive` does it, with its answer.

    filter     only those that match; a delayed one may go, a leased one does not
    count      so many at most, the oldest
    parts      partitions that look at the queue; by default what the source finds right
    dry_run    count alone
    progress   is told how many were moved so far
    """
    if count is not None and count < 1:
        raise InvalidArgument(f"count is {count}; at least one message is moved")
    reader = spark.read.format("penstock").schema("lsn long").option("url", url).option("queue", queue)
    reader = reader.option("states", "ready,delayed")
    for name, value in (("filter", filter), ("minPartitions", parts or None)):
        if value is not None:
            reader = reader.option(name, value)
    rows: Any = reader.load().toArrow()
    lsns = np.sort(rows.column("lsn").to_numpy())[:count].tolist()
    total: dict[str, Any] = {"moved": 0, "matched": 0, "targets": {}, "strays": {}}
    with connect(url) as client:
        for start in range(0, len(lsns), STEP):
            told = client.action("redrive", queue=queue, lsns=lsns[start : start + STEP], dry=dry_run)
            for name in ("moved", "matched"):
                total[name] += cast("int", told[name])
            for name in ("targets", "strays"):
                for key, number in cast("dict[str, int]", told[name]).items():
                    total[name][key] = total[name].get(key, 0) + number
            if progress is not None:
                progress(total["moved"])
    return total
