"""What the server asks its bulk child, by name, and the frames between them: one stream socket a request.

    0   u32  bytes of the head: H
    4   u32  zero
    8   u64  bytes of the payload: P
    16       head, a JSON object; empty (H = 0) for a batch of a stream
    16+H     payload: Arrow bytes, or what the head says

The request is one frame.  Answers are {"taken"} when the work begins, any number of {"progress": [done, total]} and
of batches with an empty head, and last {"end": ...} or {"error": ...}.  Closing the socket cancels; a socket that ends
without a last frame means that the other process is gone.

A read gives Arrow batches, a job gives plain values.  A job is a function of a lower floor, named by its place and
loaded when first asked for:

* `disk`: `function(disk, **values)`; it sees the data folder and nothing else (merging, compaction);
* `log`:  `function(request, **values)`; the server lists the log with the request, and `request.view` reads it.

A function that has a parameter `progress` is given one, to be called with (done, in all); it raises when nobody waits
any more, and that is how a job is cancelled.  Values and results are what JSON holds, and bytes at the top level.
"""

from __future__ import annotations

import inspect
import select
import socket
import struct
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.history.view import View
    from penstock.ports import Disk


_PREFIX = struct.Struct("<IIQ")
HEAD_MAX = 64 << 20
PAYLOAD_MAX = 1 << 31
SMALL = 1 << 14
"""Larger pieces live in memory that is not cleared first."""
SPARE_PIECES = 4
POLL_MS = 50
"""How often a wait for the other side looks whether it is still wanted."""


class Ended(Exception):
    """The other side is gone."""


class TooLarge(Ended):
    """The other side announced a frame beyond the bound; nothing of it was taken."""


def send(sock: socket.socket, head: Mapping[str, object] | None, *payload: bytes | memoryview) -> None:
    """One frame.  Ended when nobody reads any more."""
    encoded = b"" if head is None else orjson.dumps(head)
    size = sum(len(piece) for piece in payload)
    try:
        sock.sendall(_PREFIX.pack(len(encoded), 0, size) + encoded)
        for piece in payload:
            sock.sendall(piece)
    except OSError as error:
        raise Ended from error


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


def receive(
    sock: socket.socket,
    wanted: Callable[[], bool] | None = None,
    spare: Spare | None = None,
    *,
    head_most: int = HEAD_MAX,
    most: int = PAYLOAD_MAX,
) -> tuple[dict[str, Any] | None, memoryview]:
    """One frame: its head, None when empty, and its payload, in memory of `spare` if that is given.

    `wanted` is asked while nothing comes; False gives up with Ended.  Ended too when the other side is gone, TooLarge
    for a head or a payload of more bytes than these.
    """
    if wanted is not None:
        _wait(sock, wanted)
    try:
        prefix = _exactly(sock, _PREFIX.size)
        head_size, _, size = _PREFIX.unpack(prefix)
        if head_size > head_most or size > most:
            raise TooLarge(f"a head of {head_size} bytes and {size} bytes behind it, of {head_most} and {most}")
        head = cast("dict[str, Any]", orjson.loads(_exactly(sock, head_size))) if head_size else None
        return head, _exactly(sock, size, spare)
    except OSError as error:
        raise Ended from error


def gone(sock: socket.socket) -> bool:
    """Whether the other side has closed."""
    poller = select.poll()
    poller.register(sock, 0)
    return bool(poller.poll(0))


def _wait(sock: socket.socket, wanted: Callable[[], bool]) -> None:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while not poller.poll(POLL_MS):
        if not wanted():
            raise Ended


def _exactly(sock: socket.socket, size: int, spare: Spare | None = None) -> memoryview:
    """So many bytes in one piece: the kernel gathers them, so that a thread asks for the interpreter once."""
    try:
        if size < SMALL:
            view = memoryview(bytearray(size))
        else:
            view = (spare or Spare()).take(size)
    except MemoryError:
        _drain(sock, size)  # so that the sender comes to its end and can be told
        raise
    got = 0
    while got < size:
        came = sock.recv_into(view[got:], 0, socket.MSG_WAITALL)
        if not came:
            raise Ended
        got += came
    return view


def _drain(sock: socket.socket, size: int) -> None:
    scratch = bytearray(SMALL)
    while size > 0 and (came := sock.recv_into(scratch, min(size, SMALL))):
        size -= came


def pack(values: Mapping[str, object]) -> tuple[dict[str, object], list[bytes | memoryview]]:
    """Plain values for a head, and those that are bytes apart, for the payload."""
    plain = dict[str, object]()
    pieces = list[bytes | memoryview]()
    blobs = list[tuple[str, int]]()
    for name, value in values.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            piece = memoryview(cast("bytes", value)).cast("B")
            pieces.append(piece)
            blobs.append((name, len(piece)))
        else:
            plain[name] = value
    return {"values": plain, "blobs": blobs}, pieces


def unpack(head: Mapping[str, Any], payload: memoryview) -> dict[str, Any]:
    """The inverse; bytes come as memoryviews."""
    values = dict(cast("dict[str, Any]", head["values"]))
    at = 0
    for name, size in cast("list[tuple[str, int]]", head["blobs"]):
        values[name] = payload[at : at + size]
        at += size
    return values


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
    takes: Literal["disk", "log"]  # the disk, or the request


JOBS: dict[str, Job] = {
    "verify": Job("penstock.server.bulk.checks:verify", "log"),
    "audit": Job("penstock.server.bulk.checks:audit", "log"),
    "backup": Job("penstock.server.bulk.backup:run", "log"),
    "measured": Job("penstock.server.bulk.reads:measured", "log"),
    "matching": Job("penstock.server.bulk.reads:matching", "log"),
    "rewrite": Job("penstock.log.rewrite:run", "disk"),
    "index": Job("penstock.log.rewrite:index", "disk"),
    "archive": Job("penstock.server.bulk.checks:run", "log"),
    "archive_merge": Job("penstock.server.bulk.checks:merge", "disk"),
    "archive_check": Job("penstock.server.bulk.checks:check", "log"),
    "judge": Job("penstock.server.asking.judging:judge_there", "disk"),
    "make": Job("penstock.server.asking.judging:make_there", "disk"),
    "check": Job("penstock.server.asking.judging:check_there", "disk"),
    "ping": Job("penstock.server.bulk.requests:ping", "disk"),
}

READS: dict[str, str] = {
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
