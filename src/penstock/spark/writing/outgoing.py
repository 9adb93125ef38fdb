"""Rows of a DataFrame as messages: which columns are meant, whether they can be, and the batches that are sent.

A frame with a column `body` gives bodies as they are; of any other frame each row becomes a JSON object.  `topic`,
`priority`, `not_before`, `expires_at`, `headers` and four AMQP properties go beside the body in both cases.  Nobody
else checks a frame's columns: Spark hands any frame to any sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.arrow import Column, batch_of, column
from penstock.spark.writing.jsonrows import rows_as_json

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

ORDER = "order"
"""The column of what is sent by which the server orders a batch."""

ORDERED = ("tinyint", "smallint", "int", "bigint", "timestamp", "timestamp_ntz", "date", "string", "binary")
"""Types that rows can be ordered by: those that are one number, and text by its bytes, as Spark orders it."""

NO_JSON = ("interval", "variant", "void", "object", "geometry", "geography", "time(")
"""How the names of types begin that have no place in a JSON body."""

PIECE_ROWS = 100_000
PIECE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What the columns of a frame are."""

    beside: tuple[str, ...]
    fields: tuple[str, ...]  # of the JSON body; empty when the frame has a body
    order: str | None = None  # rows become visible in the order of this column

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the frame as a batch of messages.  InvalidArgument for a value that no message can have."""
        columns = dict[str, Column]()
        if self.fields:
            columns["body"] = rows_as_json(batch, self.fields)
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
        if self.order is not None:
            columns[ORDER] = order_of(batch, self.order)
        return batch_of(list(columns.values()), list(columns))


def outgoing(schema: Any, topic: str | None, *, queue: bool = False, order: str | None = None) -> Outgoing:
    """What the columns of a frame (`StructType`) are.  InvalidArgument names the column that is wrong and says why.

    topic: where rows go that name no topic; queue: it is a queue, to which all of them go; order: a column.
    """
    kinds = dict[str, str]()
    for field in schema.fields:
        if field.name in kinds:
            raise InvalidArgument(f"column {field.name!r} is there twice: give one of them another name, or drop it")
        kinds[field.name] = field.dataType.simpleString()
    beside = tuple(name for name in kinds if name in BESIDE)
    for name in beside:
        allowed = BESIDE[name][0]
        if kinds[name] not in allowed:
            raise InvalidArgument(
                f"column {name!r} is {kinds[name]}, not {' or '.join(allowed)}: cast it, or give it another name if it "
                "belongs to the body"
            )
    if queue and "topic" in kinds:
        raise InvalidArgument(
            f"option queue sends every row to queue {topic!r}, and column 'topic' says something else: drop the "
            "column, or give option topic, which serves rows whose 'topic' is null"
        )
    if topic is None and "topic" not in kinds:
        raise InvalidArgument("nobody says where to: give option topic or queue, or a column 'topic'")
    check_order(kinds, order)
    return Outgoing(beside, _fields(kinds, order), order)


def _fields(kinds: dict[str, str], order: str | None) -> tuple[str, ...]:
    """The columns of a JSON body; none when the frame has a body."""
    others = tuple(name for name in kinds if name not in BESIDE and name != "body")
    if "body" in kinds:
        if kinds["body"] not in ("binary", "string"):
            raise InvalidArgument(f"column 'body' is {kinds['body']}, not binary or string")
        left = [name for name in others if name != order]
        if left:
            one = len(left) == 1
            raise InvalidArgument(
                f"column{'' if one else 's'} {', '.join(map(repr, left))} {'has' if one else 'have'} no place beside "
                "'body': select what to send, or leave 'body' out to send the other columns as JSON"
            )
        return ()
    if not others:
        raise InvalidArgument(f"there is nothing for a body among the columns {', '.join(kinds) or '(none)'}")
    for name in others:
        for part in kinds[name].replace("<", ",").replace(":", ",").split(","):
            if part.strip().startswith(NO_JSON):
                raise InvalidArgument(
                    f"column {name!r} is {kinds[name]}, and {part.strip(' >')} has no place in a JSON body: cast it, "
                    "or give a column 'body'"
                )
    return others


def check_order(kinds: dict[str, str], order: str | None) -> None:
    """InvalidArgument unless rows can be ordered by this column."""
    if order is None:
        return
    if order not in kinds:
        raise InvalidArgument(
            f"option ordered names column {order!r}, and there is none among {', '.join(kinds) or '(none)'}"
        )
    if kinds[order] not in ORDERED:
        raise InvalidArgument(
            f"option ordered: column {order!r} is {kinds[order]}, not {', '.join(ORDERED[:-1])} or {ORDERED[-1]}"
        )


def order_of(batch: pa.RecordBatch, name: str) -> Column:
    """A column as int64, or text as bytes.  InvalidArgument for a row that has no place."""
    given = column(batch, name)
    if given.null_count:
        raise InvalidArgument(f"option ordered: column {name!r} has {given.null_count} nulls, which have no place")
    if pa.types.is_string(given.type) or pa.types.is_binary(given.type):
        return cast("Column", given.cast(pa.binary()))
    if pa.types.is_date(given.type):
        given = given.cast(pa.int32())
    return cast("Column", given.cast(pa.int64()))


def in_order(piece: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of a piece by their column `order`; equal ones stay as they came."""
    table: Any = pa.Table.from_batches(piece)
    numbers = table.column(ORDER).to_numpy()
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return piece
    return cast("list[pa.RecordBatch]", table.take(np.argsort(numbers, kind="stable")).combine_chunks().to_batches())


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
            yield piece if out.order is None else in_order(piece)
            piece, rows, size = [], 0, 0
    if piece:
        yield piece if out.order is None else in_order(piece)
