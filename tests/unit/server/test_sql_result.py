"""The result of a statement: what types it has, and how large its pieces are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, PreconditionFailed, ResourceExhausted
from penstock.server.doors.line import Ended, Frame, Kind
from penstock.server.flight.calls import Caller
from penstock.server.http.statements import encoded_rows
from penstock.server.people.access import Who
from penstock.server.sql import children, queries, value_types
from penstock.server.sql.duckdb_engine import Engine
from penstock.server.sql.queries import Queries, Query, SqlLimits


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


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("SELECT 340282366920938463463374607431768211455::UHUGEINT AS e", "340282366920938463463374607431768211455"),
        ("SELECT INTERVAL '1 month 2 days 03:04:05.6' AS e", "1 month 2 days 03:04:05.6"),
        ("SELECT [INTERVAL 1 HOUR] AS e", ["01:00:00"]),
        ("SELECT '10101'::BIT AS e", "10101"),
        ("SELECT '12:00:00+02'::TIMETZ AS e", "12:00:00+02"),
        ("SELECT '99999999999999999999999999999999999999999999'::BIGNUM AS e", "9" * 44),
        ("SELECT '00000000-0000-0000-0000-00000000000a'::UUID AS e", "00000000-0000-0000-0000-00000000000a"),
        ("SELECT union_value(age := 5)::UNION(name VARCHAR, age SMALLINT) AS e", "5"),
        ("SELECT {'u': uuid_value, 'n': NULL, 'j': '{}'::JSON} AS e FROM (SELECT '10'::BIT AS uuid_value)",
         {"u": "10", "n": None, "j": "{}"}),
        ("SELECT MAP {'10'::BIT: INTERVAL 2 DAY} AS e", {"10": "2 days"}),
        ("SELECT row(1, INTERVAL 3 DAY) AS e", {"element1": 1, "element2": "3 days"}),
        ("SELECT {'a': 1}::VARIANT AS e", "{'a': 1}"),
        ("SELECT 'POINT (1 2)'::GEOMETRY AS e", "POINT (1 2)"),
        ("SELECT 99999999999999999999999999999999999999::HUGEINT AS e", "9" * 38),
        ("SELECT sum(range) AS e FROM range(5) -- of whole numbers", "10"),
        ("SELECT MAP {1: 'x'} AS e;", {"1": "x"}),
        ("SELECT '2026-01-02'::DATE AS e", "2026-01-02"),
        ("SELECT '2026-01-02 03:04:05Z'::TIMESTAMPTZ AS e", "2026-01-02T03:04:05+00:00"),
        ("SELECT '\\xAA'::BLOB AS e", "\ufffd"),
        ("SELECT 'nan'::DOUBLE AS e", None),
        ("SELECT MAP {'nan'::DOUBLE: 1, 'inf'::DOUBLE: 2, '-inf'::DOUBLE: 3, 0.5::DOUBLE: 4} AS e",
         {"NaN": 1, "Infinity": 2, "-Infinity": 3, "0.5": 4}),
        ("SELECT [{'m': MAP {'nan'::FLOAT: 1, 'inf'::FLOAT: NULL}}] AS e", [{"m": {"NaN": 1, "Infinity": None}}]),
        ("SELECT INTERVAL 1 DAY AS e; -- and ; no more", "1 day"),
    ],
)  # fmt: skip
def test_each_type_has_an_answer_in_json(engine: Engine, sql: str, value: object) -> None:
    assert orjson.loads(encoded_rows(engine.run(sql), 10, 1 << 20))["rows"] == [[value]]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT " + "(" * 2000 + "1" + ")" * 2000, "Max expression depth limit of 1000 exceeded.$"),
        ("SELECT 1 // 0", "^Division by zero in expression .*. Use TRY.* to return NULL for this expression.$"),
    ],
    ids=["depth", "zero"],
)
def test_nobody_is_told_to_set_what_nobody_can(engine: Engine, sql: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        encoded_rows(engine.run(sql), 10, 1 << 20)


def test_all_types_that_there_are(engine: Engine) -> None:
    """Each is answered, as Arrow that is valid and as JSON; or its value is refused by the column's name."""
    _, rows = engine.run("SELECT * FROM (DESCRIBE SELECT * FROM test_all_types())")
    names = [row["column_name"] for batch in rows for row in batch.to_pylist()]
    assert len(names) > 50

    def in_arrow(sql: str) -> None:
        for batch in through_a_stream(engine, sql):
            batch.validate(full=True)
            assert "extension" not in str(batch.schema.field(0).type)

    def in_json(sql: str) -> None:
        assert orjson.loads(encoded_rows(engine.run(sql), 10, 1 << 20))["row_count"] == 3

    def refused(answer: Callable[[str], None]) -> set[str]:
        out = dict[str, str]()
        for name in names:
            try:
                answer(f'SELECT "{name}" FROM test_all_types()')
            except InvalidArgument as error:
                out[name] = str(error)
        assert all(f"column '{name}'" in said for name, said in out.items())
        return set(out)

    beyond_arrow = {"hugeint", "time", "time_ns"}  # 39 digits, and 24 o'clock
    beyond_python = {name for name in names if name.startswith(("date", "timestamp")) and not name.endswith("ns")}
    assert refused(in_arrow) == beyond_arrow
    assert refused(in_json) == beyond_arrow | beyond_python  # years after 9999


