"""`penstock` on a disk with a quota, and if asked with a leak: `python hosted.py serve ...`.

`SOAK_QUOTA` names a file that holds the most bytes the data folder may have; it is read again and again.  `SOAK_LEAK`
(`memory`, `descriptors`) plants a leak, so that the soak can prove that it notices one; `alone` has a leader confirm
what its own disk has, whatever the others have, which the soak of a cluster is to notice.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.main import main
from penstock.log.disk import EnclosedDisk, OsDisk, OsFile
from penstock.server import launching

if TYPE_CHECKING:
    from penstock.server.engine import Engine

LOOK_S = 0.05
MEMORY_LEAK, DESCRIPTOR_LEAK = 12_000_000, 2.0
"""Bytes and open descriptors that a second of turns leaves behind, however many turns a machine makes in it."""


class Quota:
    """How many bytes may be written still.  Thread-safe."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._folder, self._file = folder, file
        self._looked = 0.0
        self._left = 1 << 60
        self._lock = threading.Lock()

    def left(self) -> int:
        with self._lock:
            self._look(LOOK_S)
            return self._left

    def take(self, size: int) -> None:
        """About to write so many bytes.  OSError when there is no space for them."""
        with self._lock:
            self._look(LOOK_S)
            if self._left < size:
                self._look(0)  # what was freed a moment ago counts: the log gives up its reserve and writes again
            if self._left < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._left -= size

    def _look(self, since: float) -> None:
        """Measure, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked >= since:
            self._looked = now
            self._left = int(self._file.read_text() or 1 << 60) - sum(map(_blocks, self._folder.rglob("*")))


def _blocks(path: Path) -> int:
    """Bytes that a file takes; files come and go meanwhile."""
    try:
        return path.stat().st_blocks * 512 if path.is_file() else 0
    except FileNotFoundError:
        return 0


class QuotaFile(OsFile):
    """A file that may only grow within the quota."""

    __slots__ = ("quota",)

    quota: Quota

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.quota.take(max(0, offset + len(data) - self.size()))
        super().pwrite(data, offset)

    def pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        self.quota.take(max(0, offset + sum(map(len, pieces)) - self.size()))
        super().pwritev(pieces, offset)

    def allocate(self, size: int) -> None:
        self.quota.take(max(0, size - self.size()))
        super().allocate(size)


class QuotaDisk(OsDisk):
    """A data folder on a disk that has only so much room."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self.quota = Quota(self.folder, Path(os.environ["SOAK_QUOTA"]))

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> QuotaFile:
        plain = super().open(name, create=create, readonly=readonly)
        file = QuotaFile(plain._fd)
        plain._fd = -1
        file.quota = self.quota
        return file

    def free(self) -> int:
        return max(0, min(super().free(), self.quota.left()))


class QuotaArchive(EnclosedDisk):
    """An archive in that folder; what its files take counts once they are there."""

    def free(self) -> int:
        return max(0, min(super().free(), Quota(self.folder.parent, Path(os.environ["SOAK_QUOTA"])).left()))


def plant(leaks: str) -> None:
    """Leak in the turns of the engine, as much as time has passed since the one before."""
    from penstock.server.engine import Engine

    memory, descriptors, began = list[bytearray](), list[int](), time.monotonic()
    finish_turn = Engine.finish_turn

    def leaking(self: Engine) -> None:
        passed = time.monotonic() - began
        if "memory" in leaks and (size := int(MEMORY_LEAK * passed) - sum(map(len, memory))) >= 1 << 16:
            memory.append(bytearray(b"x" * size))
        while "descriptors" in leaks and len(descriptors) < DESCRIPTOR_LEAK * passed:
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
        finish_turn(self)

    Engine.finish_turn = leaking  # type: ignore[method-assign]


def confirm_alone() -> None:
    """A leader waits for no copy."""
    from penstock.server.cluster.leading import Cluster

    synced = Cluster._synced

    def at_once(self: Cluster, lsn: int) -> None:
        synced(self, lsn)
        if self._log is not None:
            self._log.committed(lsn)

    Cluster._synced = at_once  # type: ignore[method-assign]


def change_server(most: int, load_arrow: Callable[[int], None] = launching.with_bounded_pool) -> None:
    """Load Arrow as the server does, and only then what is changed here: it would load Arrow without a bound."""
    load_arrow(most)
    from penstock.server import app
    from penstock.server.upkeep import archive

    if "SOAK_QUOTA" in os.environ:
        app.OsDisk = QuotaDisk  # type: ignore[misc]
        archive.archive_disk = QuotaArchive
    leaks = os.environ.get("SOAK_LEAK", "")
    plant(leaks)
    if "alone" in leaks:
        confirm_alone()


if __name__ == "__main__":
    launching.with_bounded_pool = change_server
    main()
