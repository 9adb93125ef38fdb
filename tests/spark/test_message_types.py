"""Bodies of every message type as typed columns: the values that their JSON has, and why one cannot be read."""

from __future__ import annotations

import math
import pickle
import re
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from google.protobuf import any_pb2, timestamp_pb2

import penstock
from choices import EFFORT
from message_samples import AVRO_BY_HEADER, PROTOBUF, PROTOBUF_BY_HEADER, SAMPLES, Sample, of_a_program
from penstock.errors import InvalidArgument
from penstock.expr.bodies import body_type
from penstock.expr.view_definition import Definition as View
from penstock.records.message_types import SCHEMA_TYPES, named
from penstock.records.properties import EMPTY
from penstock.spark.options import read_options
from penstock.spark.reading.bodies import BodyParser
from penstock.spark.reading.inference import infer
from penstock.spark.view_pipeline import Gatherer
from penstock.testing import Broker

ORDERS = [{"id": f"a-{n}", "total": n, "region": "north"} for n in (1, 2**60 + 1)]
ALL = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


@ALL
def test_columns(sample: Sample) -> None:
    """`order` is the root of an XML body, whose elements are texts."""
    names = [sample.path(one).strip("/").split("/") for one in ("region", "total")]
    nested = len(names[0]) > 1
    total = pa.string() if sample.texts else pa.int64()
    leaves = [pa.field(names[0][-1], pa.string()), pa.field(names[1][-1], total)]
    schema = pa.schema([pa.field("order", pa.struct(leaves))] if nested else leaves)
    bodies: list[Any] = [*(sample.body(order) for order in ORDERS), b"\xc1<", None]
    parser = BodyParser(schema, schema.names, kind=sample.name)
    heads = pa.array([sample.properties] * len(bodies), pa.binary()) if sample.headers else None
    columns, errors = parser.parse(pa.array(bodies, pa.binary()), heads)
    rows = columns["order"].to_pylist() if nested else pa.table(columns).to_pylist()
    told = [str(order["total"]) if sample.texts else order["total"] for order in ORDERS]
    assert rows[:2] == [{names[0][-1]: "north", names[1][-1]: one} for one in told]
    assert errors[:2] == [None, None]
    assert str(errors[2]).startswith(f"no {body_type(sample.name).title}: ")


NUMBERS = [one for one in SAMPLES.values() if not one.texts and one.name != "json"]


@pytest.mark.parametrize("sample", NUMBERS, ids=[one.label for one in NUMBERS])
def test_numbers_that_json_has_not_are_no_nulls(sample: Sample) -> None:
    """A column of doubles has them, text their names; where they have no place the body is bad, or they are rescued."""
    orders = [{"id": "a", "total": one} for one in (math.nan, math.inf, -math.inf, None, 1.5)]
    bodies: Any = pa.array([sample.body(order) for order in orders], pa.binary())
    heads = pa.array([sample.properties] * len(bodies), pa.binary()) if sample.headers else None

    def parsed(kind: pa.DataType, rescued: str | None = None) -> tuple[dict[str, list[Any]], list[str | None]]:
        parser = BodyParser(pa.schema([pa.field("total", kind)]), ["total"], kind=sample.name, rescued=rescued)
        columns, errors = parser.parse(bodies, heads)
        return {name: column.to_pylist() for name, column in columns.items()}, errors

    columns, errors = parsed(pa.float64())
    assert repr(columns["total"]) == "[nan, inf, -inf, None, 1.5]"
    assert errors == [None] * 5
    assert parsed(pa.string()) == ({"total": ["NaN", "Infinity", "-Infinity", None, "1.5"]}, [None] * 5)
    columns, errors = parsed(pa.decimal128(10, 1))
    assert columns["total"] == [None, None, None, None, Decimal("1.5")]
    assert [error is None for error in errors] == [False, False, False, True, True]
    columns, errors = parsed(pa.decimal128(10, 1), "rest")
    assert [orjson.loads(one).get("total") for one in columns["rest"]] == ["NaN", "Infinity", "-Infinity", None, None]
    assert errors == [None] * 5


_DECLARED = b'<?xml version="1.0" encoding="%s"?><a>\xff</a>'
_ENCODINGS = (b"utf-8", b"ascii", b"idna", b"undefined", b"nope", b"aliases", b"hex", b"utf-16", b"big5")
_LOGICAL = {"date": "int", "time-millis": "int", "timestamp-micros": "long", "uuid": "string"}
_ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9}

