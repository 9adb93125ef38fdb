"""For tests of who reads a log without its lock: a log that grows on demand, and processes that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import LogSettings
from penstock.ports import Clock
from penstock.records.entries import Control, Entry, Publishes, Topic
from penstock.records.kinds import NO_ROUTE, Kind

WAIT_S = 20.0
PERSISTENT = b"\x10\0\x02"


class Still(Clock):
    def wall(self) -> int:
        return 1_700_000_000_000_000

    def mono(self) -> int:
        return 1


class Writer:
    """A log that grows on demand, in small segments."""

    def __init__(self, folder: Path, origin: int = 77) -> None:
        self.folder = folder
        self.log = Log.open(OsDisk(folder), Still(), LogSettings(segment=1 << 16, ahead=0, reserve=0, origin=origin))
        for _ in self.log.replay():
            pass
        self.lsn = self.log.recovery.next_lsn

    def write(self, batches: int, rows: int = 10, size: int = 100) -> None:
        """Batches of messages, each a commit of its own, each with a record before it."""
        for _ in range(batches):
            topic = Topic("/", "", f"t{self.lsn % 3}")
            bodies = [bytes([65 + row % 26]) * size for row in range(rows)]
            entries: list[Entry] = [
                Control(Kind.TOPIC_DECLARE, "t", b"{}", b"", self.lsn, 5),
                Publishes(topic, PERSISTENT, bodies, self.lsn + 1, 6, NO_ROUTE),
            ]
            self.log.append(entries)
            self.log.flush()
            self.lsn += rows + 1


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    """All rows of these batches."""
    return [row for batch in batches for row in batch.to_pylist()]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has ended, perhaps while it was looked at
        return False
