"""SQL from the client: a SELECT over queues, topics and views, computed by the server."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

import pyarrow as pa

from penstock.client.link import translated
from penstock.client.reading import Reading
from penstock.client.records import chunks
from penstock.errors import PreconditionFailed
from penstock.wire.flight.tickets import command


class Result:
    """The rows of a SELECT.  They come while they are read, and once.

    schema   of Arrow
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches: Iterator[pa.RecordBatch] | None = batches

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches.  PreconditionFailed when they have been read."""
        batches, self._batches = self._batches, None
        if batches is None:
            raise PreconditionFailed("the rows of this result have been read: run the query again, or keep to_arrow()")
        return batches

    def held(self) -> Result:
        """The same with all rows in memory."""
        return Result(self.schema, iter(list(self.batches())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict by column."""
        for batch in self.batches():
            yield from batch.to_pylist()

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame.  ImportError without pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """All rows as a polars DataFrame.  ImportError without polars."""
        polars: Any = import_module("polars")
        return polars.from_arrow(self.to_arrow())

    def rows(self) -> list[dict[str, Any]]:
        """All rows, each as a dict by column."""
        return list(self)

    def scalar(self) -> Any:
        """The value of a result of one row and one column.  PreconditionFailed for any other."""
        table = self.to_arrow()
        if table.num_rows != 1 or table.num_columns != 1:
            raise PreconditionFailed(
                f"the result has {table.num_rows} rows of {table.num_columns} columns, not one of one"
            )
        return table.column(0)[0].as_py()


class Querying(Reading):
    """Calls about all messages at once."""

    def query(self, sql: str) -> Result:
        """The result of a SELECT in DuckDB's SQL, in which each queue, topic and view is a table.

        Columns are those of a message, and the fields of JSON bodies.  Nothing is taken and nothing changes.
        Errors: InvalidArgument for what cannot be read, NotFound for a table that is not there, AccessRefused,
        Unavailable when it takes longer than the server allows.
        """
        reader = self._link.get(command("sql", statement=sql, vhost=self._vhost))
        with translated():
            schema = cast("pa.Schema", reader.schema)
        return Result(schema, chunks(reader))
