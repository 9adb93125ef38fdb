"""Avro and Protocol Buffers: what a type with schemas reads, what it refuses, and what bounds it has."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import fastavro
import orjson
import pytest
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

import penstock
from choices import EFFORT, SEED
from forked import penstock as penstock_command
from message_samples import AVRO, ORDER, PROTOBUF, SAMPLES, Order, order_file
from penstock.config.load import load_text
from penstock.errors import ExpressionError, InvalidArgument, PreconditionFailed, SettingsError
from penstock.expr import compile_filter, evaluate
from penstock.expr.bodies import body_type
from penstock.records.message_types import (
    TEXT_MOST,
    contradicts,
    goes_on,
    named,
    needed_of,
    packed,
    typed,
    unpacked,
    wrong_type,
)
from penstock.records.properties import EMPTY, Properties, encode
from penstock.testing import Broker

RICH: dict[str, Any] = {
    "type": "record", "name": "Rich", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "int"]}},
    ],
}  # fmt: skip


def written(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


RICH_BODY = written(RICH, {
    "at": datetime(2026, 11, 23, 4, 5, 6, 7000, UTC), "price": Decimal("1.10"), "day": date(2026, 1, 2),
    "key": UUID(int=5), "raw": b"\xff\x00", "side": "SELL", "lines": [{"sku": "a"}, {"sku": "b"}],
    "tags": {"x": 1, "y": None},
})  # fmt: skip


def behind(number: int, body: bytes, between: bytes = b"") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + between + body


def test_avro_values_that_json_has_not() -> None:
    row = body_type(penstock.avro(RICH))
    assert row.read(RICH_BODY) == {
        "at": "2026-11-23T04:05:06.007000Z", "price": "1.10", "day": "2026-01-02", "key": str(UUID(int=5)),
        "raw": "/wA=", "side": "SELL", "lines": [{"sku": "a"}, {"sku": "b"}], "tags": {"x": 1, "y": None},
    }  # fmt: skip
    assert orjson.loads(row.json(RICH_BODY)) == row.read(RICH_BODY)
    text = typed("/price = 1.1 AND /lines[1]/sku = 'b' AND /side = 'SELL' AND /at > '2026-11-23'", penstock.avro(RICH))
    assert evaluate(text, [RICH_BODY, RICH_BODY[:-1], RICH_BODY + b"x"]) == [True, None, None]


def test_an_id_says_which_schema_a_body_has() -> None:
    later = {**ORDER, "fields": [*ORDER["fields"], {"name": "urgent", "type": "boolean"}]}
    kind = penstock.avro({7: ORDER, 9: orjson.dumps(later).decode()})
    order = {"id": "a", "total": 5, "region": "north", "note": None}
    bodies = [behind(7, written(ORDER, order)), behind(9, written(later, {**order, "urgent": True}))]
    assert [body_type(kind).read(body) for body in bodies] == [order, {**order, "urgent": True}]
    for body, why in {
        behind(8, b""): "schema 8, which its message_type has not", b"\0\0\0": "does not begin with", b"": "does not",
        b"\x01" + bodies[0][1:]: "does not begin with", behind(7, b""): ".",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=why):
            body_type(kind).read(body)


def test_an_id_in_a_header_says_which_schema_a_body_has() -> None:
    later = {**ORDER, "fields": [*ORDER["fields"], {"name": "urgent", "type": "boolean"}]}
    kind = penstock.avro({7: ORDER, 9: later}, header="schema-id")
    order = {"id": "a", "total": 5, "region": "north", "note": None}
    bodies = [written(ORDER, order), written(later, {**order, "urgent": True})]
    heads: list[object] = [7, "9", None, True, 8, "-7", 7.0, "\u0667", 2**40, b"\0\0\0\7"]
    properties = [encode(Properties(headers={"schema-id": one} if one is not None else {"id": 7})) for one in heads]
    given = [bodies[0], bodies[1], *[bodies[0]] * 8]
    assert evaluate(typed("/urgent IS NULL AND /id = 'a'", kind), given, properties=properties) == [
        True, False, *[None] * 8
    ]  # fmt: skip
    row = body_type(kind)
    assert row.read(row.one_whole(bodies[1], properties[1])) == {**order, "urgent": True}
    with pytest.raises(ValueError, match="its header 'schema-id' has not the id of a schema"):
        row.read(row.one_whole(bodies[0], properties[2]))
    with pytest.raises(ValueError, match="schema 8, which its message_type has not"):
        row.read(row.one_whole(bodies[0], properties[4]))
    first = body_type(penstock.protobuf({7: Order}, header="schema-id"))
    assert first.read(first.one_whole(Order(id="x").SerializeToString(), properties[0])) == {"id": "x"}
    assert goes_on(kind, penstock.avro({7: ORDER}, header="schema-id"))
    assert not goes_on(kind, penstock.avro({7: ORDER}))
    for header, schemas, why in (("", {7: ORDER}, "no name of a header"), ("x" * 256, {7: ORDER}, "no name"),
                                 ("schema-id", ORDER, "the one that is given has no id")):  # fmt: skip
        with pytest.raises(InvalidArgument, match=why):
            penstock.avro(schemas, header=header)


def test_only_types_with_ids_in_headers_are_read_from_headers() -> None:
    """What nobody has asked for costs nothing: no column more is fetched, and no header is taken apart."""
    for sample in SAMPLES.values():
        by_header = {"properties"} if sample.headers else set()
        assert body_type(sample.name).needs == {"body"} | by_header
        assert needed_of(sample.name) == body_type(sample.name).needs
        assert compile_filter(typed(sample.said("{total} > 1"), sample.name)).needs == {"body"} | by_header
        bodies = [sample.body({"id": "a"})]
        assert (body_type(sample.name).whole(bodies, EMPTY) is bodies) == (not by_header)


def test_an_any_of_an_unknown_type_is_no_body() -> None:
    file = order_file()
    file.dependency.append(any_pb2.DESCRIPTOR.name)
    field = file.message_type.add(name="Box").field.add(name="it", number=1, label=1)
    field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, ".google.protobuf.Any"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    box: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Box"))
    row, known = body_type(penstock.protobuf(box)), any_pb2.Any()
    known.Pack(timestamp_pb2.Timestamp(seconds=0))

    def body(one: any_pb2.Any) -> bytes:
        return cast("bytes", box(it={"type_url": one.type_url, "value": one.value}).SerializeToString())

    assert orjson.loads(row.json(row.one_whole(body(known), EMPTY)))["it"]["value"] == "1970-01-01T00:00:00Z"
    for url in ("type.googleapis.com/shop.Gone", "x", ""):
        with pytest.raises(ValueError, match="descriptor"):
            row.read(row.one_whole(body(any_pb2.Any(type_url=url, value=b"x")), EMPTY))


def test_protobuf_fields() -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = order_file()
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, struct_pb2.DESCRIPTOR.name])
    side = file.enum_type.add(name="Side")
    side.value.add(name="BUY", number=0)
    side.value.add(name="SELL", number=1)
    rich = file.message_type.add(name="Rich")
    entry = rich.nested_type.add(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=kinds.TYPE_BOOL, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_BYTES, label=1)
    line = rich.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=1)
    line.field.add(name="inner", number=2, type=kinds.TYPE_MESSAGE, type_name=".shop.Rich.Line", label=1)
    for number, (name, kind, of, label) in enumerate([
        ("at", kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp", 1), ("side", kinds.TYPE_ENUM, ".shop.Side", 1),
        ("lines", kinds.TYPE_MESSAGE, ".shop.Rich.Line", 3), ("tags", kinds.TYPE_MESSAGE, ".shop.Rich.TagsEntry", 3),
        ("any", kinds.TYPE_MESSAGE, ".google.protobuf.Struct", 1), ("many", kinds.TYPE_INT64, "", 3),
        ("first", kinds.TYPE_MESSAGE, ".shop.Order", 1), ("count", kinds.TYPE_UINT64, "", 1),
    ], 1):  # fmt: skip
        rich.field.add(name=name, number=number, type=kind, type_name=of or None, label=label)  # type: ignore[arg-type]
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, struct_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Rich"))
    one = made(side=1, many=[1, 2**60], lines=[{"sku": "a"}, {}], tags={True: b"\xff"}, count=2**64 - 1)
    one.at.FromJsonString("2026-11-23T04:05:06.007Z")
    one.any["z"] = [1, {"y": None}]
    one.first.id = "7"
    body = one.SerializeToString()
    row = body_type(penstock.protobuf(made))
    expected = {
        "at": "2026-11-23T04:05:06.007Z", "side": "SELL", "lines": [{"sku": "a"}, {"sku": ""}],
        "tags": {"true": "/w=="}, "any": {"z": [1, {"y": None}]}, "many": [1, 2**60], "first": {"id": "7"},
        "count": 2**64 - 1,
    }  # fmt: skip
    assert row.read(body) == expected
    assert row.read(b"") == {"side": "BUY", "lines": [], "tags": {}, "many": [], "count": 0}
    assert row.read(b"\x10\x05") == {"side": 5, "lines": [], "tags": {}, "many": [], "count": 0}  # an enum's new value
    numbered = body_type(penstock.protobuf({3: made, 4: Order}))
    assert numbered.read(behind(3, body, b"\x02\x02")) == expected  # indexes: one, the second message of its file
    assert numbered.read(behind(4, Order(id="x").SerializeToString(), b"\0")) == {"id": "x"}
    assert numbered.read(behind(3, b"\x0a\x01q", b"\x04\x02\x02")) == {"sku": "q"}  # and one within it
    for bad in (behind(3, b""), behind(3, b"", b"\x02\x0a"), behind(3, b"", b"\x01"), behind(3, b"\xff" * 9), b""):
        with pytest.raises(ValueError, match="."):
            numbered.read(bad)
    with pytest.raises(ValueError, match="a message 8388607 levels deep, at most 100 are read"):  # and not counted to
        numbered.read(behind(3, b"", b"\xfe\xff\xff\x07"))
    nested = b""
    for _ in range(300):
        nested = b"\x12" + bytes([len(nested) & 0x7F | 0x80, len(nested) >> 7]) + nested
    with pytest.raises(ValueError, match="."):
        row.read(b"\x1a" + bytes([len(nested) & 0x7F | 0x80, len(nested) >> 7]) + nested)
    with pytest.raises(ValueError, match="more than 1000000 values"):
        row.read(b"\x1a\x00" * 400_000)


def of_files(files: list[descriptor_pb2.FileDescriptorProto], name: str) -> Any:
    """The reader of a message that these say."""
    said = b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()
    return body_type(packed("protobuf", [said, name]))


def test_a_text_of_protobuf_that_is_no_text_is_bytes() -> None:
    """Files of proto2 do not ask for UTF-8: their bytes went on as such, and whoever made JSON of them failed."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto")
    old = file.message_type.add(name="Old")
    entry = old.nested_type.add(name="BothEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=9, label=1)
    old.field.add(name="one", number=1, type=9, label=1)
    old.field.add(name="many", number=2, type=9, label=3)
    old.field.add(name="both", number=3, type=11, label=3, type_name=".Old.BothEntry")
    row = of_files([file], "Old")
    body = b"\x0a\x02\xffa" + b"\x12\x01b\x12\x01\xfe" + b"\x1a\x06\x0a\x01k\x12\x01\xfc"
    assert row.read(body) == {"one": "\udcffa", "many": ["b", "\udcfe"], "both": {"k": "\udcfc"}}
    assert orjson.loads(row.json(body)) == {"one": "\ufffda", "many": ["b", "\ufffd"], "both": {"k": "\ufffd"}}
    assert row.read(b"\x0a\x01x") == {"one": "x", "many": [], "both": {}}
    with pytest.raises(ValueError, match="codec"):
        row.read(b"\x1a\x06\x0a\x01\xfd\x12\x01v")  # protobuf's own library has no such name of a map


def test_fields_of_protobuf_may_be_named_as_its_python_names_what_it_does() -> None:
    """What a message was asked by its name was then a field: 7 has no `full_name`, and cannot be called."""
    file = descriptor_pb2.FileDescriptorProto(name="odd.proto", syntax="proto3")
    odd, names = file.message_type.add(name="Odd"), ["DESCRIPTOR", "HasField", "ByteSize", "FromString", "ListFields"]
    for number, name in enumerate(names):
        odd.oneof_decl.add(name=f"_{name}")
        odd.field.add(name=name, number=number + 1, type=5, label=1, proto3_optional=True, oneof_index=number)
    row = of_files([file], "Odd")
    assert row.read(b"\x08\x07\x10\x08\x28\x09") == {"DESCRIPTOR": 7, "HasField": 8, "ListFields": 9}
    assert row.read(b"") == {}


@pytest.mark.parametrize("wrapped", wrappers_pb2.DESCRIPTOR.message_types_by_name.values(), ids=lambda one: one.name)
def test_a_wrapper_is_the_value_in_it(wrapped: Any) -> None:
    """As a field of its type, and a number of 64 bits no text: it had no place in a column of numbers."""
    kind = wrapped.fields_by_name["value"].type
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", syntax="proto3", dependency=[wrapped.file.name])
    message, kinds = file.message_type.add(name="W"), descriptor_pb2.FieldDescriptorProto
    message.field.add(name="bare", number=1, type=kind, label=1)
    of: Any = {"type": kinds.TYPE_MESSAGE, "type_name": f".{wrapped.full_name}"}
    message.field.add(name="one", number=2, label=1, **of)
    message.field.add(name="many", number=3, label=3, **of)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrapped.file.serialized_pb)
    pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("W"))
    value = {kinds.TYPE_STRING: "x", kinds.TYPE_BYTES: b"\xff", kinds.TYPE_BOOL: True}.get(kind, 2**31 - 1)
    row = body_type(penstock.protobuf(made))
    found: Any = row.read(made(bare=value, one={"value": value}, many=[{"value": value}, {}]).SerializeToString())
    none: Any = "" if kind == kinds.TYPE_BYTES else made().bare
    assert repr(found["one"]) == repr(found["bare"])
    assert found["many"] == [found["bare"], none]
    assert row.read(b"") == {"bare": none, "many": []}


