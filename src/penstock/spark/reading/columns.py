"""Columns of what is read: Spark's declarations, Arrow's types, and which come from the message and which from its
body.

Spark takes a batch only when its Arrow types equal the declared ones exactly, so every batch goes through `fitted`.
"""

from __future__ import annotations

import re
from typing import Any, cast

import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.spark.arrow import Column, batch_like
from penstock.spark.reading.options import ReadOptions

MESSAGE = {
    "lsn": "bigint",
    "bookmark": "string",
    "topic": "string",
    "time": "timestamp",
    "headers": "map<string,string>",
    "attempt": "int",
    "body": "binary",
}
"""Columns of a message, in order, with Spark's types."""

MORE = {"exchange": "string", "priority": "smallint", "properties": "binary"}
"""Columns that come when `.schema(...)` asks for them."""

CONTENT = {"state": "string"}
"""And those of a queue's present content."""

RECORD = {
    "sow_key": "string",
    **{name: kind for name, kind in MESSAGE.items() if name != "attempt"},
}
"""Columns of the records of a topic with a key."""

ROW = ("sow_key", "topic", "body")
"""Those of them that a view or a conflated topic has: its rows are no messages."""

OF_THE_BODY = "field of the body"
"""The comment of a column that has the name of a message's column and is the body's."""

CHANGES = {"change": "int"}
"""And those of mode changes: 1 for a message that came, -1 for one that went."""

LOG = {
    "lsn": "bigint",
    "kind": "tinyint",
    "name": "string",
    "via": "int",
    "route": "int",
    "time": "timestamp",
    "expires_at": "timestamp",
    "not_before": "timestamp",
    "priority": "smallint",
    "properties": "binary",
    "body": "binary",
}
"""Columns of the log itself."""

ERROR = "parse_error"
"""Why a body did not become columns; null where it did.  Left out when bad bodies go to a topic."""

BOOKMARK = "bookmark"
"""Which message it is; rows of views are none."""


@dataclass(frozen=True)
class Layout:
    """The columns of one read, and where each comes from."""

    schema: pa.Schema  # exactly what Spark expects
    fetched: tuple[str, ...]  # asked of the server, in order
    parsed: tuple[str, ...]  # from the body
    error: bool  # whether `parse_error` is among them
    strict: bool  # whether bad bodies leave the rows (they go to a topic)

    def fitted(self, columns: dict[str, Column]) -> pa.RecordBatch:
        """A batch of these columns in the declared order and types."""
        arrays: list[Column] = []
        for field in cast("list[pa.Field[Any]]", list(self.schema)):
            column = columns[field.name]
            if not field.nullable and column.null_count:
                raise InvalidArgument(f"column {field.name!r} is declared NOT NULL and has {column.null_count} nulls")
            arrays.append(column if column.type == field.type else cast("Column", column.cast(field.type)))
        return batch_like(arrays, self.schema)


def declared(options: ReadOptions, ddl: str | None, *, rows: bool = False) -> str:
    """All columns of a read as DDL; `ddl` are the body's own, given or found; `rows`: of a view without messages."""
    if options.log:
        return ", ".join(f"{name} {kind}" for name, kind in LOG.items())
    base = dict(RECORD if options.view is not None else MESSAGE)
    if rows:
        base = {name: RECORD[name] for name in ROW}
    if options.mode == "changes":
        base |= CHANGES
    elif options.queue is not None and options.mode != "queue":
        base |= CONTENT
    if ddl is None:
        return ", ".join(f"{name} {kind}" for name, kind in base.items())
    own = names_in(ddl)
    hidden = {name.lower() for name in own}
    columns = [f"{name} {kind}" for name, kind in base.items() if name not in hidden]
    taken = {*known(options), ERROR}
    pieces = [piece.strip() for piece in _pieces(ddl)]
    columns += [_marked(piece) if name in taken else piece for name, piece in zip(own, pieces, strict=True)]
    if options.bad_records_topic is None and ERROR not in hidden:
        columns.append(f"{ERROR} string")
    return ", ".join(columns)


def known(options: ReadOptions) -> dict[str, str]:
    """All columns that do not come from bodies, with Spark's types."""
    if options.log:
        return dict(LOG)
    if options.view is not None:
        return {**RECORD, **MORE}
    if options.mode == "changes":
        return {**MESSAGE, **MORE, **CHANGES}
    if options.queue is not None and options.mode != "queue":
        return {**MESSAGE, **MORE, **CONTENT}
    return {**MESSAGE, **MORE}


def _marked(piece: str) -> str:
    """A column with a comment that says whose it is: Spark hands it back with the schema."""
    commented = re.search(r"\bcomment\s+['\"]", piece, re.IGNORECASE) is not None
    return piece if commented else f"{piece} COMMENT '{OF_THE_BODY}'"


_OPENING, _CLOSING = "<([", ">)]"
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`,]+))")


def names_in(ddl: str) -> list[str]:
    """The top-level names of a DDL.  Raises InvalidArgument for what is none; Spark judges the types."""
    names: list[str] = []
    for part in _pieces(ddl):
        match = _NAME.match(part)
        if match is None:
            raise InvalidArgument(f"option schema has {part.strip()[:40]!r} where a column's name and type should be")
        names.append(match[1].replace("``", "`") if match[1] else match[2])
    return names


def _pieces(ddl: str) -> list[str]:
    pieces: list[str] = []
    depth, start, quote = 0, 0, ""
    for place, letter in enumerate(ddl):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(ddl[start:place])
            start = place + 1
    return [*pieces, ddl[start:]]


def layout(options: ReadOptions, schema: Any, ddl: str | None) -> Layout:
    """The layout for the columns that Spark wants (`StructType`): all of them, or those of `.schema(...)`.

    `ddl`: the body's columns as given; None with `parse` set means that whatever is no message column is the body's.
    Errors: InvalidArgument naming the column that there is none of, or whose type is another.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    all_known = known(options)
    own = set[str]() if ddl is None else set(names_in(ddl))
    fetched: list[str] = []
    parsed: list[str] = []
    error = False
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        marked = name in own or (options.parse and field.metadata.get("comment") == OF_THE_BODY)
        if not marked and name in all_known and (kind == all_known[name] or not options.parse):
            if kind != all_known[name]:
                raise InvalidArgument(f"column {name!r} is {all_known[name]}, not {kind}")
            fetched.append(name)
        elif options.parse and name == ERROR and not marked:
            error = True
        elif options.parse:
            parsed.append(name)
        else:
            raise InvalidArgument(f"there is no column {name!r}; there are {', '.join(all_known)}")
    if (parsed or error) and "body" not in fetched:
        fetched.append("body")
    strict = options.bad_records_topic is not None
    if strict and options.view is None and BOOKMARK not in fetched:
        fetched.append(BOOKMARK)  # what is put aside says which message it was
    if not fetched:
        fetched.append("sow_key" if options.view is not None else "lsn")
    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return Layout(arrow, tuple(fetched), tuple(parsed), error, strict)
