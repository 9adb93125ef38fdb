"""What a caller publishes, as Arrow batches: bodies of any kind, tables of any maker; and uploads of them.

An upload has the count that proves it complete.  A table with a column `body` is taken as it is, its other columns
being those of a publish; of any other table each row becomes a JSON object.  pandas and polars frames are turned into
Arrow without importing either.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Self, TypeVar, cast

import orjson
import pyarrow as pa

from penstock.client.arguments import encoded
from penstock.client.arrays import array_of, repeated
from penstock.client.json_bodies import JSON, body_of, is_textless, to_json
from penstock.client.link import failure, said, understood
from penstock.client.messages import Refusal, TableReceipt
from penstock.client.waiting import attended, begun
from penstock.errors import InvalidArgument, Unavailable, Unroutable
from penstock.units import Duration, as_text, epoch_micros
from penstock.units import span as span_of
from penstock.wire.fields import nearest
from penstock.wire.flight.commands import PUBLISH
from penstock.wire.flight.received import check_sent

T = TypeVar("T")

BATCH_ROWS = 10_000
BATCH_BYTES = 16 * 2**20


def when(time: str, at: datetime | int | None, span: str, after: Duration | None) -> dict[str, int | None]:
    """The columns of a time (datetime, or microseconds since the epoch) and of a duration, of which one may be given.

    A duration is sent as it is, so that it counts from when the server takes the message, by the server's clock.
    """
    if at is not None and after is not None:
        raise InvalidArgument(f"{time} and {span}: give either a time or how long from now")
    if isinstance(at, datetime):
        at = epoch_micros(at)
    return {time: at, span: None if after is None else span_of(after, span)}


def is_mandatory(asked: bool | None, exchange: str) -> bool:
    """Whether a message that nobody takes is an error: as asked for, else over the default exchange."""
    return not exchange if asked is None else asked


def unroutable(topic: str | None, exchange: str, receipt: TableReceipt) -> Unroutable:
    """The error for an upload of which some was not stored.  topic: None where each row names its own."""
    lost, place = receipt.unroutable, f"{exchange}/{topic}" if exchange else topic
    what = "the message was" if receipt.rows == 1 else f"{lost:,} of {receipt.rows:,} messages were"
    takes = "takes what column 'topic' says of them" if topic is None else f"takes {place!r}"
    told = f"{what} not stored: no queue and no declared topic {takes}; see to one, and to the filters of the queues"
    told = f"{told}, or publish with mandatory=False"
    return Unroutable(told, receipt=receipt)


def headers_of(headers: Mapping[str, object] | None) -> list[tuple[str, str]] | None:
    """Headers as text.  InvalidArgument for a name that is none, and for a value without a text of its own."""
    given: object = headers
    if not given:
        return None
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"headers are {given!r}, not names with their values")
    rows: list[tuple[str, str]] = []
    for name, value in cast("Mapping[object, object]", given).items():
        if not isinstance(name, str):
            raise InvalidArgument(f"headers: the name {name!r} is not text")
        if is_textless(value):
            raise InvalidArgument(f"header {name!r} is {value!r}, which has no text of its own")
        text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else as_text(value)
        encoded(name, "headers: the name")
        encoded(text, f"header {name!r}")
        rows.append((name, text))
    return rows


def columns_of(
    body: object, headers: Mapping[str, object] | None, priority: int | None, delay: Duration | None,
    not_before: datetime | int | None, expiration: Duration | None, expires_at: datetime | int | None,
    content_type: str | None, message_id: str | None, correlation_id: str | None, reply_to: str | None,
) -> dict[str, object]:  # fmt: skip
    """What a publish says, by the columns of `PUBLISH`.  InvalidArgument for what cannot be sent."""
    data, kind = body_of(body)
    return {
        "body": data,
        "priority": priority,
        **when("not_before", not_before, "delay", delay),
        **when("expires_at", expires_at, "expiration", expiration),
        "headers": headers_of(headers),
        "content_type": content_type or kind,
        "message_id": message_id,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
    }


def one_row(columns: Mapping[str, object]) -> pa.RecordBatch:
    """A batch of one message; columns that are None are left out."""
    given = {name: value for name, value in columns.items() if value is not None}
    schema = _of_columns(tuple(given))
    arrays: list[pa.Array[Any]] = []
    for kind, (name, value) in zip(schema.types, given.items(), strict=True):
        if isinstance(value, float):  # it would be cut to a whole number
            raise InvalidArgument(f"{name} is {value!r}, not a whole number")
        try:
            arrays.append(array_of([value], kind))
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidArgument(f"{name} is {value!r}, not {kind}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=64)
def _of_columns(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([PUBLISH.field(name) for name in names])


def carrying(batch: pa.RecordBatch, more: Mapping[str, str]) -> pa.RecordBatch:
    """The same messages with more headers each; those that they have already stay."""
    kind = PUBLISH.field("headers").type
    if "headers" in batch.schema.names:
        place = batch.schema.names.index("headers")
        rows = [list({**more, **dict(row or ())}.items()) for row in batch.column(place).to_pylist()]
        return batch.set_column(place, PUBLISH.field("headers"), array_of(rows, kind))
    same = repeated(list(more.items()), kind, batch.num_rows)
    return batch.append_column(PUBLISH.field("headers"), same)


def carrying_all(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], more: Mapping[str, str]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """An upload whose messages have more headers each."""
    if not more:
        return schema, batches
    wanted = schema if "headers" in schema.names else schema.append(PUBLISH.field("headers"))
    return wanted, (carrying(batch, more) for batch in batches)


def batches_of(table: object) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A table of any maker as batches of a publish, of at most 10,000 rows and about 16 MiB each."""
    reader = _reader(table)
    schema = reader.schema
    if "body" in schema.names:
        for name in schema.names:
            if name not in PUBLISH.names:
                raise InvalidArgument(
                    f"a table with a column 'body' may have no column {name!r}{nearest(name, PUBLISH.names)}"
                )
        wanted = pa.schema([PUBLISH.field(name) for name in schema.names])
        return wanted, (part for batch in reader for part in _parts(_cast(batch, wanted)))
    wanted = pa.schema([PUBLISH.field("body"), PUBLISH.field("content_type")])
    return wanted, (_rows_as_json(part, wanted) for batch in reader for part in _parts(batch))