def test_what_google_says_of_no_mapping_is_read_by_its_fields() -> None:
    """A message of its package that lacked what it requires ended its reader, and so the queue."""
    own = descriptor_pb2.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto()
    own.CopyToProto(file)
    row = of_files([file], "google.protobuf.UninterpretedOption")
    assert row.read(b"\x12\x00\x20\x05")["positive_int_value"] == 5  # a part of its name has neither of its fields


@pytest.mark.parametrize("name", ["Timestamp", "Duration", "FieldMask", "Any", "Struct", "Value", "UInt32Value", "Own"])
def test_who_names_a_message_as_googles_has_it_read_by_its_own_fields(name: str) -> None:
    """The mapping to JSON asked for fields that it had not, and its AttributeError went on to whoever read the body."""
    theirs = descriptor_pb2.FileDescriptorProto(
        name="google/protobuf/wrappers.proto", package="google.protobuf", syntax="proto3"
    )
    theirs.message_type.add(name=name).field.add(name="own", number=1, type=9, label=1)
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3", dependency=[theirs.name])
    file.message_type.add(name="A").field.add(
        name="in", number=1, type=11, label=1, type_name=f".google.protobuf.{name}"
    )
    files = b64encode(descriptor_pb2.FileDescriptorSet(file=[theirs, file]).SerializeToString()).decode()
    row = body_type(packed("protobuf", [files, "A"]))
    assert row.read(b"\x0a\x03\x0a\x01x") == {"in": {"own": "x"}}
    assert row.read(b"\x0a\x00") == {"in": {"own": ""}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "items": "null"}, "no bounds"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "no bounds"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, "no bounds"),
        ({"type": "record", "name": "A", "fields": [{"name": "n", "type": ["null", "A"]}]}, "A contains itself"),
        ({"type": "fixed", "name": "Q", "size": -1}, "Q has a size of -1"),
        ({"type": "fixed", "name": "Q", "size": None}, "Q has a size of None"),
        ({"type": "fixed", "name": "Q", "size": [4]}, r"Q has a size of \[4\]"),
        ({"type": "fixed", "name": "Q", "size": True}, "Q has a size of True"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 309}, "a decimal of 309 digits, 308 are allowed"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 10}, "scale"),
        ([], "a choice of nothing"),
        ("nonsense", "no Avro schema: no type is called 'nonsense'"),
        ({}, "no Avro schema: a part of it has no 'type'"),
        ({"type": "array"}, "no Avro schema: a part of it has no 'items'"),
        (5, "no Avro schema: a part of it is of another kind than Avro has there"),
        ({"type": "record", "name": 7, "fields": []}, "no Avro schema: a part of it is of another kind"),
        ({"type": "string", "__fastavro_parsed__": True}, "it says that it was parsed"),
    ],
)
def test_schemas_without_bounds_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=f"message_type.*{why}"):
        body_type(packed("avro", orjson.dumps(schema).decode()))


