"""Segment files: their names, their first bytes, and what the first bytes promise.

`log/<first LSN, 20 digits>.arrows` is an Arrow IPC stream: a schema message, record batches, zeros that were written
ahead, and after it was closed a seal and an end-of-stream mark instead of the zeros.  The schema's metadata holds

    penstock.version     LOG_VERSION
    penstock.origin      the random number minted with the data folder
    penstock.first       the LSN in the name: no row of the file has a lower one
    penstock.previous    the last LSN of the segment before; 0 in the first segment of all
    penstock.generation  0; higher in a file that replaced others
    penstock.check       CRC-32C of the numbers, so that no flipped digit goes unseen

and in a file that `log.rewriting` wrote anew (version 2, generation 1 or higher) also

    penstock.last        the last LSN of the files that it replaced, whether that row was kept or not
    penstock.rows        rows in the file: a file with fewer was cut off
    penstock.floor       0 when it has all rows of those files, else a base with at least this floor stands for the rest
    penstock.codec       1: its batches are compressed (zstd), but for bases

So the chain holds over it: the next segment's `previous` is its `last`.  A file whose first LSN lies within the range
of a file before it was replaced by that one, and is passed over.  An ordinary segment says version 1, as ever, so that
an older Penstock goes on reading a log that nobody compacted.

All numbers have a fixed width, so a header always has HEADER_BYTES.  A segment is created, given its header and synced,
then its folder synced, before a batch goes into it; only then is the one before closed.  So a last segment that is
closed means that its successor is missing.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from penstock.log.frame import HEADER_LIMIT, START
from penstock.log.record_batches import schema_with
from penstock.ports import File
from penstock.records.dataclass import dataclass
from penstock.records.schema import COLUMNS, LOG_VERSION

FOLDER = "log"
REWRITTEN = 2
"""Version of the header of a file that replaced others."""
_PLAIN_NUMBERS = ("version", "origin", "first", "previous", "generation")
_MORE_NUMBERS = ("last", "rows", "floor", "codec")
_WIDTHS = {"version": 5, "generation": 5, "codec": 5}
_NAME = re.compile(r"([0-9]{20})\.arrows\Z")
_UNFINISHED = re.compile(r"[0-9]{20}\.rewrite\Z")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the schema message of a segment says."""

    origin: int
    first: int
    previous: int
    generation: int = 0
    version: int = LOG_VERSION
    last: int = 0  # of the files it replaced; 0 in an ordinary segment
    rows: int = 0
    floor: int = 0
    codec: int = 0

    def encode(self) -> bytes:
        """The schema message, a multiple of 8 bytes long."""
        said = {f"penstock.{name}": f"{value:0{_WIDTHS.get(name, 20)}d}" for name, value in self._numbers().items()}
        return schema_with({**said, "penstock.check": self.check()})

    def check(self) -> str:
        """The sum over the numbers."""
        return f"{crc32c(repr(tuple(self._numbers().values())).encode()):08x}"

    def _numbers(self) -> dict[str, int]:
        names = _PLAIN_NUMBERS if self.version < REWRITTEN else _PLAIN_NUMBERS + _MORE_NUMBERS
        return {name: getattr(self, name) for name in names}


class NotASegment(ValueError):
    """The file does not start as a segment does; the text says in what it differs."""


def segment_name(first: int) -> str:
    """`log/...arrows` of the segment with this first LSN."""
    return f"{FOLDER}/{first:020d}.arrows"


def rewrite_name(first: int) -> str:
    """`log/...rewrite`, the name of a file that will replace the segment once it is whole."""
    return f"{FOLDER}/{first:020d}.rewrite"


def is_rewrite(name: str) -> bool:
    """Whether a name (without its folder) is one of `rewrite_name`."""
    return _UNFINISHED.match(name) is not None


def first_lsn(name: str) -> int | None:
    """The LSN in a file name (without its folder), or None for names that are not ours."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


def read_header(file: File) -> tuple[SegmentHeader, int]:
    """The header and the bytes it takes.  NotASegment when there is none, or one of another format."""
    prefix = file.pread(8, 0)
    return _header_of(prefix + file.pread(_size_after(prefix), 8))


def header_in(start: bytes | bytearray) -> tuple[SegmentHeader, int] | None:
    """As `read_header`, of a file's first bytes; None: there are too few of them yet."""
    if len(start) < 8 or len(start) < 8 + _size_after(bytes(start[:8])):
        return None
    return _header_of(bytes(start))


def _size_after(prefix: bytes) -> int:
    """How long the schema is that follows these eight bytes."""
    size = struct.unpack_from("<i", prefix, 4)[0] if prefix[:4] == START and len(prefix) >= 8 else 0
    if not 8 <= size <= HEADER_LIMIT:
        raise NotASegment("it does not start with an Arrow schema")
    return int(size)


def _header_of(start: bytes) -> tuple[SegmentHeader, int]:
    message = start[: 8 + _size_after(start)]
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NotASegment("its Arrow schema cannot be read") from error
    metadata = {key.decode("utf-8", "replace"): value for key, value in (schema.metadata or {}).items()}
    header = _said(metadata)
    if metadata.get("penstock.check") != header.check().encode():
        raise NotASegment("its first bytes are not what was written")
    if not schema.equals(COLUMNS, check_metadata=False):
        raise NotASegment("its columns are not those of a Penstock log")
    return header, len(message)


def folder_origin(folder: Path) -> int | None:
    """The origin of a data folder's log, read without its lock; None where there is no log that says so."""
    for path in sorted((folder / FOLDER).glob("*.arrows")):
        if first_lsn(path.name) is not None:
            try:
                with path.open("rb") as file:
                    return _header_of(file.read(8 + HEADER_LIMIT))[0].origin
            except (OSError, NotASegment):
                return None
    return None


def _said(metadata: dict[str, bytes]) -> SegmentHeader:
    try:
        numbers = {name: int(metadata[f"penstock.{name}"]) for name in _PLAIN_NUMBERS}
        if numbers["version"] == REWRITTEN:
            numbers |= {name: int(metadata[f"penstock.{name}"]) for name in _MORE_NUMBERS}
    except (KeyError, ValueError):
        raise NotASegment("its schema lacks Penstock's metadata") from None
    if numbers["version"] > REWRITTEN:
        newer = f"log version {numbers['version']}, this one reads {REWRITTEN}"
        raise NotASegment(f"it was written by a newer Penstock ({newer})")
    return SegmentHeader(**numbers)


HEADER_BYTES = len(SegmentHeader(1, 1, 0).encode())
"""A file that is no longer than this, and no segment, is what a power cut can leave of a new one."""
