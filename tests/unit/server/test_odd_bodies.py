"""One valid but odd body: every reader finds the same in it, or nothing, and none of them stops.

Spark's reader has the same bodies in `tests/spark/test_parsing.py`; here are filters, keys, deltas, field lists,
requests and SQL.
"""

from __future__ import annotations

from itertools import product

import orjson
import pyarrow as pa
import pytest

from choices import spread
from json_cases import DEEP, ODD
from penstock.core.sow.holding import KeyRule
from penstock.core.sow.select import changed, merge, parse_select, read_object, write_object
from penstock.core.view_groups import Elements, View, body_of
from penstock.errors import InvalidArgument
from penstock.expr import compile_filter
from penstock.expr.batches import parsed
from penstock.expr.view_definition import Definition
from penstock.records.properties import EMPTY
from penstock.server.sql.duckdb_engine import Engine
from penstock.wire.http.bodies import read_object as read_request

ALL = {name: body for name, (body, _) in ODD.items()} | DEEP

FILTERS = [
    "/a = 1", "/a > 1.5", "/a LIKE '.*x'", "/a/b = 1", "/a IS NULL", "/a IN (1, 2)", "/a = /b", "/a + 1 > 2",
    "/a % 7 = 1", "/a[0] = 1", "-/a < 0", "/a * /a > 1", "/b * 1000000000000 > 1", "ABS(/a) > 1", "/a BETWEEN 1 AND 2",
    "/a / 0 = 1", "/a/a/a/a = 1",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_filter_finds_what_is_there(name: str) -> None:
    body, there = ODD[name]
    assert parsed(body).get("a") == there


@pytest.mark.parametrize("name", ALL)
def test_no_body_stops_a_filter(name: str) -> None:
    for text in FILTERS:
        [hit] = compile_filter(text).matches([ALL[name]])
        assert isinstance(hit, bool), text


@pytest.mark.parametrize("name", ALL)
def test_no_body_stops_a_delta_a_key_or_a_list_of_fields(name: str) -> None:
    """A record is merged on the server's loop: what is raised there and is no refusal ends the server."""
    body = ALL[name]
    try:
        found = read_object(body, "a body")
    except InvalidArgument:
        assert name in DEEP or ODD[name][1] is None, "others take it"
        with pytest.raises(InvalidArgument):
            merge(b'{"a":1}', body)
        with pytest.raises(InvalidArgument):
            merge(body, b'{"a":1}')
    else:
        assert name in ODD
        assert found.get("a") == ODD[name][1]
        assert orjson.loads(merge(body, body)) == orjson.loads(write_object(found))
        assert changed(found, found) == {}
    parse_select(["-/b"]).body(body)
    for path in (("a",), ("b",), ("a", "a")):
        assert isinstance(KeyRule(b"x", (path,)).of_body(body, EMPTY), int | str)
        KeyRule(b"x", (path,)).of_bodies([body], EMPTY)


AGGREGATES = [
    "SUM(/a)", "AVG(/a)", "MIN(/a)", "MAX(/a)", "COUNT(/a)", "COUNT_DISTINCT(/a)", "STDDEV_POP(/a)", "UNIQUE(/a)",
    "GROUP_CONCAT(/a)", "/a", "SUM(/a * /a)",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "groups"), spread(product(ALL, [(), ("/a",), ("/a/b",)]), 72)
)  # each body, half the ways
def test_no_body_stops_a_view(name: str, groups: tuple[str, ...]) -> None:
    for aggregate in AGGREGATES:
        view = View(Definition("v", "q", (f"{aggregate} AS /x",), groups, None))
        view.enter(view.read(Elements(range(1, 3), [parsed(ALL[name]), {"a": 7}], [ALL[name], b'{"a":7}'])))
        view.flush()
        told = [orjson.loads(body_of(view, row)) for row in view.rows.values()]
        assert told, aggregate


