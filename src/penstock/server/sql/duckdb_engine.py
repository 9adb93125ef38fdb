"""DuckDB as the child uses it: shut off from files and network, with a bound on memory, and our tables in it.

Tables are kept beside DuckDB (`Kept`), which scans them page by page: what it holds itself is what the statement
gathers, sorts and joins, and that it can put aside.  Fields of bodies are found while the rows come (`fields`).

DuckDB asks for a stream whenever it scans: twice for a join of a table with itself, once a turn of a recursive query.
So the rows are kept outside DuckDB, in pages of a bounded size: a scan holds a few pages, whatever the table has.
What lies in files counts as put aside (`sql.spill`).
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError, ResourceExhausted, Unavailable
from penstock.records.compute import cut
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON as JSON_BODIES
from penstock.records.message_types import MessageType
from penstock.server.sql.statement import (
    ENCODED,
    JSON,
    MADE,
    PROPERTIES,
    SCHEMAS,
    TEXT,
    UNSHOWN,
    Allowed,
    Statement,
    Use,
    examine,
    without_advice,
    without_column,
)
from penstock.server.sql.value_types import (
    AS_READ,
    LARGE,
    PIECE_BYTES,
    SIGNED,
    UNSIGNED,
    Fields,
    Shape,
    pieces,
    quoted,
    selection,
    with_properties,
    with_readings,
)
from penstock.units import format_size

PAGE_BYTES = 1 << 20
"""Of a page, if it has more than one row.  Readers hold up to 16 ahead."""

PAGE_ROWS = 20_000
"""The most of a page: what lies in few bytes is worth a batch too."""


@dataclass(slots=True)
class Aside:
    """What a statement may put aside.  `left`: bytes on disk."""

    folder: Path
    left: int
    in_memory: int  # bytes of tables, before they go to files

    def ask(self, size: int) -> None:
        """Whether there is room for so many bytes.  ResourceExhausted when there is not."""
        if size > self.left:
            raise ResourceExhausted(
                "the tables of the statement are larger than sql.spill allows: name fewer columns, read less, or allow "
                "more in the settings"
            )


class Kept:
    """One table; `close` it when the statement ends."""

    def __init__(self, schema: pa.Schema, aside: Aside, name: str) -> None:
        self.schema = schema
        self.rows = 0
        self.widest = 1  # bytes of a row, in the page with the widest ones
        self._aside = aside
        self._path = aside.folder / f"{name}.arrows"
        self._pages: list[pa.RecordBatch] = []
        self._held = 0
        self._writer: Any = None
        self._file: Any = None

    def fill(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keep all rows; gives each page, once it is kept."""
        for page in paged(batches):
            self.rows += page.num_rows
            self.widest = max(self.widest, page.nbytes // page.num_rows)
            self._keep(page)
            yield page
        if self._writer is not None:
            self._writer.close()
            self._file.close()

    def _keep(self, page: pa.RecordBatch) -> None:
        if self._writer is None and (page.nbytes <= self._aside.in_memory or not self._aside.left):
            self._aside.in_memory -= page.nbytes
            self._pages.append(page)
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._path), "wb")
            self._writer = pa.ipc.new_stream(self._file, self.schema)
            for one in self._pages:
                self._write(one)
                self._aside.in_memory += one.nbytes
            self._pages = []
        self._write(page)

    def _write(self, page: pa.RecordBatch) -> None:
        self._aside.ask(page.nbytes)
        before = self._file.tell()
        self._writer.write_batch(page)
        self._aside.left = max(0, self._aside.left - (self._file.tell() - before))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows from the first, for one scan; of the Arrow PyCapsule interface."""
        reader: Any = (
            pa.RecordBatchReader.from_batches(self.schema, iter(self._pages))
            if self._writer is None
            else pa.ipc.open_stream(pa.OSFile(str(self._path), "rb"))
        )
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Let go of the rows; a file goes with its folder."""
        self._pages = []


def paged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in pages: small batches joined, large ones cut."""
    waiting = list[pa.RecordBatch]()
    rows = size = 0
    for batch in batches:
        for piece in cut(batch, PAGE_BYTES):
            if waiting and (size + piece.nbytes > PAGE_BYTES or rows + piece.num_rows > PAGE_ROWS):
                yield joined(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if waiting:
        yield joined(waiting)


def joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


# duckdb is untyped here


RESULT_ROWS = 10_000
"""Rows of a batch of the result, about; fewer where rows are wide."""

THREAD_MEMORY = 128 << 20
"""Bytes of the statement's memory for each of its threads: each has buffers of its own."""

ALLOWED = Allowed()

