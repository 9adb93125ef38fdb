"""Arrays in files instead of on the heap: the arenas of one server, and the pace at which state goes to them.

A file is mapped, and the system keeps in memory what there is room for.  A block is written once, through the file, and
read through the mapping: a full disk is an error of that write and never a signal, and what cannot be written stays
where it was.  A block lives as long as anybody holds a view of it or of a part; then its pages are used again.  The
file grows by extents, not into the room that the log needs, and never shrinks.  Its content means nothing to another
process: the log is the truth.

Once a second what is old goes there, so many arrays a step with pauses between, so that a step holds the loop for a few
milliseconds.  Now and then the pages of the files leave this process's memory; the system keeps them as long as it has
nothing better to keep.  A file that cannot grow is told once, and tried again at each look.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import weakref
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.server.base.faults import Chore

if TYPE_CHECKING:
    from penstock.ports import Backing
    from penstock.server.base.runtime import Off
    from penstock.server.engine import Engine


class Spans:
    """Which spans of a file are free: the smallest that fits is cut, and what is given back joins its free neighbours.

    Numbers are pages.  It knows no file.
    """

    __slots__ = ("_by_end", "_by_size", "_by_start", "_edges", "free")

    def __init__(self) -> None:
        self._by_start: dict[int, int] = {}  # start -> pages
        self._by_end: dict[int, int] = {}  # stop -> start
        self._by_size: list[tuple[int, int]] = []  # (pages, start), ascending
        self._edges: set[int] = set()  # no span reaches over these
        self.free = 0

    def add(self, start: int, pages: int) -> None:
        """New room, which is never joined with what lies before or behind it."""
        self._edges.update((start, start + pages))
        self.give(start, pages)

    def take(self, pages: int) -> int | None:
        """The start of so many pages; None when no free span has as many."""
        at = bisect_left(self._by_size, (pages, 0))
        if at == len(self._by_size):
            return None
        size, start = self._by_size[at]
        self._remove(start, size)
        if size > pages:
            self._insert(start + pages, size - pages)
        return start

    def give(self, start: int, pages: int) -> None:
        """These pages are free for others again."""
        stop = start + pages
        if stop not in self._edges and (behind := self._by_start.get(stop)) is not None:
            self._remove(stop, behind)
            stop += behind
        if start not in self._edges and (before := self._by_end.get(start)) is not None:
            self._remove(before, start - before)
            start = before
        self._insert(start, stop - start)

    def _insert(self, start: int, pages: int) -> None:
        self._by_start[start] = pages
        self._by_end[start + pages] = start
        insort(self._by_size, (pages, start))
        self.free += pages

    def _remove(self, start: int, pages: int) -> None:
        del self._by_start[start], self._by_end[start + pages]
        del self._by_size[bisect_left(self._by_size, (pages, start))]
        self.free -= pages


Bytes: TypeAlias = npt.NDArray[np.uint8]

PAGE = 4096

EXTENT = 4 << 20
"""Bytes of the first extent; the file is never smaller."""

EXTENT_MOST = 64 << 20
"""A file grows by an eighth, but by no more than this at once."""


class _Block(weakref.ref[Bytes]):
    """What is known of a block when the last view of it is gone."""

    __slots__ = ("pages", "start")

    start: int
    pages: int


class Arena:
    """One file.  `keep` belongs to one thread; views may be dropped by any."""

    def __init__(self, backing: Backing, *, least: int = PAGE, extent: int = EXTENT) -> None:
        """least: bytes; smaller arrays stay where they are."""
        self.least = least
        self.used = 0  # bytes of living blocks, whole pages
        self.size = 0  # bytes of the file
        self.refused = 0  # times that it could not grow
        self.reason: str | None = None  # why it could not, when it was last tried
        self._backing = backing
        self._extent = extent
        self._extents: list[tuple[int, Bytes]] = []  # first byte, and the mapping
        self._spans = Spans()
        self._blocks: dict[int, _Block] = {}  # by first page
        self._gone: deque[_Block] = deque()  # their pages are free as soon as `keep` comes by

    def keep(self, values: array[int] | memoryview[int] | bytes | bytearray) -> memoryview[int] | None:
        """A copy that lies in the file, read only, with the same items; None: there is no room, `reason` says why."""
        self._collect()
        source = memoryview(values)
        pages = -(-source.nbytes // PAGE)
        start = self._spans.take(pages)
        if start is None and (not self._grow(pages) or (start := self._spans.take(pages)) is None):
            return None
        place = start * PAGE
        try:
            self._backing.write(source.cast("B"), place)
        except OSError as error:
            self._spans.give(start, pages)
            self._refuse(error)
            return None
        first, mapping = next(one for one in reversed(self._extents) if one[0] <= place)
        own = mapping[place - first : place - first + source.nbytes]
        block = _Block(own, self._gone.append)
        block.start, block.pages = start, pages
        self._blocks[start] = block
        self.used += pages * PAGE
        view = memoryview(cast("bytearray", own))  # numpy's arrays are buffers, which its types do not say
        return view.cast(cast("Literal['B', 'q', 'Q']", source.format))

    def block(self, view: memoryview[int]) -> int:
        """Bytes of the block that a view from `keep`, or a part of one, keeps from being used again."""
        return cast("Bytes", view.obj).nbytes

    def retry(self) -> None:
        """What could not grow may be tried again."""
        self.reason = None

    def tidy(self) -> None:
        """Pages of the mapping leave this process's memory; the system keeps them while there is room.  Any thread."""
        self._backing.give_back()

    def close(self) -> None:
        """The file goes; views stay good as long as they are held."""
        self._backing.close()

    def _collect(self) -> None:
        while self._gone:
            block = self._gone.popleft()
            del self._blocks[block.start]
            self._spans.give(block.start, block.pages)
            self.used -= block.pages * PAGE

    def _grow(self, pages: int) -> bool:
        if self.reason is not None:
            return False
        step = self._extent * max(1, min(self.size // 8, EXTENT_MOST) // self._extent)
        step = max(step, -(-pages * PAGE // self._extent) * self._extent)
        try:
            mapping = np.frombuffer(self._backing.extend(step), dtype=np.uint8)
        except OSError as error:
            self._refuse(error)
            return False
        mapping.flags.writeable = False
        self._extents.append((self.size, mapping))
        self._spans.add(self.size // PAGE, step // PAGE)
        self.size += step
        return True

    def _refuse(self, error: OSError) -> None:
        self.refused += 1
        self.reason = error.strerror or str(error)


logger = logging.getLogger("penstock.server")

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
        at = 0
        while at < len(data):
            at += os.pwrite(self._fd, data[at:], HEAD + offset + at)

    def give_back(self) -> None:
        for mapping in tuple(self._mappings):
            mapping.madvise(MADV_DONTNEED)

    def close(self) -> None:
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


FOLDER = "paged"
SHARED = "state"
"""The file in the data folder that all share who name none."""

STEP = 64
"""Arrays that go to a file in one step: some 4 MiB, and a millisecond or two."""

PAUSE_S = 0.01
"""Between two steps."""

TIDY_BEATS = 5
"""Pages leave this process's memory once in so many seconds."""

Make = Callable[[Path], "Backing"]


class Scratch:
    """Arenas by the file that a queue names; "" is the one in the data folder."""

    def __init__(self, data: Path, make: Make = ScratchFile) -> None:
        self._data = data
        self._make = make
        self._told = set[str]()  # files that cannot grow
        self.arenas: dict[str, Arena] = {}

    def clear(self) -> None:
        """Remove what an earlier process left in the data folder, which this one holds.  Other files there stay."""
        path = self._path("")
        try:
            remove_left(path, marked=False)
        except OSError as error:
            logger.warning("%s stays where it is, and state stays in memory: %s", path, error.strerror)

    def _path(self, name: str) -> Path:
        return Path(name) if name else self._data / FOLDER / SHARED

    def __call__(self, name: str) -> Arena:
        """The arena of a file; the file is there when something lies in it."""
        arena = self.arenas.get(name)
        if arena is None:
            arena = self.arenas[name] = Arena(self._make(self._path(name)))
        return arena

    def look(self) -> None:
        """A look at the state begins: what could not grow is tried again, and told if it is news."""
        for name, arena in self.arenas.items():
            if arena.reason is None:
                self._told.discard(name)
            elif name not in self._told:
                self._told.add(name)
                logger.warning("state stays in memory: %s cannot grow: %s", self._path(name), arena.reason)
            arena.retry()

    @property
    def used(self) -> int:
        """Bytes of state in files."""
        return sum(arena.used for arena in self.arenas.values())

    @property
    def size(self) -> int:
        """Bytes that the files have on the disk."""
        return sum(arena.size for arena in self.arenas.values())

    @property
    def refused(self) -> int:
        """Times that a file could not grow."""
        return sum(arena.refused for arena in self.arenas.values())

    def tidy(self) -> None:
        """Pages leave this process's memory.  Any thread."""
        for arena in tuple(self.arenas.values()):
            arena.tidy()

    def close(self) -> None:
        for arena in self.arenas.values():
            arena.close()


class Pager:
    """The pace.  For the loop's thread."""

    def __init__(
        self, engine: Engine, scratch: Scratch, off: Off, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """later: run something after so many seconds.  off: where pages are given back."""
        self._scratch = scratch
        self._engine = engine
        self._off = off
        self._later = later
        self._going_on = False
        self._ended = False
        self._beats = 0
        self._stepping = Chore(engine.faults, engine.clock, self._step)
        self._tidying = Chore(engine.faults, engine.clock, self._tidy)

    def beat(self) -> None:
        """Once a second: let what is old go to the files, some arrays a step."""
        if not self._going_on:
            self._scratch.look()
            self._stepping.run()
        self._beats += 1
        if self._beats >= TIDY_BEATS and self._scratch.used and not self._tidying.busy:
            self._beats = 0
            self._tidying.run()

    def _step(self) -> None:
        self._going_on = False
        self._going_on = not self._ended and self._engine.core.page(self._scratch, STEP)
        if self._going_on:
            self._later(PAUSE_S, self._stepping.run)

    def _tidy(self) -> None:
        self._tidying.hand_over(self._off, self._scratch.tidy)

    def end(self) -> None:
        """Nothing goes there any more, and the files go."""
        self._ended = True
        self._scratch.close()