BROKEN: dict[str, list[bytes]] = {
    "json": [
        b"", b"null", b"[]", b'"x"', b"7",
        b"{", b"[" * 1000, b"[" * 2000, b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"1e999",
    ],
    "nvfix": [b"=x", b"x", b"\xff", b"it's"],
    "fix": [b"x=1", b"=1", b"95=x\x01", b"95=2\x0196=abc\x01", b"95=2\x0135=D\x01", b"95=2\x01"],
    "xml": [
        b"", b"x", b"<a>", b"<a>&b;</a>", b"<a>" * 300, b"<a b='1' b='2'/>", b"<!DOCTYPE a><a/>",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", *(_DECLARED % name for name in _ENCODINGS),
    ],
    "msgpack": [
        b"", b"\xc1", b"\xa1\xff", b"\xa5a", b"\x01\x01", b"\x91" * 2000, b"\xdd\0\0\1\0", b"\x81\x80\x01",
        b"\x81\x90\x01", b"\xd4\xfe\0", b"\x07", b"\xd7\xff" + b"\xff" * 8,
    ],
    "bson": [b"", b"\x05\0\0\0\1", b"\x09\0\0\0\x24a\0\1\0", b"\x0b\0\0\0\x0a\xff\0\0\0\0\0"],
    **{penstock.avro({"type": kind}): [b""] for kind in ("long", "boolean", "float", "double")},
    penstock.avro({"type": "string"}): [b"\x03", b"\x08a", b"\x02\xff", b"\x02aa"],
    penstock.avro('["null", "long"]'): [b"\x0a", b"\x02"],
    penstock.avro(_ENUM): [b"\x09", b"\x08"],
    penstock.avro(_DECIMAL): [b"\xd0\x0f" + b"1" * 1000],
    **{
        penstock.avro({"type": kind, "logicalType": name}): [b"\xff" * 9 + b"\1", b"\xff\xff\xff\xff\x0f", b"\x02a"]
        for name, kind in _LOGICAL.items()
    },
    AVRO_BY_HEADER: [b"", b"\0\0\0\0\1"],
    PROTOBUF: [b"\xff", b"\x0a\x01\xff", b"\x0a\x05a"],
    penstock.protobuf(timestamp_pb2.Timestamp): [b"", b"\x08" + b"\xff" * 8 + b"\x7f"],
    penstock.protobuf(any_pb2.Any): [b"\x0a\x03a/b"],
    PROTOBUF_BY_HEADER: [b"", b"\0\0\0\0\1"],
}  # fmt: skip
"""Of each reader what it refuses, for every reason that it has."""


def test_why_a_body_cannot_be_read_is_told_in_words_of_no_program() -> None:
    """`parse_error` said `DTDForbidden(name='a', ...)`, `b'=x' is no name=value`, `list index out of range`."""
    said = list[str]()
    for kind, given in BROKEN.items():
        bodies, heads = pa.array(given, pa.binary()), pa.array([EMPTY] * len(given), pa.binary())
        _, errors = BodyParser(pa.schema([pa.field("id", pa.string())]), ["id"], kind=kind).parse(bodies, heads)
        shape = re.compile(f"no {body_type(kind).title}: .|{body_type(kind).title}, but no object: .")
        said += [f"{kind}: {error}" for error in errors if not error or not shape.match(error) or of_a_program(error)]
    assert said == []


OF_TEXTS = {"nvfix": (b"v=%s", "v"), "fix": (b"44=%s", "44"), "xml": (b"<v>%s</v>", "v")}
"""Types whose every value is a text: a body of one field, and its name."""

TEXTS = ["7", "007", "-7", "+7", "7.0", "7.", ".5", "1.5", "-1.5e3", "1E2", "12345678901234567", "9007199254740993.0"]
NO_NUMBERS = ["x", " 7", "7 ", "1,5", "0x10", "1_0", "\u0663", "7.5.", "--7", "e5", "7e", "true"]


