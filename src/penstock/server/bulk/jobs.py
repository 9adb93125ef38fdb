"""What the bulk child can be asked to do, by name.  A read gives Arrow batches, a job gives plain values.

A job is a function of a lower floor, named by its place and loaded when first asked for:

* `on_disk`: `function(disk, **values)`; it sees the data folder and nothing else (merging, compaction);
* `on_log`:  `function(request, **values)`; the server lists the log with the request, and `request.view` reads it.

A function that has a parameter `progress` is given one, to be called with (done, in all); it raises when nobody waits
any more, and that is how a job is cancelled.  Values and results are what JSON holds, and bytes at the top level.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.history.view import View
    from penstock.ports import Disk


@dataclass(frozen=True, slots=True)
class Request:
    """What a job may use."""

    disk: Disk
    listed: View | None
    gone: Callable[[], bool]  # nobody waits for the answer any more
    progress: Callable[[int, int], None]
    notes: dict[str, int] = field(default_factory=dict[str, int])  # what a read says of its rows, at their end

    @property
    def view(self) -> View:
        """The log as the server listed it.  InvalidArgument when it listed none."""
        if self.listed is None:
            raise InvalidArgument("this job needs a listing of the log, and the server sent none")
        return self.listed


class Job(NamedTuple):
    """Where a job's function is, and what it takes first."""

    place: str  # module:function
    takes: Literal["disk", "log"]


def on_disk(place: str) -> Job:
    """`module:function` that takes the disk."""
    return Job(place, "disk")


def on_log(place: str) -> Job:
    """`module:function` that takes the request."""
    return Job(place, "log")


JOBS: dict[str, Job] = {
    "verify": on_log("penstock.server.bulk.checks:verify"),
    "audit": on_log("penstock.server.bulk.checks:audit"),
    "backup": on_log("penstock.server.bulk.backup:run"),
    "measured": on_log("penstock.server.bulk.reads:measured"),
    "matching": on_log("penstock.server.bulk.reads:matching"),
    "rewrite": on_disk("penstock.log.rewriting.rewrite:run"),
    "index": on_disk("penstock.log.rewriting.rewrite:index"),
    "archive": on_log("penstock.server.bulk.archiving:run"),
    "archive_merge": on_disk("penstock.server.bulk.archiving:merge"),
    "archive_check": on_log("penstock.server.bulk.archiving:check"),
    "judge": on_disk("penstock.server.filters.judging:judge_there"),
    "make": on_disk("penstock.server.filters.evaluating:make_there"),
    "ping": on_disk("penstock.server.bulk.jobs:ping"),
}

READS: dict[str, str] = {
    "replay": "penstock.server.bulk.reads:replay",
    "records": "penstock.server.bulk.reads:records",
    "content": "penstock.server.bulk.reads:content",
    "plan": "penstock.server.bulk.reads:plan",
    "archived": "penstock.server.bulk.reads:archived",
    "sow": "penstock.server.bulk.sow_reads:sow",
}
"""Functions of a request that give a schema and batches."""


def ping(disk: Disk) -> dict[str, object]:
    """That the child lives and sees the folder."""
    return {"files": len(disk.list("log"))}


def do(request: Request, name: str, values: Mapping[str, Any]) -> dict[str, object]:
    """The result of a job."""
    job = JOBS.get(name)
    if job is None:
        raise InvalidArgument(f"the bulk process knows no job {name!r}")
    function = load(job.place)
    given = dict(values)
    if "progress" in inspect.signature(function).parameters:
        given["progress"] = request.progress
    result = function(request.disk if job.takes == "disk" else request, **given)
    return {} if result is None else dict(result)


def read(request: Request, name: str, values: Mapping[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and batches of a read."""
    place = READS.get(name)
    if place is None:
        raise InvalidArgument(f"the bulk process knows no read {name!r}")
    schema, batches = load(place)(request, **values)
    return schema, batches


def load(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
