"""Rows as messages, without Spark: JSON a column at a time, columns that cannot be, and the order of a piece."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import random
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DiskFull, InvalidArgument, QueueFull
from penstock.spark import sink_rows
from penstock.spark.remote import Where
from penstock.spark.sink import patiently, write_options
from penstock.spark.sink_rows import order_of, outgoing, pieces, rows_as_json

UTC = pa.timestamp("us", tz="UTC")


def schema(*columns: str) -> Any:
    """A frame's columns, each `name type`, as far as they are looked at; no Spark is needed to make them."""
    named = [column.partition(" ") for column in columns]
    return SimpleNamespace(
        fields=[
            SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda k=k: k)) for name, _, k in named
        ]
    )


def value(kind: pa.DataType, chance: random.Random) -> Any:
    """A random value; None now and then."""
    if chance.random() < 0.2:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: value(field.type, chance) for field in kind}
    if isinstance(kind, pa.MapType):
        keys = {
            chance.choice('ab"\\é\n') + str(n) if kind.key_type == pa.string() else n
            for n in range(chance.randint(0, 3))
        }
        return [(key, value(kind.item_type, chance)) for key in sorted(keys)]
    if pa.types.is_list(kind):
        return [value(kind.value_type, chance) for _ in range(chance.randint(0, 3))]
    if kind == pa.string():
        return "".join(chance.choice('abc é"\\/\n\x01\u2028😀') for _ in range(chance.randint(0, 6)))
    if kind == pa.binary():
        return chance.randbytes(chance.randint(0, 4))
    if kind == pa.bool_():
        return chance.random() < 0.5
    if kind == pa.float64():
        return chance.choice([0.0, -1.0, 0.1, 1e300, 5e-324, 123456789.25, math.nan, math.inf])
    if kind == pa.date32():
        return dt.date(1900 + chance.randint(0, 200), 2, 28)
    if pa.types.is_timestamp(kind):
        micros = chance.choice([0, 1, 500_000, 1_000_000 * chance.randint(-(10**9), 10**10), -1])
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC if kind == UTC else None) + dt.timedelta(microseconds=micros)
    if pa.types.is_decimal(kind):
        return Decimal(chance.randint(-(10**6), 10**6)).scaleb(-2)
    return chance.randint(-(2**31), 2**31 - 1)


def plain(kind: pa.DataType, found: Any) -> Any:
    """A value as JSON should read."""
    if found is None:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: plain(field.type, found[field.name]) for field in kind}
    if isinstance(kind, pa.MapType):
        return {str(key): plain(kind.item_type, item) for key, item in found}
    if pa.types.is_list(kind):
        return [plain(kind.value_type, one) for one in found]
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    if isinstance(found, dt.datetime):
        return found.replace(tzinfo=None).isoformat() + ("Z" if found.tzinfo else "")
    return str(found) if isinstance(found, dt.date | Decimal) else found


