"""The real disk: a data folder on a POSIX file system, behind the `Disk` and `File` ports.

It owns descriptors, the folder lock and the order "sync the file, then its folder".  It knows nothing of segments,
records or recovery, and it never repeats a write or a sync that failed: what to do then is the caller's policy.

Descriptors of the process are kept for the log, so that no socket gets them, whoever opens it:

    0 ........ the rest of the process ........ soft limit .... kept .... hard limit
               sockets, pipes, files                            the log, where it finds no other

The system itself counts: the soft limit stays below the hard one, so that what accepts connections, gRPC's threads
too, is refused there; what the log opens is tried again under the hard limit when it was refused.  Others may come in
between for some microseconds, which costs one of `KEPT` and not the log.

The reserve is one for a process, since the limit is the process's.  Any thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from penstock.errors import DataFolderInUse
from penstock.log.room import out_of_space

KEPT = 64
KEPT_PART = 4
"""As many, and not more than this part of all."""

MOST = 1 << 20
"""The limit is not raised beyond this: some programs walk through all of them."""

T = TypeVar("T")

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system says when it gives no descriptor, the process's or its own: later it may."""

_lock = threading.RLock()  # what is lent may be asked for while something is opened
_kept = 0


def keep_back() -> tuple[int, int]:
    """Raise the soft limit to the hard one but for what is kept: the new one, and how many are kept.

    At the start of a server's process; children inherit the soft limit and may raise theirs.
    """
    global _kept
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with _lock:
        soft, _kept = to_be(soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft, _kept


def to_be(soft: int, hard: int) -> tuple[int, int]:
    """What `keep_back` makes of limits: the soft one, and how many are kept."""
    most = max(soft, MOST) if hard == resource.RLIM_INFINITY else min(hard, max(soft, MOST))
    kept = min(KEPT, most // KEPT_PART)
    return most - kept, kept


def lent(work: Callable[[], T]) -> T:
    """What `work` gives, which opens a few files for the log; with those that are kept, when no others are free."""
    try:
        return work()
    except OSError as error:
        if not exhausted(error) or not _kept:
            raise
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = soft + _kept if hard == resource.RLIM_INFINITY else min(soft + _kept, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            return work()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def exhausted(error: OSError) -> bool:
    """Whether an open failed for want of descriptors."""
    return error.errno in EXHAUSTED


LOCK_NAME = "lock"
"""The file in the data folder that is locked; it stays when the server stops, since removing it would race."""

LOG_FOLDER = "log"
"""Where segments are."""

_MOST_PIECES = 1024
"""IOV_MAX of Linux: what one call may be given."""


P = ParamSpec("P")


def _named(method: Callable[Concatenate[OsFile, P], T]) -> Callable[Concatenate[OsFile, P], T]:
    """What the system says against it is told with the name of the file, as it is where one is opened."""

    @wraps(method)
    def call(file: OsFile, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(file, *args, **kwargs)
        except OSError as error:
            error.filename = error.filename or file.name
            raise

    return call


class OsFile:
    """An open file.  Thread-safe: every call names its offset."""

    __slots__ = ("_fd", "name")

    def __init__(self, fd: int, name: str | None = None) -> None:
        self._fd = fd
        self.name = name

    @_named
    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    @_named
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """All of `data` at `offset`, or OSError.  A short write goes on where it stopped, until the system says why."""
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._fd, view[written:], offset + written)

    @_named
    def pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """The pieces one after the other, or OSError.  Goes on after a short write as `pwrite` does."""
        for start in range(0, len(pieces), _MOST_PIECES):
            some = pieces[start : start + _MOST_PIECES]
            written, size = os.pwritev(self._fd, some, offset), sum(map(len, some))
            if written < size:
                self.pwrite(memoryview(b"".join(some))[written:], offset + written)
            offset += size

    def fileno(self) -> int:
        """The descriptor, for who asks the system for more than this class does."""
        return self._fd

    @_named
    def sync(self) -> None:
        """fdatasync."""
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    @_named
    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""
        os.ftruncate(self._fd, size)

    @_named
    def allocate(self, size: int) -> None:
        """The blocks are the file's; nothing is written where the file system can give them so."""
        os.posix_fallocate(self._fd, 0, size)

    def give_back(self) -> None:
        """Let the kernel drop the file's clean pages.  A hint: what it makes of it is its own business."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Give the descriptor back; twice does no harm."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        """A retired segment is closed when the last reader lets it go, so that no descriptor is reused under one."""
        self.close()


class OsDisk:
    """A data folder.  Made, with its parents, if it is absent."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock_fd = -1
        self._log_fd = -1  # of the log's folder, once it was synced

    def __repr__(self) -> str:
        return f"OsDisk({str(self.folder)!r})"

    def _at(self, name: str) -> Path:
        """Where a file or folder is."""
        return self.folder / name

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> OsFile:
        """Open a file for reading and writing; `create` makes a new empty one and fails if it exists."""
        flags = os.O_CLOEXEC | (os.O_RDONLY if readonly else os.O_RDWR)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        path = str(self._at(name))
        return OsFile(lent(lambda: os.open(path, flags, 0o640)), path)

    def list(self, folder: str = "") -> list[str]:
        """Names of the files in a folder, sorted; an absent folder is empty."""
        try:
            with lent(lambda: os.scandir(self._at(folder))) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    def mkdir(self, folder: str) -> None:
        """Make a folder if it is absent, and sync its parent."""
        path = self._at(folder)
        if not path.is_dir():
            path.mkdir()
            self.sync_folder()

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new))

    def remove(self, name: str) -> None:
        os.unlink(self._at(name))

    def sync_folder(self, folder: str = "") -> None:
        """Make creations, renames and removals in the folder last.

        The log's own stays open: a new segment that cannot be synced for want of a descriptor could not be removed for
        certain either.
        """
        if folder == LOG_FOLDER:
            os.fsync(self._log_folder())
            return
        fd = self._opened(folder)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _opened(self, folder: str) -> int:
        return lent(lambda: os.open(self._at(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _log_folder(self) -> int:
        if self._log_fd >= 0:
            there, ours = os.stat(self.folder / LOG_FOLDER), os.fstat(self._log_fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return self._log_fd
            os.close(self._log_fd)
            self._log_fd = -1
        self._log_fd = self._opened(LOG_FOLDER)
        return self._log_fd

    def __del__(self) -> None:
        """A disk that nobody has any more keeps no folder open."""
        if getattr(self, "_log_fd", -1) >= 0:
            os.close(self._log_fd)

    def free(self) -> int:
        """Bytes that this user may still write: on the disk of a folder that is held, wherever its name leads now."""
        status = os.statvfs(self.folder) if self._lock_fd < 0 else os.fstatvfs(self._lock_fd)
        return status.f_bavail * status.f_frsize

    def shares_with(self, other: OsDisk) -> bool:
        """Whether what one writes the other has no room for: both stand on one file system."""
        return self.folder.stat().st_dev == other.folder.stat().st_dev

    def lock(self) -> None:
        """Hold the folder until `unlock` or the end of the process; DataFolderInUse when another holds it."""
        fd = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            who = f" (process {holder})" if holder else ""
            raise DataFolderInUse(f"the data folder {self.folder} is in use by another server{who}") from None
        self._lock_fd = fd
        told = b"%d\n" % os.getpid()
        try:
            os.pwrite(fd, told, 0)  # over what is there: that takes no room
            os.ftruncate(fd, len(told))
        except OSError as error:
            if not out_of_space(error):
                raise
            # the lock holds all the same: who meets it is told of no process, or of an earlier one

    def unlock(self) -> None:
        """Let another process have the folder."""
        if self._lock_fd >= 0:
            fd, self._lock_fd = self._lock_fd, -1
            os.close(fd)


class EnclosedDisk(OsDisk):
    """A folder whose content others may have made: what a link leads out of it to is neither read, written nor removed.

    OSError (ELOOP) for such a path, and for one that is there and no file, as a pipe that nobody writes to.
    """

    def _at(self, name: str) -> Path:
        path = super()._at(name)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise OSError(errno.ELOOP, f"a link leads out of the folder {self.folder}", name)
        return path

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> OsFile:
        path = self._at(name)
        if path.exists() and not path.is_file():
            raise OSError(errno.ELOOP, "it is no file", name)
        return super().open(name, create=create, readonly=readonly)
