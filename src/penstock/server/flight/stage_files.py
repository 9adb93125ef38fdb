"""The file of a stage: rows of a sink's task as an Arrow stream, with a foot that proves them whole.

    Arrow IPC stream     its schema's metadata says which query, batch, partition and attempt it is of
    8 bytes              b"PENSTAGE"
    u64                  rows
    u32                  CRC-32C of everything before the foot

Integers are little-endian.  Arrow's readers stop before the foot.  A file is written and read a piece at a time, a
piece being a record batch of a few MiB or a single row, so that no stage has to fit into memory.  What the rows mean,
and which stages there are, is known elsewhere.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from types import UnionType
from typing import get_type_hints

import orjson
import pyarrow as pa

from penstock.errors import DiskFull, LogDamaged
from penstock.log.archive.parquet import Sink, Source, file_sum
from penstock.ports import Disk, File
from penstock.records.compute import cut
from penstock.records.dataclass import dataclass

FOLDER = "stage"
PIECE = 2 << 20
"""Bytes of a piece, about, unless a row alone is larger."""

_KEY = b"penstock.stage"
_FOOT = struct.Struct("<8sQI")
_MAGIC = b"PENSTAGE"


@dataclass(frozen=True, slots=True)
class StageInfo:
    """What a stage is of, and when it was written (microseconds since the epoch)."""

    query: str
    batch: int
    partition: int
    attempt: int
    topic: str | None
    exchange: str
    vhost: str
    delta: bool = False
    ordered: bool = False
    mandatory: bool = False
    uniform: bool = False  # all rows go to `topic`: none can name another
    user: str = ""  # who wrote it; empty: before this was kept
    time: int = 0
    rows: int = 0
    bytes: int = 0  # of the file
    crc: int = 0  # CRC-32C of the file without its foot


_KINDS: Mapping[str, type | UnionType] = get_type_hints(StageInfo)
"""Of what kind each value is; a file of somebody else's may say anything."""


def path_of(stem: str) -> str:
    """The file of a stage."""
    return f"{FOLDER}/{stem}.arrows"


class StageWriter:
    """One stage while it is written, under the name it is given; `finish` or `abandon` ends it.

    Each step raises DiskFull when the file cannot be written.
    """

    def __init__(self, disk: Disk, path: str, schema: pa.Schema, info: StageInfo) -> None:
        """info: all that is known before the rows."""
        self._disk = disk
        self._path = path
        self._info = info
        self._rows = 0
        with _told():
            self._sink = Sink(disk.open(path, create=True))
        told = {key: value for key, value in asdict(info).items() if key not in ("rows", "bytes", "crc")}
        self._schema = schema.remove_metadata().with_metadata({_KEY: orjson.dumps(told)})
        with _told():
            self._stream = pa.ipc.new_stream(self._sink, self._schema)

    @property
    def bytes(self) -> int:
        return self._sink.size

    def add(self, batch: pa.RecordBatch) -> None:
        with _told():
            for piece in cut(batch.replace_schema_metadata(self._schema.metadata), PIECE):
                self._stream.write_batch(piece)
        self._rows += batch.num_rows

    def finish(self, name: str) -> StageInfo:
        """Sync it and give it its name; it is safe then."""
        sink = self._sink
        with _told():
            self._stream.close()
            crc = sink.sum
            sink.write(_FOOT.pack(_MAGIC, self._rows, crc))
            sink.file.sync()
            sink.file.close()
            self._disk.rename(self._path, name)
            self._disk.sync_folder(FOLDER)
        return replace(self._info, rows=self._rows, bytes=sink.size, crc=crc)

    def abandon(self) -> None:
        self._sink.file.close()
        discard(self._disk, self._path)


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFull(f"the stage could not be written: {error.strerror or error}") from error


def discard(disk: Disk, path: str) -> None:
    """Remove a file; it may be gone already."""
    try:
        disk.remove(path)
    except OSError:
        pass  # it was never there; the next start looks again


def info_of(disk: Disk, path: str) -> StageInfo | None:
    """What a file says it is; None when it is no whole stage.  Its rows are not looked at: see `check`."""
    try:
        with closing(disk.open(path, readonly=True)) as file:
            size = file.size()
            magic, rows, crc = _FOOT.unpack(file.pread(_FOOT.size, size - _FOOT.size) if size > _FOOT.size else b"")
            if magic != _MAGIC:
                return None
            said = orjson.loads((pa.ipc.open_stream(Source(file)).schema.metadata or {})[_KEY])
            info = replace(StageInfo(**said), rows=rows, bytes=size, crc=crc)
            return info if all(isinstance(getattr(info, name), kind) for name, kind in _KINDS.items()) else None
    except (OSError, struct.error, pa.ArrowException, KeyError, TypeError, orjson.JSONDecodeError):
        return None


def check(disk: Disk, stem: str, size: int, crc: int) -> None:
    """LogDamaged unless the file is there and is what was written."""
    path = path_of(stem)
    with _opened(disk, path) as file:
        if file.size() != size:
            raise LogDamaged(f"{path} has {file.size()} bytes of {size}")
        if file_sum(file, size - _FOOT.size) != crc:
            raise LogDamaged(f"{path} is not what was written: its sum differs")


@contextmanager
def _opened(disk: Disk, path: str) -> Generator[File]:
    """A stage to read.  LogDamaged when it is not there."""
    try:
        file = disk.open(path, readonly=True)
    except FileNotFoundError:
        raise LogDamaged(f"{path} is missing") from None
    try:
        yield file
    finally:
        file.close()


def rows_of(disk: Disk, stem: str, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """The rows of a stage after the first `skip`, in pieces.  LogDamaged when it is no Arrow stream."""
    path = path_of(stem)
    with _opened(disk, path) as file:
        try:
            for batch in pa.ipc.open_stream(Source(file)):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                yield from cut(batch.slice(skip), PIECE)
                skip = 0
        except (pa.ArrowException, OSError) as error:
            raise LogDamaged(f"{path} is not what was written: {error}") from error
