"""A start on a full disk: room for the records of a start, and of the purge that may follow it, is made or waited for.

The log has its zeros and its reserve; where both are used up, what can be made again goes first: what queues have paged
to a file, checkpoints, indexes of names.  Where that is not enough the start waits until somebody frees space, instead
of failing again and again.  Nothing of the log itself is touched here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.log.watch import Watch, nobody
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.ports import Disk

logger = logging.getLogger("penstock.server")

ROOM = 1 << 20
"""Bytes that a start asks for: its own records take a few kilobytes, acks and a base what is left."""

DERIVED = ("paged", "checkpoints", "index")
"""Folders of the data folder that only save time; the last ones cost the next start some."""

WAIT_S = 0.5

Pause = Callable[[float], object]


def make_room(log: Log, pause: Pause, watch: Watch = nobody, wanted: int = ROOM) -> None:
    """Return when the log can write so many bytes.  Before it is mended or appended to; any thread.

    `watch` is told of each look and may raise to end the waiting.  OSError for a disk that does not work.
    """
    wanted = min(wanted, log.settings.low_space)  # 0: the disk is not asked
    if log.room_left >= wanted:
        return
    freed = _drop_derived(log.disk)
    if freed:
        logger.warning("the disk is full: %d files that can be made again were removed to start at all", freed)
    told = False
    while (left := log.room_left) < wanted:
        if not told:
            logger.warning(
                "the disk of the data folder has %s left; the start goes on when there is %s: free some space there",
                format_size(left), format_size(wanted),
            )  # fmt: skip
            told = True
        watch("room", 0, 1)
        pause(WAIT_S)
    if told:
        watch("room", 1, 1)


def _drop_derived(disk: Disk) -> int:
    """Remove the files of these folders; how many."""
    count = 0
    for folder in DERIVED:
        for name in disk.list(folder):
            disk.remove(f"{folder}/{name}")
            count += 1
        if count:
            disk.sync_folder()
    return count
