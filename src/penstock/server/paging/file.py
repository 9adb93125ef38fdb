"""A scratch file: made anew by each process that needs it, removed at its end, read by nobody else.

A file that a crash left behind is replaced; it is known by its first bytes, in the data folder by its name alone.  Any
other file in its place is left alone: then there is no room.  The room of an extent is taken from the disk before it is
used, so that a full disk is an error here and never one of an access.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path

MARK = b"penstock: state of a running server, of no use without it\n"

HEAD = 4096
"""Bytes before the first extent."""

SPARED = 1 << 30
"""Bytes of the disk that are left to the log and to others: the file does not grow into them."""


class ScratchFile:
    """One file, there from the first extent on."""

    def __init__(self, path: Path, spared: int = SPARED) -> None:
        """path: of a file that is this one's alone; its folder is made if it is absent."""
        self.path = path
        self._spared = spared
        self._fd = -1
        self._size = 0  # bytes of the extents
        self._mappings: list[mmap] = []

    def extend(self, size: int) -> mmap:
        """`ports.Backing`."""
        if self._fd < 0:
            self._fd = make_anew(self.path)
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail * disk.f_frsize < size + self._spared:
            raise OSError(errno.ENOSPC, f"less than {(size + self._spared) >> 20} MiB of the disk are free")
        start = HEAD + self._size
        os.posix_fallocate(self._fd, start, size)
        mapping = mmap(self._fd, size, access=ACCESS_READ, offset=start)
        self._mappings.append(mapping)
        self._size += size
        return mapping

    def write(self, data: memoryview, offset: int) -> None:
        """`ports.Backing`."""
        at = 0
        while at < len(data):
            at += os.pwrite(self._fd, data[at:], HEAD + offset + at)

    def give_back(self) -> None:
        """`ports.Backing`."""
        for mapping in tuple(self._mappings):
            mapping.madvise(MADV_DONTNEED)

    def close(self) -> None:
        """`ports.Backing`."""
        if self._fd >= 0:
            with suppress(OSError):  # somebody removed it, or its folder cannot be written any more: it is scratch
                self.path.unlink()
            os.close(self._fd)
            self._fd = -1


def make_anew(path: Path) -> int:
    """A new file at `path`, held by this process, in place of one that another left; its descriptor.

    OSError where one is that is not ours, or that a living process holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(fd, MARK, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def remove_left(path: Path, *, marked: bool = True) -> None:
    """Remove what a process that is gone left there; OSError for anything else.

    marked: only a file that begins as ours do; else any file, for the place is ours.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or (marked and os.pread(fd, len(MARK), 0) != MARK):
            raise OSError(errno.EEXIST, f"{path} is there, and no scratch file of this server")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(errno.EBUSY, f"{path} is in use by another server") from error
        path.unlink()
    finally:
        os.close(fd)
