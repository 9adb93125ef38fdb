"""Bodies as typed columns: each value is what Python's own `json` says, or the body is bad and says why.

Never an exception, and never another value because of the other bodies of the batch: a batch is read a column at a time
where that can be, and what that gives must be what each body gives alone.  `PENSTOCK_SEED` repeats the choices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from choices import EFFORT, SEED
from json_cases import BAD, DEEP, NO_JSON, ODD, TYPES, Cases, expected
from penstock.spark.reading.bodies import BodyParser
from penstock.spark.reading.inference import infer

BODIES = 24 if EFFORT == 1 else 100
"""For each type; `PENSTOCK_EFFORT` multiplies it."""

Parsed = tuple[list[Any], list[str | None]]


def parsed(kind: Any, bodies: Sequence[bytes | None]) -> Parsed:
    parser = BodyParser(pa.schema([pa.field("a", kind)]), ["a"])
    columns, errors = parser.parse(pa.array(bodies, pa.binary()))
    column = columns["a"]
    assert column.type == kind
    column.validate(full=True)
    values = column.to_pylist()
    assert len(values) == len(errors) == len(bodies)
    assert not [value for value, error in zip(values, errors, strict=True) if error is not None and value is not None]
    assert all(error is None or (0 < len(error) < 500 and error.encode()) for error in errors)
    return values, errors


def alike(value: Any, wanted: Any) -> bool:
    """Equal, and of numbers that are none the same."""
    if isinstance(wanted, float) and isinstance(value, float):
        return (math.isnan(value) and math.isnan(wanted)) or (value, math.copysign(1, value)) == (
            wanted,
            math.copysign(1, wanted),
        )
    if isinstance(wanted, list | tuple) and isinstance(value, list | tuple):
        return len(value) == len(wanted) and all(map(alike, value, wanted))
    if isinstance(wanted, dict) and isinstance(value, dict):
        return value.keys() == wanted.keys() and all(alike(value[name], wanted[name]) for name in wanted)
    return bool(wanted == value)


@pytest.fixture(autouse=True)
def _nothing_unforeseen(caplog: pytest.LogCaptureFixture) -> Any:
    """What no judge of a type has foreseen makes its body bad all the same, and is logged: here it is a failure."""
    yield
    told = [record.getMessage() for record in caplog.get_records("call") if record.name.startswith("penstock.spark")]
    assert not told


@pytest.mark.parametrize("name", TYPES)
def test_each_body_gives_what_json_says_or_is_bad_for_a_reason(name: str, effort: int) -> None:
    kind, cases = TYPES[name], Cases(SEED)
    bodies = [*NO_JSON, *cases.bodies(kind, BODIES * effort)]
    values, errors = parsed(kind, bodies)
    for body, value, error in zip(bodies, values, errors, strict=True):
        wanted = expected(kind, body)
        if wanted is BAD:
            assert error is not None, f"{body[:200]!r} as {name} is {value!r} and should be bad"
        else:
            assert error is None, f"{body[:200]!r} as {name} is bad: {error}"
            assert alike(value, wanted), f"{body[:200]!r} as {name} is {value!r}, and json says {wanted!r}"


@pytest.mark.parametrize("name", TYPES)
def test_a_body_gives_the_same_whatever_stands_beside_it(name: str, effort: int) -> None:
    kind, cases = TYPES[name], Cases(SEED)
    bodies = cases.bodies(kind, BODIES // 4 * effort)
    alone = [parsed(kind, [body]) for body in bodies]
    together = parsed(kind, bodies)
    assert together[1] == [errors[0] for _, errors in alone]
    assert alike(together[0], [values[0] for values, _ in alone])
    good = [body for body, error in zip(bodies, together[1], strict=True) if error is None]
    assert parsed(kind, good)[1] == [None] * len(good)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("bigint", "5.0", 5),
        ("bigint", "-3915263.8178671e12", -3_915_263_817_867_100_000),
        ("bigint", "1700000000123456789", 1_700_000_000_123_456_789),
        ("double", "1700000000123456789", 1.7000000001234568e18),
        ("double", '"-INF"', -math.inf),
        ("decimal(20,2)", "12345678901234567.89", Decimal("12345678901234567.89")),
        ("decimal(20,2)", '"12345678901234567.89"', Decimal("12345678901234567.89")),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("decimal(20,2)", "0.125", Decimal("0.13")),
        ("decimal(20,2)", "-0.125", Decimal("-0.13")),
        ("string", "12345678901234567890123", "12345678901234567890123"),
        ("string", '{"b": [1, 12345678901234567.89]}', '{"b":[1,12345678901234567.89]}'),
        ("binary", '"YWJj"', b"abc"),
        ("timestamp_ntz", '"2026-11-20T10:00:00+02:00"', datetime.fromisoformat("2026-11-20T08:00:00")),
        ("struct<b:bigint,c:string>", '{"c": "x", "d": 1}', {"b": None, "c": "x"}),
        ("map<string,int>", '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
    ],
)
def test_what_values_become(kind: str, value: str, wanted: object) -> None:
    assert parsed(TYPES[kind], [f'{{"a": {value}}}'.encode()]) == ([wanted], [None])


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("bigint", '"seven"', "field 'a' is 'seven', not bigint"),
        ("bigint", "true", "field 'a' is true, not bigint"),
        ("bigint", "0.99999999999999999999", "field 'a' is 0.99999999999999999999, not bigint"),
        ("int", "5000000000", "field 'a' is 5000000000, more than int holds"),
        ("float", "1e39", "field 'a' is 1e+39, more than float holds"),
        ("decimal(10,2)", "123456789.1", "field 'a' is 123456789.1, more than decimal(10,2) holds"),
        ("decimal(10,2)", "1e-9999999999999999999", "and its exponent is out of all bounds"),
        ("string", "[" * 300 + "]" * 300, "field 'a' is a list, nested too deeply for a text"),
        ("binary", '"a b"', "field 'a' is 'a b', not binary: it is no base64"),
        ("binary", '"QUJD="', "field 'a' is 'QUJD=', not binary: it is no base64"),
        ("binary", '"QUJD===="', "field 'a' is 'QUJD====', not binary: it is no base64"),
        ("date", '"20261120"', "field 'a' is '20261120', no date such as 2026-11-20"),
        ("timestamp", '"0001-01-01T00:00:00+05:00"', "not between the years 1 and 9999 UTC"),
        ("struct<b:bigint,c:string>", '"text"', "field 'a' is 'text', not an object"),
        ("struct<b:bigint,c:string>", '{"b": {}}', "field 'a.b' is an object, not bigint"),
        ("array<int>", '[1, "x"]', "field 'a[1]' is 'x', not int"),
        ("map<string,int>", '{"x": []}', "field 'a.x' is a list, not int"),
    ],
)
def test_a_bad_body_says_which_value_is_unfit_and_why(kind: str, value: str, told: str) -> None:
    values, [error] = parsed(TYPES[kind], [f'{{"a": {value}}}'.encode()])
    assert values == [None]
    assert told in str(error)


def test_a_bad_body_has_no_columns_and_leaves_the_others_alone() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int64())), ("c", pa.string())])
    bodies = [b'{"a": 1, "b": [1], "c": "x"}', b'{"a": 1, "b": 1}', None, b"[]", b'{"a": "z", "b": "z"}', b"{}"]
    columns, errors = BodyParser(schema, ["a", "b", "c"]).parse(pa.array(bodies, pa.binary()))
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "a": [1, None, None, None, None, None],
        "b": [[1], None, None, None, None, None],
        "c": ["x", None, None, None, None, None],
    }
    assert [error if error is None else error.split(":")[0] for error in errors] == [
        None,
        "field 'b' is 1, not a list",
        "no JSON",
        "JSON, but no object",
        "field 'a' is 'z', not bigint",
        None,
    ]


def test_what_may_not_be_null_is_needed() -> None:
    inner = pa.struct([pa.field("c", pa.int64(), nullable=False)])
    items = pa.list_(pa.field("element", inner, nullable=False))
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", items)])
    bodies = [b'{"a": "x"}', b'{"b": []}', b'{"a": "x", "b": [{}]}', b'{"a": "x", "b": [null]}', b"null"]
    _, errors = BodyParser(schema, ["a", "b"], needed={"a"}).parse(pa.array(bodies, pa.binary()))
    assert errors == [
        None,
        "field 'a' is null or missing, not string",
        "field 'b[0].c' is null or missing, not bigint",
        "field 'b[0]' is null or missing, not an object",
        "JSON, but no object: null",
    ]


@pytest.mark.parametrize("fault", ["a judge fails", "Arrow does not take it"])
def test_a_fault_of_ours_makes_one_body_bad_and_is_logged(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Content never ends a read, foreseen or not."""

    def judge(value: str) -> object:
        if value == "odd" and fault == "a judge fails":
            raise KeyError("\ud800" + "x" * 1000)
        return 5 if value == "odd" else value

    monkeypatch.setattr("penstock.spark.reading.bodies.judge_of", lambda _, **how: judge)
    values, errors = parsed(pa.binary(), [b'{"a": "x"}', b'{"a": "odd"}', b'{"a": "y"}'])
    assert values == [b"x", None, b"y"]
    assert errors[0] is errors[2] is None
    assert str(errors[1]).startswith("field 'a' cannot be read: ")
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.levelname == "ERROR"
    caplog.clear()