def test_a_schema_is_nested_and_wide_within_bounds() -> None:
    deep: Any = "string"
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidArgument, match="nested more than 64"):
        body_type(packed("avro", orjson.dumps(deep).decode()))
    chain: list[Any] = [{"type": "record", "name": "C0", "fields": [{"name": "f", "type": "int"}]}]
    for level in range(1, 70):  # none says more than the name of the one before; of 9990 three bytes ended the process
        chain.append({"type": "record", "name": f"C{level}", "fields": [{"name": "f", "type": f"C{level - 1}"}]})
    assert body_type(packed("avro", orjson.dumps(chain[:63]).decode())).read(b"\x02\x06") == {"f": {"f": 3}}
    with pytest.raises(InvalidArgument, match="nested more than 64"):
        body_type(packed("avro", orjson.dumps(chain).decode()))
    wide: Any = {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "null"}]}
    for level in range(1, 25):  # each twice the one before: 2**24 values in no byte
        fields = [{"name": "a", "type": wide}, {"name": "b", "type": f"R{level - 1}"}]
        wide = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(InvalidArgument, match=r"more than 10000 values"):
        body_type(packed("avro", orjson.dumps(wide).decode()))


def test_lists_of_wide_records_have_bounds() -> None:
    """Each of their fields takes a byte, also those that may be left out; many that take none are too many."""
    fields: list[Any] = [{"name": f"f{n}", "type": ["null", "string"]} for n in range(30)]
    many: dict[str, Any] = {"type": "array", "items": ["null", {"type": "record", "name": "Wide", "fields": fields}]}
    body = written(many, [None, dict.fromkeys((one["name"] for one in fields), "x")])
    assert len(body_type(penstock.avro(many)).read(body)) == 2  # type: ignore[arg-type]
    fields += [{"name": f"n{n}", "type": "null"} for n in range(100)]
    with pytest.raises(InvalidArgument, match="131 values in next to no bytes"):
        body_type(penstock.avro(many))


