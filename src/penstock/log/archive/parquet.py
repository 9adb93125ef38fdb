"""Files of pyarrow's through the `Disk` port: what it writes to and reads from.

What a Parquet file of an archive says of itself in its foot, so that a lost manifest can be made anew.

Key `penstock` of the Parquet metadata, JSON: `origin` of the log, `path` in the archive, `vias`, and `claims`: for each
stretch of LSNs that was archived in one go, of one day, [first, end, rows].  All files of a stretch say the same, and
together they have so many rows: what is missing is noticed, and no gap between LSNs is taken for a loss.
"""

# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import LogDamaged
from penstock.records.schema import COLUMNS

if TYPE_CHECKING:
    from penstock.ports import File


GROUP = pa.field("batch", pa.int64())
"""The first LSN of the record batch of the log that the row was in: what was written as one is there as one."""

SCHEMA = pa.schema([*COLUMNS, GROUP, pa.field("vhost", pa.string()), pa.field("exchange", pa.string())])
"""Columns of an archive's files: those of the log, and what `via` stands for, for who reads the files by themselves."""

READ = pa.schema([*COLUMNS, GROUP])
"""What is read of them."""

LOG_COLUMNS = COLUMNS.names
BLOCK = 4 << 20
_REPEATING = ["name", "vhost", "exchange", "properties"]


class Sink(io.RawIOBase):
    """A file that grows."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self.file = file
        self.size = 0
        self.sum = 0  # CRC-32C
        self._lost = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:  # a buffer of any kind
        view = memoryview(data).cast("B")
        if self._lost:
            return len(view)
        self.file.pwrite(view, self.size)
        self.sum = crc32c(view, self.sum)
        self.size += len(view)
        return len(view)

    def abandon(self, made: Any) -> None:
        """After a failure: the writer ends, and nothing more reaches the file."""
        self._lost = True
        with contextlib.suppress(pa.ArrowException, OSError, ValueError):
            made.close()


class Source(io.RawIOBase):
    """A file that is there."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file = file
        self._at = 0
        self._size = file.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        count = self._size - self._at if size is None or size < 0 else size
        data = self._file.pread(max(count, 0), self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def foot_sum(file: File, size: int) -> int:
    """CRC-32C of a Parquet file's foot, which tells where everything is: 0 for one that cannot be one."""
    if size < 12:
        return 0
    length = int.from_bytes(file.pread(8, size - 8)[:4], "little") + 8
    return crc32c(file.pread(length, size - length)) if length <= size else 0


def file_sum(file: File, size: int | None = None) -> int:
    """CRC-32C of a file, or of its first bytes, so many."""
    at = total = 0
    while block := file.pread(BLOCK if size is None else min(BLOCK, size - at), at):
        total = crc32c(block, total)
        at += len(block)
    return total


def writer(sink: Sink, compression: str) -> Any:  # pyarrow's ParquetWriter, whose stubs are partial
    """A Parquet writer of archive rows; each page has a sum."""
    import pyarrow.parquet as parquet

    made: Any = parquet
    return made.ParquetWriter(
        sink, SCHEMA, compression=compression, use_dictionary=_REPEATING, write_page_checksum=True,
        write_statistics=["lsn", "time", "kind", "name"], version="2.6",
    )  # fmt: skip


def reader(source: Source) -> Any:  # pyarrow's ParquetFile
    """A Parquet reader that compares sums.  pa.ArrowException, OSError."""
    import pyarrow.parquet as parquet

    made: Any = parquet
    return made.ParquetFile(source, page_checksum_verification=True)


KEY = "penstock"


class Claim(NamedTuple):
    """LSNs [first, end) were archived in one go, and are of one day."""

    first: int
    end: int
    rows: int  # with such LSNs, in all files


class Footer(NamedTuple):
    """What a file says."""

    origin: int
    path: str
    claims: tuple[Claim, ...]
    vias: dict[str, list[str]]


def put_into(made: Any, told: Footer) -> None:
    """Into the foot of a file that is not closed yet.  `made`: pyarrow's ParquetWriter."""
    said = {**told._asdict(), "claims": [list(claim) for claim in told.claims]}
    made.add_key_value_metadata({KEY: orjson.dumps(said).decode()})


def told_in(metadata: Any, path: str) -> Footer:
    """What a file says.  `metadata`: pyarrow's FileMetaData.  LogDamaged where it says nothing of the kind."""
    found: dict[bytes, bytes] = metadata.metadata or {}
    try:
        said = cast("dict[str, Any]", orjson.loads(found[KEY.encode()]))
        return Footer(said["origin"], said["path"], tuple(Claim(*one) for one in said["claims"]), said["vias"])
    except (ValueError, KeyError, TypeError):
        raise LogDamaged(f"the archive's file {path} does not say what it has rows of") from None


def told_together(parts: Sequence[Footer]) -> Footer:
    """What the file says that has the rows of all of these."""
    claims = sorted({claim for part in parts for claim in part.claims})
    vias = {key: pair for part in parts for key, pair in part.vias.items()}
    return Footer(parts[0].origin, "", tuple(claims), vias)


def pair_texts(vias: Mapping[int, tuple[str, str]]) -> dict[str, list[str]]:
    """As JSON has them."""
    return {str(key): list(pair) for key, pair in vias.items()}
