"""Streams in mode `changes`: what became available in a queue, and what is no longer, since the last time.

Nothing is leased and nothing settled.  A stream knows which messages its reader has counted; a plan is the difference
between these and what is available now, as two batches of one record each: what went (odd numbers), then what came
(even ones).  So counts and sums over all batches are those of the queue at the last plan, and asking twice with the
same start gives the same batches.  Whatever is counted is needed: the log keeps it until it has been taken away again.

Sets of messages are ascending disjoint LSN pairs [a, b), shape (n, 2).  Pure; who looks at the queue does so elsewhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.state.lsns import Ints, combined, count, ints, merged, to_array, within
from penstock.core.streams.ranges import Owner
from penstock.errors import PreconditionFailed
from penstock.records.chunks import Chunk, Now, pack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind


@dataclass(frozen=True, slots=True)
class Difference:
    """What a plan would say."""

    went: Ints
    came: Ints

    def __len__(self) -> int:
        return len(self.went) + len(self.came)


def available(chunks: Iterable[Chunk]) -> Ints:
    """Messages of chunks in any order as pairs."""
    return merged([within(chunk) for chunk in chunks if len(chunk)])


def difference(counted: Ints, present: Ints, rows_max: int) -> Difference:
    """From what was counted to what is present: at most so many messages, what went first."""
    went = first(combined(counted, present, lambda a, b: a & ~b), rows_max)
    came = combined(counted, present, lambda a, b: b & ~a)
    return Difference(went, first(came, rows_max - count(went)))


def first(pairs: Ints, most: int) -> Ints:
    """The first `most` messages."""
    ends = np.cumsum(pairs[:, 1] - pairs[:, 0])
    place = int(np.searchsorted(ends, most))
    if place >= len(pairs):
        return pairs
    out = pairs[: place + 1].copy()
    out[place, 1] -= int(ends[place]) - most
    return out if out[place, 0] < out[place, 1] else out[:place]


class Changes:
    """What streams in this mode ask for."""

    def __init__(self, outbox: Outbox[Effect], streams: Owner) -> None:
        self._outbox = outbox
        self._streams = streams

    def planned(self, name: str, epoch: int, start: int) -> int | None:
        """The end of the batches that were planned for this start; None when there are none yet.

        Errors: Fenced; PreconditionFailed for a start that is not where the stream is.
        """
        state = self._streams.fenced(name, epoch, "changes")
        if start == state.planned:
            return None
        if start > state.planned or start + 1 not in state.plans:
            raise PreconditionFailed(
                f"the checkpoint of stream '{name}' is at batch {start}, the stream at {state.planned}: one of them is "
                "an old copy; delete the checkpoint to count everything anew"
            )
        return start + 2

    def counted(self, name: str) -> Ints:
        """What the reader has counted, or will have when it has read what is planned."""
        return ints(self._streams.state(name).counted).reshape(-1, 2)

    def plan(self, now: Now, name: str, epoch: int, start: int, queue: int, found: Difference) -> int:
        """Write a difference down, in one group; where the reader is then.

        queue: the id of the queue now, 0 when there is none.  Errors as `planned`.
        """
        before = self.planned(name, epoch, start)
        if before is not None:
            return before
        if not len(found):
            return start
        state = self._streams.state(name)
        now = self._outbox.at(now)
        self._streams.keeping.read(now, name, state)
        self._outbox.begin()
        for change, pairs in ((-1, found.went), (1, found.came)):
            header = {
                "batch": state.planned + 1, "epoch": epoch, "queue": queue, "change": change, "time": now.wall
            }  # fmt: skip
            body = pack_pairs(queue, to_array(pairs.reshape(-1)) if len(pairs) else array("q"))
            self._outbox.record(Kind.PLAN, name, header, body)
            state.fold(Kind.PLAN, header, body)
        self._outbox.end()
        return state.planned
