"""What the pure floors ask of the world: clock, disk and randomness, as Protocols with little in them.

Real ones live in `log.disk`, `server.base.clock` and `server.scratch_pages`; simulated ones in `log.simdisk` and
`testing`.  A disk names files by short relative paths (`log/00000000000000000001.arrows`); it never sees a user's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from mmap import mmap
from typing import Protocol


class Clock(Protocol):
    """Two clocks in microseconds."""

    def wall(self) -> int:
        """Microseconds since the Unix epoch; may step."""
        ...

    def mono(self) -> int:
        """Microseconds on a clock that never goes back; its zero means nothing."""
        ...


class File(Protocol):
    """An open file, written at offsets.  Nothing written is safe before `sync` returns."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """All of `data` at `offset`, or OSError; the file grows as needed."""

    def pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """The pieces one after the other, as `pwrite` would write them joined."""

    def sync(self) -> None:
        """fdatasync: what was written survives a power cut.  OSError once means never trust it again."""

    def size(self) -> int:
        """How many bytes the file has."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""

    def allocate(self, size: int) -> None:
        """Have the space for `size` bytes, or OSError; the file, if it was shorter, is extended with zeros."""

    def give_back(self) -> None:
        """Nobody will read the file soon: what the system keeps of it in memory may go."""

    def close(self) -> None:
        """Give the descriptor back; does not sync."""


class Disk(Protocol):
    """A folder.  Names are relative, with at most one `/`."""

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> File:
        """Open; `create` makes a new empty file and fails if it exists."""
        ...

    def list(self, folder: str = "") -> list[str]:
        """Names of the files in a folder (not folders), sorted; an absent folder is empty."""
        ...

    def mkdir(self, folder: str) -> None:
        """Make a folder if it is absent, and sync its parent."""

    def rename(self, old: str, new: str) -> None:
        """Atomically replace `new`; call `sync_folder` to make it last."""

    def remove(self, name: str) -> None: ...

    def sync_folder(self, folder: str = "") -> None:
        """Make creations, renames and removals in the folder last."""

    def free(self) -> int:
        """Bytes that may still be written."""
        ...

    def lock(self) -> None:
        """Hold the folder until the process ends; DataFolderInUse when another holds it."""


class Backing(Protocol):
    """A file that holds state of this process alone, mapped for reading; it is never read by another process."""

    def extend(self, size: int) -> mmap:
        """A mapping of `size` more bytes at the end, for which the disk has the room now; OSError when it has not."""
        ...

    def write(self, data: memoryview, offset: int) -> None:
        """All of `data` at `offset` of the file: the mappings show it.  OSError leaves the place undefined."""

    def give_back(self) -> None:
        """Pages of the mappings may leave this process's memory; nothing is lost.  Any thread."""

    def close(self) -> None:
        """Remove the file; mappings stay good as long as somebody holds them."""


def replace_whole(disk: Disk, name: str, data: bytes, aside: str = "") -> None:
    """A file has this content, or after an OSError or a crash the one that it had.

    aside: the folder in which it is written first; its own if not given
    """
    folder, _, short = name.rpartition("/")
    folder, short = aside or folder, f"{short}.part"
    part = f"{folder}/{short}" if folder else short
    if short in disk.list(folder):
        disk.remove(part)
    with closing(disk.open(part, create=True)) as file:
        file.pwrite(data, 0)
        file.sync()
    disk.rename(part, name)
    disk.sync_folder(name.rpartition("/")[0])


SMALL = 4096
"""Bytes of a small file: what is longer is none that we wrote."""


def read_whole(disk: Disk, name: str, most: int | None = None) -> bytes:
    """All of a file, or its first bytes where it has more than `most`.  OSError."""
    with closing(disk.open(name, readonly=True)) as file:
        return file.pread(file.size() if most is None else min(file.size(), most), 0)
