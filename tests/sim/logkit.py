"""What the tests of the log share: a clock that moves when told, small batches, and the log's content as plain rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY, LogSettings, size_of
from penstock.ports import Disk
from penstock.records.entries import Control, Entry, Publishes, Topic, singly
from penstock.records.kinds import Kind

ORDERS = Topic("/", "", "orders")
T0 = 1_700_000_000_000_000
SMALL = replace(MEMORY, origin=7)


class FakeClock:
    """Moves only by `pass_by`."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def wall(self) -> int:
        return T0 + self.now

    def mono(self) -> int:
        return self.now

    def pass_by(self, micros: int) -> None:
        self.now += micros


class Steps(SimDisk):
    """A disk that counts the calls that change it, and dies with the one after `last`."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.step, self.last = 0, -1

    def due(self, kind: str) -> int:
        self.step += 1
        return 5 if 0 <= self.last < self.step else super().due(kind)

    def remove(self, name: str) -> None:
        if self.due("remove"):
            raise OSError(5, "the machine died")
        super().remove(name)

    def rename(self, old: str, new: str) -> None:
        if self.due("rename"):
            raise OSError(5, "the machine died")
        super().rename(old, new)


def messages(first: int, *bodies: bytes, topic: Topic = ORDERS) -> Publishes:
    """A run of messages."""
    return Publishes(topic, b"\x10\0\x02", list(bodies), first, T0)


def note(lsn: int, body: bytes = b"", kind: Kind = Kind.SETTLE) -> Control:
    """A control record."""
    return Control(kind, "orders", b"{}", body, lsn, T0)


def pending(log: Log) -> int:
    """Bytes that are gathered, or in the running commit, counted one by one."""
    running = [] if log._running is None else log._running.entries
    return sum(size_of(entry) for entry in (*running, *log._gathered.entries))


def commit(log: Log, *entries: Entry) -> None:
    """Append and wait."""
    log.append(entries)
    log.flush()


def opened(disk: Disk, settings: LogSettings = SMALL, clock: FakeClock | None = None) -> Log:
    """Open and replay."""
    log = Log.open(disk, clock or FakeClock(), settings)
    for _ in log.replay():
        pass
    return log


def content(log: Log) -> list[tuple[int, bytes]]:
    """(LSN, body) of every row that the log gives."""
    out = list[tuple[int, bytes]]()
    for batch in log.batches(0, 1 << 60, ["lsn", "body"]):
        out += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    return out


def rows_of(entries: Iterable[Entry]) -> list[tuple[int, bytes]]:
    """What `content` gives once these are in the log."""
    out = list[tuple[int, bytes]]()
    for entry in singly(entries):
        if isinstance(entry, Control):
            out.append((entry.lsn, entry.body))
        else:
            out += [(entry.first + row, body) for row, body in enumerate(entry.bodies)]
    return out


def small_log(disk: SimDisk, settings: LogSettings = SMALL, commits: int = 4) -> list[list[tuple[int, bytes]]]:
    """A log of a few commits, killed; the content after each commit, the empty one first."""
    log = opened(disk, settings)
    stages: list[list[tuple[int, bytes]]] = [[]]
    for at in range(commits):
        first = log.appended + 1
        commit(log, messages(first, b"a%d" % at, b"b" * at), note(first + 2, b"n"))
        stages.append(content(log))
    disk.kill()
    return stages
