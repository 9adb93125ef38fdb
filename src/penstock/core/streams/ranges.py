"""Streams in log mode: which LSN range was answered for which start, and what it is read with.

In log mode nothing is granted and nothing settled.  A range is remembered until two others were planned after it, in
the parts it is read in, so that asking for it again gives the same rows however the options have changed meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.core.state.lsns import Ints, combined, count, ints, merged, to_array, within
from penstock.core.state.streams import Asked, StreamState
from penstock.core.streams.table import StreamTable
from penstock.errors import PreconditionFailed
from penstock.records.chunks import Chunk, Now, pack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind


@dataclass(frozen=True, slots=True)
class Range:
    """A planned range and what it is read with."""

    batch: int
    parts: tuple[tuple[int, int], ...]  # LSNs [a, b), one after another
    asked: Asked

    @property
    def end(self) -> int:
        """One past its last LSN."""
        return self.parts[-1][1]


class Ranges:
    """The log-mode half of all streams of a core."""

    def __init__(self, streams: StreamTable) -> None:
        self._outbox = streams.outbox
        self._streams = streams

    def begin(self, now: Now, name: str, epoch: int, said: str, lsn: int) -> int:
        """Where a reader without a checkpoint begins: what the same words meant when they were first said."""
        state = self._read(now, name, epoch)
        if state.start is None or state.said != said:
            header = {"start": lsn, "said": said, "time": self._outbox.time}
            self._streams.write(Kind.STREAM_START, name, state, header)
        assert state.start is not None
        return state.start

    def known(self, now: Now, name: str, epoch: int, start: int) -> Range | None:
        """The range that was planned from this LSN on, if it is remembered."""
        return self.find(self._read(now, name, epoch), start)

    @staticmethod
    def find(state: StreamState, start: int) -> Range | None:
        """The same without a reader."""
        batch = state.planned_at(start)
        if batch is None:
            return None
        pairs = state.plans[batch]
        parts = tuple((pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2))
        return Range(batch, parts, state.asked_for(batch))

    def plan(self, now: Now, name: str, epoch: int, parts: Sequence[tuple[int, int]]) -> Range:
        """Plan a range of these parts, unless one is known from its start on; the one that holds."""
        state = self._read(now, name, epoch)
        present = self.find(state, parts[0][0])
        if present is not None:
            return present
        header = {"batch": state.planned + 1, "epoch": epoch, "queue": 0, "time": self._outbox.time}
        body = pack_pairs(0, array("q", [lsn for part in parts for lsn in part]))
        self._streams.write(Kind.PLAN, name, state, header, body)
        return Range(state.planned, tuple(parts), state.asked)

    def plan_range(self, now: Now, name: str, epoch: int, start: int, end: int) -> int:
        """The end of the range that begins at LSN `start`; `end` unless another was answered before."""
        present = self.known(now, name, epoch, start)
        if present is None and end <= start:
            return start
        return (present or self.plan(now, name, epoch, [(start, end)])).end

    def _read(self, now: Now, name: str, epoch: int) -> StreamState:
        state = self._streams.fenced(name, epoch, "log")
        self._streams.keeping.read(self._outbox.at(now), name, state)
        return state


def refuse_other_topic(name: str, present: Asked, asked: Asked) -> None:
    """PreconditionFailed when a stream that reads one topic is asked to read another; filters may change."""
    for key in ("vhost", "exchange", "topic", "pattern"):
        if present and present.get(key) != asked.get(key):
            raise PreconditionFailed(
                f"stream '{name}' reads {told(present)}, and is asked to read {told(asked)}: its batches would mix; "
                f"use another name, or drop it first (penstock stream release {name} --drop)"
            )


def told(asked: Asked) -> str:
    """What a stream in log mode reads, as text."""
    if not asked:
        return "the log"
    name = f"pattern '{asked['pattern']}'" if asked.get("pattern") is not None else f"topic '{asked.get('topic')}'"
    where = f" of exchange '{asked['exchange']}'" if asked.get("exchange") else ""
    return f"{name}{where} in vhost '{asked.get('vhost', '/')}'"


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
    ends = np.cumsum(pairs[:, 1] - pairs[:, 0])
    place = int(np.searchsorted(ends, most))
    if place >= len(pairs):
        return pairs
    out = pairs[: place + 1].copy()
    out[place, 1] -= int(ends[place]) - most
    return out if out[place, 0] < out[place, 1] else out[:place]


class Changes:
    """What streams in this mode ask for."""

    def __init__(self, streams: StreamTable) -> None:
        self._outbox = streams.outbox
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
            self._streams.write(Kind.PLAN, name, state, header, body)
        self._outbox.end()
        return state.planned