KINDS = [
    pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.bool_(), pa.float64(), pa.date32(), UTC, pa.timestamp("us"),
    pa.decimal128(10, 2), pa.list_(pa.string()), pa.list_(pa.list_(UTC)), pa.map_(pa.string(), pa.float64()),
    pa.map_(pa.int64(), pa.string()), pa.struct([("a", pa.string()), ('b"c', pa.list_(pa.int64()))]),
    pa.list_(pa.struct([("x", pa.int64()), ("y", pa.map_(pa.string(), pa.decimal128(10, 2)))])),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_json_of_a_column_is_that_of_its_values(kind: pa.DataType) -> None:
    chance = random.Random(str(kind))
    rows = [value(kind, chance) for _ in range(300)]
    batch = pa.record_batch({"a b": pa.array(rows, kind), "id": pa.array(range(300))})
    expected = [{"a b": plain(kind, row), "id": n} for n, row in enumerate(rows)]
    assert [json.loads(text) for text in rows_as_json(batch, ["a b", "id"]).to_pylist()] == expected
    some = batch.slice(17, 40)
    assert [json.loads(text) for text in rows_as_json(some, ["a b", "id"]).to_pylist()] == expected[17:57]


@pytest.mark.parametrize("kind", [UTC, pa.timestamp("us")], ids=str)
def test_times_are_whole_however_long_their_year_is(kind: pa.DataType) -> None:
    """Spark has years of five digits and such before the first; where the letter T stands was counted from the left."""
    days = {2_932_897: "10000-01-01", -719_893: "-0001-01-01", -719_528: "0000-01-01", 2_932_896: "9999-12-31"}
    micros = [day * 86_400_000_000 + more for day in days for more in (0, 1)]
    batch = pa.record_batch({"t": pa.array([*micros, None], pa.int64()).cast(kind)})
    zone = "Z" if kind == UTC else ""
    expected = [f"{day}T00:00:00{more}{zone}" for day in days.values() for more in ("", ".000001")]
    assert [json.loads(text)["t"] for text in rows_as_json(batch, ["t"]).to_pylist()] == [*expected, None]
    whole = batch.take(pa.array([0, 2, 4]))
    assert [json.loads(text)["t"] for text in rows_as_json(whole, ["t"]).to_pylist()] == [
        f"{day}T00:00:00{zone}" for day in list(days.values())[:3]
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_text_is_ordered_by_its_bytes_however_spark_sends_it(kind: pa.DataType) -> None:
    """With spark.sql.execution.arrow.useLargeVarTypes it was taken for numbers, or refused where it is none."""
    batch = pa.record_batch({"id": pa.array(["9", "10", "b"], kind)})
    assert order_of(batch, "id").to_pylist() == [b"9", b"10", b"b"]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_no_two_keys_of_a_map_have_one_name(kind: pa.DataType) -> None:
    """What is no number was `null`, each of them, and who reads such an object finds the last."""
    keys = [0.5, -2.0, math.nan, math.inf, -math.inf]
    rows = [[(key, n) for n, key in enumerate(keys)], None, [(math.inf, 7)]]
    batch = pa.record_batch({"m": pa.array(rows, pa.map_(kind, pa.int64()))})
    names = ["0.5", "-2.0", "NaN", "Infinity", "-Infinity"]
    expected = [{"m": {name: n for n, name in enumerate(names)}}, {"m": None}, {"m": {"Infinity": 7}}]
    assert [json.loads(text) for text in rows_as_json(batch, ["m"]).to_pylist()] == expected


def test_decimals_have_no_exponent_as_sql_writes_them() -> None:
    kind = pa.decimal128(38, 18)
    zero, tiny = "0." + "0" * 18, "0.000000120000000000"
    column = pa.array([Decimal(0), None, Decimal(tiny), Decimal("12.5")], kind)
    rows = rows_as_json(pa.record_batch({"d": column, "l": pa.array([[Decimal(0)]] * 4, pa.list_(kind))}), ["d", "l"])
    told = [json.loads(row) for row in rows.to_pylist()]
    assert [one["d"] for one in told] == [zero, None, tiny, "12.500000000000000000"]
    assert told[0]["l"] == [zero]


def test_json_of_nothing() -> None:
    batch = pa.record_batch({"a": pa.nulls(2, pa.string()), "b": pa.nulls(2)})
    assert rows_as_json(batch, ["a", "b"]).to_pylist() == [b'{"a":null,"b":null}'] * 2
    assert rows_as_json(batch.slice(0, 0), ["a"]).to_pylist() == []


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (["a int", "topic string"], {"queue": "q"}, "option queue sends every row to queue 'q', and column 'topic'"),
        (["body string", "lsn bigint", "time timestamp"], {"topic": "t"}, "columns 'lsn', 'time' have no place beside"),
        (["body string", "lsn bigint"], {"topic": "t"}, "column 'lsn' has no place beside 'body'"),
        (["d interval day to second"], {"topic": "t"}, "column 'd' is interval day to second, and interval day to sec"),
        (
            ["headers map<string,int>", "a int"],
            {"topic": "t"},
            "column 'headers' is map<string,int>, not map<string,str",
        ),
        (["not_before date", "a int"], {"topic": "t"}, "column 'not_before' is date, not timestamp"),
        (["a int"], {"topic": "t", "order": "b"}, "option ordered names column 'b', and there is none among a"),
        (["a boolean"], {"topic": "t", "order": "a"}, "option ordered: column 'a' is boolean, not tinyint, smallint"),
        (["priority int"], {"topic": "t"}, "there is nothing for a body among the columns priority"),
    ],
)
def test_a_column_that_cannot_be_is_named(columns: list[str], options: dict[str, Any], told: str) -> None:
    topic = options.pop("queue", None)
    with pytest.raises(InvalidArgument) as caught:
        outgoing(schema(*columns), topic or options.pop("topic"), queue=topic is not None, **options)
    assert told in str(caught.value)


def test_types_without_a_place_in_json_are_found_at_any_depth_and_names_are_none() -> None:
    """A struct with a field `object` or `interval_s` was refused as if that were its type."""
    from pyspark.sql import types as t

    def frame(kind: Any) -> Any:
        return t.StructType([t.StructField("s", kind)])

    text, names = t.StringType(), ("object", "interval_s", "void", "variant_id", "geometry", "a,interval", "b:void")
    named = t.StructType([t.StructField(name, text) for name in names])
    for kind in (named, t.ArrayType(named), t.MapType(text, named), t.StructType([t.StructField("x", named)])):
        assert outgoing(frame(kind), "t").fields == ("s",)
    inner = t.StructType([t.StructField("v", t.VariantType())])
    for kind in (inner, t.ArrayType(inner), t.MapType(text, inner), t.MapType(t.VariantType(), text)):
        with pytest.raises(InvalidArgument, match=r"column 's' is .*, and variant has no place in a JSON body: cast"):
            outgoing(frame(kind), "t")


