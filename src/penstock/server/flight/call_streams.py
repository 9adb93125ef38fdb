"""The two streams of a call that a door carries: what its client sends, piece by piece, and what he is told.

They stand where pyarrow's reader and writer stood, over the line of the call (`doors.line`).  The door has judged what
comes; what is wrong here is the door's fault, and it is cut off.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError, told_as
from penstock.history.history import cut
from penstock.server.doors.columns import batch_down, batch_there, schema_there
from penstock.server.doors.line import ABOUT_MOST, BEGUN, FOLLOWED, Broken, Ended, Frame, Kind, Line, failure_of
from penstock.server.flight.arriving import Arriving
from penstock.server.flight.calls import Slot
from penstock.server.flight.handover import Piece
from penstock.wire.fields import COMMAND_LIMIT
from penstock.wire.flight.failures import error_from
from penstock.wire.flight.received import Bounds, Layout, Received

CALL_MOST = COMMAND_LIMIT + ABOUT_MOST
"""Bytes of a call: a command, and who gives it."""

CAST_MOST = 64 << 20
"""Bytes by which a batch may grow in the door, where columns come to have the types of the table."""

SENT_MOST = 8 << 20
"""Bytes of rows that the door gets at once, unless one has more: it has them until its client reads."""


class Chunk(NamedTuple):
    """As pyarrow's reader gives it."""

    data: pa.RecordBatch | None
    app_metadata: pa.Buffer | None


class Sent:
    """What a client sends on one call, in place of pyarrow's reader: the door is asked for it piece by piece."""

    def __init__(self, line: Line, call: int, most: int, *, ahead: bool = False) -> None:
        """most: bytes of a frame.  ahead: the schema comes without being asked for."""
        self._line = line
        self._call = call
        self._most = most
        self._ahead = ahead
        self._coming = False  # the next piece does: the first one behind the schema, and behind words that say so

    @property
    def schema(self) -> pa.Schema:
        """That of the stream."""
        self._coming = True
        if not self._ahead:
            self._line.send(Kind.MORE, self._call, flags=BEGUN)
        return schema_there(self._next({Kind.SCHEMA: 64}).payload)

    def read_chunk(self) -> Chunk:
        """The next piece; StopIteration when the client has no more to say."""
        if not self._coming:
            self._line.send(Kind.MORE, self._call)
        frame = self._next({Kind.BATCH: self._most, Kind.WORDS: CALL_MOST, Kind.END: 0})
        self._coming = frame.kind is Kind.WORDS and bool(frame.flags & FOLLOWED)
        if frame.kind is Kind.END:
            raise StopIteration
        if frame.kind is Kind.WORDS:
            return Chunk(None, pa.py_buffer(bytes(frame.payload)))
        batch, words = batch_there(frame)
        said = None if words is None else pa.py_buffer(words)
        return Chunk(batch, said)

    def _next(self, may: dict[Kind, int]) -> Frame:
        frame = self._line.receive({**may, Kind.FAILED: CALL_MOST})
        if frame.number != self._call:
            raise Broken(f"a frame of call {frame.number} in call {self._call}")
        if frame.kind is Kind.FAILED:  # the door found something wrong with what the client sent
            _, _, extra = failure_of(frame.payload)
            raise error_from(_plain_error(extra))
        return frame


def _plain_error(extra: bytes) -> dict[str, object]:
    try:
        told: object = orjson.loads(extra)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        raise Broken("an error that is none")
    return told


class FromDoor(Arriving):
    """One stream as the door gives it.  The door has judged it: what is wrong here is the door's fault."""

    passing = (Ended, Broken, PenstockError)

    def __init__(self, sent: Sent, slot: Slot, bounds: Bounds) -> None:
        super().__init__(sent, slot, replace(bounds, batch_bytes=bounds.batch_bytes + CAST_MOST))

    def check(self, schema: pa.Schema, layout: Layout) -> None:
        """As the base class; Broken instead of InvalidArgument."""
        with told_as(Broken, "a schema that the door should have refused: ", instead=InvalidArgument):
            super().check(schema, layout)

    def judged(self, batch: pa.RecordBatch, layout: Layout) -> Received:
        """As the base class; Broken instead of InvalidArgument."""
        with told_as(Broken, "a batch that the door should have refused: ", instead=InvalidArgument):
            return super().judged(batch, layout)


class Answers:
    """What a call tells its client beside and behind the rows, in place of pyarrow's writer."""

    def __init__(self, line: Line, call: int) -> None:
        self._line = line
        self._call = call

    def write(self, words: bytes) -> None:
        """An answer of an upload: it leaves with the next frame, which follows at once."""
        self._line.send(Kind.WORDS, self._call, words, later=True)

    def begin(self, schema: pa.Schema) -> None:
        self._line.send(Kind.SCHEMA, self._call, schema.serialize())

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.send(batch)

    def write_metadata(self, words: bytes) -> None:
        self._line.send(Kind.WORDS, self._call, words)

    def send(self, piece: Piece) -> None:
        """Rows, perhaps with words beside them."""
        batch, words = piece if isinstance(piece, tuple) else (piece, None)
        *first, last = cut(batch, SENT_MOST)
        for some in first:
            self._send(some, None)
        self._send(last, words)

    def _send(self, batch: pa.RecordBatch, words: bytes | None) -> None:
        pieces, flags = batch_down(batch, words)
        self._line.send(Kind.BATCH, self._call, *pieces, flags=flags, rows=batch.num_rows)
