"""The border to pyarrow: its loosely typed columns become typed values here, and nowhere else in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.log.frame import FrameReader, NotAFrame, header_of
from penstock.ports import File
from penstock.records.compute import compute
from penstock.records.compute import one_value as holds_one_value
from penstock.records.schema import COLUMNS

BATCH_COST = 8 << 10
"""Bytes of memory that a decoded batch takes beside its values: what Arrow and pyarrow make for each column of it."""

JOIN_AT_ONCE = 64

HOLDS_MOST = 2 << 20
"""Bytes of large batches that parts of them hold at once."""

_AT = {name: COLUMNS.get_field_index(name) for name in COLUMNS.names}


def column(batch: pa.RecordBatch, name: str, dtype: str) -> npt.NDArray[Any]:
    """A fixed-width column of a batch with all of `COLUMNS`, without a copy and without looking at its nulls."""
    array = cast("Any", batch.column(_AT[name]))
    data: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)
    return data[array.offset : array.offset + len(array)]


def cells(batch: pa.RecordBatch, name: str) -> list[Any]:
    """A column as Python values: `to_pylist` on a slice, the quickest way there is."""
    return cast("list[Any]", cast("Any", batch.column(_AT[name])).to_pylist())


def lengths(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """Bytes of each value of a text or binary column."""
    array = cast("Any", batch.column(_AT[name]))
    ends: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], "<i4")[array.offset : array.offset + len(array) + 1]
    return np.diff(ends).astype(np.int64)


def span(batch: pa.RecordBatch, name: str) -> int:
    """Bytes of all values of a text or binary column together."""
    array = cast("Any", batch.column(_AT[name]))
    ends: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], "<i4")
    return int(ends[array.offset + len(array)]) - int(ends[array.offset])


def one_value(batch: pa.RecordBatch, name: str) -> bool:
    """Whether all values of a text or binary column are the same."""
    return holds_one_value(cast("Any", batch.column(_AT[name])))


def nulls(batch: pa.RecordBatch, name: str) -> int:
    """How many values of a column are null."""
    return batch.column(_AT[name]).null_count


def micros(batch: pa.RecordBatch, name: str) -> list[int]:
    """A column of times as microseconds, 0 for null."""
    return cast("list[int]", cast("Any", batch.column(_AT[name])).cast(pa.int64()).fill_null(0).to_pylist())


def take(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Some rows of a batch."""
    return cast("pa.RecordBatch", compute.take(batch, pa.array(cast("Any", rows))))


_SCHEMA = COLUMNS.serialize().to_pybytes()


def rows_of(message: bytes | memoryview, *, compressed: bool) -> pa.RecordBatch:
    """The batch of one message of the log; one that is not compressed stays where it is.

    compressed: it may be.  What it becomes is then taken from this process's pool, not from Arrow's own, which clients
    can fill (`server.base.loading`); only a stream's reader asks for that one.
    """
    if not compressed:
        return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(message)), COLUMNS)
    [batch] = pa.ipc.open_stream(pa.py_buffer(b"".join((_SCHEMA, message))))
    return batch


def make_batch(rows: Sequence[Sequence[object]]) -> pa.RecordBatch:
    """A batch from rows of Python values, one for each of `COLUMNS`, None for null."""
    types = cast("list[Any]", COLUMNS.types)
    arrays: list[Any] = [pa.array(cast("Any", [row[at] for row in rows]), kind) for at, kind in enumerate(types)]
    return cast("pa.RecordBatch", cast("Any", pa.RecordBatch).from_arrays(arrays, schema=COLUMNS))


def message_with(batch: pa.RecordBatch, metadata: dict[str, str], codec: Literal["zstd"] | None = None) -> bytearray:
    """A batch as pyarrow writes it into a stream, with custom metadata, without the schema before it.

    `codec`: "zstd" for compressed buffers.
    """
    sink = pa.BufferOutputStream()
    options = None if codec is None else pa.ipc.IpcWriteOptions(compression=pa.Codec(codec, compression_level=1))
    writer = cast("Any", pa.ipc.new_stream(sink, COLUMNS, options=options))
    writer.write_batch(batch, custom_metadata=metadata)
    end = sink.tell()
    writer.close()
    return bytearray(memoryview(sink.getvalue())[COLUMNS.serialize().size : end])


