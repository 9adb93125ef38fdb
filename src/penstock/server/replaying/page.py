"""A page: messages in the order of the log, with what readers want to know of them.

One value stands for a column in which all rows agree.  Pages are shared between readers: nobody changes one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from penstock.records.bodies import lengths
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows, Topic

ROW_COST = 90
"""Bytes of memory that a row takes beside its body and header, about."""

PAGE_ROWS = 4_096
PAGE_BYTES = 256 * 1024
"""A page has no more than so many rows or, unless one row is larger, bytes."""


@dataclass(slots=True, eq=False)
class Page:
    """Rows with ascending LSNs."""

    lsns: Chunk
    topics: Topic | list[Topic]
    properties: bytes | list[bytes]
    bodies: list[bytes]
    times: int | list[int]  # microseconds since the epoch; they never decrease
    size: int = 0  # bytes in memory, about

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def first(self) -> int:
        """Its lowest LSN."""
        return self.lsns[0]

    @property
    def last(self) -> int:
        """Its highest LSN."""
        return self.lsns[-1]

    def topic_of(self, row: int) -> Topic:
        """The topic of one row."""
        return self.topics[row] if isinstance(self.topics, list) else self.topics

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return self.properties[row] if isinstance(self.properties, list) else self.properties

    def time_of(self, row: int) -> int:
        """When one row was stored."""
        return self.times[row] if isinstance(self.times, list) else self.times

    def part(self, low: int, high: int) -> Page:
        """Rows low..high-1."""
        count, total = high - low, len(self.bodies)
        if count == total:
            return self
        return Page(
            self.lsns[low:high],
            self.topics[low:high] if isinstance(self.topics, list) else self.topics,
            self.properties[low:high] if isinstance(self.properties, list) else self.properties,
            self.bodies[low:high],
            self.times[low:high] if isinstance(self.times, list) else self.times,
            self.size * count // total,
        )

    def from_lsn(self, lsn: int) -> Page | None:
        """The rows from an LSN on; None when there are none."""
        low = bisect_left(self.lsns, lsn)
        return self.part(low, len(self)) if low < len(self) else None

    def below(self, lsn: int) -> Page | None:
        """The rows below an LSN; None when there are none."""
        high = bisect_left(self.lsns, lsn)
        return self.part(0, high) if high else None

    def since(self, time: int) -> Page | None:
        """The rows that are not older than a time; None when there are none."""
        if isinstance(self.times, list):
            low = bisect_left(self.times, time)
        else:
            low = 0 if self.times >= time else len(self)
        return self.part(low, len(self)) if low < len(self) else None


def pages_of(batch: Publishes, rows: Sequence[int] | None) -> Iterator[Page]:
    """Rows of a batch in pages; all of them when `rows` is None."""
    sizes = lengths(batch.bodies)
    if rows is None:
        rows = range(len(batch.bodies))
    start, n = 0, len(rows)
    while start < n:
        stop, size = start, 0
        while stop < n and stop - start < PAGE_ROWS:
            more = int(sizes[rows[stop]]) + ROW_COST
            if stop > start and size + more > PAGE_BYTES:
                break
            size += more
            stop += 1
        yield _page(batch, rows[start:stop], size)
        start = stop


def _page(batch: Publishes, rows: Sequence[int], size: int) -> Page:
    topics, properties, bodies, first = batch.topics, batch.properties, batch.bodies, batch.first
    low, count = rows[0], len(rows)
    if rows[-1] - low == count - 1:
        high = low + count
        return Page(
            range(first + low, first + high),
            topics[low:high] if isinstance(topics, list) else topics,
            properties[low:high] if isinstance(properties, list) else properties,
            bodies[low:high],
            batch.time,
            size,
        )
    return Page(
        as_chunk([first + row for row in rows]),
        [topics[row] for row in rows] if isinstance(topics, list) else topics,
        [properties[row] for row in rows] if isinstance(properties, list) else properties,
        [bodies[row] for row in rows],
        batch.time,
        size,
    )


def page_of(rows: Rows) -> Page:
    """Rows that were read from the log."""
    topics, properties, times = rows.topics, rows.properties, rows.times
    one_topic = topics.count(topics[0]) == len(topics)
    one_header = properties[0] == properties[-1] and properties.count(properties[0]) == len(properties)
    size = sum(map(len, rows.bodies)) + (len(properties[0]) if one_header else sum(map(len, properties)))
    return Page(
        as_chunk(rows.lsns),
        topics[0] if one_topic else topics,
        properties[0] if one_header else properties,
        rows.bodies,
        times[0] if times[0] == times[-1] else times,
        size + ROW_COST * len(rows.bodies),
    )
