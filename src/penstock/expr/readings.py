"""Bodies of a batch as expressions read them: each is read once for a message type, whoever asks and whatever is in it.

Filters, priorities and keys of many queues look at the same bodies, and to read one takes far longer than to look: what
was read stands here for as long as they are at it.  A body that cannot be read has no fields, and is not read again
either.  It knows no expression; who shares it keeps it no longer than that, for objects are larger than bodies.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, cast

from penstock.expr.batches import Properties, Table
from penstock.expr.bodies import body_type
from penstock.expr.context import LOOP_VISITS, meter
from penstock.records.entries import Publishes
from penstock.records.message_bodies import listed
from penstock.records.message_types import MessageType
from penstock.records.one_or_each import list_at


class Readings:
    """The fields of bodies, read as they are asked for.  One thread at a time."""

    __slots__ = ("_partly", "_read", "_rows", "_whole", "bodies", "properties", "visits")

    def __init__(self, bodies: Sequence[bytes], properties: Properties) -> None:
        """properties: one header that all have, or each its own."""
        self.bodies = bodies
        self.properties = properties
        self._read: dict[MessageType, list[Table]] = {}
        self._partly: dict[MessageType, dict[int, Table]] = {}  # by row, where some were asked for
        self._whole: Readings | None = None  # of which these are some rows
        self._rows: Sequence[int] = ()
        self.visits = LOOP_VISITS  # elements that filters of one queue after another may still look at on the loop

    def some(self, rows: Sequence[int]) -> Readings:
        """Some of them: what is read of these is read of the whole, and no other row is."""
        out = Readings(*self._part(rows))
        out._whole, out._rows = self, rows
        return out

    def tables(self, kind: MessageType) -> list[Table]:
        """The fields of each body, read as this type; none for a body that cannot be read."""
        found = self._read.get(kind)
        if found is None:
            if self._whole is not None:
                found = self._whole._tables_of(kind, self._rows)
            elif kind in self._partly:
                found = self._tables_of(kind, range(len(self.bodies)))
            else:
                found = body_type(kind).tables(self.bodies, self.properties)
            self._read[kind] = found
        return found

    def _tables_of(self, kind: MessageType, rows: Sequence[int]) -> list[Table]:
        """The same of some rows; no other is read."""
        if kind in self._read:
            return list_at(self._read[kind], rows)
        known = self._partly.setdefault(kind, {})
        left = [row for row in rows if row not in known]
        if left:
            known.update(zip(left, body_type(kind).tables(*self._part(left)), strict=True))
        return [known[row] for row in rows]

    def _part(self, rows: Sequence[int]) -> tuple[list[bytes], Properties]:
        bodies, heads = self.bodies, self.properties
        return [bodies[row] for row in rows], heads if isinstance(heads, bytes) else [heads[row] for row in rows]


SHARED: Final = object()
"""As `Publishes.read`: several look at the bodies of this batch, and none has yet."""


@contextmanager
def sharing(batch: Publishes, *, among_several: bool = True) -> Generator[None]:
    """Inside, several look at the bodies of a batch; what is read is kept until the outermost of these ends."""
    if batch.read is not None or not among_several:
        yield
        return
    batch.read = SHARED
    try:
        yield
    finally:
        batch.read = None


def readings_of(batch: Publishes) -> Readings | None:
    """What is read of the bodies of a batch, while several look at them; None: whoever asks reads them alone."""
    if batch.read is SHARED:
        batch.bodies = bodies = listed(batch.bodies)
        batch.read = Readings(bodies, batch.properties)
    return cast("Readings | None", batch.read)


def in_time(readings: Readings | None) -> AbstractContextManager[None]:
    """Inside, filters on the loop may look at as many elements as filters before them have left; beyond it HandOver."""
    return meter.bounded() if readings is None else _left_of(readings)


@contextmanager
def _left_of(readings: Readings) -> Generator[None]:
    with meter.bounded(readings.visits):
        try:
            yield
        finally:
            readings.visits = max(meter.batch, 0)
