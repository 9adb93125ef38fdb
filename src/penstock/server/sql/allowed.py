"""Which of DuckDB's functions a statement may call: those that compute, not those that tell of the machine.

Table functions are listed, so that one of a later DuckDB is out of reach until somebody has looked at it.  Scalar ones
are too many for that, and DuckDB itself says of each whether the same arguments always give the same value: what reads
a setting or a state of the process does not.
"""

# duckdb is untyped here
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.server.sql.statement import Statement

TABLES = frozenset({
    "range", "generate_series", "repeat", "repeat_row", "unnest", "json_each", "json_tree", "summary",
    "regexp_split_to_table", "generate_subscripts", "test_all_types", "test_vector_types", "pg_timezone_names",
    "icu_calendar_names",
})  # fmt: skip
"""Functions that may stand where a table does."""

COMPUTE = frozenset({
    "random", "setseed", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "error", "now", "today", "current_date",
    "get_current_time", "get_current_timestamp", "transaction_timestamp", "stats", "vector_type",
})  # fmt: skip
"""Scalar functions whose value may be another one at the next call, and which tell nothing of the machine."""

OTHERS = frozenset(
    {
        "json_serialize_plan",  # it computes what it can, and the text that it is given is not looked at
        "pg_sleep",  # only waits, for as long as others would wait for its place
        "getenv",  # DuckDB has it where it runs as a program
    }
)
"""Scalar functions that are refused although DuckDB does not say that their values change."""


class Allowed:
    """The judge of names, who asks DuckDB once: that takes 30 ms."""

    def __init__(self) -> None:
        self._refused: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()

    def judge(self, connection: Any, statement: Statement) -> None:
        """InvalidArgument for a function that is out of reach, or a name that hides a view of DuckDB's own."""
        if not self._refused:
            rows = connection.execute(
                "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
            ).fetchall()
            self._refused = frozenset(name for (name,) in rows) - COMPUTE | OTHERS
            rows = connection.execute("SELECT DISTINCT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
            self._taken = frozenset(name for (name,) in rows)
        for name in sorted(statement.table_functions - TABLES) + sorted(statement.functions & self._refused):
            raise InvalidArgument(
                f"{name}() is disabled by configuration: it may tell of the machine, its files or its settings"
            )
        for name in sorted(statement.defined & self._taken):
            # Outside of its WITH the same name would be DuckDB's, and no table that anybody may read.
            raise InvalidArgument(f"WITH {name}: DuckDB has a view of this name, choose another one")
