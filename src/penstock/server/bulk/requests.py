"""What the server asks its bulk child, by name, and how: a line of `doors.line` for each request, and no frame more.

    server                                  bulk process
    CALL     read or job, and values   ->
                                       <-   WELCOME  the work begins
                                       <-   CONTROL  how far it is, any number of times
                                       <-   SCHEMA, BATCH  of a read
                                       <-   DONE values, or FAILED

Closing the line cancels; one that ends without a last frame means that the other process is gone.

A read gives Arrow batches, a job gives plain values.  A job is a function of a lower floor, named by its place and
loaded when first asked for; its first parameter says what it takes, and the others are values:

* `disk`     it sees the data folder and nothing else (merging, compaction);
* `request`  the server lists the log with it, and `request.view` reads that.

A function that has a parameter `progress` is given one, to be called with (done, in all); it raises when nobody waits
any more, and that is how a job is cancelled.  Values and results are what JSON holds, and bytes at the top level.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pkgutil import resolve_name
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.server.doors.line import Kind, head_of, with_head

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.history.view import View
    from penstock.ports import Disk


MOST = 1 << 31
"""Bytes of a frame."""

HOW_FAR = Struct("<2q")
"""Of a job: done, in all."""

ASKED = {Kind.CALL: MOST}
ANSWERS = {
    Kind.WELCOME: 0, Kind.CONTROL: HOW_FAR.size, Kind.SCHEMA: MOST, Kind.BATCH: MOST, Kind.DONE: MOST, Kind.FAILED: MOST
}  # fmt: skip

SPARE_PIECES = 4


class GivenUp(Exception):
    """Nobody waits for the answer any more.  No OSError, which a job would take for one of its disk's."""


class Spare:
    """Memory of payloads that is used again once nobody refers to it: fresh pages would cost more than the copying.

    What is given is a view of its own of a piece; whoever has a buffer of that, however far down, keeps it alive.  To
    count the references to a piece would ask how this Python counts: since 3.14 a name that is passed on is not one.
    """

    def __init__(self) -> None:
        self._pieces = list["tuple[npt.NDArray[np.uint8], weakref.ref[npt.NDArray[np.uint8]]]"]()

    def take(self, size: int) -> memoryview:
        """So many bytes, with whatever is in them.  MemoryError when there are none."""
        free = next((one for one in self._pieces if len(one[0]) >= size and one[1]() is None), None)
        piece = np.empty(size + size // 8, np.uint8) if free is None else free[0]
        view = piece[:size]
        self._pieces = [(piece, weakref.ref(view)), *(one for one in self._pieces if one is not free)][:SPARE_PIECES]
        return view.data.cast("B")


def packed(told: Mapping[str, object], values: Mapping[str, object]) -> list[Any]:
    """The payload of a frame: plain values, and behind them those that are bytes."""
    plain = dict[str, object]()
    blobs = dict[str, memoryview]()
    for name, value in values.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            blobs[name] = memoryview(cast("bytes", value)).cast("B")
        else:
            plain[name] = value
    sizes = [(name, len(blob)) for name, blob in blobs.items()]
    return with_head({**told, "values": plain, "blobs": sizes}, *blobs.values())


def unpacked(payload: memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inverse: what was told beside the values, and these; bytes come as memoryviews."""
    told, behind = head_of(payload)
    values = cast("dict[str, Any]", told.pop("values"))
    for name, size in cast("list[tuple[str, int]]", told.pop("blobs")):
        values[name], behind = behind[:size], behind[size:]
    return told, values


@dataclass(frozen=True, slots=True)
class Request:
    """What a job may use."""

    disk: Disk
    listed: View | None
    gone: Callable[[], bool]  # nobody waits for the answer any more
    progress: Callable[[int, int], None]
    notes: dict[str, int] = field(default_factory=dict[str, int])  # what a read says of its rows, at their end
    most: int = MOST  # bytes of rows that wait for who reads them at a time

    @property
    def view(self) -> View:
        """The log as the server listed it.  InvalidArgument when it listed none."""
        if self.listed is None:
            raise InvalidArgument("this job needs a listing of the log, and the server sent none")
        return self.listed


JOBS: Mapping[str, str] = {
    "verify": "penstock.server.bulk.checks:verify",
    "audit": "penstock.server.bulk.checks:audit",
    "backup": "penstock.server.bulk.backup:run",
    "measured": "penstock.server.bulk.reads:measured",
    "rewrite": "penstock.log.rewrite:run",
    "index": "penstock.log.rewrite:index",
    "archive": "penstock.server.bulk.checks:run",
    "archive_merge": "penstock.server.bulk.checks:merge",
    "archive_check": "penstock.server.bulk.checks:check",
    "judge": "penstock.server.asking.judging:judge_there",
    "check": "penstock.server.asking.judging:check_there",
    "ping": "penstock.server.bulk.requests:ping",
}
"""Functions of what they name first, the disk or the request."""

READS: Mapping[str, str] = {
    "replay": "penstock.server.bulk.reads:replay",
    "records": "penstock.server.bulk.reads:records",
    "content": "penstock.server.bulk.reads:content",
    "plan": "penstock.server.bulk.reads:plan",
    "archived": "penstock.server.bulk.reads:archived",
    "sow": "penstock.server.bulk.reads:sow",
}
"""Functions of a request that give a schema and batches."""


def ping(disk: Disk) -> dict[str, object]:
    """That the child lives and sees the folder."""
    return {"files": len(disk.list("log"))}


def do(request: Request, name: str, values: Mapping[str, Any]) -> dict[str, object]:
    """The result of a job."""
    function = _found(JOBS, "job", name)
    given, takes = dict(values), inspect.signature(function).parameters
    if "progress" in takes:
        given["progress"] = request.progress
    result = function(request.disk if "disk" in takes else request, **given)
    return {} if result is None else dict(result)


def read(request: Request, name: str, values: Mapping[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and batches of a read."""
    schema, batches = _found(READS, "read", name)(request, **values)
    return schema, batches


def _found(known: Mapping[str, str], what: str, name: str) -> Callable[..., Any]:
    if (place := known.get(name)) is None:
        raise InvalidArgument(f"the bulk process knows no {what} {name!r}")
    function: Callable[..., Any] = resolve_name(place)
    return function
