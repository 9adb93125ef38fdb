"""A disk in memory that can fail as real ones do: for tests, the simulator and the in-process broker.

What it does to data, all chosen by its seed:

* `crash()`: of every write that was not synced, nothing, all, or any byte range of it survives, each write for itself;
  a creation, rename or removal whose folder was not synced may be undone, the later ones with it; open files die.
* `fail_next("write" | "sync" | "folder", ...)`: the n-th call from now raises.  A failed write may leave a part of its
  bytes.  A failed sync leaves any part of what was dirty and calls the rest clean, as kernels do: a later sync that
  succeeds does not save it.
* `capacity`: writes beyond it raise ENOSPC, after a part of the bytes.
* `flip(name, bit)`: one bit of a file changes at rest.

It owns bytes and names only; it knows nothing of segments or records.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import field

from penstock.errors import DataFolderInUse
from penstock.records.dataclass import dataclass


@dataclass(slots=True, eq=False)
class _Inode:
    """One file: what reads see, what would survive, and the writes between the two."""

    seen: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, "bytes | None"]])  # None: truncate


UNLIMITED = 1 << 50


def _write(content: bytearray, offset: int, data: bytes | bytearray | memoryview) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class SimFile:
    """An open file of a `SimDisk`; dead after a crash."""

    __slots__ = ("_disk", "_inode", "_life", "_readonly")

    def __init__(self, disk: SimDisk, inode: _Inode, readonly: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._readonly = readonly

    def _alive(self) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "closed, or from before the crash")

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        self._alive()
        return bytes(self._inode.seen[offset : offset + size])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """All of `data` at `offset`, or OSError."""
        self._alive()
        if self._readonly:
            raise OSError(errno.EBADF, "opened for reading")
        disk, inode = self._disk, self._inode
        disk.writes += 1
        grows = max(0, offset + len(data) - len(inode.seen))
        room = grows if disk.capacity == UNLIMITED else disk.capacity - disk.used()
        failure = disk.due("write")
        if failure or grows > room:
            whole = len(data) if failure else len(data) - grows + max(0, room)
            data = bytes(data[: disk.random.randint(0, whole)])
        _write(inode.seen, offset, data)
        inode.dirty.append((offset, bytes(data)))
        if failure or grows > room:
            raise OSError(failure or errno.ENOSPC, os.strerror(failure or errno.ENOSPC))

    def pwritev(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """The pieces one after the other, as one write."""
        self.pwrite(b"".join(pieces), offset)

    def sync(self) -> None:
        """What was written survives; or OSError, and the rest of it is lost without another word."""
        self._alive()
        disk, inode = self._disk, self._inode
        disk.syncs += 1
        if failure := disk.due("sync"):
            disk.settle(inode)
            raise OSError(failure, os.strerror(failure))
        for offset, data in inode.dirty:
            if data is None:
                _truncate(inode.safe, offset)
            else:
                _write(inode.safe, offset, data)
        inode.dirty.clear()

    def size(self) -> int:
        self._alive()
        return len(self._inode.seen)

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""
        self._alive()
        if self._readonly:
            raise OSError(errno.EBADF, "opened for reading")
        _truncate(self._inode.seen, size)
        self._inode.dirty.append((size, None))

    def allocate(self, size: int) -> None:
        """Zeros that are written have their space."""
        had = self.size()
        if size > had:
            self.pwrite(bytes(size - had), had)

    def give_back(self) -> None:
        """Nothing is kept twice here."""

    def close(self) -> None:
        pass


class SimDisk:
    """A folder in memory.  `files` gives it content that counts as synced."""

    def __init__(self, files: Mapping[str, bytes] | None = None, *, seed: int = 0, capacity: int = UNLIMITED) -> None:
        self.random = random.Random(seed)
        self.capacity = capacity
        self.life = 0  # goes up by one at each crash
        self.writes = 0  # calls, for tests that count
        self.syncs = 0
        self.readonly = set[str]()  # names that cannot be opened for writing
        self._names = {name: _Inode(bytearray(data), bytearray(data)) for name, data in (files or {}).items()}
        self._safe_names = dict(self._names)
        self._changes: list[tuple[str, str, _Inode | None]] = []  # (folder, name, what it now is), not yet synced
        self._faults: dict[str, list[list[int]]] = {}  # kind -> [[calls to let pass, errno], ...]
        self._locked = False

    def open(self, name: str, *, create: bool = False, readonly: bool = False) -> SimFile:
        """Open; `create` makes a new empty file and fails if it exists."""
        inode = self._names.get(name)
        if create:
            if inode is not None:
                raise FileExistsError(errno.EEXIST, "the file exists", name)
            if self.capacity != UNLIMITED and self.used() >= self.capacity:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            inode = _Inode()
            self._change(name, inode)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        if name in self.readonly and not readonly:
            raise PermissionError(errno.EACCES, "read-only", name)
        return SimFile(self, inode, readonly)

    def list(self, folder: str = "") -> list[str]:
        """Names of the files in a folder, sorted."""
        start = f"{folder}/" if folder else ""
        there = (name[len(start) :] for name in self._names if name.startswith(start))
        return sorted(name for name in there if "/" not in name)

    def mkdir(self, folder: str) -> None:
        """Folders need no making here."""

    def rename(self, old: str, new: str) -> None:
        inode = self._names[old]
        self._change(new, inode)
        self._change(old, None)

    def remove(self, name: str) -> None:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        self._change(name, None)

    def sync_folder(self, folder: str = "") -> None:
        """Creations, renames and removals in the folder last."""
        if failure := self.due("folder"):
            raise OSError(failure, os.strerror(failure), folder)
        kept = list[tuple[str, str, "_Inode | None"]]()
        for change in self._changes:
            if change[0] == folder:
                self._point(self._safe_names, change[1], change[2])
            else:
                kept.append(change)
        self._changes = kept

    def free(self) -> int:
        """Bytes below the capacity."""
        return max(0, self.capacity - self.used())

    def lock(self) -> None:
        """Hold the folder until `unlock` or a crash."""
        if self._locked:
            raise DataFolderInUse("the data folder in memory is in use by another log")
        self._locked = True

    def unlock(self) -> None:
        """Let another log have the folder."""
        self._locked = False

    def used(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.seen) for inode in self._names.values())

    def files(self) -> dict[str, bytes]:
        """Every file as reads see it."""
        return {name: bytes(inode.seen) for name, inode in sorted(self._names.items())}

    def crash(self) -> None:
        """A power cut: keep what was synced and, by chance, any parts of what was not."""
        for inode in {id(inode): inode for inode in [*self._names.values(), *self._safe_names.values()]}.values():
            self.settle(inode)
            inode.seen = bytearray(inode.safe)
        for change in self._changes[: self.random.randint(0, len(self._changes))]:
            self._point(self._safe_names, change[1], change[2])
        self._changes.clear()
        self._names = dict(self._safe_names)
        self.kill()

    def kill(self) -> None:
        """The process dies, the machine lives: all that was written is there; open files and the lock are gone."""
        self.life += 1
        self._faults.clear()
        self._locked = False

    def fail_next(self, kind: str, *, after: int = 0, error: int = errno.EIO) -> None:
        """Let the call of `kind` (write, sync, folder) that follows `after` good ones raise `error`."""
        self._faults.setdefault(kind, []).append([after, error])

    def flip(self, name: str, bit: int) -> None:
        """Change one bit of a file at rest."""
        inode = self._names[name]
        for content in (inode.seen, inode.safe):
            if bit >> 3 < len(content):
                content[bit >> 3] ^= 1 << (bit & 7)

    def due(self, kind: str) -> int:
        """The errno that this call of `kind` must raise; 0: none."""
        for fault in self._faults.get(kind, ()):
            if fault[0] == 0:
                self._faults[kind].remove(fault)
                return fault[1]
            fault[0] -= 1
        return 0

    def settle(self, inode: _Inode) -> None:
        """Decide by chance what of the unsynced writes is on the disk, and forget which they were."""
        for offset, data in inode.dirty:
            fate = self.random.random()
            if fate < 0.3:
                continue
            if data is None:
                _truncate(inode.safe, offset)
            elif fate < 0.6:
                _write(inode.safe, offset, data)
            else:
                a, b = sorted((self.random.randint(0, len(data)), self.random.randint(0, len(data))))
                a = 0 if fate < 0.8 else a
                _write(inode.safe, offset + a, data[a:b])
        inode.dirty.clear()

    def _change(self, name: str, inode: _Inode | None) -> None:
        self._point(self._names, name, inode)
        self._changes.append((name.rpartition("/")[0], name, inode))

    @staticmethod
    def _point(names: dict[str, _Inode], name: str, inode: _Inode | None) -> None:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode
