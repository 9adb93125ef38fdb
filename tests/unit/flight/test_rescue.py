"""rescuedDataColumn, without Spark: what of a body has no column is in one of its own, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from choices import SEED
from json_cases import TYPES, Cases
from penstock.errors import InvalidArgument
from penstock.spark.options import read_options
from penstock.spark.reading.bodies import BodyParser
from penstock.spark.reading.columns import declared, layout

ITEM = pa.struct([("n", pa.int64())])


def rescued(schema: dict[str, Any], *bodies: object, known: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """For each body its columns, what is rescued, and whether it is bad."""
    fields = pa.schema([pa.field(name, kind) for name, kind in schema.items()])
    parser = BodyParser(fields, list(schema), (), "json", "left", known)
    given = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    columns, errors = parser.parse(pa.array(given, pa.binary()))
    values = [columns[name].to_pylist() for name in (*schema, "left")]
    return [(*row, error is not None) for *row, error in zip(*values, errors, strict=True)]


@pytest.mark.parametrize(
    ("schema", "body", "row"),
    [
        ({"a": pa.int64()}, {"a": 1}, (1, None)),
        ({"a": pa.int64()}, {}, (None, None)),
        ({"a": pa.int64()}, {"a": 1, "b": [1.50], "A": None}, (1, '{"b":[1.5],"A":null}')),
        ({"a": pa.int64()}, {"a": "one"}, (None, '{"a":"one"}')),
        ({"a": pa.int32()}, {"a": 2**40, "b": 1}, (None, '{"a":1099511627776,"b":1}')),
        ({"a": pa.int64()}, b'{"b": 12345678901234567890.123456789}', (None, '{"b":12345678901234567890.123456789}')),
        ({"s": ITEM}, {"s": {"n": 1, "m": 2}}, ({"n": 1}, '{"s":{"m":2}}')),
        ({"s": ITEM}, {"s": {"n": "x", "m": 2}}, (None, '{"s":{"n":"x","m":2}}')),
        ({"s": pa.struct([("t", ITEM)])}, {"s": {"t": {"m": 2}}}, ({"t": {"n": None}}, '{"s":{"t":{"m":2}}}')),
        ({"l": pa.list_(ITEM)}, {"l": [{"n": 1}, {"m": 2}]}, ([{"n": 1}, {"n": None}], '{"l":[{"n":1},{"m":2}]}')),
        ({"l": pa.list_(ITEM)}, {"l": [{"n": 1}, None]}, ([{"n": 1}, None], None)),
        ({"m": pa.map_(pa.string(), ITEM)}, {"m": {"k": {"o": 1}}}, ([("k", {"n": None})], '{"m":{"k":{"o":1}}}')),
    ],
)
def test_what_has_no_column_is_kept(schema: dict[str, Any], body: object, row: tuple[Any, ...]) -> None:
    assert rescued(schema, body) == [(*row, False)]


def test_bodies_that_are_no_objects_stay_bad() -> None:
    assert rescued({"a": pa.int64()}, b"no json", {"a": 1, "b": 2}, [1]) == [
        (None, None, True), (1, '{"b":2}', False), (None, None, True),
    ]  # fmt: skip


def test_a_column_that_must_have_a_value_still_makes_a_bad_body() -> None:
    fields = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    parser = BodyParser(fields, ["a", "b"], (), "json", "left")
    columns, errors = parser.parse(pa.array([b'{"a": "x"}', b'{"a": 1, "b": "x"}'], pa.binary()))
    assert [error is None for error in errors] == [False, True]
    assert columns["left"].to_pylist() == [None, '{"b":"x"}']


def test_columns_that_are_not_read_this_time_are_not_rescued() -> None:
    assert rescued({"a": pa.int64()}, {"a": 1, "b": 2, "c": 3}, known=("a", "b")) == [(1, '{"c":3}', False)]


def test_a_body_too_deep_to_be_written_again_is_kept_as_it_is() -> None:
    body = b'{"b": ' + b"[" * 400 + b"]" * 400 + b"}"
    assert rescued({"a": pa.int64()}, body) == [(None, body.decode(), False)]


@pytest.mark.parametrize("name", TYPES)
def test_no_field_is_lost(name: str, effort: int) -> None:
    kind = TYPES[name]
    bodies = list(Cases(SEED).bodies(kind, 100 * effort))
    for body, (value, left, bad) in zip(bodies, rescued({"a": kind}, *bodies), strict=True):
        if bad:
            assert (value, left) == (None, None)
            continue
        given = orjson.loads(body)
        kept = {*(orjson.loads(left) if left is not None else ()), *(["a"] if value is not None else ())}
        missing = given.keys() - kept
        assert all(given[field] is None for field in missing), (body, value, left)


def test_options_and_columns() -> None:
    given = {"topic": "t", "schema": "id bigint", "rescuedDataColumn": "rest of it"}
    options = read_options(given)
    assert "`rest of it` string, parse_error string" in declared(options, options.ddl)
    wanted = StructType().add("rest of it", StringType())
    made = layout(options, wanted, options.ddl)
    assert (made.rescued, made.parsed, made.own) == ("rest of it", (), frozenset({"id"}))
    assert "body" in made.fetched
    assert layout(options, StructType().add("id", LongType()), options.ddl).rescued is None
    with pytest.raises(InvalidArgument, match="there is a column 'ID' already"):
        declared(read_options(given | {"rescuedDataColumn": "ID"}), "id bigint")
    with pytest.raises(InvalidArgument, match="give option schema or parse"):
        read_options({"topic": "t", "rescuedDataColumn": "left"})
    with pytest.raises(InvalidArgument, match="is string and not bigint"):
        layout(options, StructType().add("rest of it", LongType()), options.ddl)
