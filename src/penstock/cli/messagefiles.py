"""Files of messages: what `publish` is given, with what its options say of every message in them, and what an export
writes: Parquet, Arrow, JSON lines, CSV, each fed with batches of one schema.

How a body is shown: `binary` as it is (Parquet and Arrow alone), `text` as UTF-8, with what is none replaced, or
`json`: in JSON lines the value itself, in Parquet and Arrow a struct column whose fields the first rows decide.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import io
import os
import shlex
import sys
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
import pyarrow as pa

from penstock.cli.output import spelled
from penstock.errors import InvalidArgument
from penstock.records.message_bodies import DEPTH, deeper
from penstock.units import as_text

BATCH_ROWS = 10_000

FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".arrows": "arrows",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
"""By the end of a file's name."""

READ = FORMATS | {".arrows": "arrow"}
"""Both kinds of Arrow's files are told apart by what is in them."""


def format_of(file: Path | None, format: str | None, topic: str) -> str:
    """The format to read; InvalidArgument for one that there is not, and for a file that is not there."""
    by_name = "jsonl" if file is None else READ.get(file.suffix.lower(), "jsonl")
    kind = by_name if format is None else format
    if kind not in set(READ.values()):
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
    from penstock.records.compute import compute

    if name not in table.schema.names:
        return table.append_column(pa.field(name, value.type), pa.repeat(value, table.num_rows))
    place, column = table.schema.get_field_index(name), table.column(name)
    if name == "headers":
        more = dict(value.as_py())
        rows = [list({**more, **dict(row or ())}.items()) for row in column.to_pylist()]
        return table.set_column(place, name, pa.array(rows, value.type))
    return table.set_column(place, name, compute.coalesce(column, value))


BODIES = ("binary", "text", "json")
ROW_GROUP = 100_000
ROW_GROUP_BYTES = 64 << 20


class Writer(ABC):
    """A file on its way."""

    def __init__(self, sink: BinaryIO) -> None:
        self.warnings = list[str]()
        self._sink = sink
        self._out: Any = None  # who writes, if somebody else does

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """More rows, which may wait for others."""

    def finish(self) -> None:
        """No more rows.  The sink stays open."""
        if self._out is not None:
            self._out.close()

    def abandon(self) -> None:  # noqa: B027 - most have nothing to let go of
        """The file comes to nothing: write no more to the sink, which is closed next."""


def writer_for(form: str, sink: BinaryIO, body: str) -> Writer:
    """The writer of a format.  InvalidArgument for one there is none of, or a body it cannot show."""
    if body not in ("", *BODIES):
        raise InvalidArgument(f"--body {body!r} is not one of {', '.join(BODIES)}")
    if form == "jsonl":
        return JsonLines(sink, body or "text")
    if form == "csv":
        if body and body != "text":
            raise InvalidArgument(f"CSV shows bodies as text, not as {body}")
        return Csv(sink)
    if form in ("parquet", "arrow", "arrows"):
        return Columns(sink, form, body or "binary")
    raise InvalidArgument(f"format {form!r} is not one of {', '.join(sorted(set(FORMATS.values())))}")


def check_new(target: Path, *, overwrite: bool) -> None:
    """InvalidArgument for a file that is there, unless it is to be replaced."""
    if target.exists() and not overwrite:
        raise InvalidArgument(f"{target} is already there; --overwrite replaces it")


