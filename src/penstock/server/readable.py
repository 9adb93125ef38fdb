"""Cold reads around damage: the rows that can be read, when a batch of the log is no longer what was written.

A flipped bit must not take more than its own batch from its readers.  The rows of that batch are left out of the
answer, as rows are that the log has let go: the delivery goes on without them, and they stay in their queues, leased
until the lease ends.  The damage is told with file, batch and LSN each time somebody meets it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import LogDamaged
from penstock.records.entries import Rows

if TYPE_CHECKING:
    from penstock.log import Log

logger = logging.getLogger("penstock.server")

TRIES = 256
"""Reads that fail, after which the rest of what was asked for is given up: each checks the sum of a whole batch."""


def read_around(log: Log, lsns: Sequence[int], ahead: int = 0, most: int = 0) -> Rows:
    """`log.read`, without the rows that cannot be read.  Any thread; OSError when the disk cannot read at all."""
    try:
        return log.read(lsns, ahead, most)
    except LogDamaged as error:
        logger.error("%s; what is stored there is not delivered", error)
    out = Rows([], [], [], [], [], [], [])
    left = [lsns]
    tries = TRIES
    while left and tries and not (most and sum(map(len, out.bodies)) >= most):
        some = left.pop()
        try:
            rows = log.read(some, 0, most)
        except LogDamaged:
            tries -= 1
            if len(some) > 1:
                middle = len(some) // 2
                left += (some[middle:], some[:middle])
            continue
        _append(out, rows)
        if most and rows.lsns and rows.lsns[-1] != some[-1]:
            break  # that was as much as was asked for
    return out


def _append(out: Rows, rows: Rows) -> None:
    out.lsns += rows.lsns
    out.topics += rows.topics
    out.properties += rows.properties
    out.bodies += rows.bodies
    out.times += rows.times
    out.expires_at += rows.expires_at
    out.priority += rows.priority
