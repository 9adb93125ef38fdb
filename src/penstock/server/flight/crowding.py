"""What gRPC takes in and says nothing of: connections, which the kernel tells of, and calls, which nothing else bounds.

Of calls that nobody has heard of yet each has memory, and most have a thread.  A connection may open as many streams as
it has numbers for; pyarrow passes no bound on to gRPC.  A call takes 14 KiB from its headers on, and gRPC begins a
thread for it, whose stack counts as memory: 30,000 calls, 4 MB on the wire, ended the process within two seconds.  Two
things hold them:

threads   gRPC answers a call RESOURCE_EXHAUSTED by itself when it can have no thread.  So beyond `THREADS_MOST`, or
          where more than `WAITING_MOST` want Python's lock to say who they are and that does not pass, the stack that
          the C library gives to threads that ask for no size is one that nobody has room for.  Threads of ours ask for
          a size, and Arrow's begin before the door listens.
memory    where it stays so for `LASTS_S`, or little is left below the limit of the process, connections are cut
          (`connections`), those first that sent most of what never came out of gRPC (`senders`).  What is free again
          the C library keeps: so it is looked at what was taken since the last cut.

Who polls a listening socket beside gRPC hears of no connection that gRPC was quicker to accept.  But with O_ASYNC the
kernel sends a signal as a connection comes, whoever accepts it and however soon (fcntl(2), socket(7)).  One thread has
it blocked and waits for it, so it interrupts nobody.
"""

# pyarrow's stubs leave the element types of arrays open
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from sys import setswitchinterval
from typing import Any

from penstock.server.base.loading import STACKS

_SIGNALS = frozenset({signal.SIGIO})
_SETOWN_EX, _OWNER_THREAD = 15, 0
"""`F_SETOWN_EX` and `F_OWNER_TID` of fcntl(2), which Python does not name."""


@contextmanager
def deaf() -> Generator[None]:
    """A thread that begins meanwhile has the signal blocked for good, as `wait` needs it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listens(one: socket.socket) -> bool:
    """Whether connections come by it."""
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def tell(listening: socket.socket, thread: int) -> bool:
    """Have the kernel tell a thread, by its number there, of each that connects; False where it does not do so."""
    try:
        fcntl.fcntl(listening, _SETOWN_EX, struct.pack("ii", _OWNER_THREAD, thread))
        fcntl.fcntl(listening, fcntl.F_SETFL, fcntl.fcntl(listening, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def wait(seconds: float) -> bool:
    """Whether somebody has connected since the last call, or does so within that time.  For the thread that is told."""
    return signal.sigtimedwait(_SIGNALS, seconds) is not None


def stands_outside(listening: socket.socket) -> bool:
    """Whether somebody has connected whom nobody has accepted yet."""
    asked = select.poll()
    asked.register(listening, select.POLLIN)
    return bool(asked.poll(0))


STACK = 1 << 20
"""Bytes of a thread's stack: they count as memory.  With half of it a first upload, for which modules are loaded,
ended the process."""

THREADS_MOST = 832
"""Of the process: those of all calls that may be under way (`remote_call.CALLS_MOST`), and its own."""

WAITING_MOST = 192
"""Of calls that are not under way yet: with many more Python's lock is handed around, and little else is done."""

BURST = 640
"""So many calls may say who they are before no more than `WAITING_MOST` wait: as many callers may come at once."""

TRIES = 100
"""How often Arrow is given work for its threads until all of them have begun."""

LOOKS = 8
"""Calls from one look at the threads to the next."""

CROWDS_S, CALM_S = 0.02, 0.1
"""Between two looks, and while no call begins and nothing is short: a tenth of `LEFT_LEAST` comes meanwhile."""

LASTS_S, OVER_S = 0.2, 0.5
"""Many calls at once are no flood: it has to be so for the one time in all, without a pause as long as the other."""

NO_STACK = 1 << 46
"""Bytes that no machine gives to one thread."""

LEFT_LEAST = 384 << 20
"""Bytes below the limit, stacks apart, at which it is time to cut: as much comes within a second.  With 640 MiB
a message of 200 MiB to a small server, of which gRPC and Arrow have copies, was cut, not refused with its reason."""

AGAIN_S = 0.5
"""What was cut gives back its memory within that; before, nothing more is cut unless there is still more in use."""

SWITCH_S, FULL_SWITCH_S = 0.05, 0.1
"""How long a thread may keep Python from the others, and while hundreds wait: each that waits asks for it so often, and
takes a lock for that.  With Python's 5 ms those of a flood took both cores for asking before anybody looked: 3,190
threads had begun, and the door ended in 7 of 120 floods on a busy machine, with 50 ms in 1 of 214.  Who has nothing to
reckon lets go of Python long before."""

_PAGE = resource.getpagesize()
_Attributes = ctypes.c_char * 256
"""Bytes that are enough for a `pthread_attr_t`."""
_Words = ctypes.c_char * 1024
"""The same for what the kernel tells in one line.  A type that nobody keeps is made anew, and is a cycle of garbage."""


def with_stacks(size: int) -> None:
    """Threads, gRPC's too, that ask for no size get stacks of this one; with `NO_STACK` there are no such threads.

    Python's lock is kept meanwhile.
    """
    try:
        libc, attributes = _libc(), _Attributes()
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
        libc.pthread_setattr_default_np(attributes)
    except (OSError, AttributeError):  # not glibc
        pass