def of_decimal(**schema: Any) -> Any:
    return {"type": "record", "name": "Sum", "fields": [{"name": "sum", "type": {"logicalType": "decimal", **schema}}]}


def test_a_decimal_has_as_many_digits_as_it_is_read_fast() -> None:
    """Digits take time by the square of the bytes that they are made of: 256 KiB of them took seconds."""
    price = of_decimal(type="bytes", precision=308, scale=2)
    row, there = body_type(penstock.avro(price)), fastavro.parse_schema({**price, "fields": [
        {"name": "sum", "type": "bytes"}]})  # fmt: skip
    for digits in ("1.23", "-0.01", "0.00", f"{'9' * 306}.99", f"-{'9' * 306}.99"):
        assert row.read(written(price, {"sum": Decimal(digits)})) == {"sum": digits}
    with pytest.raises(ValueError, match="a decimal of 262144 bytes, 160 are allowed"):
        row.read(written(there, {"sum": b"\x7f" * (1 << 18)}))
    for scale, told in ((18, "0." + "0" * 18), (0, "0")):
        zero = of_decimal(type="bytes", precision=38, scale=scale)
        assert body_type(penstock.avro(zero)).read(written(zero, {"sum": Decimal(0)})) == {"sum": told}
    fixed = of_decimal(type="fixed", name="Four", size=4, precision=9, scale=3)
    assert body_type(penstock.avro(fixed)).read(b"\xff\xff\xff\xff") == {"sum": "-0.001"}
    assert fastavro.schemaless_reader(BytesIO(written(price, {"sum": Decimal("1.23")})), price, None) == {
        "sum": Decimal("1.23")
    }, "others in this process read decimals as ever"


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_what_is_no_body_is_told_and_nothing_else_happens(name: str) -> None:
    chance = random.Random(SEED)
    kinds = {"avro": penstock.avro(RICH), "protobuf": PROTOBUF}
    bodies = {"avro": RICH_BODY, "protobuf": SAMPLES["protobuf"].body({"id": "a", "total": "1.5", "note": "x" * 20})}
    row, good = body_type(kinds[name]), bodies[name]
    for _ in range(3000 * EFFORT):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 5)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        cut = bytes(body[: chance.randrange(len(body) + 1)]) if chance.random() < 0.3 else bytes(body)
        try:
            row.json(cut)
        except ValueError:
            assert row.table(cut) == {}


