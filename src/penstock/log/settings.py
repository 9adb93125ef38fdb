"""Settings of the log, as the server hands them down: bytes and microseconds, nothing left as text."""

from __future__ import annotations

from typing import Literal

from penstock.records.dataclass import dataclass

Sync = Literal["commit", "interval", "off"]

CACHE_MOST = 16 << 20
"""Bytes of decoded batches that are worth keeping for reading."""

BATCH_MOST = 16 << 20
"""Bytes after which a commit goes on in another batch."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Defaults promise that a confirmed message is on the disk."""

    sync: Sync = "commit"  # what a confirm waits for: the disk, or the kernel alone
    sync_interval: int = 100_000  # microseconds between syncs under `interval`
    segment: int = 256 << 20  # bytes after which a new file is begun
    ack_sync: int = 100_000  # microseconds that acks may wait for company
    idle_mark: int = 100_000  # microseconds without a commit after which a mark claims what is durable
    ahead: int = 8 << 20  # bytes of zeros written ahead of the log; 0: none
    reserve: int = 16 << 20  # bytes held back for acks on a full disk; 0: none
    low_space: int = 32 << 20  # publishes are refused while less than this is free; 0: never asked
    batch_rows: int = 1 << 16  # rows after which a commit goes on in another batch
    batch_bytes: int = BATCH_MOST  # the same in bytes
    cache: int = CACHE_MOST  # bytes of decoded batches kept for reading
    first_lsn: int = 1  # of a new folder
    origin: int = 0  # of a new folder; 0: a random one


MEMORY = LogSettings(ahead=0, reserve=0, low_space=0, segment=64 << 20)
"""For disks in memory: nothing is written ahead and nothing held back."""
