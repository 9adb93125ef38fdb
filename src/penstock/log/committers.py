"""Who does the commits of a server: a thread, or the loop itself where the kernel syncs beside it.

A thread beside a loop that is always busy waits for the interpreter, some eight times a commit; so the loop naps for
it (`server.base.rounds`).  Where there is a `KernelSync` the loop writes what is short and has the kernel sync it: that
needs no other thread, and no nap, and the loop hears of its end as it hears of a socket.  What is long, begins another
file, or finds no syncer is the thread's.

The kernel syncs by Linux AIO: an fdatasync whose end an eventfd tells, one at a time.  The calls are of the kernel's
ABI (io_setup(2), io_submit(2), io_getevents(2)), which no library of Python has.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import field
from typing import Protocol, Self

from penstock.log.disk import OsFile
from penstock.log.writer import Appender, Commit
from penstock.ports import File
from penstock.records.dataclass import dataclass


class Committer(Protocol):
    """Does one commit at a time; who gave it is told on the loop when it has ended."""

    def post(self, commit: Commit) -> bool:
        """Take a commit; whether a thread does it, which needs the interpreter for it.  The one before must be done."""
        ...

    def wait(self, commit: Commit) -> None:
        """Return when the posted commit has ended.  Once for each, and then nobody need be told."""

    def stop(self) -> None:
        """No more commits: the last has ended."""


class Readers(Protocol):
    """Of an event loop: who is called when something can be read."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        """Call back, each time, on the loop."""

    def remove_reader(self, fd: int, /) -> object: ...


class CommitThread:
    """Runs commits one after the other beside the loop."""

    def __init__(self, appender: Appender, finished: Callable[[Commit], None]) -> None:
        """`finished` is called in the thread, after each commit."""
        self._appender = appender
        self._finished = finished
        self._next: Commit | None = None
        self._ending = False
        self._wake = threading.Lock()  # a plain lock hands over in a third of a semaphore's time
        self._wake.acquire()
        self._thread = threading.Thread(target=self._run, name="penstock-log-writer", daemon=True)
        self._thread.start()

    def post(self, commit: Commit) -> bool:
        """Hand over a commit, to be written and synced."""
        commit.done = threading.Lock()
        commit.done.acquire()
        self._next = commit
        self._wake.release()
        return True

    def wait(self, commit: Commit) -> None:
        """The thread has finished it."""
        if commit.done is not None:
            commit.done.acquire()  # taken for good: nobody else waits for it

    def stop(self) -> None:
        """End the thread after the commit it is in, or was given and has not begun."""
        self._ending = True
        if self._wake.locked():  # else it was woken for a commit, and ends after that
            self._wake.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            commit, self._next = self._next, None
            if commit is None:
                return
            self._appender.run(commit)
            if commit.done is not None:
                commit.done.release()
            self._finished(commit)
            if self._ending and self._next is None:
                return


@dataclass(eq=False)
class CommitHere:
    """Writes short commits where it is called, on the loop, and has them synced; the others are the thread's."""

    _appender: Appender
    _syncer: KernelSync
    _readers: Readers
    _thread: CommitThread
    _finished: Callable[[Commit], None]  # called on the loop, after each commit that is not the thread's
    _call_soon: Callable[[Callable[[], object]], object]
    _syncing: Commit | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._readers.add_reader(self._syncer.fileno(), self._synced)

    def post(self, commit: Commit) -> bool:
        """Write a short one; hand over any other."""
        appender = self._appender
        if not appender.is_short(commit):
            return self._thread.post(commit)
        appender.write(commit)
        if commit.sync and commit.error is None:
            try:
                self._syncer.begin(appender.segment.file)
            except OSError:  # the kernel takes no more of such requests now
                appender.sync(commit)
            else:
                self._syncing = commit
                return False
        self._call_soon(lambda: self._finished(commit))
        return False

    def wait(self, commit: Commit) -> None:
        """What the kernel has is waited for."""
        if self._syncing is commit:
            self._take()
        else:
            self._thread.wait(commit)

    def stop(self) -> None:
        """The thread ends, and the kernel has nothing more to tell."""
        self._thread.stop()
        self._readers.remove_reader(self._syncer.fileno())
        self._syncer.close()

    def _synced(self) -> None:
        if self._syncing is None:
            self._syncer.hush()  # somebody has waited for it
        else:
            self._finished(self._take())

    def _take(self) -> Commit:
        commit, self._syncing = self._syncing, None
        assert commit is not None
        try:
            self._syncer.end()
        except OSError as error:
            commit.error = error
        return commit


_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit."""

_FDSYNC = 3  # IOCB_CMD_FDSYNC, since Linux 4.18
_TELL = 1  # IOCB_FLAG_RESFD: the eventfd is told


class _Request(ctypes.Structure):
    """`struct iocb`, on a machine of little end first."""

    _fields_ = (
        ("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_uint32), ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16), ("file", ctypes.c_uint32), ("buffer", ctypes.c_uint64), ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64), ("unused", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("tell", ctypes.c_uint32),
    )  # fmt: skip


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64), ("request", ctypes.c_uint64), ("result", ctypes.c_int64), ("more", ctypes.c_int64),
    )  # fmt: skip


class KernelSync:
    """A syncer of files of this system.  Belongs to one thread."""

    def __init__(self) -> None:
        """OSError where the kernel does not let us; KeyError on a machine whose calls have other numbers."""
        setup, self._destroy, self._events, self._submit = _CALLS[platform.machine()]
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        self._check(self._call(setup, ctypes.c_long(1), ctypes.byref(self._context)))
        self._one = ctypes.c_long(1)
        self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request = _Request(opcode=_FDSYNC, flags=_TELL, tell=self._told)
        self._requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._event = _Event()

    @classmethod
    def of_this_system(cls) -> Self | None:
        """One that has proved to work; None where there is none: another system, an old kernel, a sandbox."""
        if sys.platform != "linux" or sys.byteorder != "little" or platform.machine() not in _CALLS:
            return None
        try:
            made = cls()
        except OSError:
            return None
        with closing(OsFile(os.memfd_create("penstock-sync-probe", os.MFD_CLOEXEC))) as probe:
            try:
                made.begin(probe)
                made.end()
            except OSError:
                made.close()
                return None
        return made

    def fileno(self) -> int:
        """Readable when the sync has ended."""
        return self._told

    def begin(self, file: File) -> None:
        """Have everything that was written to the file synced; `end` follows.  OSError: it was not begun."""
        assert isinstance(file, OsFile)
        self._request.file = file.fileno()
        self._check(self._call(self._submit, self._context, self._one, self._requests))

    def end(self) -> None:
        """Take the outcome, waiting for it if need be.  OSError as `File.sync` has it."""
        event = self._event
        while True:
            try:
                self._check(self._call(self._events, self._context, self._one, self._one, ctypes.byref(event), None))
                break
            except InterruptedError:
                continue
        self.hush()
        if event.result < 0:
            raise OSError(-event.result, os.strerror(-event.result))

    def hush(self) -> None:
        """The word of an end that was taken is taken too."""
        try:
            os.eventfd_read(self._told)
        except BlockingIOError:
            pass  # the end was seen before it was told

    def close(self) -> None:
        """Give everything back; nothing may be on its way."""
        self._call(self._destroy, self._context)
        os.close(self._told)

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
