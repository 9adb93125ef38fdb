"""What makes a backup complete: `backup.json`, written last, with every file, its size and its sum.

    {"format": 1, "origin", "first", "last", "rows", "time", "server", "version",
     "files": [{"name", "bytes", "crc32c"}], "check": CRC-32C of all the rest as sorted JSON}

A folder without it is no backup, whatever else is in it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import orjson
from crc32c import crc32c

from penstock.errors import InvalidArgument, LogDamaged
from penstock.ports import Disk, File

NAME = "backup.json"
FORMAT = 1
BLOCK = 4 << 20


class Kept(NamedTuple):
    """A file of a backup."""

    name: str
    bytes: int
    crc32c: int


class Manifest(NamedTuple):
    """What a backup says of itself."""

    origin: int
    first: int  # no row has a lower LSN
    last: int  # LSN of the last row
    rows: int
    time: int  # microseconds since the epoch, when it was complete
    server: str
    version: str
    files: list[Kept]

    def encode(self) -> bytes:
        """The bytes of `backup.json`."""
        said = {**self._asdict(), "format": FORMAT, "files": [one._asdict() for one in self.files]}
        return orjson.dumps({**said, "check": _sum(said)}, option=orjson.OPT_INDENT_2)


def _sum(said: dict[str, Any]) -> int:
    return crc32c(orjson.dumps(said, option=orjson.OPT_SORT_KEYS))


def read(disk: Disk) -> Manifest:
    """The manifest of a backup folder.

    InvalidArgument when there is none, or of a newer format; LogDamaged when it is not what was written.
    """
    try:
        file = disk.open(NAME, readonly=True)
    except FileNotFoundError:
        raise InvalidArgument(
            f"{disk!r} holds no complete backup: {NAME} is written last, and it is not there"
        ) from None
    with closing(file):
        data = file.pread(file.size(), 0)
    try:
        said = cast("dict[str, Any]", orjson.loads(data))
        check = said.pop("check")
        format_ = said["format"]
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError):
        raise LogDamaged(f"{NAME} is not what was written") from None
    if check != _sum(said):
        raise LogDamaged(f"{NAME} is not what was written")
    if format_ != FORMAT:
        raise InvalidArgument(f"the backup has format {format_}, and this Penstock reads {FORMAT}")
    del said["format"]
    files = [Kept(**one) for one in said.pop("files")]
    return Manifest(files=files, **said)


@contextmanager
def closing(file: File) -> Generator[File]:
    """Close it at the end."""
    try:
        yield file
    finally:
        file.close()


def blocks(file: File, size: int) -> Iterator[bytes]:
    """The first `size` bytes, or as many as there are."""
    at = 0
    while at < size and (block := file.pread(min(BLOCK, size - at), at)):
        yield block
        at += len(block)


def write_whole(disk: Disk, name: str, data: bytes) -> None:
    """A file that is there with its whole content, synced, or not at all."""
    fresh = f"{name}.part"
    with closing(disk.open(fresh, create=True)) as file:
        file.pwrite(data, 0)
        file.sync()
    disk.rename(fresh, name)
    disk.sync_folder()
