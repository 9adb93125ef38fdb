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
