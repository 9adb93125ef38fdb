"""`query`: a SELECT over queues, topics and views, shown as a table or written to a file."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, connect, counted, note, write, write_table
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client.reading import Result

SHOWN = 1000
"""Rows of a table for a person, unless `--limit` says otherwise."""


def add_to(tree: typer.Typer) -> None:
    """Put this command into the tree."""
    tree.command()(query)


def query(
    sql: Annotated[str, typer.Argument(help="A SELECT in DuckDB's SQL; `-` reads it from standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file to write: .parquet, .csv, .arrow, .arrows or .jsonl.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows to show to a person at most; 0 for all.")] = SHOWN,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Ask in SQL, where each queue, topic and view is a table: of its messages, with the fields of JSON bodies.

    A queue has a column `state` (ready, leased, delayed).  topic.NAME is the history of a topic, queue.NAME, sow.NAME
    and view.NAME say which of several is meant.  Nothing is taken and nothing changes.

    Example: penstock query 'SELECT region, count(*) FROM "to-ship" GROUP BY 1'
    """
    statement = sys.stdin.read() if sql == "-" else sql
    if output is not None and json:
        raise InvalidArgument("--output and --json are two places for the rows: give one of them")
    with connect(url) as client:
        result = client.query(statement)
        if output is not None:
            rows = write_file(result, output)
            note(f"{counted(rows, 'row')} in {output}")
        elif json:
            _write_lines(result)
        else:
            _write_rows(result, limit)


def _write_lines(result: Result) -> None:
    """One JSON array of objects, each on a line of its own, written as they come."""
    from penstock.server.sql.result import to_json, values

    before = "["
    for batch in result.batches():
        for row in zip(*values(batch), strict=True):
            write(before + to_json(dict(zip(batch.schema.names, row, strict=True))).decode())
            before = ","
    write("[]" if before == "[" else "]")


def _write_rows(result: Result, limit: int) -> None:
    from penstock.server.sql.result import values

    names = list(result.schema.names)
    rows: list[list[object]] = []
    more = False
    for batch in result.batches():
        rows += map(list, zip(*values(batch), strict=True))
        if limit and len(rows) > limit:
            rows, more = rows[:limit], True
            break
    write_table(names, [[_cell(value) for value in row] for row in rows])
    note(f"{counted(len(rows), 'row')}{', and more: --limit 0 shows all, --output FILE keeps them' if more else ''}")


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + ("Z" if value.tzinfo else "")
    return f"{value:.12g}" if isinstance(value, float) and not value.is_integer() else value


def write_file(result: Result, path: Path) -> int:
    """The rows as a file, whole or not at all; how many there were.  InvalidArgument for an end of no format."""
    import pyarrow as pa

    from penstock.cli.exportfiles import FORMATS, writer_for

    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise InvalidArgument(f"{path}: the end of the name says the format, one of {', '.join(FORMATS)}")
    aside = path.with_name(f".{path.name}.part")
    rows = 0
    with open(aside, "wb") as sink:
        writer = writer_for(form, sink, "text" if form in ("csv", "jsonl") else "binary")
        try:
            for batch in result.batches():
                rows += batch.num_rows
                writer.write(plain(batch) if form == "csv" else batch)
            if not rows:
                writer.write(pa.RecordBatch.from_pylist([], result.schema))
            writer.finish()
        except BaseException:
            writer.abandon()
            sink.close()
            aside.unlink(missing_ok=True)
            raise
    os.replace(aside, path)
    return rows


def plain(batch: Any) -> Any:
    """A batch whose structs and lists are JSON text, and whose decimals are text: CSV has nothing else for them."""
    import pyarrow as pa

    from penstock.server.sql.result import to_json

    for at, name in enumerate(batch.schema.names):
        column = batch.column(at)
        if pa.types.is_nested(column.type) and not pa.types.is_map(column.type):
            cells = [None if cell is None else to_json(cell).decode() for cell in column.to_pylist()]
            batch = batch.set_column(at, name, pa.array(cells, pa.string()))
        elif pa.types.is_decimal(column.type):
            batch = batch.set_column(at, name, column.cast(pa.string()))
    return batch
