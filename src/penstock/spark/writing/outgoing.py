"""Rows of a DataFrame as messages: which columns are meant, whether they can be, and the batches that are sent.

A frame with a column `body` gives bodies as they are; of any other frame each row becomes a JSON object.  `topic`,
`priority`, `not_before`, `expires_at`, `headers` and four AMQP properties go beside the body in both cases.  Nobody
else checks a frame's columns: Spark hands any frame to any sink.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any, cast

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.arrow import Column, batch_of, column

HEADERS = pa.map_(pa.string(), pa.string())
UTC_MICROS = pa.timestamp("us", tz="UTC")

BESIDE: dict[str, tuple[tuple[str, ...], pa.DataType]] = {
    "topic": (("string",), pa.string()),
    "priority": (("tinyint", "smallint", "int", "bigint"), pa.int16()),
    "not_before": (("timestamp",), UTC_MICROS),
    "expires_at": (("timestamp",), UTC_MICROS),
    "headers": (("map<string,string>",), HEADERS),
    "content_type": (("string",), pa.string()),
    "message_id": (("string",), pa.string()),
    "correlation_id": (("string",), pa.string()),
    "reply_to": (("string",), pa.string()),
}
"""Columns beside the body: the Spark types they may have, and the type that is sent."""

PIECE_ROWS = 100_000
PIECE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What the columns of a frame are."""

    beside: tuple[str, ...]
    fields: tuple[str, ...]  # of the JSON body; empty when the frame has a body

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the frame as a batch of messages.  InvalidArgument for a value that no message can have."""
        columns = dict[str, Column]()
        if self.fields:
            columns["body"] = pa.array(to_json(batch, self.fields), pa.binary())
            if "content_type" not in self.beside:
                text = pa.repeat(pa.scalar("application/json", pa.string()), batch.num_rows)
                columns["content_type"] = cast("Column", text)
        else:
            body = column(batch, "body")
            if body.null_count:
                raise InvalidArgument(f"column 'body' has {body.null_count} nulls; a body may be empty but not null")
            columns["body"] = cast("Column", body.cast(pa.binary()))
        for name in self.beside:
            try:
                columns[name] = cast("Column", batch.column(name).cast(BESIDE[name][1]))
            except pa.ArrowException as error:
                raise InvalidArgument(f"column {name!r} has a value that no message can have: {error}") from None
        return batch_of(list(columns.values()), list(columns))


def outgoing(schema: Any, topic: str | None) -> Outgoing:
    """What the columns of a frame (`StructType`) are.  InvalidArgument names the column that is wrong and says why."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    beside = tuple(name for name in kinds if name in BESIDE)
    for name in beside:
        allowed = BESIDE[name][0]
        if kinds[name] not in allowed:
            raise InvalidArgument(
                f"column {name!r} is {kinds[name]}, not {' or '.join(allowed)}: cast it, or give it another name if it "
                "belongs to the body"
            )
    others = tuple(name for name in kinds if name not in BESIDE and name != "body")
    if "body" in kinds:
        if kinds["body"] not in ("binary", "string"):
            raise InvalidArgument(f"column 'body' is {kinds['body']}, not binary or string")
        if others:
            raise InvalidArgument(
                f"column {others[0]!r} has no place beside 'body': select what to send, or leave 'body' out to send "
                "the other columns as JSON"
            )
    elif not others:
        raise InvalidArgument(f"there is nothing for a body among the columns {', '.join(kinds) or '(none)'}")
    if topic is None and "topic" not in kinds:
        raise InvalidArgument("nobody says where to: give option topic or queue, or a column 'topic'")
    return Outgoing(beside, () if "body" in kinds else others)


def to_json(batch: pa.RecordBatch, names: Iterable[str]) -> list[bytes]:
    """Each row as a JSON object: times in ISO form, binary as base64, decimals as text."""
    keys = list(names)
    columns = [_values(batch.column(name)) for name in keys]
    dumps, option = orjson.dumps, orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z
    return [dumps(dict(zip(keys, row, strict=True)), _plain, option) for row in zip(*columns, strict=True)]


def _values(column: Any) -> list[Any]:
    return cast("list[Any]", column.to_pylist(maps_as_pydicts="lossy"))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def pieces(batches: Iterable[pa.RecordBatch], out: Outgoing) -> Iterator[list[pa.RecordBatch]]:
    """Batches of messages, in pieces small enough to keep in memory until they are sent."""
    piece: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        encoded = out.encode(batch)
        piece.append(encoded)
        rows += encoded.num_rows
        size += encoded.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield piece
            piece, rows, size = [], 0, 0
    if piece:
        yield piece