@pytest.mark.parametrize("kind", [AVRO, PROTOBUF])
def test_a_mistake_is_shown_without_the_schemas(kind: str) -> None:
    name = kind.partition(":")[0]
    for text in ("/total > ", "/total >> 5", "/note = 'x' AND ("):
        with pytest.raises(ExpressionError) as of_json:
            compile_filter(text)
        with pytest.raises(ExpressionError) as caught:
            compile_filter(typed(text, kind))
        *_, line, caret = of_json.value.pointed().splitlines()
        shift = f"[{name}] "
        assert caught.value.pointed().splitlines()[-2:] == [f"  {shift}{line[2:]}", " " * len(shift) + caret]


def test_a_text_carries_its_schemas() -> None:
    assert unpacked(AVRO)[0] == "avro"
    assert orjson.loads(str(unpacked(AVRO)[1].by_id[0])) == ORDER
    assert named(AVRO).startswith("avro (")
    assert named("json") == "json"
    with pytest.raises(InvalidArgument, match="characters packed"):
        packed("avro", b64encode(random.Random(1).randbytes(TEXT_MOST)).decode())
    both = "avro:" + urlsafe_b64encode(zlib.compress(b'{"0": "1", "1": "1"}')).decode()
    assert "do not go together" in str(wrong_type(both))
    for number in (-1, 0):
        with pytest.raises(InvalidArgument, match=f"{number} is no id of a schema"):
            packed("avro", {number: "1"})
    with pytest.raises(InvalidArgument, match="is no class of a message"):
        penstock.protobuf(int)
    with pytest.raises(InvalidArgument, match="no JSON"):
        penstock.avro("{")
    for bad in ("avro", "avro:", "avro:!!", "avro:eJyr", f"avro:{'x' * TEXT_MOST}", "protobuf:" + AVRO[5:]):
        assert "there is json" in str(wrong_type(bad))
    with pytest.raises(ExpressionError):
        compile_filter("[avro] /a = 1")
    with pytest.raises((InvalidArgument, PreconditionFailed, ExpressionError)):
        compile_filter("[avro:eJyr] /a = 1").matches([b"x"])
    with pytest.raises(InvalidArgument, match=r"reads avro \(.*, and the bodies here are protobuf"):
        typed(f"[{AVRO}] /a = 1", PROTOBUF)
    assert contradicts("application/avro", AVRO) is None
    assert contradicts("application/x-protobuf", AVRO) == "protobuf"