@cache
def _libc() -> ctypes.PyDLL:
    """Once: each one is a cycle of garbage."""
    return ctypes.PyDLL(None)


def with_small_stacks() -> None:
    """Of all threads that begin from now on."""
    threading.stack_size(STACK)
    with_stacks(STACK)


def with_threads_of_arrow() -> None:
    """Have Arrow begin the threads of its pool now: where there are none to be had it fails the upload that asks.

    It begins one for each column that is to be read while no more columns have a thread.
    """
    import pyarrow as pa  # its memory has a bound by now

    column: pa.Array[Any] = pa.array([bytes(STACK >> 10)], pa.binary())
    count = 4 * pa.cpu_count()
    batch = pa.RecordBatch.from_arrays([column] * count, [str(number) for number in range(count)])
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    begun, told = _threads_now(), sink.getvalue()
    for _ in range(TRIES):
        list(pa.ipc.open_stream(told))
        if _threads_now() - begun >= pa.cpu_count():
            return


def _threads_now() -> int:
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0


class Crowding:
    """Of this process, which is a door and nothing else."""

    def __init__(self, under_way: Callable[[], int]) -> None:
        """under_way: threads of calls that have said who they are, and have not ended."""
        self._under_way = under_way
        self._threads = _Figure("/proc/self/stat", 17)
        self._memory = _Figure("/proc/self/statm", 5)  # pages that count for RLIMIT_DATA, stacks of threads among them
        self._limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self.short_of = 0  # bytes that are in use, where little is left
        self.grown = 0  # bytes that are in use beyond those before calls crowded, or when somebody was cut last
        self._before = 0  # those
        self.calls = 0  # that have begun
        self._calm = threading.Lock()  # held, but from when a call begins until the next look
        self._calm.acquire()
        self._few_at = 0  # calls that had begun when few waited last
        self._full_since: float | None = None
        self._full_at = -OVER_S  # when it was so last
        self._full_s = 0.0  # how long in this flood, before `_full_since`
        self._cut_at = -AGAIN_S
        self._used = 0  # bytes beside stacks, when something was cut last

    def begun(self) -> None:
        """A call begins.  Any thread: where hundreds wait for Python's lock, those who have it look themselves."""
        self.calls += 1
        if self._calm.locked():
            with suppress(RuntimeError):  # another call has
                self._calm.release()  # this way nobody waits: who has the lock of an `Event` may not have Python's
        if self.calls % LOOKS == 0:
            self._count(time.monotonic())

    def pause(self) -> None:
        """Until it is time for another look.  For one thread."""
        calm = not self.short_of and time.monotonic() - self._full_at > OVER_S
        if self._calm.acquire(timeout=CALM_S if calm else CROWDS_S):
            time.sleep(CROWDS_S)  # those that come together are looked at together

    def is_full(self) -> bool:
        """Whether calls that come now get no thread."""
        return self._full_since is not None

    def _count(self, now: float) -> int:
        """The threads; from now on gRPC has more of them, or has not."""
        threads = self._threads()
        waiting = threads - self._under_way()
        if waiting <= WAITING_MOST:
            self._few_at = self.calls
        lasting = now - self._full_at < OVER_S or self.calls - self._few_at > BURST
        full = threads > THREADS_MOST or (waiting > WAITING_MOST and lasting)
        if full != self.is_full():
            self._turn(now, full=full)
        if full:
            self._full_at = now
        return threads

    def _turn(self, now: float, *, full: bool) -> None:
        """It is full, or is not any more.  What stops threads comes first, and no lock is taken for it: whoever held
        it would wait for Python's among a thousand others, which all begin meanwhile."""
        with_stacks(NO_STACK if full else STACK)
        setswitchinterval(FULL_SWITCH_S if full else SWITCH_S)
        since, self._full_since = self._full_since, now if full else None
        if since is not None:
            self._full_s += now - since
        elif full and now - self._full_at > OVER_S:
            self._full_s = 0.0

    def too_many(self, now: float) -> bool:
        """Whether a connection should be cut now.  For one thread, which asks often."""
        threads = self._count(now)
        with_stacks(NO_STACK if self.is_full() else STACK)  # two turned it at once, and the earlier one came later
        used = self._memory() * _PAGE - threads * STACK
        short = self._limit != resource.RLIM_INFINITY and self._limit - STACKS - used < LEFT_LEAST
        self.short_of = used if short else 0
        if not short and not self.is_full() and now - self._full_at > OVER_S:
            self._before = used
        self.grown = used - self._before
        if not short and ((since := self._full_since) is None or self._full_s + now - since < LASTS_S):
            if now - self._full_at > OVER_S:
                self._used = 0
            return False
        if used <= self._used and now - self._cut_at < AGAIN_S:
            return False
        self._used, self._cut_at = used, now
        return True

    def relieved(self) -> None:
        """Somebody was cut."""
        self._before = self._used


class _Figure:
    """A number of this process, by its place in a file of the kernel's.

    It is read without letting Python's lock go: hundreds of threads wait for that when it matters.
    """

    def __init__(self, path: str, place: int) -> None:
        self._place = place
        self._file = -1
        if os.path.exists(path):  # on Linux; nobody asks elsewhere
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._pread = _libc().pread

    def __call__(self) -> int:
        buffer = _Words()
        size = self._pread(self._file, buffer, len(buffer), ctypes.c_long(0))
        return int(buffer.raw[:size].rpartition(b")")[2].split()[self._place]) if size > 0 else 0
