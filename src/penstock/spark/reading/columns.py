"""Columns of what is read: Spark's declarations, Arrow's types, and which come from the message and which from its
body.

Spark takes a batch only when its Arrow types equal the declared ones exactly, so every batch goes through `fitted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal, cast

import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.ddl import ALIASES, SIMPLE, quoted_name
from penstock.spark.options import ReadOptions
from penstock.spark.record_batches import Column, batch_like

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

MORE = {"exchange": "string", "priority": "smallint", "properties": "binary", "death_reason": "string"}
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

    schema: pa.Schema  # what Spark expects, with the names that the columns have here
    fetched: tuple[str, ...]  # asked of the server, in order
    parsed: tuple[str, ...]  # from the body
    error: bool  # whether `parse_error` is among them
    strict: bool  # whether bad bodies leave the rows (they go to a topic)
    needed: frozenset[str] = frozenset()  # of the parsed: a body without a value for it is bad
    rescued: str | None = None  # the column of what no column has, where it is wanted
    own: frozenset[str] = frozenset()  # columns of bodies that are declared, wanted or not
    shown: pa.Schema | None = None  # exactly what Spark expects, where somebody writes names in another case

    @property
    def reads_bodies(self) -> bool:
        """Whether a column is made of what the bodies say."""
        return bool(self.parsed or self.error or self.rescued)

    def fitted(self, columns: dict[str, Column]) -> pa.RecordBatch:
        """A batch of these columns in the declared order and types."""
        arrays: list[Column] = []
        for field in cast("list[pa.Field[Any]]", list(self.schema)):
            column = columns[field.name]
            if not field.nullable and column.null_count:
                raise InvalidArgument(f"column {field.name!r} is declared NOT NULL and has {column.null_count} nulls")
            arrays.append(column if column.type == field.type else cast("Column", column.cast(field.type)))
        return batch_like(arrays, self.shown or self.schema)


def declared(options: ReadOptions, ddl: str | None, *, rows: bool = False) -> str:
    """All columns of a read as DDL; `ddl` are the body's own, given or found; `rows`: of a view without messages."""
    base = LOG if options.log else _of_messages(options, rows=rows)
    if ddl is None or options.log:
        return ", ".join(f"{name} {_instant(kind)}" for name, kind in base.items())
    own = _own(options, ddl)
    hidden = {name.lower() for name in own}
    columns = [f"{name} {_instant(kind)}" for name, kind in base.items() if name not in hidden]
    nullable = options.bad_records_topic is None  # a bad body has null in all columns
    pieces = map(_nullable if nullable else str, map(str.strip, _pieces(ddl)))
    columns += [_marked(piece) if _is_taken(options, name) else piece for name, piece in zip(own, pieces, strict=True)]
    if options.rescued is not None:
        columns.append(_rescued(options.rescued, (*base, *own, ERROR)))
    if nullable and ERROR not in hidden:
        columns.append(f"{ERROR} string")
    return ", ".join(columns)


def _own(options: ReadOptions, ddl: str) -> list[str]:
    """The names of the body's columns.  InvalidArgument for one by which the option asks for what is there already."""
    names = names_in(ddl)
    if options.ddl is not None and options.bad_records_topic is None:
        for name in names:
            if name.lower() == ERROR:
                raise InvalidArgument(
                    f"option schema: {name} is the column that says why a body is bad, and there without being named; "
                    "as a field of bodies it would take its place: leave it out"
                )
    return names


def _is_taken(options: ReadOptions, name: str) -> bool:
    """Whether there is another column of this name, in whatever case, that does not come from bodies."""
    return name.lower() in {one.lower() for one in (*known(options), ERROR)}


def _instant(kind: str) -> str:
    """A message's time is an instant, whatever a session takes a `timestamp` for."""
    return "timestamp_ltz" if kind == "timestamp" else kind


def _rescued(name: str, others: Iterable[str]) -> str:
    """The column of what has no column.  InvalidArgument where there is another one of its name."""
    if name.lower() in {one.lower() for one in others}:
        raise InvalidArgument(f"option rescuedDataColumn: there is a column {name!r} already")
    return f"{quoted_name(name)} string"


def _of_messages(options: ReadOptions, *, rows: bool) -> dict[str, str]:
    """The columns of each read beside those of bodies, with Spark's types."""
    base = {name: RECORD[name] for name in ROW} if rows else dict(RECORD if options.view is not None else MESSAGE)
    if options.mode == "changes":
        return base | CHANGES
    return base | CONTENT if options.queue is not None and options.mode != "queue" else base


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


_NOT_NULL = re.compile(r"\s+not\s+null\b", re.IGNORECASE)


def _nullable(piece: str) -> str:
    """A column without its NOT NULL; what lies within it keeps its own."""
    match = _NOT_NULL.search(_outside(piece))
    return piece if match is None else piece[: match.start()] + piece[match.end() :]


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
    cuts = [-1, *(match.start() for match in re.finditer(",", _outside(ddl))), len(ddl)]
    return [ddl[start + 1 : end] for start, end in pairwise(cuts)]


