"""What `publish` is given: files and pipes as tables, and what its options say of every message in them."""

from __future__ import annotations

import os
import shlex
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 10_000

FORMATS = {
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}


def format_of(file: Path | None, format: str | None, topic: str) -> str:
    """The format to read; InvalidArgument for one that there is not, and for a file that is not there."""
    by_name = "jsonl" if file is None else FORMATS.get(file.suffix.lower(), "jsonl")
    kind = by_name if format is None else format
    if kind not in set(FORMATS.values()):
        raise InvalidArgument(f"format {kind!r} is not one of jsonl, csv, parquet, arrow")
    if file is not None and not os.path.exists(file):  # a body may be too long for a name, and that is no error here
        text = str(file)
        raise InvalidArgument(
            f"there is no file {text[:60]!r}{'...' if len(text) > 60 else ''}, and what comes after the topic is a "
            f"file with messages; one message as text: echo {shlex.quote(text) if len(text) <= 60 else 'TEXT'} | "
            f"penstock publish {shlex.quote(topic)}"
        )
    return kind


def tables(file: Path | None, kind: str) -> Iterator[pa.Table]:
    """The input as tables of at most BATCH_ROWS rows; of JSON lines the column `body` holds each line as it is."""
    try:
        if file is None:
            yield from _tables_of(sys.stdin.buffer, kind)
        else:
            with file.open("rb") as stream:
                yield from _tables_of(stream, kind)
    except OSError as error:
        raise InvalidArgument(f"{file or 'standard input'}: {error.strerror or error}") from error


def _tables_of(stream: BinaryIO, kind: str) -> Iterator[pa.Table]:
    import pyarrow as pa

    if kind == "jsonl":
        lines: list[bytes] = []
        mark = BOM_UTF8  # which a file of Windows' editors may begin with
        for line in stream:
            body = line.removeprefix(mark).rstrip(b"\r\n")
            mark = b""
            if body:
                lines.append(body)
            if len(lines) == BATCH_ROWS:
                yield pa.table({"body": pa.array(lines, pa.binary())})
                lines = []
        if lines:
            yield pa.table({"body": pa.array(lines, pa.binary())})
        return
    try:
        yield from _split(_read_table(stream, kind))
    except pa.ArrowException as error:
        raise InvalidArgument(f"the input is no {kind}: {error}") from error


def _read_table(stream: BinaryIO, kind: str) -> pa.Table:
    import io

    import pyarrow as pa

    content = stream.read()
    if kind == "csv":
        from pyarrow import csv

        return csv.read_csv(io.BytesIO(content))
    if kind == "parquet":
        from pyarrow import parquet

        return parquet.ParquetFile(io.BytesIO(content)).read()  # pyright: ignore[reportUnknownMemberType] - its `filters` has no type
    if content.startswith(b"ARROW1"):
        return pa.ipc.open_file(content).read_all()
    return pa.ipc.open_stream(content).read_all()


def _split(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, BATCH_ROWS):
        yield table.slice(start, BATCH_ROWS)


def columns_said(
    header: Sequence[str] | None, priority: int | None, delay: str | None, expiration: str | None,
    content_type: str | None, message_id: str | None, correlation_id: str | None, reply_to: str | None,
) -> dict[str, object]:  # fmt: skip
    """What options say, by the columns of a publish; nothing that is not said.

    InvalidArgument for a header without a name, or that is there twice, and for a duration that is none.
    """
    given = (header, priority, delay, expiration, content_type, message_id, correlation_id, reply_to)
    if all(one is None for one in given):
        return {}
    from penstock.client.outgoing import columns_of  # with Arrow, which usage alone needs not

    headers = dict[str, object]()
    for text in header or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"--header {text!r}: write NAME=VALUE, as in region=north")
        if name in headers:
            raise InvalidArgument(f"--header {name} is given twice: a message has one of a name")
        headers[name] = value
    said = columns_of(
        b"", headers, priority, delay, None, expiration, None, content_type, message_id, correlation_id, reply_to
    )
    return {name: value for name, value in said.items() if value is not None and name != "body"}


def with_columns(tables: Iterator[pa.Table], said: Mapping[str, object]) -> Iterator[pa.Table]:
    """The same messages, each with these columns of a publish where its row says nothing of that itself.

    InvalidArgument for what cannot be one.
    """
    import pyarrow as pa

    from penstock.client.outgoing import batches_of, one_row

    if not said:
        yield from tables
        return
    pattern = one_row(said)
    for table in tables:
        schema, batches = batches_of(table)
        whole: Any = pa.Table.from_batches(list(batches), schema)
        for name in pattern.schema.names:
            whole = _filled(whole, name, cast("Any", pattern.column(name))[0])
        yield whole


def _filled(table: Any, name: str, value: Any) -> Any:
    """A table whose rows have this value where they have none; of headers those that a row lacks."""
    import pyarrow as pa

    from penstock.records.compute import compute

    if name not in table.schema.names:
        return table.append_column(pa.field(name, value.type), pa.repeat(value, table.num_rows))
    place, column = table.schema.get_field_index(name), table.column(name)
    if name == "headers":
        more = dict(value.as_py())
        rows = [list({**more, **dict(row or ())}.items()) for row in column.to_pylist()]
        return table.set_column(place, name, pa.array(rows, value.type))
    return table.set_column(place, name, compute.coalesce(column, value))
