"""Room to write: zeros ahead of the log, a reserve for acks, and the word that the disk is full.

Overwriting zeros saves a third to a half of a sync, and blocks that were written once cannot run out.  So zeros are
kept `ahead` bytes ahead (in a thread where there is one), and `log/reserve` holds more room for the records that a full
disk must not stop.  When zeros cannot be written, or less is free than `low_space` and what the archive of the same
disk needs to go on, `full` is set and the core refuses publishes; what was accepted before uses the zeros, then the
reserve.  When space returns the reserve is filled first.
A write that failed for want of space may be tried again: unlike a failed sync it promised nothing.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager

from penstock.errors import DiskFull, Unavailable
from penstock.ports import Disk, File
from penstock.units import format_size

RESERVE = "log/reserve"
_STEP = 1 << 20
_SMALL_STEP = 1 << 18
_ZEROS = bytes(_SMALL_STEP)
_BULK = 1 << 18
"""Commits of this size pay for their own blocks: zeros below them would only write everything twice."""
NOT_LENT = 4
"""The part of the reserve that work which frees more leaves to the acks: one in so many."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
DISK_FAILS = _FULL | {errno.EIO, errno.EROFS}
"""What the system says of a disk that takes nothing: an operator wants to know which, and nothing of our code."""


def out_of_space(error: OSError) -> bool:
    """Whether waiting for space may help."""
    return error.errno in _FULL


@contextmanager
def told_of_disk(what: str) -> Generator[None]:
    """DiskFull, or Unavailable, where the disk takes nothing on which `what` stands."""
    try:
        yield
    except OSError as error:
        if out_of_space(error):
            raise DiskFull(f"{what} has no room: {error.strerror}") from error
        if error.errno in DISK_FAILS:
            raise Unavailable(f"{what} fails: {error.strerror}") from error
        raise


