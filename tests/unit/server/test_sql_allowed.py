"""What a statement may call: nothing that it can say tells of the machine that it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from penstock.errors import InvalidArgument, PenstockError
from penstock.server.sql.duckdb_engine import Bounds, Engine
from penstock.server.sql.statement import COMPUTE, OTHERS, TABLES

CANARY = "canary-7f3a"
"""Stands in every path, setting and variable that could be told."""

TELLING = [
    "SELECT current_setting('temp_directory')",
    "SELECT current_setting('secret_directory')",
    "SELECT 'temp_directory'.current_setting()",
    "SELECT system.main.current_setting('temp_directory')",
    "SELECT list_transform(['temp_directory'], lambda name: current_setting(name))",
    "SELECT * REPLACE (current_setting('temp_directory') AS a) FROM (SELECT 1 AS a)",
    "VALUES (current_setting('temp_directory'))",
    "SELECT count(*) FILTER (current_setting('temp_directory') = '') FROM range(2)",
    "SELECT sum(range) OVER (ORDER BY current_setting('temp_directory')) FROM range(2)",
    "SELECT 1 FROM range(2) GROUP BY current_setting('temp_directory')",
    "SELECT 1 FROM range(2) LIMIT length(current_setting('temp_directory'))",
    "SELECT * FROM range(length(current_setting('temp_directory')))",
    "WITH a AS (SELECT current_setting('temp_directory')) SELECT * FROM a",
    "SELECT (SELECT current_setting('temp_directory'))",
    "SELECT 1 AS a UNION ALL SELECT length(current_setting('temp_directory'))",
    "SELECT json_serialize_plan('SELECT current_setting(''temp_directory'')')",
    "SELECT * FROM query('SELECT current_setting(''temp_directory'')')",
    "SELECT * FROM query_table('duckdb_databases')",
    "SELECT * FROM histogram_values('duckdb_databases', 'path')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT current_setting(''temp_directory'')'))",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM glob('/**')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT getenv('HOME')",
    "WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases",
    "SELECT * FROM duckdb_databases, (WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases)",
    "WITH a AS (SELECT * FROM duckdb_databases), duckdb_databases AS (SELECT 1) SELECT * FROM a",
    "WITH RECURSIVE pg_settings AS (SELECT 1 UNION SELECT 2 FROM pg_settings) SELECT * FROM pg_settings",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(CANARY)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    engine = Engine(Bounds(64 << 20, 64 << 20, folder, 1))
    yield engine
    engine.close()


@pytest.mark.parametrize("sql", TELLING)
def test_what_tells_is_refused_wherever_it_stands(engine: Engine, sql: str) -> None:
    with pytest.raises(InvalidArgument, match=r"disabled by configuration|choose another one") as told:
        engine.examine(sql)
    assert CANARY not in str(told.value)


@pytest.mark.parametrize("sql", ["PRAGMA database_list", "CALL duckdb_settings()", "EXPLAIN SELECT 1", "SET threads=9"])
def test_what_is_no_select_is_refused(engine: Engine, sql: str) -> None:
    with pytest.raises(InvalidArgument, match="only SELECT"):
        engine.examine(sql)


def test_what_computes_is_not_refused(engine: Engine) -> None:
    sql = """SELECT random() < 1, uuid()::VARCHAR <> '', now() > '2000-01-01', current_date > '2000-01-01', user,
        unnest([1]), (SELECT count(*) FROM json_each('[1, 2]')), regexp_replace('a', 'a', 'b'), coalesce(NULL, 1),
        row_number() OVER (), ago(INTERVAL 1 HOUR) < now() FROM range(1), generate_series(1, 1), repeat(1, 1)"""
    engine.examine(sql)
    schema, rows = engine.run(sql)
    assert sum(batch.num_rows for batch in rows) == 1
    assert len(schema) > 10


def test_the_lists_name_functions_that_there_are() -> None:
    with duckdb.connect() as db:
        there = {name for (name,) in db.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()}
    assert not (TABLES | COMPUTE | OTHERS) - there - {"unnest", "getenv"}


def calls() -> list[str]:
    """Each function that DuckDB has, with each of some arguments: whatever it takes of them."""
    given = ["", "'temp_directory'", "'HOME'", "'SELECT current_setting(''temp_directory'')'", "'duckdb_databases'"]
    with duckdb.connect() as db:
        names = db.execute(
            "SELECT DISTINCT function_name, function_type FROM duckdb_functions() "
            "WHERE regexp_full_match(function_name, '[a-zA-Z_0-9]+') "
            "AND NOT regexp_matches(function_name, '^(icu_)?collate_|^__internal') ORDER BY ALL"
        ).fetchall()
    starts = [f"SELECT {'* FROM ' if kind in ('table', 'table_macro') else ''}{name}" for name, kind in names]
    return [f"{start}({one})" for start in starts for one in given]


def test_no_function_tells_where_the_process_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, effort: int) -> None:
    """Every function of DuckDB is called, also those of later releases; in a short run every eighth call."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.chdir(folder)
    engine = Engine(Bounds(64 << 20, 64 << 20, folder, 1))
    told = dict[str, str]()
    answered = 0
    all_calls = calls()
    assert len(all_calls) > 3000
    for sql in all_calls[:: 1 if effort > 1 else 8]:
        try:
            engine.examine(sql)
            _, rows = engine.run(sql)
            said = "".join(str(batch.slice(0, 100).to_pylist()) for batch in rows)
            answered += 1
        except PenstockError as error:
            said = str(error)
            if "FATAL" in said or "INTERNAL" in said or "invalidated" in said:
                engine.close()
                engine = Engine(Bounds(64 << 20, 64 << 20, folder, 1))
        for secret in (CANARY, os.uname().nodename, duckdb.__file__):
            if secret in said:
                told[sql] = said[:200]
    engine.close()
    assert told == {}
    assert answered > 100 // (1 if effort > 1 else 8)