def _outside(ddl: str) -> str:
    """The text with blanks for what stands in brackets or in quotes."""
    out = list[str]()
    depth, quote = 0, ""
    for letter in ddl:
        if quote:
            out.append(" ")
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            out.append(" ")
            quote = letter
        else:
            depth -= letter in _CLOSING
            out.append(letter if depth <= 0 else " ")
            depth += letter in _OPENING
    return "".join(out)


def layout(options: ReadOptions, schema: Any, ddl: str | None) -> Layout:
    """The layout for the columns that Spark wants (`StructType`): all of them, or those of `.schema(...)`.

    `ddl`: the body's columns as given; None with `parse` set means that whatever is no message column is the body's.
    Errors: InvalidArgument naming the column that there is none of, or whose type is another.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    own = {} if ddl is None else dict(zip(_own(options, ddl), _pieces(ddl), strict=True))
    needed = _needed(own)
    strict = options.bad_records_topic is not None
    named = dict[str, list[str]]()
    shown, schema = schema, _renamed(options, schema, own)
    for field in schema.fields:
        named.setdefault(_source(options, field, own), []).append(field.name)
    fetched, parsed, error = named.get("message", []), named.get("body", []), "error" in named
    for name, wanted in (
        ("body", bool(parsed) or error or "rescued" in named),
        (BOOKMARK, strict and options.view is None),  # what is put aside says which message it was
    ):
        if wanted and name not in fetched:
            fetched.append(name)
    if not fetched:
        fetched.append("sow_key" if options.view is not None else "lsn")
    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    needs, rescued = frozenset(needed.intersection(parsed)), options.rescued if "rescued" in named else None
    as_asked: Any = None if schema is shown else to_arrow_schema(shown, timezone="UTC")
    return Layout(arrow, tuple(fetched), tuple(parsed), error, strict, needs, rescued, frozenset(own), as_asked)


def _needed(own: Mapping[str, str]) -> set[str]:
    """Columns that are declared NOT NULL."""
    return {name for name, piece in own.items() if _NOT_NULL.search(_outside(piece)) is not None}


def _renamed(options: ReadOptions, schema: Any, own: Mapping[str, str]) -> Any:
    """The columns that Spark wants, by the names that they have here: Spark minds no case."""
    from pyspark.sql.types import StructField, StructType

    there = (*known(options), ERROR, options.rescued or ERROR, *own)
    by_lower = {name.lower(): name for name in there}
    given: list[str] = [field.name for field in schema.fields]
    as_is = {*there, *(field.name for field in schema.fields if field.metadata.get("comment") == OF_THE_BODY)}
    names = [name if name in as_is else by_lower.get(name.lower(), name) for name in given]
    if names == given or len({*names}) < len(names):  # where case is minded, each name may be a field
        return schema
    fields = zip(names, schema.fields, strict=True)
    return StructType([StructField(name, one.dataType, one.nullable, one.metadata) for name, one in fields])


def _source(options: ReadOptions, field: Any, own: Mapping[str, str]) -> Literal["message", "body", "error", "rescued"]:
    """Where a column comes from.  own: the columns of the body by their names."""
    name, kind, all_known = field.name, field.dataType.simpleString(), known(options)
    if name == options.rescued:
        if kind != "string":
            raise InvalidArgument(f"column {name!r} has what was rescued, which is string and not {kind}")
        return "rescued"
    if not options.parse:
        if name in own or name not in all_known:
            raise InvalidArgument(f"there is no column {name!r}; there are {', '.join(all_known)}")
        if kind != all_known[name]:
            raise InvalidArgument(f"column {name!r} is {all_known[name]}, not {kind}")
        return "message"
    if name not in own and field.metadata.get("comment") != OF_THE_BODY:
        if kind == all_known.get(name):
            return "message"
        if name == ERROR:
            return "error"
    _refuse_type(name, field.dataType)
    if not field.nullable and options.bad_records_topic is None:
        raise InvalidArgument(
            f"column {name!r} is NOT NULL, and a bad body has null in all of its columns: leave NOT NULL out, or set "
            "badRecordsTopic, where bad bodies go"
        )
    return "body"


def _refuse_type(column: str, kind: Any) -> None:
    """InvalidArgument for a type of Spark's that no JSON body gives, wherever in the column's type it is."""
    name = kind.typeName()
    if name == "array":
        _refuse_type(column, kind.elementType)
    elif name == "map":
        if kind.keyType.typeName() != "string":
            keys = kind.keyType.simpleString()
            raise InvalidArgument(f"column {column!r}: the keys of a JSON object are string, not {keys}")
        _refuse_type(column, kind.valueType)
    elif name == "struct":
        for field in kind.fields:
            _refuse_type(column, field.dataType)
    elif name != "decimal" and ALIASES.get(name, name) not in SIMPLE:
        raise InvalidArgument(
            f"column {column!r}: a JSON body gives no {kind.simpleString()}; there are {', '.join(SIMPLE)}, decimal, "
            "array, map and struct"
        )
