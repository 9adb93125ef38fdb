"""A slab: rows of one queue with their bodies, ascending, that are kept, moved and given out together.

It owns what a row costs in memory and how rows are cut out of a batch.  It knows no cache, no queue and no budget.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import field
from typing import NamedTuple, cast

import numpy as np

from penstock.records.chunks import Chunk, as_chunk
from penstock.records.compute import lsns_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows, Topic
from penstock.records.message_bodies import WIDTH, Bodies, listed, picked, size_of
from penstock.records.one_or_each import Where, each, list_at, one_or_each, rows_at, tight

HEADER_SHARE = 8
"""Bytes of a header's slot in its list."""

ROW_OVERHEAD = 41 + HEADER_SHARE
"""Bytes a body costs beyond its content: 33 of the bytes object, 8 of its list slot, 8 of its share of the header."""

HEADER_OVERHEAD = 33
"""Bytes of a header that is an object of its own."""

TIME_COST = 40
"""Bytes of a time, a deadline or a priority in a list: the number and its slot."""

FEW = 24
"""Rows that are found one by one as fast as by numpy."""


class Piece(NamedTuple):
    """Neighbouring rows of one delivery.  `topics` and `properties` are one value when all rows agree.

    `bodies` is None when the rows are not in memory and must be read from the log.  `size` is about what they cost, in
    bytes.
    """

    chunk: Chunk
    topics: Topic | list[Topic]
    properties: bytes | list[bytes]
    bodies: list[bytes] | None
    size: int = 0

    def topic_of(self, row: int) -> Topic:
        """The topic of one row."""
        return self.topics[row] if isinstance(self.topics, list) else self.topics  # each row asks: no call

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return self.properties[row] if isinstance(self.properties, list) else self.properties

    def row(self, row: int) -> Piece:
        """One of the rows, which are in memory."""
        assert self.bodies is not None
        return Piece(
            self.chunk[row : row + 1],
            self.topic_of(row),
            self.properties_of(row),
            [self.bodies[row]],
            self.size // len(self.bodies),
        )

    def rows(self, keep: Sequence[int]) -> Piece:
        """Some of the rows, which are in memory."""
        assert self.bodies is not None
        return Piece(
            as_chunk([self.chunk[row] for row in keep]),
            rows_at(self.topics, keep),
            rows_at(self.properties, keep),
            [self.bodies[row] for row in keep],
            self.size * len(keep) // len(self.bodies),
        )


MISSING_TOPIC = Topic("", "", "")


def missing(chunk: Chunk) -> Piece:
    """Rows that no memory has."""
    return Piece(chunk, MISSING_TOPIC, b"", None)


def piece_of(rows: Rows, chunk: Chunk) -> Piece:
    """Rows read from the log as one piece."""
    size = sum(map(len, rows.bodies)) + ROW_OVERHEAD * len(rows.bodies)
    return Piece(chunk, one_or_each(rows.topics), one_or_each(rows.properties), rows.bodies, size)