def schema_with(metadata: dict[str, str]) -> bytes:
    """The schema message of `COLUMNS` with metadata."""
    return cast("bytes", cast("Any", COLUMNS).with_metadata(metadata).serialize().to_pybytes())


def cells_where(table: pa.Table, kind: int, names: Iterable[str]) -> list[list[Any]]:
    """Columns of the rows that are of one kind; empty lists when there are none."""
    mask = compute.equal(table.column("kind"), pa.scalar(kind, pa.int8()))
    if not compute.any(mask).as_py():
        return [[] for _ in names]
    found = table.filter(mask)
    return [cast("Any", found.column(name)).to_pylist() for name in names]


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else cast("pa.RecordBatch", cast("Any", pa).concat_batches(batches))


class Joining:
    """Batches that will be one.  Small ones are joined as they come: a thousand of one row each would take 8 MiB.

    So are small parts of large ones, each of which holds the whole: 30 messages of a MiB each would.
    """

    __slots__ = ("_fresh", "_groups", "_holds")

    def __init__(self) -> None:
        self._groups = list[pa.RecordBatch]()
        self._fresh = list[pa.RecordBatch]()
        self._holds = 0

    def append(self, batch: pa.RecordBatch, holds: int = 0) -> None:
        """The next one.  holds: bytes of the batch that it is a part of; 0 when it is whole."""
        self._fresh.append(batch)
        self._holds += holds
        if len(self._fresh) == JOIN_AT_ONCE or self._holds > HOLDS_MOST:
            if len(self._fresh) == 1:
                self._fresh.append(batch.slice(0, 0))  # else it would not be copied
            self._groups.append(joined(self._fresh))
            self._fresh, self._holds = [], 0

    def __bool__(self) -> bool:
        return bool(self._groups or self._fresh)

    def whole(self) -> pa.RecordBatch:
        """All of them, of which there is at least one."""
        return joined([*self._groups, *self._fresh])


def chosen(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows of a batch that a mask names."""
    return cast("pa.RecordBatch", compute.filter(batch, pa.array(cast("Any", mask))))


LEAST = 256 << 10
"""Bytes of a batch below which two reads of a part of it are not quicker than one of all."""

HEAD = 4096
"""Bytes that are read first, with the header in them."""


class Outliner:
    """Batches without the bytes of their bodies: what counting and weighing needs, for a third of the reading.

    `body` is the last column of a batch, and its values are the last buffer of it.  All before that is read; the place
    of the values is memory that nobody has written, so the lengths of bodies are right and their bytes mean nothing.

    The CRC covers the bodies, so it is not checked here.  What an outline says may decide where a reader stops, never
    what it gets: who reads the rows checks them and finds what is damaged.  What could lead astray (a header, the order
    of LSNs, the places of names) is looked at, and where it is wrong the batch is read whole, which names the damage.
    Outlines of one reader are all in the same memory: each is good until the next is made.
    """

    def __init__(self, frames: FrameReader) -> None:
        self._frames = frames
        self._memory = pa.allocate_buffer(0)

    def outline(self, file: File, offset: int, length: int, first: int) -> pa.RecordBatch | None:
        """All of the batch at `offset` but what its bodies hold; first: the LSN that it begins with.

        None: it has to be read whole.  OSError when the disk fails.
        """
        if length < LEAST:
            return None
        head = file.pread(HEAD, offset)
        try:
            frame = self._frames.header(header_of(head), offset)
        except NotAFrame:
            return None
        end = frame.header + frame.buffers[-2]
        if frame.compressed or frame.length != length or frame.lsn != first or not HEAD <= end <= length // 4 * 3:
            return None
        rest = file.pread(end - HEAD, offset + HEAD)
        if len(rest) < end - HEAD:
            return None
        if self._memory.size < length:
            self._memory = pa.allocate_buffer(length)
        data: Any = np.frombuffer(memoryview(self._memory), np.uint8)
        data[:HEAD] = np.frombuffer(head, np.uint8)
        data[HEAD:end] = np.frombuffer(rest, np.uint8)
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(self._memory.slice(0, length)), COLUMNS)
            cast("Any", batch.column("name")).validate(full=True)
        except (pa.ArrowInvalid, OSError):
            return None
        lsns = column(batch, "lsn", "<i8")
        if int(lsns[0]) != first or not (lsns[1:] > lsns[:-1]).all():
            return None
        return batch
