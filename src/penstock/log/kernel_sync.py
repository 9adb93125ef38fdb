"""Syncs that the kernel does beside this process: fdatasync by Linux AIO, whose end an eventfd tells.

A thread that syncs needs the interpreter twice a commit, and beside a loop that never sleeps it waits long for it.
This needs it not at all: the loop asks, and hears of the end as it hears of a socket.  One sync at a time.  The calls
are of the kernel's ABI (io_setup(2), io_submit(2), io_getevents(2)), which no library of Python has.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Self

from penstock.log.disk import OsFile
from penstock.ports import File

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
        probe = OsFile(os.memfd_create("penstock-sync-probe", os.MFD_CLOEXEC))
        try:
            made.begin(probe)
            made.end()
        except OSError:
            made.close()
            return None
        finally:
            probe.close()
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