@pytest.mark.parametrize("name", ALL)
def test_no_body_of_a_request_is_more_than_refused(name: str) -> None:
    try:
        read_request(ALL[name], once=True)
    except InvalidArgument:
        pass


def rows(engine: Engine, sql: str, bodies: list[bytes]) -> list[dict[str, object]]:
    """The result over a table `t` with these bodies."""
    statement = engine.examine(sql)
    batch = pa.record_batch({"lsn": range(len(bodies)), "body": pa.array(bodies, pa.binary())})
    for use in statement.uses:
        engine.table(use, statement, batch.schema, iter([batch]))
    _, found = engine.run(sql)
    return [row for one in found for row in one.to_pylist()]


def test_sql_finds_what_everybody_finds(engine: Engine) -> None:
    """In one table, in which none takes another with it."""
    found = rows(engine, "SELECT json->'a' AS a FROM t ORDER BY lsn", [*(body for body, _ in ODD.values()), b'{"a":7}'])
    told = [None if row["a"] is None else orjson.loads(str(row["a"])) for row in found]
    assert dict(zip(ODD, told, strict=False)) == {name: there for name, (_, there) in ODD.items()}
    assert told[-1] == 7


def test_sql_reads_all_of_them_as_columns(engine: Engine) -> None:
    found = rows(engine, "SELECT * FROM t ORDER BY lsn", [*ALL.values(), b'{"a":7}'])
    assert len(found) == len(ALL) + 1
    assert found[-1]["a"] == "7"
    by_name = dict(zip(ALL, found, strict=False))
    for name in ("twice", "twice, spaced", "twice, escaped"):
        assert by_name[name]["a"] == "2"


@pytest.mark.parametrize("inside", [b"[", b'{"b":'])
@pytest.mark.parametrize("levels", [40, 100, 126, 127, 128, 129, 1000])
def test_what_nests_deep_is_json_from_some_level_on(engine: Engine, inside: bytes, levels: int) -> None:
    """An answer has at most some 60 levels: one body with more failed every `SELECT *` of its queue."""
    ends = b"]" if inside == b"[" else b"}"
    deep = b'{"a":' + inside * levels + b"1" + ends * levels + b"}"
    found = rows(engine, "SELECT * FROM t ORDER BY lsn", [deep, b'{"c":7}'])
    assert [row["c"] for row in found] == [None, 7]
    assert "1" in str(found[0]["a"])


@pytest.mark.parametrize("levels", [100, 127, 128, 1000])
def test_the_fields_of_a_deep_body_are_those_that_others_have(engine: Engine, levels: int) -> None:
    """Beyond DuckDB's 128 levels it had none, though a filter found each."""
    text = b'"]}\\\\\\""'
    deep = b'{"big":340282366920938463463374607431768211455,"less":-1,"n":18446744073709551615,"d":' + b"[" * levels
    deep += text + b"]" * levels + b',"o":{"deep":' + b'{"x":' * levels + text + b"}" * levels + b',"b":2.5},"s":"x"}'
    [found, _] = rows(engine, "SELECT big, less, n, o.b AS b, d, s FROM t ORDER BY lsn", [deep, b'{"z":[7]}'])
    assert (found["big"], found["less"], found["n"], found["b"]) == (float(2**128), -1, 2**64 - 1, 2.5)
    assert (str(found["d"]).count("["), found["s"]) == (levels, "x")
    for text in ("/less = -1", "/o/b = 2.5", "/s = 'x'", "/n > 18446744073709551614"):
        assert compile_filter(text).matches([deep]) == [True], text


def test_sql_sums_what_equal_names_say_last(engine: Engine) -> None:
    bodies = [b'{"a":1,"a":2}', b'{"a":40,"s":"12:00:00"}', b'{"a":NaN}', b'{"a":1e400}', b'{"a":9,"a":null}']
    assert rows(engine, "SELECT sum(a) AS total, count(a) AS there FROM t", bodies) == [{"total": 42, "there": 2}]