def one_column(kind: str, column: pa.DataType, bodies: list[bytes], rescued: str | None = None) -> tuple[Any, Any]:
    """The values of the field of `OF_TEXTS`, and why bodies are bad."""
    schema = pa.schema([pa.field(OF_TEXTS[kind][1], column)])
    columns, errors = BodyParser(schema, schema.names, kind=kind, rescued=rescued).parse(pa.array(bodies, pa.binary()))
    return [column.to_pylist() for column in columns.values()] if rescued else columns[
        schema.names[0]
    ].to_pylist(), errors


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_a_text_that_is_a_number_as_a_whole_has_a_place_among_numbers(kind: str) -> None:
    """Where there are no numbers but texts: a `double` said of `1.5` that it is none, and `decimal` took it."""
    bodies = [OF_TEXTS[kind][0] % text.encode() for text in [*TEXTS, *NO_NUMBERS]]
    exact, refused = one_column(kind, pa.decimal128(38, 3), bodies)
    assert [error is None for error in refused] == [True] * len(TEXTS) + [False] * len(NO_NUMBERS)
    for column in (pa.float64(), pa.float32()):
        found, errors = one_column(kind, column, bodies)
        assert found == pa.array([None if one is None else float(one) for one in exact], column).to_pylist()
        assert [error is None for error in errors] == [error is None for error in refused]
    found, errors = one_column(kind, pa.int64(), bodies)
    assert found == [int(one) if one is not None and one == int(one) else None for one in exact]
    assert [error is None for error in errors] == [one is not None for one in found]
    assert str(errors[7]).endswith("is 1.5, not bigint")


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_a_number_that_its_column_cannot_hold_is_bad_whatever_its_exponent(kind: str) -> None:
    """And is told at once: 1e999999999 would be a gigabyte as a whole number."""
    for column, text, told in (
        (pa.int8(), "300", "tinyint"), (pa.int64(), "9223372036854775808", "bigint"), (pa.float64(), "1e999", "double"),
        (pa.int64(), "1e999999999", "bigint"), (pa.float32(), "1e39", "float"),
    ):  # fmt: skip
        _, [error] = one_column(kind, column, [OF_TEXTS[kind][0] % text.encode()])
        assert str(error).endswith(f"is {text}, more than {told} holds")
    assert one_column(kind, pa.int64(), [OF_TEXTS[kind][0] % b"0e999999999"]) == ([0], [None])


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_a_text_that_says_so_is_a_truth(kind: str) -> None:
    more = {"fix": {b"Y": True, b"N": False}, "xml": {b"1": True, b"0": False}}.get(kind, {})
    bodies = [OF_TEXTS[kind][0] % text for text in (b"true", b"false", *more, b"TRUE", b"")]
    found, errors = one_column(kind, pa.bool_(), bodies)
    assert found == [True, False, *more.values(), None, None]
    assert [error is None for error in errors] == [one is not None for one in found]


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_what_comes_once_is_a_list_of_one(kind: str) -> None:
    item = b"<v><n>%s</n></v>" if kind == "xml" else OF_TEXTS[kind][0] + b"\x01"
    one, two = item % b"1", (b"<v><n>1</n><n>2</n></v>" if kind == "xml" else item % b"1" + item % b"2")
    column: pa.DataType = pa.list_(pa.int32())
    kinds = {"xml": pa.struct([pa.field("n", column)])}
    found, errors = one_column(kind, kinds.get(kind, column), [one, two, item % b"x"])
    assert [row["n"] if kind == "xml" and row else row for row in found] == [[1], [1, 2], None]
    assert errors[:2] == [None, None]
    assert "[0]' is 'x', not int" in str(errors[2])
    [ddl] = {infer(bodies, kind) for bodies in ([one, two], [two, one], [two, two])}
    assert "array<string>" in str(ddl)


def test_elements_that_come_once_are_lists_of_structs() -> None:
    lines = pa.list_(pa.struct([pa.field("sku", pa.string()), pa.field("n", pa.float64())]))
    whole = pa.struct([pa.field("line", lines), pa.field("total", pa.float64())])
    line, more = b"<line><sku>a</sku><n>2</n></line>", b"<line><sku>b</sku><n>3</n><x>y</x></line>"
    bodies = [b"<v><total>1.5</total>" + inner + b"</v>" for inner in (b"", line, line + line, more)]
    [found, rest], errors = one_column("xml", whole, bodies, rescued="rest")
    assert errors == [None] * 4
    assert [row["line"] for row in found] == [
        None, [{"sku": "a", "n": 2.0}], [{"sku": "a", "n": 2.0}] * 2, [{"sku": "b", "n": 3.0}]
    ]  # fmt: skip
    assert rest[:3] == [None] * 3
    assert orjson.loads(rest[3]) == {"v": {"line": {"sku": "b", "n": "3", "x": "y"}}}