@pytest.mark.parametrize("depth", [70, 1000])
def test_what_nests_too_deep_is_refused(engine: Engine, depth: int) -> None:
    with pytest.raises(InvalidArgument):
        through_a_stream(engine, f"SELECT {'[' * depth}1{']' * depth} AS e")


def test_an_answer_in_json_has_its_bytes(engine: Engine) -> None:
    with pytest.raises(InvalidArgument, match="more than 100000 bytes"):
        encoded_rows(engine.run("SELECT repeat('x', 1000) FROM range(1000)"), 10_000, 100_000)


def test_a_batch_comes_in_pieces(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_types, "PIECE_BYTES", 1000)
    found = through_a_stream(
        engine, "SELECT i, repeat('x', CASE WHEN i = 5 THEN 2900 ELSE 200 END) AS t FROM range(9) t(i)"
    )
    assert [row["i"] for batch in found for row in batch.to_pylist()] == list(range(9))
    assert all(batch.nbytes <= 1000 or batch.num_rows == 1 for batch in found)


def test_a_row_has_a_bound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_types, "PIECE_BYTES", 1000)
    monkeypatch.setattr(value_types, "ROW_BYTES_MOST", 3000)
    with pytest.raises(InvalidArgument, match=r"a row of the result has 31\d\d bytes, and 3000 are the most"):
        through_a_stream(engine, "SELECT repeat('x', 3100) AS t")


def test_a_statement_that_gets_no_process_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(children: children.Children) -> Any:
        raise PreconditionFailed("SQL needs DuckDB")

    monkeypatch.setattr(children.Children, "take", refused)
    nothing = cast("Any", None)  # nothing is asked of them
    queries = Queries(nothing, nothing, tmp_path, SqlLimits(at_once=1))
    for _ in range(2):  # and gives its place back
        with pytest.raises(PreconditionFailed):
            queries.run(Caller(Who("ann"), "", lambda: False), "/", "SELECT 1")
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

    holder, child = children.Children(), Lingering()
    holder.back(cast("Any", child))
    child.idle_since = -1e9
    holder.beat()
    assert child.asked.wait(20)
    child.gone.set()
    holder.beat()  # there is none any more


class Endless:
    """A child that always has another row, and is asked for none of its sockets."""

    def __init__(self) -> None:
        self.line: Any = self
        self.sockets: Any = None
        self.ended = threading.Event()
        self._row = pa.record_batch({"n": [1]})

    def send(self, *_: object) -> None:
        if self.ended.is_set():
            raise Ended

    def receive(self, may: dict[Kind, int], _: object) -> Frame:
        self.send()
        words = {
            Kind.CONTROL: lambda: b'{"uses":[],"columns":[],"whole":false}',
            Kind.SCHEMA: self._row.schema.serialize,
            Kind.BATCH: self._row.serialize,
        }
        kind = next(iter(may))
        return Frame(kind, 0, 0, 0, memoryview(cast("Any", words[kind]())))

    def end(self) -> None:
        self.ended.set()


class Fast:
    """A statement whose child is as fast as its reader, and a clock that is moved by hand."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.now, self.child = 100.0, Endless()
        patch.setattr(queries, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(children.Children, "take", lambda _: self.child)
        patch.setattr(queries.Statement, "of", lambda _: SimpleNamespace(lists_tables=False, uses=()))
        disk = SimpleNamespace(free=lambda: 1 << 40)
        self.log = SimpleNamespace(disk=disk, kept_free=1 << 20)
        engine: Any = SimpleNamespace(log=self.log)
        handover: Any = SimpleNamespace(engine=engine, call=lambda work, *_, **__: work())
        self.all = Queries(handover, cast("Any", None), folder, SqlLimits(at_once=1, timeout_s=30.0))
        _, rows = self.all.run(Caller(Who("ann"), "", lambda: False), "/", "SELECT 1")
        self.rows: Iterator[pa.RecordBatch] = rows


@pytest.fixture
def fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fast:
    return Fast(tmp_path, monkeypatch)


TOO_LONG = r"longer than 30 s, which is sql\.timeout"


def test_a_statement_has_its_time_also_while_its_rows_come(fast: Fast) -> None:
    """It was looked at the clock only where a row was waited for."""
    next(fast.rows)
    fast.now += 29.0
    next(fast.rows)
    fast.now += 1.0
    with pytest.raises(ResourceExhausted, match=TOO_LONG):
        next(fast.rows)
    assert fast.child.ended.is_set()
    assert fast.all.running == 0


def test_a_statement_whose_rows_come_ends_for_the_sake_of_the_disk(fast: Fast, tmp_path: Path) -> None:
    [scratch] = (tmp_path / "sql.tmp").iterdir()
    (scratch / "put aside").touch()
    next(fast.rows)
    fast.log.disk.free = lambda: 0
    fast.now += queries.LOOK_S
    with pytest.raises(ResourceExhausted, match="the disk has no more than the log needs"):
        next(fast.rows)
    assert fast.all.running == 0


def test_a_result_that_nobody_reads_on_ends_in_its_time(fast: Fast) -> None:
    """Its child and its place were kept as long as the reader stood."""
    next(fast.rows)
    fast.now += 30.0 + queries.OVER_S
    fast.all.beat()
    assert not fast.child.ended.is_set()  # who reads hears it first
    fast.now += 0.1
    fast.all.beat()
    assert fast.child.ended.wait(20)
    with pytest.raises(ResourceExhausted, match=TOO_LONG):  # and no end of the rows, which were not all
        next(fast.rows)
    assert isinstance(fast.rows, Query)
    assert not fast.rows.runs