OWN = {
    "preserve_insertion_order": "true",
    "TimeZone": "UTC",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Settings of a database, whatever statement it is for."""

READ = quoted("penstock read")
"""The text of a body as it is read as JSON: see `bodies`."""

WHOLE = f"CASE WHEN json_valid({READ}) AND json_type({READ}) = 'OBJECT' THEN {READ}::JSON END"
"""A body that is a JSON object."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a statement may take.  `spill` bytes on disk; `folder` may not be there yet.

    by_disk: there is no more on the disk; the setting would allow it.
    """

    memory: int
    spill: int
    folder: Path
    threads: int
    by_disk: bool = False

    @property
    def counted(self) -> int:
        """Bytes that DuckDB may count; functions, Arrow and the C library take theirs beside that, within `memory`."""
        return self.memory * 3 // 4


def made() -> Any:
    """A database for one statement that has not come yet: to make it takes longer than all else of a small one."""
    database: Any = duckdb.connect(":memory:", config={"threads": "1"})
    for name, value in OWN.items():
        database.execute(f"SET {name}='{value}'")
    for schema in SCHEMAS:
        database.execute(f"CREATE SCHEMA {schema}")
    return database


class Engine:
    """One statement's DuckDB."""

    def __init__(self, bounds: Bounds, database: Any = None) -> None:
        """database: that was `made` for it, and is closed with it; None: it is made now."""
        threads = max(1, min(bounds.threads, bounds.memory // THREAD_MEMORY))
        self._db: Any = made() if database is None else database
        self._aside = Aside(bounds.folder, bounds.spill, bounds.memory // 8)
        self._by_disk = bounds.spill if bounds.by_disk else None
        self._kept: list[Kept] = []
        self._named: dict[str, None] = {}  # fields of bodies, wanted or not
        self._locked = False
        self._set(
            memory_limit=f"{bounds.counted}B",
            temp_directory=str(bounds.folder),
            threads=str(threads),
            enable_external_access="false",  # from here on no folder can be named
        )

    def close(self) -> None:
        self._db.close()
        for one in self._kept:
            one.close()

    def examine(self, sql: str) -> Statement:
        """What the statement reads.  InvalidArgument when it cannot be read, or calls what is out of reach."""
        try:
            statement = examine(self._db, sql)
            ALLOWED.judge(self._db, statement)
        except (duckdb.Error, MemoryError) as error:
            raise self.told(error) from None
        return statement

    def table(
        self,
        use: Use,
        statement: Statement,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        kind: MessageType = JSON_BODIES,
    ) -> None:
        """Let the statement find a table.  kind: of its bodies."""
        name = f"kept_{len(self._kept)}"
        taken = {*schema.names, *MADE, PROPERTIES} - UNSHOWN
        if "body" in schema.names and (statement.whole or JSON in statement.columns or statement.columns - taken):
            schema, batches = with_readings(schema, batches, kind)
        if PROPERTIES in statement.columns and ENCODED in schema.names:
            schema, batches = with_properties(schema, batches, PROPERTIES, ENCODED)
        schema, batches = _shown_alone(schema, batches)
        kept = Kept(schema, self._aside, name)
        self._kept.append(kept)
        fields: Fields | None = None
        if "body" in schema.names and (statement.whole or statement.columns - taken):
            fields = Fields(self._db, None if statement.whole else statement.columns)
        try:
            for page in kept.fill(batches):
                if fields is not None:
                    fields.look(page)
                    self._named |= fields.names
            self._db.register(name, kept)
            source, columns = self._shown(use, statement, kept, name, {} if fields is None else fields.found(use.name))
            self._view(use, source, columns)
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            raise self.told(error) from None

    def _shown(
        self, use: Use, statement: Statement, kept: Kept, name: str, found: Mapping[str, Shape]
    ) -> tuple[str, list[str]]:
        """What a table's view selects from, and its columns."""
        names, asked = [one for one in kept.schema.names if one != AS_READ], statement.columns
        if "body" not in names:
            return name, list(map(quoted, names))
        taken, source = {*names, *MADE}, _with_text(kept, name)
        fields = {one: kind for one, kind in found.items() if one.lower() not in taken}
        fields |= self._signed(source, fields)
        if fields and "body" not in asked:
            names.remove("body")
        made = {TEXT: TEXT, JSON: f"CASE WHEN json_valid({READ}) THEN {READ}::JSON END AS {JSON}"}
        columns = [*map(quoted, names), *(made[one] for one in MADE if one in asked)]
        if fields:
            source = f"(SELECT *, {_transformed(fields)} AS fields FROM {source})"
            columns += _of_struct(fields)
        elif asked and len(statement.uses) == 1 and not kept.rows:
            # What no message has yet is NULL, not a mistake: a query of an empty queue has no rows, or zeros.
            columns += _nulls(asked - taken - {use.name.lower()})
        return source, columns

    def _signed(self, source: str, fields: Mapping[str, Shape]) -> dict[str, Shape]:
        """The types of whole numbers: 64 bits, or 128 where a value needs them."""
        names = [name for name, kind in fields.items() if kind in (UNSIGNED, LARGE)]
        if not names:
            return {}
        columns = [f"fields.{quoted(name)}" for name in names]
        beyond = ", ".join(f"max({one}) > {2**63 - 1} OR min({one}) < {-(2**63)}" for one in columns)
        inner = f"(SELECT {_transformed(dict.fromkeys(names, LARGE))} AS fields FROM {source})"
        [row] = self._db.execute(f"SELECT {beyond} FROM {inner}").fetchall()
        return {name: LARGE if large else SIGNED for name, large in zip(names, row, strict=True)}

    def _view(self, use: Use, source: str, columns: list[str]) -> None:
        place = f"{quoted(use.schema)}.{quoted(use.name)}" if use.schema else quoted(use.name)
        kind = "VIEW" if use.schema else "TEMP VIEW"
        self._db.execute(f"CREATE {kind} {place} AS SELECT {', '.join(columns)} FROM {source}")

    def run(self, sql: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The result, computed as it is read."""
        self._lock()
        widest = max((one.widest for one in self._kept), default=1)
        try:
            relation = self._db.sql(sql)
            if relation is None:
                raise InvalidArgument("the statement has no result: give a SELECT")
            chosen = selection(relation.columns, relation.types)
            if chosen is not None:
                relation = self._db.sql(f"SELECT {chosen} FROM (\n{_without_end(sql)}\n)")
            reader: Any = relation.to_arrow_reader(max(1, min(RESULT_ROWS, PIECE_BYTES // widest // 4)))
        except (duckdb.Error, pa.ArrowException, MemoryError) as error:
            raise self.told(error) from None
        return reader.schema, self._rows(reader)

    def _lock(self) -> None:
        """No more settings; what the tables have left of the disk is DuckDB's."""
        if not self._locked:
            self._set(max_temp_directory_size=f"{self._aside.left}B", lock_configuration="true")
            self._locked = True

    def _rows(self, reader: Any) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                yield from pieces(batch)
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            raise self.told(error) from None

    def _set(self, **options: str) -> None:
        for name, value in options.items():
            self._do(f"SET {name}='{value.replace(chr(39), chr(39) * 2)}'")

    def _do(self, sql: str) -> None:
        try:
            self._db.execute(sql).fetchall()
        except duckdb.Error as error:
            raise self.told(error) from None

    def told(self, error: Exception) -> PenstockError:
        """An error as a user reads it, without places of this machine."""
        found = told(error, self._named)
        if self._by_disk is not None and isinstance(found, ResourceExhausted):
            found = ResourceExhausted(
                f"the statement needs more than sql.memory and the disk allow: of what is free it may put aside "
                f"{format_size(self._by_disk // 1024 * 1024)}, the log keeps the rest; read less, or free space there"
            )
        place = str(self._aside.folder)
        return type(found)(str(found).replace(place, "sql.tmp")) if place in str(found) else found


def _shown_alone(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """A table without the columns that no statement sees."""
    names = [name for name in schema.names if name not in UNSHOWN]
    if len(names) == len(schema.names):
        return schema, batches
    return pa.schema([schema.field(name) for name in names]), (batch.select(names) for batch in batches)


def _of_struct(names: Iterable[str]) -> list[str]:
    return [f"fields.{quoted(one)} AS {quoted(one)}" for one in names]


def _nulls(names: Iterable[str]) -> list[str]:
    return [f"NULL AS {quoted(one)}" for one in sorted(names)]


def _with_text(kept: Kept, name: str) -> str:
    """A table with its bodies as text, and with what is read of them."""
    read = quoted(AS_READ) if AS_READ in kept.schema.names else "NULL"
    text = "try(decode(body))"
    return f"(SELECT *, {text} AS {TEXT}, coalesce({read}, {text}) AS {READ} FROM {name})"


def _transformed(fields: Mapping[str, Shape]) -> str:
    shape = orjson.dumps(fields).decode().replace("'", "''")
    return f"json_transform({WHOLE}, '{shape}')"


def _without_end(sql: str) -> str:
    """A statement without the semicolons and comments behind it."""
    text = sql.encode()
    for at, kind in reversed(duckdb.tokenize(sql)):
        if text[at : at + 1] != b";" and kind != duckdb.token_type.comment:
            break
        text = text[:at]
    return text.decode()


def told(error: Exception, fields: Collection[str] = ()) -> PenstockError:
    """DuckDB's error as ours: its own words, without its advice about settings nobody can change here."""
    if isinstance(error, PenstockError):
        return error
    text = str(error).strip()
    first = text.splitlines()[0][:200] if text else type(error).__name__
    # What goes wrong while rows are read comes through Arrow, as an OSError or another of its own with DuckDB's text.
    full = "Out of Memory Error" in text or "max_temp_directory_size" in text
    if full or isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return ResourceExhausted(
            "the statement needs more than sql.memory and sql.spill allow: read less, or allow more in the settings "
            f"({first})"
        )
    if isinstance(error, duckdb.IOException) or (isinstance(error, OSError) and " Error: " not in text):
        return Unavailable(f"what the statement puts aside cannot be written or read: {first}")
    kind, colon, rest = text.partition(": ")
    text = rest if colon and kind.endswith("Error") else text
    return InvalidArgument(without_advice(without_column(text, fields))[:1000])