def test_later_schemas_join_and_none_changes() -> None:
    later = {**ORDER, "name": "Later"}
    first, both, other = penstock.avro({1: ORDER}), penstock.avro({1: ORDER, 2: later}), penstock.avro({1: later})
    assert goes_on(both, first)
    assert not goes_on(first, both)
    assert not goes_on(other, first)
    assert not goes_on(AVRO, first)
    with Broker({"queue": [{"name": "q", "message_type": first, "filter": "/total > 5"}]}) as broker:
        order = {"id": "a", "total": 9, "region": None, "note": None}
        second = behind(2, written(later, order))
        broker.publish("q", second)
        assert broker.stats("q")["ready"] == 0
        for wrong in (other, AVRO, "json"):
            with pytest.raises(PreconditionFailed, match=r"has message_type avro \(.*, and stays"):
                broker.alter("q", message_type=wrong)
        broker.alter("q", message_type=both)
        for body in (second, behind(1, written(ORDER, order)), behind(1, written(ORDER, {**order, "total": 1}))):
            broker.publish("q", body)
        assert broker.stats("q")["ready"] == 2
        broker.crash()
        broker.restart(config={"queue": [{"name": "q", "message_type": both, "filter": "/total > 5"}]})
        got = [one.body for one in broker.subscribe("q", max_backlog=9).take()]
        assert got == [second, behind(1, written(ORDER, order))]


