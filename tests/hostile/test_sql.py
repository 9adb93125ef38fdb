"""Statements that want more than they may have: their process keeps its bound, they are told why, and others go on.

The memory is watched from outside while each runs.  A statement that wants much, and can put it aside, succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from choices import EFFORT, spread
from hostile.sql_lab import MIB, Died, Lab
from penstock.errors import InvalidArgument, ResourceExhausted

MEMORY = 128 * MIB
TOLERANCE = 80 * MIB
"""Above `sql.memory`: stacks and what a process takes to begin."""

AT_ONCE = [
    "SELECT len(repeat('x', 800000000))",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(500000)",
    "WITH RECURSIVE r(n, s) AS (SELECT 1, 'x' UNION ALL SELECT n + 1, s || s FROM r WHERE n < 40) SELECT max(s) FROM r",
    "SELECT list(range) OVER (ORDER BY range) FROM range(100000)",
    "SELECT * FROM range(100000) ORDER BY repeat('x', 100000) || range",
    "SELECT json_group_array(repeat('x', 1000)) FROM range(1000000)",
]
"""Of each kind one: a function, an aggregate, a recursion, a window, a sort, JSON."""

MORE = [
    "SELECT len(list(range)) FROM range(30000000)",
    "SELECT len(format('{:>1000000000}', 'x'))",
    "SELECT len(range(100000000))",
    "SELECT len(generate_series(1, 100000000))",
    "SELECT lpad('x', 1000000000, 'y')",
    "SELECT rpad('x', 1000000000, 'y')",
    "SELECT len(regexp_replace(repeat('a', 10000000), 'a', repeat('b', 100), 'g'))",
    "SELECT len(replace(repeat('a', 10000000), 'a', repeat('z', 1000)))",
    "SELECT len(hex(repeat('x', 60000000)))",
    "SELECT len(array_agg(repeat('x', 100) || range)) FROM range(10000000)",
    "SELECT len(printf('%1000000000s', 'x'))",
    "SELECT unnest(range(1000000000))",
    "SELECT len(list_transform(range(10000000), lambda x: repeat('y', 100)))",
    "SELECT len(struct_pack(a := repeat('x', 900000000)).a)",
    "SELECT len(to_json(range(50000000))::VARCHAR)",
    "SELECT len(json_merge_patch(('{\"a\":\"' || repeat('x', 200000000) || '\"}')::JSON, '{\"b\":1}'::JSON)::VARCHAR)",
    "SELECT cardinality(map(range(20000000), range(20000000)))",
    "SELECT len(list_concat(range(20000000), range(20000000)))",
    "SELECT bit_length(bitstring('1', 2000000000))",
    "SELECT octet_length(encode(repeat('é', 400000000)))",
    "SELECT len(base64(repeat('x', 300000000)::BLOB))",
    "SELECT cardinality(histogram(range)) FROM range(20000000)",
    "SELECT quantile_cont(range, 0.5) FROM range(50000000)",
    "SELECT len(string_split(repeat('a,', 50000000), ','))",
    "SELECT len(array_to_string(range(50000000), ','))",
    "SELECT len(list_sort(range(50000000)))",
    "SELECT len(list_zip(range(30000000), range(30000000)))",
    "SELECT len(x) FROM (SELECT array_agg(repeat('x', 1000000)) x FROM range(5000))",
    "SELECT len(translate(repeat('x', 300000000), 'x', 'é'))",
    "SELECT max(len(concat(a, a, a, a, a, a, a, a, a, a))) FROM (SELECT repeat('x', 30000000) a)",
    "SELECT len(concat_ws(repeat('x', 50000000), 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'))",
    "SELECT len(list_resize([1], 500000000, 7))",
    "SELECT len(flatten([range(30000000), range(30000000)]))",
    "SELECT len(list_reduce(list_transform(range(40), lambda i: 'x'), lambda a, b: a || a))",
    "SELECT len(regexp_extract_all(repeat('ab', 30000000), 'a'))",
    "SELECT len(left(repeat('x', 1000000000), 1000000000))",
    "SELECT row(" + ", ".join(f"repeat('x', 40000000 + {n})" for n in range(40)) + ")",
    "SELECT " + ", ".join(f"a.range + {n} AS c{n}" for n in range(3000)) + " FROM range(100000) a ORDER BY random()",
    "SELECT len(url_encode(repeat('é', 60000000)))",
    "SELECT sum(x::DECIMAL(38, 0)) FROM (SELECT unnest(range(60000000)) x)",
    "SELECT count(*) FROM (SELECT mode(range) FROM range(30000000))",
    "SELECT len(json_extract_string('[' || repeat('1,', 60000000) || '1]', '$[*]'))",
    "SELECT count(DISTINCT a.range * 1000003 + b.range) FROM range(10000) a, range(10000) b",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("sql"), memory=MEMORY, spill=64 * MIB)
    yield lab
    lab.close()


@pytest.mark.parametrize("sql", [*AT_ONCE, *(MORE if EFFORT > 1 else ())], ids=lambda sql: str(sql)[:40])
def test_what_wants_too_much_is_told_so(lab: Lab, sql: str) -> None:
    with pytest.raises(ResourceExhausted, match=r"sql\.memory") as told:
        lab.ask(sql)
    assert lab.risen <= MEMORY + TOLERANCE, f"{lab.risen // MIB} MiB: {told.value}"
    assert str(lab.folder) not in str(told.value)
    assert lab.ask("SELECT 1 AS one").to_pylist() == [{"one": 1}]


ROWS = 200_000
"""As many for `MEMORY` as once ended a statement of twice the memory and twice the rows."""
PAGE = 10_000
SCHEMA = pa.schema([("lsn", pa.int64()), ("body", pa.binary())])


def orders(rows: int, pad: int) -> Iterator[pa.RecordBatch]:
    """Messages of about 70 bytes and the padding."""
    page = max(1, min(PAGE, (8 * MIB) // (pad + 70)))
    for start in range(0, rows, page):
        bodies = [
            b'{"id": %d, "region": "%c", "total": %d.5, "customer": "customer-%d", "pad": "%s"}'
            % (i, b"nesw"[i % 4], i, i % 977, b"x" * pad)
            for i in range(start, min(rows, start + page))
        ]
        yield pa.record_batch(
            [pa.array(range(start, start + len(bodies)), pa.int64()), pa.array(bodies)], schema=SCHEMA
        )


MANY = [  # rows, padding, statement, rows of its result
    (ROWS, 10, "SELECT avg(total) FROM orders", 1),
    (ROWS, 0, "SELECT body FROM orders", ROWS),
]
MORE_OF_MANY = [
    (1000, 100_000, "SELECT id, body FROM orders WHERE total > 10", 990),
    (1_000_000, 10, "SELECT region, customer, count(*), max(total) FROM orders GROUP BY ALL", 3908),
    (1_000_000, 10, "SELECT * FROM orders ORDER BY customer, total DESC", 1_000_000),
    (1_000_000, 10, "SELECT count(DISTINCT id), count(DISTINCT pad || id) FROM orders", 1),
    (1_000_000, 10, "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id + 1", 999_999),
    (1_000_000, 10, "SELECT id, sum(total) OVER (PARTITION BY region ORDER BY id) FROM orders", 1_000_000),
    (1_000_000, 10, "SELECT DISTINCT ON (customer) customer, id FROM orders ORDER BY customer, id DESC", 977),
    (1_000_000, 10, "WITH x AS (SELECT lsn FROM orders) SELECT count(*) FROM x a JOIN x b USING (lsn)", 1),
    (1_000_000, 10, "SELECT quantile_disc(total, 0.5), region FROM orders GROUP BY region", 4),
    (5_000, 200_000, "SELECT region, count(*), sum(len(pad)) FROM orders GROUP BY region", 4),
    (5_000, 200_000, "SELECT body FROM orders", 5_000),
    (5_000, 20_000, "SELECT id, body FROM orders ORDER BY total DESC", 5_000),
    (300, 1_000_000, "SELECT body, text FROM orders WHERE total > 10", 290),
]


@pytest.mark.parametrize(("rows", "pad", "sql", "wanted"), [*MANY, *(MORE_OF_MANY if EFFORT > 1 else ())])
def test_what_can_be_put_aside_is_answered(tmp_path: Path, rows: int, pad: int, sql: str, wanted: int) -> None:
    lab = Lab(tmp_path, memory=MEMORY if rows == ROWS else 2 * MEMORY)
    try:
        found = lab.ask(sql, {"orders": (SCHEMA, orders(rows, pad))})
    finally:
        lab.close()
    assert found.num_rows == wanted
    assert lab.risen <= lab.memory + TOLERANCE
    assert lab.put_aside > rows * pad  # the table at least


def test_what_is_put_aside_has_its_bound(tmp_path: Path) -> None:
    lab = Lab(tmp_path, memory=MEMORY, spill=10 * MIB)
    try:
        for sql in ("SELECT count(body) FROM orders", "SELECT * FROM orders ORDER BY pad"):
            with pytest.raises(ResourceExhausted, match=r"sql\.spill") as told:
                lab.ask(sql, {"orders": (SCHEMA, orders(400, 100_000))})
            assert lab.put_aside <= 10 * MIB + 64 * 1024  # and what says where pages begin
            assert str(tmp_path) not in str(told.value)
    finally:
        lab.close()


HOSTILE_BODIES = [
    b'{"a": ' * 1000 + b"1" + b"}" * 1000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"place": {"x": 1, "X": 2}}',
    b'{"place": {"": 1}}',
    b'{"": 1}',
    b'{"id": 1, "ID": 2, "iD": {"a": []}}',
    b'{"id": {"id": {"id": [{}]}}, "lsn": 1, "body": 2}',
    b'{"a\\u0000b": 1, "a\\u0022b": {"\\u0027": 1}}',
    b'{"id": 1e400, "total": -1e400}',
    b'{"id": 170141183460469231731687303715884105727, "total": 1}',
    b'{"id": NaN}',
    b'{"id": "\\ud800"}',
    b'{"id": 1, "id": "x"}',
    b"\xff\xfe",
    b"",
    b'{"id": ' + b"9" * 5000 + b"}",
    b'{"' + b"k" * 100_000 + b'": 1}',
]
GOOD = b'{"id": 7, "total": 2.5, "place": {"x": 3}}'


def answered(lab: Lab, sql: str, bodies: list[bytes]) -> None:
    """Whatever these are, the rows of the good ones around them are as they should be."""
    lsns = pa.array(range(1, len(bodies) + 3), pa.int64())
    rows = pa.record_batch([lsns, pa.array([GOOD, *bodies, GOOD])], schema=SCHEMA)
    found = lab.ask(sql, {"q": (SCHEMA, iter([rows]))}).to_pylist()
    assert len(found) == len(bodies) + 2
    if "total" in found[0]:
        assert [row["total"] for row in (found[0], found[-1])] == [2.5, 2.5]


STATEMENTS = ("SELECT * FROM q", "SELECT id, total FROM q", "SELECT lsn, json, text, body FROM q")


@pytest.mark.parametrize("body", HOSTILE_BODIES, ids=lambda body: repr(body[:24]))
def test_no_body_stops_the_statements_of_others(lab: Lab, body: bytes) -> None:
    """Whatever one message holds, the rows of the others are answered: by who wants all of it, and, in a hunt, less."""
    for sql in STATEMENTS[: 1 if EFFORT == 1 else None]:
        answered(lab, sql, [body])


@pytest.mark.parametrize("sql", STATEMENTS)
def test_all_these_bodies_together_stop_nobody(lab: Lab, sql: str) -> None:
    answered(lab, sql, HOSTILE_BODIES)


def test_more_fields_than_a_table_has(lab: Lab) -> None:
    bodies = [b'{"f%d": %d, "id": 1}' % (n, n) for n in range(3000)]
    rows = pa.record_batch([pa.array(range(3000), pa.int64()), pa.array(bodies)], schema=SCHEMA)
    assert lab.ask("SELECT f7 FROM q WHERE f7 IS NOT NULL", {"q": (SCHEMA, iter([rows]))}).to_pylist() == [{"f7": 7}]
    with pytest.raises(InvalidArgument, match="bodies of q have 3001 different fields, and 1000 are the most"):
        lab.ask("SELECT * FROM q", {"q": (SCHEMA, iter([rows]))})


DEEP = [
    "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "SELECT " + "-" * 0 + "+".join(["1"] * 40_000),
    "SELECT " + "[" * 3000 + "1" + "]" * 3000,
    "SELECT * FROM " + "(SELECT * FROM " * 3000 + "range(1)" + ")" * 3000,
    " UNION ALL ".join(["SELECT 1"] * 8000),
    "SELECT " + "NOT " * 20_000 + "true",
    "SELECT CASE " + "WHEN true THEN 1 " * 5000 + "END",
]


@pytest.mark.parametrize("sql", spread(DEEP, 4), ids=lambda sql: str(sql)[:24])
def test_a_deep_statement_ends_nobody_else(lab: Lab, sql: str) -> None:
    try:
        lab.ask(sql)
    except (InvalidArgument, Died):
        pass  # refused, or its own process is gone
    assert lab.ask("SELECT 1 AS one").to_pylist() == [{"one": 1}]