def _reader(table: Any) -> pa.RecordBatchReader:
    """A table of any maker, batch by batch.  InvalidArgument for what is none, and for two columns of one name."""
    try:
        reader = _opened(table)
    except (pa.ArrowException, ValueError, TypeError) as error:
        told = ": ".join(map(str, error.args))
        raise InvalidArgument(f"a {type(table).__name__} that becomes no table: {told}") from None
    if reader is None:
        rows = "; rows as dicts are pyarrow.Table.from_pylist(rows)" if isinstance(table, list) else ""
        raise InvalidArgument(f"a {type(table).__name__} is no table: give pyarrow, pandas or polars{rows}")
    _check_names(reader.schema.names)
    return reader


def _check_names(names: Sequence[object]) -> None:
    seen = set[object]()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"two columns of the table are called {name!r}: rename one of them, or drop it")
        seen.add(name)


def _opened(table: Any) -> pa.RecordBatchReader | None:
    if isinstance(table, pa.RecordBatchReader):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(table.schema, [table])
    if isinstance(table, pa.Table):
        return table.to_reader()
    if type(table).__module__.partition(".")[0] == "pandas":
        return _of_pandas(table).to_reader() if hasattr(table, "columns") else None
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    if hasattr(table, "to_arrow"):  # polars
        return cast("pa.Table", table.to_arrow()).to_reader()
    return None


def _of_pandas(frame: Any) -> pa.Table:
    """Its columns, and the levels of its index that have a name: the numbers of rows are none of what they say."""
    _check_names(list(frame.columns))
    named = any(name is not None for name in frame.index.names)
    table = pa.Table.from_pandas(frame, preserve_index=named)
    return table.drop_columns([name for name in table.schema.names if _UNNAMED.fullmatch(name)])