def test_a_column_that_is_there_twice() -> None:
    twice = schema("a int", "a string")
    with pytest.raises(InvalidArgument, match="column 'a' is there twice"):
        outgoing(twice, "t")
    with pytest.raises(InvalidArgument, match="column 'TOPIC' is there twice"):
        outgoing(schema("a int", "topic string", "TOPIC string"), "t")


def test_columns_of_messages_may_be_written_in_any_case() -> None:
    """As Spark takes them: a row for another topic went to the one of the option, with its topic in the body."""
    out = outgoing(schema("Id int", "TOPIC string", "Priority int", "iD2 int"), None, order="ID")
    batch = pa.record_batch({"Id": [2, 1], "TOPIC": ["b", "a"], "Priority": [9, 0], "iD2": [4, 3]})
    [[rows]] = pieces([batch], out)
    assert rows.to_pylist() == [
        {"body": b'{"Id":1,"iD2":3}', "content_type": "application/json", "topic": "a", "priority": 0, "order": 1},
        {"body": b'{"Id":2,"iD2":4}', "content_type": "application/json", "topic": "b", "priority": 9, "order": 2},
    ]
    out = outgoing(schema("BODY string"), "t")
    assert out.encode(pa.record_batch({"BODY": ["x"]})).to_pylist() == [{"body": b"x"}]
    with pytest.raises(InvalidArgument, match="column 'priority' is string, not tinyint"):
        outgoing(schema("a int", "PRIORITY string"), "t")
    with pytest.raises(InvalidArgument, match="option queue sends every row to queue 'q', and column 'topic'"):
        outgoing(schema("a int", "Topic string"), "q", queue=True)


def test_a_batch_of_any_size_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark gives a partition as one batch where it is told so, and text of base64 beyond 2 GiB is no column."""
    out = outgoing(schema("b binary"), "t")
    monkeypatch.setattr(sink_rows, "PIECE_BYTES", most := 1 << 20)
    batch = pa.record_batch({"b": pa.array([b"x" * (most // 32)] * 100)})
    found = list(pieces([batch], out))
    assert sum(one.num_rows for piece in found for one in piece) == 100
    assert len(found) > 1
    assert max(sum(one.nbytes for one in piece) for piece in found) < 2 * most


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "q", "delta": "true"}, "option delta is for records of a topic with a key"),
        ({"topic": "t", "unroutable": "keep"}, "option unroutable is 'keep', not fail or drop"),
        ({"topic": "t", "order": "a"}, "did you mean 'ordered'"),
        ({}, "CREATE TABLE ... AS SELECT"),  # rows with a column `topic` would go to the server at localhost
    ],
)
def test_options_that_cannot_be(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        write_options(given)


def test_pieces_rise_by_their_order() -> None:
    out = outgoing(schema("body string", "at date"), "t", order="at")
    days = [dt.date(2020, 1, day) for day in (3, 1, 2, 1)]
    batch = pa.record_batch({"body": ["c", "a1", "b", "a2"], "at": pa.array(days)})
    [[rows]] = list(pieces([batch], out))
    assert rows.column("body").to_pylist() == [b"a1", b"a2", b"b", b"c"]
    assert "at" not in rows.schema.names
    by_name = outgoing(schema("body string", "at string"), "t", order="at")
    names = ["ü", "b", "", "\U0001f600", "b"]  # by their bytes, as Spark orders text
    batch = pa.record_batch({"body": [f"{at}{n}" for n, at in enumerate(names)], "at": names})
    [[rows]] = list(pieces([batch], by_name))
    assert [body.decode() for body in rows.column("body").to_pylist()] == ["2", "b1", "b4", "ü0", "\U0001f6003"]
    assert write_options({"topic": "t", "ordered": "true"}).order is None
    assert write_options({"topic": "t", "ordered": "at"}).order == "at"


@pytest.mark.parametrize("kind", [QueueFull, DiskFull])
def test_patience_ends_with_the_refusal_and_what_to_do(kind: type[QueueFull], monkeypatch: pytest.MonkeyPatch) -> None:
    where, slept = Where("penstock://localhost", patience=0.2), list[float]()
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("penstock.spark.remote.time", clock)
    asked: list[int] = []

    def full() -> int:
        asked.append(1)
        raise kind("queue 'q' takes no more", reason="maxlen")

    with pytest.raises(kind, match=r"queue 'q' takes no more; this was tried for 0.2 s.*visible\. ") as caught:
        patiently(where, full)
    assert len(asked) > 2
    assert caught.value.reason == "maxlen"