class Room:
    """Used by the writer.  Any thread may read `failure`, and `full`: publishes are refused, acks go on."""

    def __init__(self, disk: Disk, *, ahead: int, reserve: int, low_space: int) -> None:
        self.full = False
        self.failure: OSError | None = None  # of a write ahead: the log is broken by it as by its own
        self._disk = disk
        self._ahead = ahead
        self._reserve = reserve
        self._low_space = low_space
        self._archives: int | None = None  # bytes of what an archive of this disk takes next, where there is one
        self._apart = 0  # bytes that it leaves free meanwhile
        self._stuck = False  # its file may grow no more, whatever is free: the limit of the size of files
        self._held = 0  # bytes in the reserve file
        self._file: File | None = None
        self._zeroed = 0  # end of what was written at least once
        self._offset = 0
        self._bulk = False  # the last commit was a large one
        self._lock = threading.Lock()
        self._reserving = threading.Lock()  # whoever takes from the reserve or fills it
        self._wake: threading.Semaphore | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Take possession of the reserve file, filling it if space allows."""
        if self._reserve:
            self._fill_reserve()

    def attach(self, file: File, offset: int) -> None:
        """The log goes on in this file; all of it up to its size was written."""
        with self._lock:
            if self._archives is not None:
                self._archives = max(self._archives, self._offset)
            self._file, self._offset, self._zeroed = file, offset, file.size()
        self._want()

    def detach(self) -> None:
        """Nothing is added to that file any more."""
        with self._lock:
            self._file = None

    def claim(self, end: int) -> None:
        """The writer is about to write up to `end` itself."""
        if end > self._zeroed:
            with self._lock:
                self._zeroed = max(self._zeroed, end)

    def advance(self, offset: int) -> None:
        """The log has come to `offset`: write ahead if the zeros get short."""
        self._bulk = offset - self._offset >= _BULK
        self._offset = offset
        if self._zeroed < offset + self._ahead - min(_SMALL_STEP, self._ahead // 2):
            self._want()

    def give_reserve(self, error: OSError) -> bool:
        """Free the reserve for a write that found the disk full.  False when there is none left, or it is of no use."""
        self._note(error)
        if self._stuck:
            return False
        with self._reserving:
            if not self._held:
                return False
            self._held = 0
            self._disk.remove(RESERVE)
            return True

    def left(self) -> int:
        """Bytes that can still be written in all.  Any thread."""
        return max(0, self._zeroed - self._offset) + self._held + self._disk.free()

    def spare(self, size: int, apart: int) -> None:
        """Publishes leave so much that an archive of the same disk goes on: its files take room before the log's go.

        size: bytes of the log's file that it takes next, 0 if that is the one that is written to.  apart: bytes that it
        leaves free meanwhile
        """
        if self._low_space:
            self._archives, self._apart = size, apart

    @property
    def _spared(self) -> int:
        """Bytes for the archive: to take the next file, or the one that is written to if it were closed now."""
        return 0 if self._archives is None else max(self._archives, self._offset) + self._apart

    @property
    def _kept(self) -> int:
        """Bytes of the disk that publishes leave free."""
        return self._low_space + self._spared

    @property
    def least(self) -> int:
        """Bytes that are to be free for publishes: what they leave, and what the reserve lacks.  Any thread."""
        return self._kept + self._reserve - self._held

    def why_full(self) -> str:
        """What is free, and from where on publishes are taken again.  Any thread."""
        if self._stuck:
            limit = "the limit of the size of files (ulimit -f, LimitFSIZE=)"
            return (
                f"the log has no room: {limit} lets its file grow no more; publishes are taken again once it is raised"
            )
        free, wanted = self._disk.free(), self.least
        more = f", {format_size(wanted - free)} more" if wanted > free else ""
        spared = f"; of that the archive on it needs {format_size(self._spared)} to go on" if self._spared else ""
        return (
            f"the log has no room: the disk of server.data has {format_size(free)} free, and publishes are taken again "
            f"from {format_size(wanted)} on{more}{spared}"
        )

    def lacking(self) -> int:
        """Bytes to be freed so that the disk is not full, and not at once full again."""
        if not self._low_space:
            return 0
        return max(0, self._low_space + self.least - self._disk.free())

    def lend(self) -> int:
        """Free a part of the reserve; how many bytes.  It is filled again first when there is space.  OSError."""
        with self._reserving:
            rest = self._reserve // NOT_LENT
            if not self.full or self._stuck or self._held <= rest:
                return 0
            with closing(self._disk.open(RESERVE)) as file:
                file.truncate(rest)
            lent, self._held = self._held - rest, rest
            return lent

    def recheck(self) -> None:
        """Ask whether the disk is still full, or has become so."""
        if not self._low_space and not self.full:
            return
        if self._disk.free() < self.least:
            self.full = self.full or bool(self._low_space)
        elif self.full and self._grows() and self._fill_reserve():
            self.full = False
            self._want()

    def start_thread(self) -> None:
        """Write ahead in a thread from now on."""
        self._wake = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="penstock-log-ahead", daemon=True)
        self._thread.start()
        self._want()

    def stop(self) -> None:
        """End the thread; the zeros stay."""
        self.detach()
        if self._thread is not None and self._wake is not None:
            thread, self._thread = self._thread, None
            self._wake.release()
            thread.join()
            self._wake = None

    def _want(self) -> None:
        if self._wake is not None:
            self._wake.release()
        else:
            self._extend()

    def _run(self) -> None:
        wake = self._wake
        while wake is not None and self._thread is not None:
            wake.acquire()
            self._extend()

    def _extend(self) -> None:
        """Zeros up to `ahead` beyond the log, step by step, each synced so that no commit has to pay for many.

        While there are plenty the steps are small, one for each that the log took: a sync of the log waits for a sync
        of the zeros, and one of 256 KiB is not felt.
        """
        while self._ahead and not self.full and self.failure is None:
            if self._low_space and self._disk.free() < self._kept:
                self.full = True
            if self._bulk or self.full:
                return
            try:
                with self._lock:
                    file, start = self._file, self._zeroed
                    missing = self._offset + self._ahead - start
                    if file is None or missing <= 0:
                        return
                    step = min(_STEP if missing > self._ahead // 2 else _SMALL_STEP, missing)
                    file.pwrite(_ZEROS if step == _SMALL_STEP else bytes(step), start)
                    self._zeroed = start + step
                if self._thread is not None:
                    file.sync()
            except OSError as error:
                self._fail(error)
                return

    def _fail(self, error: OSError) -> None:
        if out_of_space(error):
            self._note(error)
        else:
            self.failure = error

    def _note(self, error: OSError) -> None:
        """There is no room."""
        self.full, self._stuck = True, self._stuck or error.errno == errno.EFBIG

    def _grows(self) -> bool:
        """Whether the log's file may grow, again if it could not."""
        try:
            with self._lock:
                if self._stuck and self._file is not None:
                    self._file.pwrite(_ZEROS, self._zeroed)
                    self._zeroed += len(_ZEROS)
                self._stuck = False
        except OSError as error:
            self._fail(error)
        return not self._stuck

    def _fill_reserve(self) -> bool:
        """Make the reserve whole.  False when there is no space for it."""
        with self._reserving:
            return self._filled()

    def _filled(self) -> bool:
        disk = self._disk
        if not self._reserve or self._held >= self._reserve:
            return True
        try:
            with closing(disk.open(RESERVE, create=RESERVE.rpartition("/")[2] not in disk.list("log"))) as file:
                at = min(file.size(), self._reserve)
                while at < self._reserve:
                    at = min(at + _STEP, self._reserve)
                    file.allocate(at)
                self._held = self._reserve
        except OSError as error:
            if not out_of_space(error):
                raise
            self._held = 1  # what there is of the file can still be given up
            self._note(error)
            return False
        return True