def test_an_element_is_an_object_where_others_of_its_name_are() -> None:
    """Without its attributes, and without anything in it, a reader of XML gives no more than a text."""
    price = pa.struct([pa.field("@in", pa.string()), pa.field("#text", pa.float64())])
    lines = pa.struct([pa.field("line", pa.list_(pa.int32()))])
    whole = pa.struct([pa.field("price", price), pa.field("lines", lines)])
    bodies = [
        b"<v><price in='EUR'>1.5</price><lines><line>1</line></lines></v>",
        b"<v><price>1.5</price><lines/></v>",
        b"<v><price/><lines>\n </lines></v>",
        b"<v/>",
        b"<v><lines>x</lines></v>",
    ]
    found, errors = one_column("xml", whole, bodies)
    assert found == [
        {"price": {"@in": "EUR", "#text": 1.5}, "lines": {"line": [1]}},
        {"price": {"@in": None, "#text": 1.5}, "lines": {"line": None}},
        {"price": {"@in": None, "#text": None}, "lines": {"line": None}},
        {"price": None, "lines": None},
        None,
    ]
    assert errors == [None] * 4 + ["field 'v.lines' is 'x', not an object"]


def test_json_says_itself_what_is_a_number_and_a_list() -> None:
    for column in (pa.float64(), pa.float32(), pa.int64(), pa.bool_(), pa.list_(pa.int64())):
        for value in (b'"7"', b'"true"', b'"x"'):
            schema = pa.schema([pa.field("v", column)])
            _, [error] = BodyParser(schema, ["v"]).parse(pa.array([b'{"v": %s}' % value], pa.binary()))
            assert str(error).startswith(f"field 'v' is {value.decode().replace(chr(34), chr(39))}, not ")


@ALL
def test_what_columns_bodies_have(sample: Sample) -> None:
    ddl = infer([sample.body(order) for order in ORDERS] + [b"\xc1<"], sample.name, [sample.properties] * 3)
    field = sample.path("region").rpartition("/")[2]
    assert f"`{field}` string" in str(ddl) or f"`{field}`: string" in str(ddl)


@ALL
def test_groups_of_a_view(sample: Sample) -> None:
    """What tasks gather, of messages that came and of one that went."""
    orders = [{"id": f"a-{n}", "total": n, "region": "ns"[n % 2]} for n in range(5)]
    view = View("v", "q", (sample.said("{region} AS /r"), sample.said("SUM({total}) AS /n")), (sample.path("region"),))
    changes = [1, 1, 1, 1, -1]
    rows = {
        "lsn": pa.array([1, 2, 3, 4, 1], pa.int64()), "topic": ["t"] * 5, "exchange": [""] * 5,
        "time": pa.array([1] * 5, pa.timestamp("us", "UTC")),
        "properties": pa.array([sample.properties] * 5, pa.binary()),
        "body": pa.array([sample.body(order) for order in [*orders[:4], orders[0]]], pa.binary()),
        "change": pa.array(changes, pa.int8()),
    }  # fmt: skip
    [found] = Gatherer(view, sample.name)([pa.record_batch(rows)])
    groups = [pickle.loads(delta) for delta in found.column("delta").to_pylist()]
    assert {group.key: group.available for group in groups} == {("n",): 1, ("s",): 2}


def test_a_type_may_be_said() -> None:
    given = {"url": "penstock://127.0.0.1:1", "topic": "t", "user": "guest", "password": "guest"}
    for kind in ("msgpack", *SCHEMA_TYPES):
        assert read_options({**given, "parse": kind}).parse == kind
    assert read_options({**given, "schema": "a bigint"}).parse
    with pytest.raises(InvalidArgument, match="option parse is 'binary', and json, nvfix, .* is what can be parsed"):
        read_options({**given, "parse": "binary"})


@pytest.mark.parametrize("name", ("msgpack", "nvfix", "avro-by-header") if EFFORT == 1 else SAMPLES)
def test_spark_reads_the_type_that_is_declared(spark: Any, name: str) -> None:
    sample, orders = SAMPLES[name], [{"id": f"a-{n}", "total": n, "region": "ns"[n % 2]} for n in range(6)]
    with Broker({"queue": [{"name": "q", "underlying_topic": "t", "message_type": sample.name}]}) as broker:
        for order in orders:
            broker.publish("t", sample.body(order), headers=sample.headers)
        told = {"url": broker.flight_url, "filter": sample.said("{total} > 1")}
        place = ".".join(f"`{step}`" for step in sample.path("region").strip("/").split("/"))
        for what, parse in (({"queue": "q"}, sample.name), ({"topic": "t"}, sample.name.partition(":")[0])):
            frame = spark.read.format("penstock").options(**told, **what, parse=parse).load()
            assert sorted(map(tuple, frame.groupBy(place).count().collect())) == [("n", 2), ("s", 2)]
        said = f"option parse is json, and the bodies of queue 'q' are {named(sample.name)}"
        with pytest.raises(Exception, match=re.escape(said)):
            spark.read.format("penstock").options(**told, queue="q", parse="json").load()
