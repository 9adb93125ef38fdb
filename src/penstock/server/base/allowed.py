"""What the system lets a server's process have: cores and memory, as its cgroups bound them, files and threads.

Too little of it is told before anything is begun: what fails for it later fails anywhere.  That there are no more
threads or processes for the moment is no mistake of ours, and passes.

A container, a pod or a unit of systemd is a group of processes that the kernel holds to a quota of processor time and
a number of bytes.  The machine's own figures say nothing of it, and whoever goes beyond the bytes is killed.  Both
versions of cgroups are read; a group is bounded by those above it, too.

Sources: cgroups(7); the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import SettingsError
from penstock.units import format_size

BASE = 192 << 20
"""What a server takes beside its budget before anybody comes: its own process 70 MiB, Flight's 50, the bulk child 30,
HTTP's 20, and the pages of their programs."""

BUDGET_LEAST = 8 << 20
"""The least that `server.memory` may be."""


class Machine(NamedTuple):
    """Where the kernel tells of it."""

    proc: Path = Path("/proc")
    groups: Path = Path("/sys/fs/cgroup")

    def cores(self) -> int:
        """How many this process may keep busy: those that it may run on, or fewer by the quota of a group."""
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        for group in self._groups("cpu"):
            for names in _QUOTA:
                told = [int(word) for name in names for word in _words(group / name) if word.isdecimal()]
                if len(told) == 2 and told[1]:
                    cores = min(cores, told[0] // told[1])
        return max(1, cores)

    def memory_most(self) -> int | None:
        """Bytes that this process and those of its group may have; None: no group has a bound below the machine's."""
        bounds = [bytes_most for bytes_most, _ in self._bounds()]
        return min(bounds, default=None)

    def bound(self, budget: int) -> tuple[int, str] | None:
        """Bytes that a budget has to fit into, and whose they are: of a group, or of a machine that has no such budget.

        None: it may be what it is.
        """
        if (most := self.memory_most()) is not None:
            return most, "its cgroup may have"
        whole = self._meminfo("MemTotal")
        return (whole, "the machine has") if whole is not None and budget > whole else None

    def memory_left(self) -> int | None:
        """Bytes that can be used without swapping, and without being killed, as Linux tells; None elsewhere."""
        there = self._meminfo("MemAvailable")
        if there is None:
            return None
        return min([there, *(most - used for most, used in self._bounds())])

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """Of each group with a bound: its bytes, and those in use that the kernel cannot take back by itself."""
        whole = self._meminfo("MemTotal") or 1 << 62
        for group in self._groups("memory"):
            for most, used, idle in _MEMORY:
                bound, taken = _word(group / most), _word(group / used)
                if bound.isdecimal() and taken.isdecimal() and int(bound) < whole:
                    idles = [line.split()[1] for line in _lines(group / "memory.stat") if line.startswith(f"{idle} ")]
                    yield int(bound), int(taken) - sum(map(int, idles))

    def _groups(self, controller: str) -> Iterator[Path]:
        """The folders of this process's groups, its own first.  In a container its own may be the root that it sees."""
        for line in _lines(self.proc / "self" / "cgroup"):
            _, _, told = line.partition(":")
            controllers, _, path = told.partition(":")
            if controllers and controller not in controllers.split(","):
                continue
            root = self.groups / (controller if controllers else "")
            group = root / path.lstrip("/")
            yield from (one for one in (group, *group.parents) if one.is_relative_to(root) and one.is_dir())

    def _meminfo(self, name: str) -> int | None:
        for line in _lines(self.proc / "meminfo"):
            if found := re.match(rf"{name}:\s+(\d+) kB", line):
                return int(found[1]) * 1024
        return None


_QUOTA = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Files of a quota and of the time that it is for, microseconds; without one the first is `max`, or -1."""

_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a bound and of what is used, and what of that the kernel takes back: of either version of cgroups."""


def budget_within(most: int | None, budget: int) -> int:
    """`server.memory` for a group that may have so many bytes: two thirds of what the server leaves at rest.

    The rest is for what doors decompress, positions and the kernel's own pages of files.
    """
    return budget if most is None else min(budget, max(BUDGET_LEAST, (most - BASE) * 2 // 3 >> 20 << 20))


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text().splitlines()
    return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _word(path: Path) -> str:
    return next(iter(_words(path)), "")


DESCRIPTORS_LEAST = 48
"""With fewer a server has no room for its own files and a few clients."""

SEGMENTS, FILE_LEAST = 2, 16 << 20
"""A segment goes beyond its size by what is written at once, and on a full disk by more; the log's reserve is one file
of so many bytes, and so much is an empty segment with the zeros that are written ahead."""


def check_allowed(segment: int) -> None:
    """Raise the soft limit of the size of files to the hard one.  SettingsError for less than a server needs.

    segment: bytes of a file of the log.  Children inherit both.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < DESCRIPTORS_LEAST:
        raise SettingsError(
            f"the process may open {files} files and sockets, and a server needs {DESCRIPTORS_LEAST} at least: raise "
            "the hard limit (ulimit -n, LimitNOFILE=)"
        )
    _, size = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY and size < (wanted := max(FILE_LEAST, SEGMENTS * segment)):
        lower = "twice log.segment: {}, or lower log.segment" if wanted > FILE_LEAST else "for its reserve: {}"
        told = lower.format("raise the hard limit (ulimit -f, LimitFSIZE=)")
        raise SettingsError(
            f"a file may have {format_size(size)}, and one of the log needs {format_size(wanted)}, {told}"
        )
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


NO_DOOR = errno.ECHILD
"""Of an address that nobody could bind, for the process ended that should have."""


def no_door(error: Exception) -> OSError:
    """What a door says of its address then."""
    return OSError(NO_DOOR, f"{error}: what it said of that stands above{bound_on_addresses()}")


def bound_on_addresses() -> str:
    """Why memory or a thread may be missing where the machine has both; empty where that cannot be."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return ""
    return f"; the addresses of a process end at {format_size(most)} (ulimit -v, LimitAS=), which may be why"


NO_MORE = (
    "the system starts no more processes or threads for this server: raise their limit (ulimit -u, LimitNPROC=, "
    "TasksMax=, pids.max)"
)


def is_no_more(error: BaseException) -> bool:
    """Whether this says that the system starts no more processes (OSError) or threads (Python: RuntimeError)."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN
    return isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")


def begin(thread: threading.Thread) -> None:
    """Start it.  OSError where the system starts no more."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_no_more(error):
            raise
        raise BlockingIOError(errno.EAGAIN, NO_MORE) from error


class Pool(ThreadPoolExecutor):
    """Has its first thread from the beginning; where there is none to add, work waits for those that there are."""

    def __init__(self, most: int, thread_name_prefix: str) -> None:
        """OSError where the system starts no thread."""
        super().__init__(most, thread_name_prefix)
        try:
            self.submit(int).result()
        except RuntimeError as error:
            if not is_no_more(error):
                raise
            raise BlockingIOError(errno.EAGAIN, NO_MORE) from error

    def _adjust_thread_count(self) -> None:  # of the base: adds one where none is idle; the work is in line already
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads or not is_no_more(error):
                raise
