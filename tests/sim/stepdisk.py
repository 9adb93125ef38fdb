"""A simulated disk each of whose calls is a step, and an asyncio loop each of whose rounds is one.

The disk also keeps what a power cut would leave at its worst, for a look afterwards: only what was synced, or all that
was written.  It knows names and bytes; the loop knows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock.log.simdisk import SimDisk, SimFile
from penstock.testing.instance import FakeClock
from sim.baton import Baton, step


class StepFile(SimFile):
    """Before and after each call that changes the file another strand may run; before each read."""

    __slots__ = ()

    def pread(self, size: int, offset: int) -> bytes:
        step("pread")
        return super().pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        step("pwrite")
        super().pwrite(data, offset)
        step("pwritten")

    def sync(self) -> None:
        step("sync")
        super().sync()
        step("synced")

    def truncate(self, size: int) -> None:
        step("truncate")
        super().truncate(size)
        step("truncated")


class StepDisk(SimDisk):
    """`watch(name)` is called before a file goes away or is replaced."""

    def __init__(self, files: Mapping[str, bytes] | None = None, *, seed: int = 0) -> None:
        super().__init__(files, seed=seed)
        self.changed = 0  # removals and renames
        self.retired = 0  # segments that went, as `watch` counts them

    def watch(self, name: str) -> None:
        """A file is about to lose its name."""

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> SimFile:
        step("create" if create else "open")
        file = super().open(name, create=create, readonly=readonly)
        out = StepFile(self, file._inode, readonly)
        step("opened")
        return out

    def rename(self, old: str, new: str) -> None:
        step("rename")
        if new in self._names:
            self.watch(new)
        super().rename(old, new)
        self.changed += 1
        step("renamed")

    def remove(self, name: str) -> None:
        step("remove")
        self.watch(name)
        super().remove(name)
        self.changed += 1
        step("removed")

    def list(self, folder: str = "") -> list[str]:
        step("list")
        return super().list(folder)

    def sync_folder(self, folder: str = "") -> None:
        step("sync folder")
        super().sync_folder(folder)
        step("folder synced")

    def worst(self, *, names_synced: bool) -> dict[str, bytes]:
        """What a power cut may leave now: the synced bytes alone, under the names of now or those that were synced."""
        names = self._safe_names if names_synced else self._names
        return {name: bytes(inode.safe) for name, inode in names.items()}


class StepLoop(asyncio.BaseEventLoop):
    """asyncio's own loop on the simulated clock; it waits by letting others go on."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._selector = self
        self.failures: list[BaseException] = []
        self.set_exception_handler(self._failed)

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.failures.append(error)

    def time(self) -> float:
        return self._clock.mono() / 1e6

    def select(self, timeout: float | None) -> list[object]:
        """Where a real loop would wait for sockets."""
        baton = Baton.current
        assert baton is not None
        if timeout == 0:
            baton.step("round")
        else:
            until = None if timeout is None else self._clock.mono() + max(1, round(timeout * 1e6))
            baton.sleep(until, lambda: bool(self._ready), "idle")  # type: ignore[attr-defined]
        return []

    def _process_events(self, event_list: list[object]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """Whoever calls from another strand need not wake anybody: `select` asks."""