def test_the_settings_file_names_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.avsc").write_bytes(orjson.dumps(ORDER))
    (tmp_path / "shop.pb").write_bytes(descriptor_pb2.FileDescriptorSet(file=[order_file()]).SerializeToString())
    settings = load_text(
        '[[topic]]\nname = "t"\nmessage_type = { avro = "orders.avsc" }\n'
        '[[queue]]\nname = "q"\nmessage_type = { protobuf = "shop.pb", message = "shop.Order" }\n'
        '[[queue]]\nname = "r"\nmessage_type = { avro = { 7 = "orders.avsc" } }\n'
        '[[topic]]\nname = "s"\nmessage_type = { avro = { 7 = "orders.avsc" }, header = "schema-id" }\n'
    )
    assert settings.topic[0].message_type == AVRO == penstock.avro(tmp_path / "orders.avsc")
    assert settings.queue[0].settings.message_type == penstock.protobuf((tmp_path / "shop.pb", "shop.Order"))
    assert settings.queue[1].settings.message_type == penstock.avro({7: ORDER})
    assert settings.topic[1].message_type == penstock.avro({7: ORDER}, header="schema-id")
    for value, why in {
        '{ avro = "none.avsc" }': "none.avsc: No such file", '{ avro = "shop.pb" }': "shop.pb is no JSON",
        '{ protobuf = "shop.pb" }': "is no type: write", '{ avro = { x = "orders.avsc" } }': "no id and no file",
        '{ avro = { 0 = "orders.avsc" } }': "0 is no id of a schema",
        "{}": "is no type: write", '{ avro = "orders.avsc", header = "x" }': "has no id",
        '{ avro = { 7 = "orders.avsc" }, header = 7 }': "no name of a header",
    }.items():  # fmt: skip
        for section in ("topic", "queue"):
            with pytest.raises(SettingsError, match=f"message_type.*{why}"):
                load_text(f'[[{section}]]\nname = "x"\nmessage_type = {value}\n')


def test_the_command_line_prints_a_type(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_bytes(orjson.dumps(ORDER))
    path = tmp_path / "orders.avsc"
    assert penstock_command("topic", "message-type", "avro", str(path)).stdout.strip() == AVRO
    assert penstock_command("topic", "message-type", "avro", f"7={path}").stdout.strip() == penstock.avro({7: ORDER})
    told = penstock_command("topic", "message-type", "avro", f"7={path}", "--header", "schema-id")
    assert told.stdout.strip() == penstock.avro({7: ORDER}, header="schema-id")
    told = penstock_command("topic", "message-type", "avro", str(path), str(path))
    assert told.returncode != 0
    assert "several schemas need ids" in told.stderr
