"""What of its machine this process may use: cores and memory, as its cgroups bound them.

A container, a pod or a unit of systemd is a group of processes that the kernel holds to a quota of processor time and
a number of bytes.  The machine's own figures say nothing of it, and whoever goes beyond the bytes is killed.  Both
versions of cgroups are read; a group is bounded by those above it, too.

Sources: cgroups(7); the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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
