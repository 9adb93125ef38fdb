"""What a client sends on one stream: the only way by which Flight's handlers get at it.

pyarrow's reader gives batches as they came off the wire.  Handlers get an `Arriving` instead of it, which gives batches
that were judged (`wire.flight.received`), says on the stream's slot that something moved and how much memory is held,
and tells a client whose Arrow cannot be read so.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from penstock.errors import InvalidArgument, Unavailable
from penstock.wire.flight.received import Bounds, Layout, Received, check_schema, receive

if TYPE_CHECKING:
    from penstock.server.flight.calls import Slot

T = TypeVar("T")

_SIZE = re.compile(r"\d+")
"""What Arrow could not have stands in its error."""


class Arriving:
    """One stream.  For its own thread."""

    passing: tuple[type[Exception], ...] = ()
    """What the reader raises that says nothing of what the client sent."""

    def __init__(self, reader: Any, slot: Slot, bounds: Bounds) -> None:
        """reader: pyarrow's, or one like it, which nobody else reads from.  bounds: of one batch."""
        self._reader = reader
        self._slot = slot
        self._bounds = bounds
        self._passed: pa.Schema | None = None

    def expect(self, layout: Layout) -> pa.Schema:
        """The stream's schema, which the client sends first.  InvalidArgument unless it is of this layout."""
        schema = cast("pa.Schema", self._read(layout.what, lambda: self._reader.schema))
        self.check(schema, layout)
        self._passed = schema
        return schema

    def check(self, schema: pa.Schema, layout: Layout) -> None:
        """InvalidArgument unless a schema is of this layout."""
        check_schema(schema, layout)

    def each(self, layout: Layout) -> Iterator[tuple[Received | None, bytes | None]]:
        """Batches, and what the client says beside them or alone, until it has no more to say.

        A batch counts as held until the next one comes, or until `release`.  Errors: InvalidArgument for what cannot
        be read, and as `received.receive`.
        """
        while True:
            try:
                chunk: Any = self._read(layout.what, self._reader.read_chunk)
            except StopIteration:
                return
            self._slot.touch()
            said = None if chunk.app_metadata is None else cast("bytes", chunk.app_metadata.to_pybytes())
            if chunk.data is None:
                yield None, said
                continue
            received = self.judged(chunk.data, layout)
            self._passed = received.batch.schema
            self._slot.hold(received.size)
            yield received, said

    def judged(self, batch: pa.RecordBatch, layout: Layout) -> Received:
        """One batch that may be touched.  Errors as `received.receive`."""
        return receive(batch, layout, self._bounds, self._passed)

    def release(self) -> None:
        """The batch that came last is accounted for elsewhere."""
        self._slot.hold(0)

    def _read(self, what: str, step: Callable[[], T]) -> T:
        """A step of pyarrow's reader.  What it raises comes of what the client sent, who is told."""
        try:
            return step()
        except StopIteration:
            raise
        except self.passing:
            raise  # what happened to the connection
        except MemoryError as error:
            raise self._too_much(what, error) from None
        except Exception as error:  # noqa: BLE001 - of many classes, OSError and KeyError among them
            raise InvalidArgument(f"{what}: the Arrow stream cannot be read: {str(error)[:300]}") from None

    def _too_much(self, what: str, error: MemoryError) -> InvalidArgument | Unavailable:
        """A batch that does not fit, compressed or not: by itself, or beside those of others that are there."""
        asked, most = _SIZE.search(str(error)), self._bounds.batch_bytes
        if asked is None or int(asked[0]) <= most:
            return Unavailable(f"{what}: too little memory is free for this batch beside those of others: try again")
        return InvalidArgument(f"{what}: a column has {asked[0]} bytes; a batch may have {most}")
