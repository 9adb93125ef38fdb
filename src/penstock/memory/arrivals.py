"""Arrivals: batches as they came, whole, for what is delivered in the turn of its arrival or soon after.

A batch leaves when every queue that took it has delivered it and it is durable, or, oldest first, when the budget is
short: then `part` hands it to the other caches.  So what is here is always the youngest: every message above `lacking`
that still waits for its first delivery is here; of the others memory has what the other caches hold.  Batches that are
not yet durable never leave, for the log does not have them; the server bounds those by pausing publishers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from penstock.memory.slab import Piece, batch_cost, missing
from penstock.records.bodies import listed
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes


class Arrivals:
    """Batches by first LSN.  `bytes` is what they cost."""

    def __init__(self) -> None:
        self.bytes = 0
        self.durable = 0
        self.lacking = 0  # no message above this that waits for its first delivery is missing here
        self._firsts: list[int] = []  # ascending; parallel to _batches
        self._batches: list[Publishes | None] = []  # None: dropped, the slot goes at the next compaction
        self._costs: list[int] = []  # parallel; what a batch cost when it came
        self._holes = 0
        self._oldest = 0  # index: no batch stands before it
        self._unsettled = 0  # index of the first batch that is not durable

    def __len__(self) -> int:
        return len(self._batches) - self._holes

    def add(self, batch: Publishes) -> None:
        """Take a batch that has just been given its LSNs; they are above all earlier ones."""
        self._firsts.append(batch.first)
        self._batches.append(batch)
        cost = batch_cost(batch)
        self._costs.append(cost)
        self.bytes += cost

    def set_durable(self, lsn: int) -> None:
        """The log has everything up to `lsn`: drop what is delivered."""
        self.durable = lsn
        batches = self._batches
        end = bisect_right(self._firsts, lsn, self._unsettled)
        for index in range(self._unsettled, end):
            batch = batches[index]
            if batch is not None and batch.wanted <= 0:
                self._drop(index)
        self._unsettled = end
        if self._holes > 64 and self._holes * 2 > len(batches):
            self._compact()

    def part(self) -> Publishes | None:
        """Let the oldest durable batch go; None: there is none."""
        while self._oldest < self._unsettled:
            batch = self._batches[self._oldest]
            self._oldest += 1
            if batch is not None:
                self.lacking = batch.first + len(batch.bodies) - 1
                self._drop(self._oldest - 1)
                return batch
        return None

    @property
    def young(self) -> int:
        """Bytes of what is not durable.  Walks what is not durable."""
        return sum(self._costs[self._unsettled :])

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
                yield missing(chunk[start:stop])
            else:
                last = batch.first + len(batch.bodies)
                stop = bisect_left(chunk, last, start) if chunk[-1] >= last else total
                part = chunk if stop - start == total else chunk[start:stop]
                piece = self._rows(batch, part)
                batch.wanted -= stop - start
                if batch.wanted <= 0 and last - 1 <= self.durable:
                    self._drop(index)
                yield piece
            start = stop

    def whole(self, chunk: Chunk) -> Piece | None:
        """The rows of a chunk that lies in one batch; counts them as delivered.  None: it does not, or is not here."""
        index = bisect_right(self._firsts, chunk[0]) - 1
        batch = self._batches[index] if index >= 0 else None
        if batch is None or chunk[-1] >= (stop := batch.first + len(batch.bodies)):
            return None
        piece = self._rows(batch, chunk)
        batch.wanted -= len(chunk)
        if batch.wanted <= 0 and stop - 1 <= self.durable:
            self._drop(index)
        return piece

    def absent(self, chunk: Chunk) -> Chunk:
        """Those of a chunk that are not here, ascending."""
        if not self._firsts or chunk[-1] < self._firsts[0]:
            return chunk
        out = array("q")
        start = 0
        while start < len(chunk):
            batch = self.peek(chunk[start])
            if batch is not None:
                start = bisect_left(chunk, batch.first + len(batch.bodies), start)
                continue
            stop = self._end_of_missing(chunk, start)
            out.extend(chunk[start:stop])
            start = stop
        return as_chunk(out)

    def peek(self, lsn: int) -> Publishes | None:
        """The batch that holds a row, if it is here; not counted as a delivery."""
        index = bisect_right(self._firsts, lsn) - 1
        batch = self._batches[index] if index >= 0 else None
        return batch if batch is not None and lsn < batch.first + len(batch.bodies) else None

    def _rows(self, batch: Publishes, part: Chunk) -> Piece:
        first, topics, properties, bodies = batch.first, batch.topics, batch.properties, batch.bodies
        low, count = part[0] - first, len(part)
        size = batch.size if count == len(bodies) else batch.size * count // len(bodies)
        if part[-1] - part[0] == count - 1:
            high = low + count
            return Piece(
                part,
                topics[low:high] if isinstance(topics, list) else topics,
                properties[low:high] if isinstance(properties, list) else properties,
                listed(bodies) if count == len(bodies) else bodies[low:high],
                size,
            )
        return Piece(
            part,
            [topics[lsn - first] for lsn in part] if isinstance(topics, list) else topics,
            [properties[lsn - first] for lsn in part] if isinstance(properties, list) else properties,
            [bodies[lsn - first] for lsn in part],
            size,
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
        assert self._batches[index] is not None
        self.bytes -= self._costs[index]
        self._batches[index] = None
        self._costs[index] = 0
        self._holes += 1

    def _compact(self) -> None:
        kept = [index for index, batch in enumerate(self._batches) if batch is not None]
        self._firsts = [self._firsts[index] for index in kept]
        self._batches = [self._batches[index] for index in kept]
        self._costs = [self._costs[index] for index in kept]
        self._holes = self._oldest = 0
        self._unsettled = bisect_right(self._firsts, self.durable)