@contextmanager
def new_file(target: Path | None) -> Generator[BinaryIO]:
    """Where rows go: a file that is in its place when it is whole and synced; None: standard output.

    InvalidArgument when it cannot be written; however that ends, nothing else is left.
    """
    part = None if target is None else target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if target is None or part is None:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        with part.open("xb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidArgument(f"{target or 'standard output'} cannot be written: {error.strerror or error}") from error
    finally:
        if part is not None:
            with suppress(OSError):  # the place is none, which was told
                part.unlink(missing_ok=True)


@contextmanager
def writing(form: str, sink: BinaryIO, body: str) -> Generator[Writer]:
    """The writer of a format, as `writer_for`, for the rows of a `with`."""
    writer = writer_for(form, sink, body)
    try:
        yield writer
        writer.finish()
    except BaseException:
        writer.abandon()
        raise


class Columns(Writer):
    """Parquet (zstd), an Arrow file, or an Arrow stream."""

    def __init__(self, sink: BinaryIO, form: str, body: str) -> None:
        super().__init__(sink)
        self._form = form
        self._body = body
        self._json: JsonColumn | None = None
        self._held = list[pa.RecordBatch]()
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        batch = self._shown(batch)
        if self._out is None:
            self._open(batch.schema)
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        """No more rows.  Without any there is a file with the column `lsn` and no row."""
        self._flush()
        if self._out is None:
            self._open(pa.schema([("lsn", pa.int64())]))
        super().finish()
        if self._json is not None and self._json.misfits:
            why = f"no JSON object of {self._json.levels} levels at most, or unlike the first ones"
            self.warnings.append(f"{self._json.misfits:,} bodies are null: {why}")

    def abandon(self) -> None:
        """Let go of what was written."""
        if self._form == "parquet" and self._out is not None:
            self._out.is_open = False  # else it writes its end into the closed sink when it is collected, and complains

    def _open(self, schema: pa.Schema) -> None:
        if self._form == "parquet":
            import pyarrow.parquet

            parquet: Any = pyarrow.parquet
            self._out = parquet.ParquetWriter(self._sink, schema, compression="zstd")
        elif self._form == "arrow":
            self._out = pa.ipc.new_file(cast("Any", self._sink), schema)
        else:
            self._out = pa.ipc.new_stream(cast("Any", self._sink), schema)

    def _flush(self) -> None:
        if self._held:
            self._out.write_table(pa.Table.from_batches(self._held))
        self._held, self._rows, self._bytes = [], 0, 0

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index("body")
        if at < 0 or self._body == "binary":
            return batch
        if self._body == "text":
            return batch.set_column(at, "body", texts(batch.column(at)))
        bodies = cast("list[bytes | None]", batch.column(at).to_pylist())
        if self._json is None:
            self._json = JsonColumn(bodies, DEPTH if self._form == "parquet" else ARROW_LEVELS)
        return batch.set_column(at, "body", self._json.of(bodies))


ARROW_LEVELS = 63
"""Of nested fields in an Arrow file, below the body's column: Arrow goes no deeper there."""


class JsonColumn:
    """Bodies as structs whose fields the first batch decides.  A body that does not fit is null, and counted."""

    def __init__(self, first: list[bytes | None], levels: int) -> None:
        """levels: of objects and lists in a body that fits.  InvalidArgument where none of the first ones does."""
        import pyarrow.json

        self._reader: Any = pyarrow.json
        self.misfits, self.levels = 0, levels
        good = [value for body in first if isinstance(value := _parsed(body, levels), dict)]
        if not good:
            told = f"none of the first bodies is a JSON object of {levels} levels at most"
            raise InvalidArgument(f"--body json: {told}; use text or binary")
        table = self._read(b"\n".join(map(orjson.dumps, good)), None)
        self._schema: pa.Schema = table.schema
        self.type = pa.struct(list(table.schema))

    def of(self, bodies: list[bytes | None]) -> Any:
        values = [_parsed(body, self.levels) for body in bodies]
        objects = [value if isinstance(value, dict) else None for value in values]
        try:
            column = pa.array(objects, self.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            fitting = [self._fits(value) for value in objects]
            column = pa.array(
                [value if fits else None for value, fits in zip(objects, fitting, strict=True)], self.type
            )
        self.misfits += column.null_count
        return column

    def _fits(self, value: object) -> bool:
        try:
            pa.array([value], self.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return False
        return True

    def _read(self, data: bytes, schema: pa.Schema | None) -> pa.Table:
        options = self._reader.ParseOptions(explicit_schema=schema)
        reading = self._reader.ReadOptions(block_size=max(1 << 20, len(data) + 1))
        try:
            table: pa.Table = self._reader.read_json(io.BytesIO(data), read_options=reading, parse_options=options)
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"--body json: the first bodies do not agree on their fields ({str(error)[:200]}); use text"
            ) from None
        fields = [pa.field(one.name, _plain_type(one.type)) for one in table.schema]
        return table.cast(pa.schema(fields))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Texts that look like times stay texts: what the first rows look like proves nothing of later ones."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain_type(one.type)) for one in cast("Any", kind)])
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(cast("Any", kind).value_type))
    return kind


def _parsed(body: bytes | None, levels: int = DEPTH) -> object:
    """The value of a body; None for one that is no JSON, or nested deeper."""
    text = body or b""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return None if text.count(b"{") + text.count(b"[") > levels and deeper(value, levels - 1) else value


class JsonLines(Writer):
    """One JSON object a line.  A body that is no UTF-8 stands in `body_base64` instead."""

    def __init__(self, sink: BinaryIO, body: str) -> None:
        super().__init__(sink)
        self._body = body
        if body == "binary":
            raise InvalidArgument("JSON lines show bodies as text or json, not as binary")

    def write(self, batch: pa.RecordBatch) -> None:
        lines = list[bytes]()
        for row in batch.to_pylist():
            for name in ("body", "properties"):
                value = row.get(name)
                if value is not None:
                    del row[name]
                    row.update([self._shown(name, value)])
            if isinstance(row.get("headers"), list):
                row["headers"] = dict(row["headers"])
            lines.append(orjson.dumps(row, default=_other))
        lines.append(b"")
        self._sink.write(b"\n".join(lines))

    def _shown(self, name: str, value: bytes) -> tuple[str, object]:
        if name == "body" and self._body == "json":
            found = _parsed(value)
            if found is not None or value.strip() == b"null":
                return name, found
        return spelled(name, value)


def _other(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else as_text(value)


class Csv(Writer):
    """Comma separated, with a line of names.  Headers are JSON text, bodies text."""

    def write(self, batch: pa.RecordBatch) -> None:
        for at, name in enumerate(batch.schema.names):
            column = batch.column(at)
            if pa.types.is_map(column.type):
                cells = [None if cell is None else orjson.dumps(dict(cell)).decode() for cell in column.to_pylist()]
                batch = batch.set_column(at, name, pa.array(cells, pa.string()))
            elif pa.types.is_binary(column.type):
                batch = batch.set_column(at, name, texts(column))
        if self._out is None:
            import pyarrow.csv

            csv: Any = pyarrow.csv
            self._out = csv.CSVWriter(self._sink, batch.schema)
        self._out.write_batch(batch)


def texts(column: Any) -> pa.Array[Any]:
    """Bytes as text; what is no UTF-8 is replaced."""
    try:
        return cast("pa.Array[Any]", column.cast(pa.string()))
    except pa.ArrowInvalid:
        cells = [None if cell is None else cell.decode("utf-8", "replace") for cell in column.to_pylist()]
        return cast("pa.Array[Any]", pa.array(cells, pa.string()))
