"""The cache of bodies: what came in and has not yet gone out, oldest first, under one byte budget.

It holds whole batches as they arrived, so that a delivery of neighbours is a slice.  A batch leaves when every queue
that took it has delivered it and it is durable, or, newest first, when the budget is exceeded: the oldest bodies are
the ones consumers need next.  What is not here is read from the log.  Batches that are not yet durable are never
dropped, for the log does not have them; the server bounds those by pausing publishers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from penstock.records.chunks import Chunk
from penstock.records.entries import Publishes, Rows, Topic

ROW_OVERHEAD = 49
"""Bytes a body costs beyond its content: 33 of the bytes object, 8 of its list slot, 8 of its share of the header."""


class Piece(NamedTuple):
    """Neighbouring rows of one delivery.  `topics` and `properties` are one value when all rows agree.

    `bodies` is None when the rows are not in memory and must be read from the log.
    """

    chunk: Chunk
    topics: Topic | list[Topic]
    properties: bytes | list[bytes]
    bodies: list[bytes] | None


def piece_of(rows: Rows, chunk: Chunk) -> Piece:
    """Rows read from the log as one piece."""
    return Piece(chunk, rows.topics, rows.properties, rows.bodies)


_MISSING_TOPIC = Topic("", "", "")


class BodyCache:
    """Batches by first LSN.  `used` is what they count against `budget`, in bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self.durable = 0
        self._firsts: list[int] = []  # ascending; parallel to _batches
        self._batches: list[Publishes | None] = []  # None: dropped, the slot goes at the next compaction
        self._holes = 0
        self._unsettled = 0  # index of the first batch that is not durable

    def __len__(self) -> int:
        return len(self._batches) - self._holes

    @staticmethod
    def cost(batch: Publishes) -> int:
        """Bytes that a batch counts for."""
        return batch.size + ROW_OVERHEAD * len(batch.bodies)

    def add(self, batch: Publishes) -> None:
        """Take a batch that has just been given its LSNs; they are above all earlier ones."""
        self._firsts.append(batch.first)
        self._batches.append(batch)
        self.used += self.cost(batch)

    def set_durable(self, lsn: int) -> None:
        """The log has everything up to `lsn`: drop what is delivered, and what the budget has no room for."""
        self.durable = lsn
        batches = self._batches
        end = bisect_right(self._firsts, lsn, self._unsettled)
        for index in range(self._unsettled, end):
            batch = batches[index]
            if batch is not None and batch.wanted <= 0:
                self._drop(index)
        self._unsettled = end
        index = end - 1
        while self.used > self.budget and index >= 0:
            if batches[index] is not None:
                self._drop(index)
            index -= 1
        if self._holes > 64 and self._holes * 2 > len(batches):
            self._compact()

    def pieces(self, chunk: Chunk) -> Iterator[Piece]:
        """The rows of a chunk in its order, cut where they leave a batch; counts them as delivered."""
        start, total = 0, len(chunk)
        firsts, batches = self._firsts, self._batches
        while start < total:
            lsn = chunk[start]
            index = bisect_right(firsts, lsn) - 1
            batch = batches[index] if index >= 0 else None
            if batch is None or lsn >= batch.first + len(batch.bodies):
                stop = self._end_of_missing(chunk, start)
                yield Piece(chunk[start:stop], _MISSING_TOPIC, b"", None)
            else:
                last = batch.first + len(batch.bodies)
                stop = bisect_left(chunk, last, start) if chunk[-1] >= last else total
                part = chunk if stop - start == total else chunk[start:stop]
                yield self._rows(batch, part)
                batch.wanted -= stop - start
                if batch.wanted <= 0 and last - 1 <= self.durable:
                    self._drop(index)
            start = stop

    def peek(self, lsn: int) -> Publishes | None:
        """The batch that holds a row, if it is in memory; not counted as a delivery."""
        index = bisect_right(self._firsts, lsn) - 1
        batch = self._batches[index] if index >= 0 else None
        return batch if batch is not None and lsn < batch.first + len(batch.bodies) else None

    def _rows(self, batch: Publishes, part: Chunk) -> Piece:
        first, topics, properties, bodies = batch.first, batch.topics, batch.properties, batch.bodies
        low, count = part[0] - first, len(part)
        if part[-1] - part[0] == count - 1:
            high = low + count
            return Piece(
                part,
                topics[low:high] if isinstance(topics, list) else topics,
                properties[low:high] if isinstance(properties, list) else properties,
                bodies if count == len(bodies) else bodies[low:high],
            )
        return Piece(
            part,
            [topics[lsn - first] for lsn in part] if isinstance(topics, list) else topics,
            [properties[lsn - first] for lsn in part] if isinstance(properties, list) else properties,
            [bodies[lsn - first] for lsn in part],
        )

    def _end_of_missing(self, chunk: Chunk, start: int) -> int:
        """How far from `start` the rows stay out of memory."""
        stop = start
        while stop < len(chunk):
            index = bisect_right(self._firsts, chunk[stop])
            batch = self._batches[index - 1] if index else None
            if batch is not None and chunk[stop] < batch.first + len(batch.bodies):
                break
            while index < len(self._batches) and self._batches[index] is None:
                index += 1
            if index == len(self._batches):
                return len(chunk)
            stop = max(bisect_left(chunk, self._firsts[index], stop), stop + 1)
        return stop

    def _drop(self, index: int) -> None:
        batch = self._batches[index]
        assert batch is not None
        self.used -= self.cost(batch)
        self._batches[index] = None
        self._holes += 1

    def _compact(self) -> None:
        kept = [(first, batch) for first, batch in zip(self._firsts, self._batches, strict=True) if batch is not None]
        self._firsts = [first for first, _ in kept]
        self._batches = [batch for _, batch in kept]
        self._holes = 0
        self._unsettled = bisect_right(self._firsts, self.durable)
