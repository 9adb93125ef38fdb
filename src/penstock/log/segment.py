"""Segment files: their names, their first bytes, and what the first bytes promise.

`log/<first LSN, 20 digits>.arrows` is an Arrow IPC stream: a schema message, record batches, zeros that were written
ahead, and after it was closed a seal and an end-of-stream mark instead of the zeros.  The schema's metadata holds

    penstock.version     LOG_VERSION
    penstock.origin      the random number minted with the data folder
    penstock.first       the LSN in the name: no row of the file has a lower one
    penstock.previous    the last LSN of the segment before; 0 in the first segment of all
    penstock.generation  0; higher in a file that replaced others
    penstock.check       CRC-32C of the five, so that no flipped digit goes unseen

All numbers have a fixed width, so a header always has HEADER_BYTES.  A segment is created, given its header and synced,
then its folder synced, before a batch goes into it; only then is the one before closed.  So a last segment that is
closed means that its successor is missing.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from penstock.log.arrow import schema_with
from penstock.log.frame import HEADER_LIMIT, START
from penstock.ports import File
from penstock.records.schema import COLUMNS, LOG_VERSION

FOLDER = "log"
_NAME = re.compile(r"([0-9]{20})\.arrows\Z")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the schema message of a segment says."""

    origin: int
    first: int
    previous: int
    generation: int = 0
    version: int = LOG_VERSION

    def encode(self) -> bytes:
        """The schema message, a multiple of 8 bytes long."""
        return schema_with(
            {
                "penstock.version": f"{self.version:05d}",
                "penstock.origin": f"{self.origin:020d}",
                "penstock.first": f"{self.first:020d}",
                "penstock.previous": f"{self.previous:020d}",
                "penstock.generation": f"{self.generation:05d}",
                "penstock.check": self.check(),
            }
        )

    def check(self) -> str:
        """The sum over the numbers."""
        numbers = (self.version, self.origin, self.first, self.previous, self.generation)
        return f"{crc32c(repr(numbers).encode()):08x}"


class NotASegment(ValueError):
    """The file does not start as a segment does; the text says in what it differs."""


def segment_name(first: int) -> str:
    """`log/...arrows` of the segment with this first LSN."""
    return f"{FOLDER}/{first:020d}.arrows"


def first_lsn(name: str) -> int | None:
    """The LSN in a file name (without its folder), or None for names that are not ours."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


def read_header(file: File) -> tuple[SegmentHeader, int]:
    """The header and the bytes it takes.  NotASegment when there is none, or one of another format."""
    prefix = file.pread(8, 0)
    if len(prefix) < 8 or prefix[:4] != START:
        raise NotASegment("it does not start with an Arrow schema")
    size = struct.unpack_from("<i", prefix, 4)[0]
    if not 8 <= size <= HEADER_LIMIT:
        raise NotASegment("it does not start with an Arrow schema")
    message = file.pread(8 + size, 0)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NotASegment("its Arrow schema cannot be read") from error
    metadata = {key.decode("utf-8", "replace"): value for key, value in (schema.metadata or {}).items()}
    try:
        version, origin, first, previous, generation = (
            int(metadata[f"penstock.{key}"]) for key in ("version", "origin", "first", "previous", "generation")
        )
    except (KeyError, ValueError):
        raise NotASegment("its schema lacks Penstock's metadata") from None
    if version > LOG_VERSION:
        raise NotASegment(f"it was written by a newer Penstock (log version {version}, this one reads {LOG_VERSION})")
    header = SegmentHeader(origin, first, previous, generation, version)
    if metadata.get("penstock.check") != header.check().encode():
        raise NotASegment("its first bytes are not what was written")
    if not schema.equals(COLUMNS, check_metadata=False):
        raise NotASegment("its columns are not those of a Penstock log")
    return header, len(message)


HEADER_BYTES = len(SegmentHeader(1, 1, 0).encode())
"""A file that is no longer than this, and no segment, is what a power cut can leave of a new one."""
