"""Free memory that the C library keeps goes back to the system.

A burst leaves the heap full of holes: what waits afterwards costs 8 bytes a message and the process twice that.  The
library gives holes back only when asked.  Measured with 6 million messages in 50 queues: 12 bytes a message instead of
20.  Where there is no such call nothing is done.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = resource.getpagesize()
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Names of malloc.h."""

SMALL = 128 << 20
"""Budgets up to this are kept closely."""

LARGE = 512 << 10
"""Larger blocks are then mapped by themselves, and go back to the system when they are freed."""


HOLES = 32 << 20
"""Bytes that a door grows by before it gives free memory back."""

APART_S = 10.0
REST = 500
"""Seconds between two full collections of cycles: so many, and so many times what the last one took."""

DOUBT = 4
"""What is known about is known to one part in so many."""

GIVE_S = 2.0
GIVE_MOST_S = 120.0
"""Seconds between two givings back by who insists: after one that gave much, and after many that did not."""


def _trim() -> Callable[[int], int] | None:
    try:
        return cast("Callable[[int], int]", ctypes.CDLL(None).malloc_trim)
    except (OSError, AttributeError, TypeError):  # not glibc
        return None


_TRIM = _trim()


def give_back() -> None:
    """Give whole free pages back; takes milliseconds, so not on the loop.  Any thread."""
    if _TRIM is not None:
        _TRIM(0)


class Tidy:
    """Gives free memory back whenever the process has grown by so much: a burst's holes are not left for the next.

    Bodies of all sizes come and go; without this a server with a budget of 64 MiB holds 60 MiB more in holes, and
    Flight's door 900 MiB after messages that were begun and not ended.
    """

    def __init__(
        self, growth: int, *, insists: bool = False, mono: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        """growth: bytes that the process grows by before it gives back.

        insists: as long as it is larger than it was it gives back again and again, less often where that brings little.
        """
        self._growth = growth
        self._insists = insists
        self._mono = mono
        self._resident = resident or resident_bytes
        self._low = self._resident()
        self._rest = GIVE_S
        self._next = 0.0

    def due(self) -> bool:
        """Whether `run` is worth its while."""
        now = self._resident()
        self._low = min(self._low, now)
        return now > self._low + self._growth and self._mono() >= self._next

    def run(self) -> None:
        """Takes milliseconds, so not on the loop.  Any thread."""
        before = self._resident()
        give_back()
        _give_arrows_back()
        after = self._resident()
        if self._insists:
            self._rest = GIVE_S if before - after >= self._growth // 4 else min(2 * self._rest, GIVE_MOST_S)
            self._next = self._mono() + self._rest
        else:
            self._low = after


def _give_arrows_back() -> None:
    arrow = sys.modules.get("pyarrow")  # some processes do without it
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
        if (flights := _arrows_own()) is not None:
            flights.release_unused()


class Cycles:
    """Collects cycles of garbage when the process has grown by so much, as `settle_garbage` makes the collector rest.

    Connections that are over leave none; what an error was told with is one.  Without this such stay for as long as the
    process lives.  A collection walks all that is alive, 75 ms with 2,000 connections and 0.9 s with views of 600,000
    groups, so the next one waits for `REST` times as long as the last one took, and what the accounts of memory know is
    no reason for one: caches and views that fill are no garbage.
    """

    def __init__(
        self, growth: int, mono: Callable[[], float] = time.monotonic, resident: Callable[[], int] | None = None
    ) -> None:
        """growth: bytes that the process grows by, beyond what it accounts for, before they are looked for."""
        self._growth = growth
        self._mono = mono
        self._resident = resident or resident_bytes
        self._low = self._resident()
        self._next = mono()

    def beat(self, accounted: int = 0, about: int = 0) -> bool:
        """Collect if it is time; whether it was.  On the loop: objects end where they lived.

        accounted: bytes that the process knows it holds.  about: others that it holds, of which it may be wrong by a
        part (`DOUBT`)
        """
        accounted += about
        now = self._resident() - accounted
        self._low = min(self._low, now)
        if now <= self._low + self._growth + about // DOUBT or (began := self._mono()) < self._next:
            return False
        gc.collect()
        ended = self._mono()
        self._next = ended + max(APART_S, REST * (ended - began))
        self._low = self._resident() - accounted
        return True


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(os.pread(_statm(), 100, 0).split()[1]) * _PAGE


@cache
def _statm() -> int:
    """Open for good: it is asked for when no descriptor is left, too."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def keep_close(memory: int) -> None:
    """Have the process keep little beyond what it uses; at the start, before there are threads.

    memory: the budget, in bytes.  Threads allocate from one heap: a heap of its own keeps what one read of the log left
    free.  With a small budget large blocks are mapped by themselves too, and Arrow allocates where everybody does; that
    costs a fifth of the CPU of 10 kB messages, so with a large budget holes are cheaper.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(_ARENA_MAX, 1)
    if memory <= SMALL:
        mallopt(_MMAP_THRESHOLD, LARGE)
    with_pool_of_our_own(small=memory <= SMALL)


def with_pool_of_our_own(*, small: bool) -> None:
    """Allocate elsewhere than in Arrow's own pool, which clients can fill and which then gives nothing.

    small: where everybody allocates.  Otherwise jemalloc, where Arrow has it: it keeps large buffers out of the heap.
    """
    import pyarrow as pa

    if not small and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    else:
        pa.set_memory_pool(pa.system_memory_pool())


def flight_is_bounded(most: int) -> bool:
    """Whether Arrow's own pool gives no more than `most` bytes (`launching.with_bounded_pool`).  Touches none of them.

    To be asked before clients are there: what it gives is taken from them for a moment.
    """
    import pyarrow as pa

    pool = _arrows_own()
    if pool is None:
        return False
    try:
        pa.allocate_buffer(most + (1 << 20), memory_pool=pool)
    except pa.ArrowMemoryError:
        return True
    return False


def _arrows_own() -> pa.MemoryPool | None:
    """The pool that Arrow takes where nobody names one, if it is one that can have a bound."""
    import pyarrow as pa

    return pa.mimalloc_memory_pool() if "mimalloc" in pa.supported_memory_backends() else None
