"""DuckDB as the child uses it: shut off from files and network, with a bound on memory, and our tables in it.

A table that is read once, and only by what every message has, is streamed.  Any other is kept, for it is read twice:
once for the fields of its bodies, which must fit all messages, and then by the statement.  What does not fit into
memory goes to the folder given, and that too has a bound.
"""

# duckdb is untyped here
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import duckdb
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError
from penstock.records.dataclass import dataclass
from penstock.server.sql.result import pieces, plain_schema
from penstock.server.sql.statement import JSON, MADE, SCHEMAS, TEXT, Statement, Use, examine

RESULT_ROWS = 10_000
"""Rows of a batch of the result, about."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a statement may take.  `spill` bytes on disk; `folder` may not be there yet."""

    memory: int
    spill: int
    folder: Path
    threads: int


class Engine:
    """One statement's DuckDB."""

    def __init__(self, bounds: Bounds) -> None:
        self._db: Any = duckdb.connect(":memory:")
        for name, value in {
            "memory_limit": f"{bounds.memory}B",
            "temp_directory": str(bounds.folder),
            "max_temp_directory_size": f"{bounds.spill}B",
            "threads": str(bounds.threads),
            "preserve_insertion_order": "true",
            "TimeZone": "UTC",
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "enable_external_access": "false",
        }.items():
            self._do(f"SET {name}='{value.replace(chr(39), chr(39) * 2)}'")
        for schema in SCHEMAS:
            self._do(f"CREATE SCHEMA {schema}")
        self._number = 0

    def close(self) -> None:
        """Let go of everything."""
        self._db.close()

    def examine(self, sql: str) -> Statement:
        """What the statement reads.  InvalidArgument when it cannot be read."""
        try:
            return examine(self._db, sql)
        except duckdb.Error as error:
            raise told(error) from None

    def table(self, use: Use, statement: Statement, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Let the statement find a table."""
        self._number += 1
        fed, kept = f"fed_{self._number}", f"kept_{self._number}"
        reader = pa.RecordBatchReader.from_batches(schema, iter(batches))
        self._db.register(fed, reader)
        try:
            if "body" not in schema.names:
                source = self._kept(fed, kept, "*") if use.times > 1 else fed
                self._view(use, source, [quoted(name) for name in schema.names])
                return
            self._kept(fed, kept, f"*, try(decode(body)) AS {TEXT}")
            text = f"CASE WHEN json_valid({TEXT}) THEN {TEXT}::JSON END"
            whole = f"CASE WHEN json_valid({TEXT}) AND json_type({TEXT}) = 'OBJECT' THEN {TEXT}::JSON END"
            asked, taken = statement.columns, {*schema.names, *MADE}
            found = self._fields(kept, whole, None if statement.whole else asked)
            fields = {name: kind for name, kind in found.items() if name.lower() not in taken}
            hidden = {"body"} if fields and "body" not in asked else set[str]()
            columns = [quoted(name) for name in schema.names if name not in hidden]
            columns += [name for name in (TEXT,) if name in asked]
            columns += [f"{text} AS {JSON}" for name in (JSON,) if name in asked]
            source = kept
            if fields:
                shape = orjson.dumps(fields).decode().replace("'", "''")
                source = f"(SELECT *, json_transform({whole}, '{shape}') AS fields FROM {kept})"
                columns += [f"fields.{quoted(name)} AS {quoted(name)}" for name in fields]
            elif asked and len(statement.uses) == 1 and self._is_empty(kept):
                # What no message has yet is NULL, not a mistake: a query of an empty queue has no rows, or zeros.
                columns += [f"NULL AS {quoted(name)}" for name in sorted(asked - taken - {use.name.lower()})]
            self._view(use, source, columns)
        except duckdb.Error as error:
            raise told(error) from None
        finally:
            if "body" in schema.names or use.times > 1:
                self._db.unregister(fed)

    def run(self, sql: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The result, computed as it is read."""
        self._do("SET lock_configuration=true")
        try:
            relation = self._db.sql(sql)
            if relation is None:
                raise InvalidArgument("the statement has no result: give a SELECT")
            reader: Any = relation.to_arrow_reader(RESULT_ROWS)
        except duckdb.Error as error:
            raise told(error) from None
        schema = plain_schema(reader.schema)
        return schema, self._rows(reader, schema)

    def _rows(self, reader: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        same = schema == reader.schema
        try:
            for batch in reader:
                yield from pieces(batch if same else batch.cast(schema))
        except (duckdb.Error, pa.ArrowException) as error:
            raise told(error) from None

    def _kept(self, fed: str, kept: str, columns: str) -> str:
        self._do(f"CREATE TEMP TABLE {kept} AS SELECT {columns} FROM {fed}")
        return kept

    def _view(self, use: Use, source: str, columns: list[str]) -> None:
        schema = f"{quoted(use.schema)}." if use.schema else "temp."
        kind = "" if use.schema else "TEMP "
        name = quoted(use.name) if not use.schema else f"{schema}{quoted(use.name)}"
        self._do(f"CREATE {kind}VIEW {name} AS SELECT {', '.join(columns)} FROM {source}")

    def _fields(self, kept: str, text: str, wanted: Collection[str] | None) -> Mapping[str, object]:
        """The wanted fields of all bodies that are JSON objects, and types that take every value they have."""
        [[found]] = self._db.execute(f"SELECT json_group_structure({text}) FROM {kept}").fetchall()
        shape: object = orjson.loads(found) if found else None
        if not isinstance(shape, dict):
            return {}
        out, seen = dict[str, object](), set[str]()
        for name, kind in cast("dict[str, object]", shape).items():
            if name and name.lower() not in seen and (wanted is None or name.lower() in wanted):
                # SQL's names have no case: the first of two stays, and `json` has both.
                seen.add(name.lower())
                out[name] = kind
        whole = [name for name, kind in out.items() if kind in ("UBIGINT", "HUGEINT")]
        large = self._beyond_signed(kept, text, whole)
        return out | {name: "HUGEINT" if name in large else "BIGINT" for name in whole}

    def _beyond_signed(self, kept: str, text: str, names: list[str]) -> set[str]:
        """Of fields of whole numbers, those with one that 64 bits cannot hold; of two signs DuckDB makes 128 bits."""
        if not names:
            return set()
        shape = orjson.dumps(dict.fromkeys(names, "HUGEINT")).decode().replace("'", "''")
        columns = [f"fields.{quoted(name)}" for name in names]
        beyond = ", ".join(f"max({one}) > {2**63 - 1} OR min({one}) < {-(2**63)}" for one in columns)
        inner = f"(SELECT json_transform({text}, '{shape}') AS fields FROM {kept})"
        [row] = self._db.execute(f"SELECT {beyond} FROM {inner}").fetchall()
        return {name for name, large in zip(names, row, strict=True) if large}

    def _is_empty(self, kept: str) -> bool:
        return not self._db.execute(f"SELECT 1 FROM {kept} LIMIT 1").fetchall()

    def _do(self, sql: str) -> None:
        try:
            self._db.execute(sql).fetchall()
        except duckdb.Error as error:
            raise told(error) from None


def quoted(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def told(error: Exception) -> PenstockError:
    """DuckDB's error as ours: its own words, without its advice about settings nobody can change here."""
    if isinstance(error, PenstockError):
        return error
    text = str(error).strip()
    if isinstance(error, duckdb.OutOfMemoryException) or "max_temp_directory_size" in text:
        return InvalidArgument(
            "the statement needs more than sql.memory and sql.spill allow: read less, or allow more in the settings "
            f"({text.splitlines()[0][:200]})"
        )
    kind, colon, rest = text.partition(": ")
    text = rest if colon and kind.endswith("Error") else text
    if text.startswith("Referenced column"):
        text += "\nA field of the bodies is a column when at least one message there has it."
    return InvalidArgument(text[:1000])