@dataclass(slots=True, eq=False)
class Slab:
    """Columns of rows; one value stands for a column in which all rows agree.

    Packed bodies stay packed until they are given out: moving a batch makes no object a row and costs no more.
    """

    chunk: Chunk  # ascending, one position a row
    topics: Topic | list[Topic]
    properties: bytes | list[bytes]
    bodies: Bodies
    times: int | list[int]  # microseconds
    expires_at: list[int] | None  # microseconds; 0 is never
    priority: list[int] | None
    left: int = field(init=False)  # rows not yet given out
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.bodies)
        self.cost = self._cost()

    def __len__(self) -> int:
        return len(self.bodies)

    def __repr__(self) -> str:
        return f"Slab({self.first}..{self.last}, {len(self)} rows, {self.left} left, {self.cost} bytes)"

    @property
    def first(self) -> int:
        return self.chunk[0]

    @property
    def last(self) -> int:
        return self.chunk[-1]

    def _cost(self) -> int:
        rows, properties = len(self.bodies), self.properties
        cost = size_of(self.bodies)
        if isinstance(self.bodies, list):
            cost += ROW_OVERHEAD * rows
        else:
            cost += WIDTH * rows + (HEADER_SHARE * rows if isinstance(properties, list) else 0)
        if isinstance(properties, list):
            cost += sum(map(len, properties)) + HEADER_OVERHEAD * rows
        for column in (self.times, self.expires_at, self.priority):
            if isinstance(column, list):
                cost += TIME_COST * rows
        return cost

    # -- making

    @classmethod
    def of_batch(cls, batch: Publishes, chunk: Chunk) -> Slab:
        """Those rows of a batch; it keeps nothing else of the batch alive.

        A batch that is taken whole lends its columns, which nobody changes.
        """
        first, count, total = batch.first, len(chunk), len(batch.bodies)
        if count == total:
            return cls(
                chunk, batch.topics, batch.properties, batch.bodies, batch.time, batch.expires_at, batch.priority,
            )  # fmt: skip
        where: Where
        if isinstance(chunk, range):
            where = slice(chunk.start - first, chunk.stop - first)
        else:
            where = [lsn - first for lsn in chunk]
        return cls(
            chunk,
            rows_at(batch.topics, where),
            rows_at(batch.properties, where),
            picked(batch.bodies, where),
            batch.time,
            None if batch.expires_at is None else list_at(batch.expires_at, where),
            None if batch.priority is None else list_at(batch.priority, where),
        )

    @classmethod
    def of_rows(cls, rows: Rows) -> Slab:
        """All rows of an answer of the log."""
        times: int | list[int] = rows.times
        if rows.times[0] == rows.times[-1]:  # they never decrease
            times = rows.times[0]
        return cls(
            as_chunk(rows.lsns),
            one_or_each(rows.topics),
            one_or_each(rows.properties),
            rows.bodies,
            times,
            rows.expires_at if any(rows.expires_at) else None,
            rows.priority if any(rows.priority) else None,
        )

    def part(self, low: int, high: int) -> Slab:
        """Rows low..high-1 as a slab of their own."""
        part = self.select(self.chunk[low:high], slice(low, high))
        part.left = min(len(part), self.left)  # nobody knows which rows were given out
        return part

    def select(self, chunk: Chunk, where: Where) -> Slab:
        """The rows that stand there, which are those of the chunk, as a slab of their own."""
        if len(chunk) == len(self):
            return self
        topics, properties = rows_at(self.topics, where), rows_at(self.properties, where)
        return Slab(
            chunk,
            one_or_each(topics) if isinstance(topics, list) else topics,
            one_or_each(properties) if isinstance(properties, list) else properties,
            picked(self.bodies, where),
            rows_at(self.times, where),
            None if self.expires_at is None else list_at(self.expires_at, where),
            None if self.priority is None else list_at(self.priority, where),
        )

    def those(self, chunk: Chunk) -> tuple[Slab | None, set[int]]:
        """The rows of a chunk as a slab of their own, None when none is here; and the positions that are not here.

        It is never this slab itself: others may ask for the same rows.
        """
        here, wanted = lsns_of(self.chunk), lsns_of(chunk)
        if len(here) == len(wanted) and bool((here == wanted).all()):
            return copy(self), set()
        places = np.minimum(np.searchsorted(here, wanted), len(here) - 1)
        present = here[places] == wanted
        lost: set[int] = set()
        if not present.all():
            lost = set(cast("list[int]", wanted[~present].tolist()))
            wanted, places = wanted[present], places[present]
            chunk = as_chunk(array("q", wanted.tobytes()))
        if not len(wanted):
            return None, lost
        return self.select(chunk, tight(cast("list[int]", places.tolist()))), lost

    def in_pieces(self, most: int) -> list[Slab]:
        """Cut so that a part costs about `most` bytes; a row is never cut."""
        if self.cost <= most or len(self) == 1:
            return [self]
        rows = max(1, most * len(self) // self.cost)
        return [self.part(low, min(low + rows, len(self))) for low in range(0, len(self), rows)]

    # -- finding

    def find(self, chunk: Chunk, start: int) -> tuple[int, Where | None]:
        """How far chunk[start:] is all here or all absent: the end of that run, and where its rows are, or None.

        The run ends at this slab's last position at the latest when its rows are here.
        """
        lsns = self.chunk
        at = bisect_left(lsns, chunk[start])
        if at == len(lsns):
            return len(chunk), None
        if lsns[at] != chunk[start]:
            return bisect_left(chunk, lsns[at], start + 1), None
        if isinstance(lsns, range) and isinstance(chunk, range):
            count = min(lsns.stop - chunk[start], len(chunk) - start)
            return start + count, slice(at, at + count)
        stop = bisect_right(chunk, lsns[-1], start)
        count = stop - start
        if lsns[at : at + count] == chunk[start:stop]:
            return stop, slice(at, at + count)
        if count <= FEW:
            where: list[int] = []
            for lsn in chunk[start:stop]:
                at = bisect_left(lsns, lsn, at)
                if lsns[at] != lsn:
                    break
                where.append(at)
            return start + len(where), tight(where)
        here, wanted = lsns_of(lsns), lsns_of(chunk[start:stop])
        places = np.searchsorted(here, wanted)
        absent = np.flatnonzero(here[places] != wanted)
        if len(absent):
            places = places[: int(absent[0])]
        return start + len(places), tight(places.tolist())

    def piece(self, chunk: Chunk, where: Where) -> Piece:
        """The rows that stand there, which are those of the chunk."""
        count = len(chunk)
        return Piece(
            chunk,
            rows_at(self.topics, where),
            rows_at(self.properties, where),
            listed(self.bodies) if count == len(self.bodies) else _bodies(self.bodies, where),
            self.cost * count // len(self.bodies),
        )

    def add_to(self, rows: Rows, chunk: Chunk, where: Where) -> None:
        """Append the rows that stand there to an answer."""
        count = len(chunk)
        rows.lsns += chunk
        rows.topics += each(rows_at(self.topics, where), count)
        rows.properties += each(rows_at(self.properties, where), count)
        rows.bodies += _bodies(self.bodies, where)
        rows.times += each(rows_at(self.times, where), count)
        rows.expires_at += [0] * count if self.expires_at is None else list_at(self.expires_at, where)
        rows.priority += [0] * count if self.priority is None else list_at(self.priority, where)


def _bodies(bodies: Bodies, where: Where) -> list[bytes]:
    return bodies[where] if isinstance(where, slice) else [bodies[row] for row in where]