def test_columns_are_found_out() -> None:
    bodies = [b'{"a": 1, "b": null, "c": [1], "d": {"x": 1}}', b"bad", b'{"a": 1.5, "b": "t", "c": [2.5], "d": 7}']
    assert infer(bodies) == "`a` double, `b` string, `c` array<double>, `d` string"
    assert infer([b"bad", None]) is None
    assert infer([b'{"a": 9223372036854775808, "b": 1e400}', b'{"a": 12345678901234567890123}']) == "`a` string"


@pytest.mark.parametrize(
    ("bodies", "ddl"),
    [
        ([b'{"": 1}'], None),
        ([b'{"": 1, "a": {"": 1}}'], "`a` string"),
        ([json.dumps({"n" * 256: 1, "a": 1}).encode()], "`a` bigint"),
        ([b'{"id": 1, "ID": 2}', b'{"Id": "x"}'], "`id` bigint"),
        ([b'{"a": {"b": 1, "B": 2}}'], "`a` struct<`b`: bigint>"),
        ([b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}"], f"`a` {'array<' * 15}string{'>' * 15}"),
        ([b'{"a": ' + b'{"b":' * 1000 + b"1" + b"}" * 1001], f"`a` {'struct<`b`: ' * 15}string{'>' * 15}"),
        ([json.dumps({"wide": dict.fromkeys(map(str, range(2000)), 1), "a": 1}).encode()], "`wide` string, `a` bigint"),
    ],
)
def test_no_body_keeps_a_read_from_being_planned(bodies: list[bytes], ddl: str | None) -> None:
    """Names that Spark has no column for, names that are one to it, and more or deeper fields than it plans."""
    assert infer(bodies) == ddl


def test_found_columns_are_no_more_than_a_schema_may_have() -> None:
    bodies = [json.dumps({f"{body}-{one}": one for one in range(900)}).encode() for body in range(20)]
    ddl = infer(bodies)
    assert len(str(ddl).split(", ")) == 1000


def test_found_columns_take_the_bodies_that_they_were_found_from(effort: int) -> None:
    cases = Cases(SEED)
    for _ in range(100 * effort):
        body = f'{{"a": {cases.anything(3)}}}'.encode()
        ddl = infer([body])
        if ddl is not None and "struct" not in ddl:
            name = ddl.removeprefix("`a` ")
            kind = {**TYPES, "array<array<string>>": pa.list_(pa.list_(pa.string()))}.get(name)
            [error] = [None] if kind is None else parsed(kind, [body])[1]
            assert error is None or "nested too deeply for a text" in error, (body, ddl)


@pytest.mark.parametrize(("turn", "name"), [*enumerate([*ODD, *DEEP])])
def test_odd_bodies_say_what_they_say_to_every_reader(turn: int, name: str) -> None:
    """As text, and without an exception in a column of any type, of which a usual run has each eighth of them by turns;
    the others are in `tests/unit/server`."""
    body = ODD[name][0] if name in ODD else DEEP[name]
    for kind in [*TYPES.values()][turn % 8 :: 8] if EFFORT == 1 else TYPES.values():
        parsed(kind, [body, b'{"a":null}'])
    [text], [error] = parsed(pa.string(), [body])
    if name in ODD:
        there = ODD[name][1]
        found = text if text is None or isinstance(there, str) else json.loads(text)
        assert found == there
        assert error is None or there is None


def test_bodies_that_all_have_escapes_are_read_in_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b'{"\\u0061": "%d \\u00e9 \\ud83d\\ude00 \\"", "b": "\\ud83d\\ude00"}' % n for n in range(9)]
    monkeypatch.setattr(BodyParser, "_one_by_one", lambda *_: pytest.fail("an object was made of each body"))
    assert parsed(pa.string(), bodies) == ([f'{n} é 😀 "' for n in range(9)], [None] * 9)
    monkeypatch.undo()
    for odd in (b'{"a": "\\ud83d"}', b'{"a": "x", "b": "\\x"}', b'{"a": "x", "\\ude00": 1}'):
        values, errors = parsed(pa.string(), [*bodies, odd])
        assert [error is None for error in errors] == [True] * 9 + [False]
        assert values[-1] is None
