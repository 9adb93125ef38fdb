"""Closed segments' files, opened when somebody reads them, so that a long log does not use up the descriptors.

The newest reads decide which files stay open; of the rest only the name is kept.  A file is closed by letting it go:
who is reading in it at that moment holds it open until he is done.  Before a file is renamed or removed it is pinned:
opened, and kept open for as long as anybody has it, since its name will soon mean another file or none.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NoReturn

from penstock.log.disk import exhausted
from penstock.ports import Disk, File

OPEN_FILES = 64
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
        """Bytes in the file."""
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
        """Refused."""
        self._refuse()

    def pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Refused."""
        self._refuse()

    def sync(self) -> None:
        """Refused."""
        self._refuse()

    def truncate(self, size: int) -> None:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise OSError(errno.EBADF, "a closed segment is not written", self.name)


class Shelf:
    """The files of one log's closed segments."""

    def __init__(self, disk: Disk, limit: int = OPEN_FILES) -> None:
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
        """See `ShelvedFile.pin`."""
        self.opened(shelved)
        with self._lock:
            if shelved.file is None:  # it was let go between the two
                shelved.file = self._open_anew(shelved.name)
            self._open.pop(shelved, None)

    def let_go(self, shelved: ShelvedFile) -> None:
        """See `ShelvedFile.close`."""
        with self._lock:
            self._open.pop(shelved, None)
            shelved.file = None

    @property
    def open_files(self) -> int:
        """How many are open and not pinned."""
        return len(self._open)

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
