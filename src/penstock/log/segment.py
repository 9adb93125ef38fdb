"""Segment files: their names, their first bytes, and what the first bytes promise.

`log/<first LSN, 20 digits>.arrows` is an Arrow IPC stream: a schema message, record batches, zeros that were written
ahead, and after it was closed a seal and an end-of-stream mark instead of the zeros.  The schema's metadata holds

    penstock.version     LOG_VERSION
    penstock.origin      the random number minted with the data folder
    penstock.first       the LSN in the name: no row of the file has a lower one
    penstock.previous    the last LSN of the segment before; 0 in the first segment of all
    penstock.generation  0; higher in a file that replaced others
    penstock.check       CRC-32C of the numbers, so that no flipped digit goes unseen

and in a file that `log.rewrite` wrote anew (version 2, generation 1 or higher) also

    penstock.last        the last LSN of the files that it replaced, whether that row was kept or not
    penstock.rows        rows in the file: a file with fewer was cut off
    penstock.floor       0 when it has all rows of those files, else a base with at least this floor stands for the rest
    penstock.codec       1: its batches are compressed (zstd), but for bases

So the chain holds over it: the next segment's `previous` is its `last`.  A file whose first LSN lies within the range
of a file before it was replaced by that one, and is passed over.  An ordinary segment says version 1, as ever, so that
an older Penstock goes on reading a log that nobody compacted.

All numbers have a fixed width, so a header always has HEADER_BYTES, or in version 2 HEADER_MOST.  A segment is created,
given its header and synced, then its folder synced, before a batch goes into it; only then is the one before closed.
So a last segment that is closed means that its successor is missing.

Closed segments are opened when somebody reads them, so that a long log does not use up the descriptors: the newest
reads decide which files stay open, of the rest only the name is kept.  A file is closed by letting it go: who is
reading in it at that moment holds it open until he is done.  Before a file is renamed or removed it is pinned: opened,
and kept open for as long as anybody has it, since its name will soon mean another file or none.
"""

from __future__ import annotations

import errno
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from crc32c import crc32c

from penstock.log.disk import exhausted
from penstock.log.frame import HEADER_LIMIT, START
from penstock.log.record_batches import schema_with
from penstock.ports import Disk, File
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
_HEADERS = 64
"""Of the files that were opened last: what they say is kept."""


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

    @property
    def identity(self) -> int:
        """0 of a file as it was first written; of one written anew its sum: each leader does that in its own way."""
        return int(self.check(), 16) if self.generation else 0

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
    return _read(message), len(message)


@lru_cache(_HEADERS)
def _read(message: bytes) -> SegmentHeader:
    """What a schema says.  A file is opened again and again: to be recovered, listed, sent, read."""
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
    return header


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

HEADER_MOST = len(SegmentHeader(1, 1, 0, version=REWRITTEN).encode())
"""The same of a file that was rewritten, as a follower gets it.  A file that is no longer than this, and no segment, is
what a power cut can leave of a new one: a batch is longer than what is between the two."""


_OPEN_FILES = 64
"""Closed segments whose files stay open."""


class ShelvedFile:
    """A file that is only read.  Thread-safe."""

    __slots__ = ("_shelf", "file", "name")

    def __init__(self, shelf: Shelf, name: str) -> None:
        self._shelf = shelf
        self.name = name
        self.file: File | None = None

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        return self._shelf.opened(self).pread(size, offset)

    def size(self) -> int:
        return self._shelf.opened(self).size()

    def give_back(self) -> None:
        """Nobody will read it soon."""
        self._shelf.opened(self).give_back()

    def pin(self) -> None:
        """Keep the file open from now on, whatever becomes of its name.  OSError when it cannot be opened."""
        self._shelf.pin(self)

    def close(self) -> None:
        """Let the file go; a later read would open it again."""
        self._shelf.let_go(self)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._refuse()

    def pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def truncate(self, size: int) -> None:
        self._refuse()

    def allocate(self, size: int) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise OSError(errno.EBADF, "a closed segment is not written", self.name)


class Shelf:
    """The files of one log's closed segments."""

    def __init__(self, disk: Disk, limit: int = _OPEN_FILES) -> None:
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._open = OrderedDict[ShelvedFile, File]()  # the longest unread first

    def put(self, name: str, file: File | None = None) -> ShelvedFile:
        """A file of the shelf; `file` is it, open already."""
        shelved = ShelvedFile(self, name)
        if file is not None:
            with self._lock:
                self._keep(shelved, file)
        return shelved

    def opened(self, shelved: ShelvedFile) -> File:
        """The open file.  OSError when it cannot be opened."""
        with self._lock:
            file = shelved.file
            if file is not None:
                if shelved in self._open:
                    self._open.move_to_end(shelved)
                return file
            file = self._open_anew(shelved.name)
            self._keep(shelved, file)
            return file

    def pin(self, shelved: ShelvedFile) -> None:
        self.opened(shelved)
        with self._lock:
            if shelved.file is None:  # it was let go between the two
                shelved.file = self._open_anew(shelved.name)
            self._open.pop(shelved, None)

    def let_go(self, shelved: ShelvedFile) -> None:
        with self._lock:
            self._open.pop(shelved, None)
            shelved.file = None

    def _open_anew(self, name: str) -> File:
        """Where no descriptor is left, with that of the file that was longest unread."""
        while True:
            try:
                return self._disk.open(name, readonly=True)
            except OSError as error:
                if not exhausted(error) or not self._open:
                    raise
                self._close_longest()

    def _keep(self, shelved: ShelvedFile, file: File) -> None:
        shelved.file = self._open[shelved] = file
        while len(self._open) > self._limit:
            self._close_longest()

    def _close_longest(self) -> None:
        longest, _ = self._open.popitem(last=False)
        longest.file = None


def unpin(file: File) -> None:
    """It keeps its name after all."""
    if isinstance(file, ShelvedFile):
        file.close()


def pin(file: File) -> None:
    """Before a file loses its name: whoever reads it goes on with what is open.  OSError when it cannot be opened."""
    if isinstance(file, ShelvedFile):
        file.pin()
