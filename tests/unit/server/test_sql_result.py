"""The result of a statement: what types it has, and how large its pieces are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.server.sql import process, result
from penstock.server.sql.engine import Bounds, Engine
from penstock.server.sql.queries import Queries, SqlLimits


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(Bounds(64 << 20, 64 << 20, tmp_path, 1))
    yield made
    made.close()


def through_a_stream(engine: Engine, sql: str) -> list[pa.RecordBatch]:
    """As the server gets them: a schema, and batches without what a stream says beside them."""
    schema, rows = engine.run(sql)
    read = pa.ipc.read_schema(pa.py_buffer(schema.serialize()))
    return [pa.ipc.read_record_batch(batch.serialize(), read) for batch in rows]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("SELECT 'a'::ENUM('a', 'b') AS e", "a"),
        ("SELECT ['b'::ENUM('a', 'b'), 'a'] AS e", ["b", "a"]),
        ("SELECT {'x': 'b'::ENUM('a', 'b')} AS e", {"x": "b"}),
        ("SELECT MAP {'k': 'a'::ENUM('a', 'b')} AS e", [("k", "a")]),
        ("SELECT array_value('a'::ENUM('a', 'b')) AS e", ["a"]),
        ("SELECT NULL::ENUM('a', 'b') AS e", None),
        ("SELECT 7 AS e", 7),
    ],
)
def test_a_choice_of_texts_is_a_text(engine: Engine, sql: str, value: object) -> None:
    [batch] = through_a_stream(engine, sql)
    assert batch.to_pylist() == [{"e": value}]


def test_a_batch_comes_in_pieces(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "PIECE_BYTES", 1000)
    found = through_a_stream(
        engine, "SELECT i, repeat('x', CASE WHEN i = 5 THEN 2900 ELSE 200 END) AS t FROM range(9) t(i)"
    )
    assert [row["i"] for batch in found for row in batch.to_pylist()] == list(range(9))
    assert all(batch.nbytes <= 1000 or batch.num_rows == 1 for batch in found)


def test_a_row_has_a_bound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "PIECE_BYTES", 1000)
    monkeypatch.setattr(result, "ROW_BYTES_MOST", 3000)
    with pytest.raises(InvalidArgument, match=r"a row of the result has 31\d\d bytes, and 3000 are the most"):
        through_a_stream(engine, "SELECT repeat('x', 3100) AS t")


def test_a_statement_that_gets_no_process_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(children: process.Children) -> Any:
        raise PreconditionFailed("SQL needs DuckDB")

    monkeypatch.setattr(process.Children, "take", refused)
    nothing = cast("Any", None)  # nothing is asked of them
    queries = Queries(nothing, nothing, tmp_path, SqlLimits(at_once=1))
    for _ in range(2):  # and gives its place back
        with pytest.raises(PreconditionFailed):
            queries.run(nothing, "/", "SELECT 1")
    assert list((tmp_path / "sql.tmp").iterdir()) == []
    assert queries.running == 0


def test_the_loop_does_not_wait_for_the_end_of_an_idle_child() -> None:
    class Lingering:
        idle_since = 0.0
        lives = True

        def __init__(self) -> None:
            self.asked, self.gone = threading.Event(), threading.Event()

        def end(self) -> None:
            self.asked.set()
            assert self.gone.wait(20)

    children, child = process.Children(), Lingering()
    children.back(cast("Any", child))
    child.idle_since = -1e9
    children.beat()
    assert child.asked.wait(20)
    child.gone.set()
    children.beat()  # there is none any more
