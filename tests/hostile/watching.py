"""A process watched from outside while strangers press it: memory, descriptors, and what it writes to its output.

    with Watched(server.process.pid, server.folder / "output.txt") as seen:
        ...                                  # whatever a stranger may do
        seen.judge(Bounds(memory=64 * MIB, descriptors=20, lines=10))

Memory is the kernel's own high-water mark, so no peak falls between two samples; descriptors are sampled every few
milliseconds.  Both are judged by how far they rose above what they were when the watch began.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

MIB = 2**20
SAMPLE_S = 0.01
TOLD = 2000
"""Characters of the output that a failure shows."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far each may rise while a process is watched; None: it is not asked."""

    memory: int | None = None  # bytes that are resident
    descriptors: int | None = None
    lines: int | None = None  # written to the output
    written: int | None = None  # bytes of them


@dataclass(frozen=True, slots=True)
class Seen:
    """How far each has risen, at its highest."""

    memory: int
    descriptors: int
    lines: int
    written: int
    output: str  # what was written

    def over(self, bounds: Bounds) -> list[str]:
        """What went beyond its bound, each with both values."""
        out: list[str] = []
        for name in ("memory", "descriptors", "lines", "written"):
            most, value = getattr(bounds, name), getattr(self, name)
            if most is not None and value > most:
                shown = (f"{value / MIB:.1f} MiB", f"{most / MIB:.1f} MiB") if name == "memory" else (value, most)
                out.append(f"{name} rose by {shown[0]}, and {shown[1]} are allowed")
        return out


class Watched:
    """One process, from `with` on.  It must be this user's own."""

    def __init__(self, pid: int, output: Path | None = None) -> None:
        """output: the file that its standard output and errors go to."""
        self.pid = pid
        self._output = output
        self._proc = Path(f"/proc/{pid}")
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="watched", daemon=True)
        self._most_descriptors = 0

    def __enter__(self) -> Self:
        (self._proc / "clear_refs").write_text("5")  # proc(5): the high-water mark begins anew
        self._memory = self.memory()
        self._descriptors = self.descriptors()
        self._written = self._output.stat().st_size if self._output is not None else 0
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._sampler.join()

    # -- now

    @property
    def alive(self) -> bool:
        """Whether it runs; one that ended and was not waited for does not."""
        try:
            return self._status()["State"][0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False

    def memory(self) -> int:
        """Resident bytes."""
        return int(self._status()["VmRSS"].split()[0]) * 1024

    def descriptors(self) -> int:
        """Open files and sockets; each look counts for the highest."""
        now = len(os.listdir(self._proc / "fd"))
        self._most_descriptors = max(self._most_descriptors, now)
        return now

    def sockets(self) -> int:
        """Open sockets."""
        return sum(1 for one in (self._proc / "fd").iterdir() if _is_socket(one))

    # -- since the watch began

    def seen(self) -> Seen:
        """How far each has risen.  AssertionError when the process has ended."""
        output = self._tail()
        try:
            peak = int(self._status()["VmHWM"].split()[0]) * 1024
            self.descriptors()
        except (FileNotFoundError, ProcessLookupError, PermissionError, KeyError):
            raise AssertionError(f"process {self.pid} has ended:\n{output[-TOLD:]}") from None
        memory, descriptors = max(0, peak - self._memory), self._most_descriptors - self._descriptors
        return Seen(memory, descriptors, output.count("\n"), len(output.encode(errors="replace")), output)

    def judge(self, bounds: Bounds) -> Seen:
        """AssertionError when it has ended or went beyond a bound; names each, and what was written last."""
        seen = self.seen()
        over = seen.over(bounds)
        assert not over, f"process {self.pid}: {'; '.join(over)}\n{seen.output[-TOLD:]}"
        return seen

    def settled(self, descriptors: int) -> Callable[[], bool]:
        """A condition to wait for: no more descriptors than so many above those of the beginning."""
        return lambda: self.descriptors() - self._descriptors <= descriptors

    def _tail(self) -> str:
        if self._output is None:
            return ""
        with self._output.open("rb") as file:
            file.seek(self._written)
            return file.read().decode(errors="replace")

    def _status(self) -> dict[str, str]:
        lines = (self._proc / "status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                self.descriptors()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                return


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except FileNotFoundError:
        return False  # closed meanwhile
