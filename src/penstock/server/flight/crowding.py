"""Calls that gRPC took in and nobody has heard of yet: each has memory and most have a thread, and nothing bounds them.

A connection may open as many streams as it has numbers for; pyarrow passes no bound on to gRPC.  A call takes 14 KiB
from its headers on, and gRPC begins a thread for it, whose stack counts as memory: 30,000 calls, 4 MB on the wire,
ended the process within two seconds.  Two things hold them:

threads   gRPC answers a call RESOURCE_EXHAUSTED by itself when it can have no thread.  So beyond `THREADS_MOST`, or
          with `WAITING_MOST` that want Python's lock to say who they are, the stack that the C library gives to
          threads that ask for no size is one that nobody has room for.  Threads of ours ask for a size.
memory    where it stays so for `LASTS_S`, or little is left below the limit of the process, connections are cut
          (`connections`), those first that sent most of what never came out of gRPC.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from collections.abc import Callable
from sys import getswitchinterval, setswitchinterval

from penstock.server.loading import STACKS

STACK = 1 << 20
"""Bytes of a thread's stack: they count as memory.  With half of it a first upload, for which modules are loaded,
ended the process."""

THREADS_MOST = 832
"""Of the process: those of all calls that may be under way (`remote_call.CALLS_MOST`), and its own."""

WAITING_MOST = 192
"""Of calls that are not under way yet: with many more Python's lock is handed around, and little else is done."""

LOOKS = 8
"""Calls from one look at the threads to the next."""

LASTS_S = 0.2
"""Many calls at once are no flood."""

NO_STACK = 1 << 46
"""Bytes that no machine gives to one thread."""

LEFT_LEAST = 384 << 20
"""Bytes below the limit, stacks apart, at which it is time to cut: as much comes within a second.  With 640 MiB
a message of 200 MiB to a small server, of which gRPC and Arrow have copies, was cut, not refused with its reason."""

AGAIN_S = 0.5
"""What was cut gives back its memory within that; before, nothing more is cut unless there is still more in use."""

FULL_SWITCH_S = 0.1
"""How long a thread may keep Python from the others while hundreds wait: each of them asks for it so often."""

_PAGE = resource.getpagesize()
_ATTRIBUTES = 256
"""Bytes that are enough for a `pthread_attr_t`."""


def with_stacks(size: int) -> None:
    """Threads, gRPC's too, that ask for no size get stacks of this one; with `NO_STACK` there are no such threads.

    Python's lock is kept meanwhile.
    """
    try:
        libc, attributes = ctypes.PyDLL(None), ctypes.create_string_buffer(_ATTRIBUTES)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
        libc.pthread_setattr_default_np(attributes)
    except (OSError, AttributeError):  # not glibc
        pass


def with_small_stacks() -> None:
    """Of all threads that begin from now on."""
    threading.stack_size(STACK)
    with_stacks(STACK)


class Crowding:
    """Of this process, which is a door and nothing else."""

    def __init__(self, under_way: Callable[[], int]) -> None:
        """under_way: threads of calls that have said who they are, and have not ended."""
        self._under_way = under_way
        self._switch_s = getswitchinterval()
        self._threads = _Figure("/proc/self/stat", 17)
        self._memory = _Figure("/proc/self/statm", 5)  # pages that count for RLIMIT_DATA, stacks of threads among them
        self._limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self._begun = 0
        self._full_since: float | None = None
        self._looking = threading.Lock()
        self._cut_at = -AGAIN_S
        self._used = 0  # bytes beside stacks, when something was cut last

    def begun(self) -> None:
        """A call begins.  Any thread: where hundreds wait for Python's lock, those who have it look themselves."""
        self._begun += 1
        if self._begun % LOOKS == 0:
            self._count()

    def _count(self) -> int:
        """The threads; from now on gRPC has more of them, or has not."""
        threads = self._threads()
        full = threads > THREADS_MOST or threads - self._under_way() > WAITING_MOST
        if full != (self._full_since is not None) and self._looking.acquire(blocking=False):
            with_stacks(NO_STACK if full else STACK)
            setswitchinterval(FULL_SWITCH_S if full else self._switch_s)
            self._full_since = time.monotonic() if full else None
            self._looking.release()
        return threads

    def too_many(self, now: float) -> bool:
        """Whether a connection should be cut now.  For one thread, which asks often."""
        threads = self._count()
        used = self._memory() * _PAGE - threads * STACK
        short = self._limit != resource.RLIM_INFINITY and self._limit - STACKS - used < LEFT_LEAST
        if not short and ((since := self._full_since) is None or now - since < LASTS_S):
            self._used = 0
            return False
        if used <= self._used and now - self._cut_at < AGAIN_S:
            return False
        self._used, self._cut_at = used, now
        return True


class _Figure:
    """A number of this process, by its place in a file of the kernel's.

    It is read without letting Python's lock go: hundreds of threads wait for that when it matters.
    """

    def __init__(self, path: str, place: int) -> None:
        self._place = place
        self._file = -1
        if os.path.exists(path):  # on Linux; nobody asks elsewhere
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._pread = ctypes.PyDLL(None).pread

    def __call__(self) -> int:
        buffer = ctypes.create_string_buffer(1024)
        size = self._pread(self._file, buffer, len(buffer), ctypes.c_long(0))
        return int(buffer.raw[:size].rpartition(b")")[2].split()[self._place]) if size > 0 else 0