_UNNAMED = re.compile(r"__index_level_\d+__")
"""What pyarrow calls a level of an index that has no name."""


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    step = BATCH_ROWS
    if rows and batch.nbytes > BATCH_BYTES:
        step = max(1, min(step, BATCH_BYTES * rows // batch.nbytes))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


SAID_MOST = 300
"""Characters of a reason of Arrow's: it names a type whole, which may be as long as one likes."""


def _cast(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = []
    for name in wanted.names:
        column: Any = batch.column(name)
        kind = wanted.field(name).type
        if column.type != kind:
            try:
                if pa.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                column = (
                    _mapped(column, kind)
                    if pa.types.is_map(kind) and pa.types.is_struct(column.type)
                    else column.cast(kind)
                )
            except pa.ArrowException as error:
                raise InvalidArgument(f"column {name!r} cannot be {kind}: {str(error)[:SAID_MOST]}") from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _mapped(column: Any, kind: pa.DataType) -> Any:
    """Dicts as maps: what reads them makes a struct, whose rows have null for a name that others alone have."""
    rows = [
        headers_of({name: value for name, value in (row or {}).items() if value is not None})
        for row in column.to_pylist()
    ]
    return array_of(rows, kind)


def _rows_as_json(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    columns = [_values(name, batch.column(place)) for place, name in enumerate(batch.schema.names)]
    names = batch.schema.names
    rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
    bodies = [to_json(dict(zip(names, row, strict=True))) for row in rows]
    kind = repeated(JSON, pa.string(), len(bodies))
    return pa.RecordBatch.from_arrays([array_of(bodies, pa.binary()), kind], schema=wanted)


def _values(name: str, column: Any) -> list[Any]:
    """As JSON takes them: maps are objects."""
    try:
        return cast("list[Any]", column.to_pylist(maps_as_pydicts="strict"))
    except (OverflowError, ValueError) as error:
        raise InvalidArgument(
            f"column {name!r} has a {str(column.type)[:80]} that has no text: {str(error)[:SAID_MOST]}"
        ) from None
    except KeyError:
        raise InvalidArgument(f"column {name!r} has a map in which a key is there twice") from None


WINDOW = 4
"""Batches of a table that are sent before the first of their answers is read."""


class Upload:
    """One DoPut: batches out, answers in, never more than `WINDOW` answers behind."""

    def __init__(self, writer: Any, reader: Any, *, answers: bool = True) -> None:
        self._writer = writer
        self._reader = reader
        self._answers = answers  # the server answers each batch
        self._rows = 0
        self._behind = 0
        self._offset = 0
        self._unroutable = 0
        self._refused: list[Refusal] = []
        self._calls = threading.Lock()  # one at a time: who waited for one may have left

    def send(self, batch: pa.RecordBatch) -> None:
        """Write one batch, and read an answer when more than `WINDOW` of them are behind."""
        check_sent(batch, "publish" if self._answers else "stage")
        self._ask(lambda: self._writer.write_batch(batch))
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        self._behind += 1
        if self._answers and self._behind > WINDOW:
            self._hear()

    def exchange(self, batch: pa.RecordBatch) -> tuple[TableReceipt, list[Refusal]]:
        """Write one batch of an upload that stays open: the receipt of this batch, and its refused rows."""
        check_sent(batch, "publish")

        def told() -> dict[str, Any]:
            self._writer.write_batch(batch)
            return self._heard()

        with understood():
            answer = self._ask(told)
            return _receipt(answer, answer["unroutable"], _refusals(answer))

    @understood()
    def _hear(self) -> None:
        told = self._read()
        self._behind -= 1
        self._unroutable += told["unroutable"]
        self._refused += _refusals(told, self._offset)
        self._offset += told["rows"]

    def _read(self) -> dict[str, Any]:
        return self._ask(self._heard)

    def _ask(self, call: Callable[[], T]) -> T:
        def alone() -> T:
            with self._calls:
                return call()

        return attended(alone)

    def _heard(self) -> dict[str, Any]:
        buffer = self._reader.read()
        if buffer is None:
            self._writer.close()  # raises what the server refused, if it did
            raise Unavailable("the server ended the upload without an answer")
        return said(buffer.to_pybytes())

    def end(self) -> dict[str, Any]:
        """Say how many rows were sent; the server's last answer."""
        self._writer.write_metadata(orjson.dumps({"end": {"rows": self._rows}}))
        self._writer.done_writing()
        while self._answers and self._behind:
            self._hear()
        return self._read()

    def finish(self) -> tuple[TableReceipt, list[Refusal]]:
        """Say how many rows were sent; the receipt of the whole upload, and its refused rows."""
        told = self.end()
        with understood():
            return _receipt(told, self._unroutable, self._refused)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the stream.  An error of Arrow becomes one of ours; what else went wrong was told before."""
        if isinstance(error, pa.ArrowException):
            raise failure(self._writer, error) from None
        with suppress(pa.ArrowException):
            if isinstance(error, KeyboardInterrupt):
                begun(partial(self._ask, self._writer.close))  # it waits for the server, of which somebody has tired
            else:
                self._writer.close()


def _refusals(told: Mapping[str, Any], offset: int = 0) -> list[Refusal]:
    """Rows of a batch that the server refused; offset: the number of its first row."""
    return [Refusal(offset + one["row"], one["code"], one["reason"], one["message"]) for one in told["refused"]]


def _receipt(told: Mapping[str, Any], unroutable: int, refused: list[Refusal]) -> tuple[TableReceipt, list[Refusal]]:
    """What the server says of a batch, or of all of them."""
    receipt = TableReceipt(
        told["rows"], told["stored"], told["duplicates"], unroutable, told["refused_rows"], told["first"],
        told["last"], tuple(refused), told.get("sequence"), told.get("replies", 0),
    )  # fmt: skip
    return receipt, refused
