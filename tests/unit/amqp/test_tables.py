"""Field tables and properties: the exact bytes of each type, the limits, and what pika makes of them."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.field_tables import NESTING_LIMIT, FieldValue, Long, Timestamp, decode_table, encode_table
from penstock.records.properties import EMPTY, Peek, Properties, decode, encode, peek, peeked


def table(field: bytes) -> bytes:
    """A table of one field named `a`."""
    return struct.pack(">I", len(field) + 2) + b"\x01a" + field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"t\x01", True),
        (b"t\x00", False),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f\x3f\xc0\x00\x00", 1.5),
        (b"d\x3f\xf8" + bytes(6), 1.5),
        (b"D\x02\xff\xff\xff\x85", Decimal("-1.23")),
        (b"S\x00\x00\x00\x03\xc3\xa9!", "é!"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x02ab", b"ab"),
        (b"T" + struct.pack(">Q", 1_700_000_000_000), Timestamp(1_700_000_000_000)),
        (b"A\x00\x00\x00\x03VB\x07", [None, 7]),
        (b"F\x00\x00\x00\x00", dict[str, FieldValue]()),
        (b"V", None),
    ],
)
def test_each_type_as_rabbitmq_reads_it(field: bytes, value: object) -> None:
    got = decode_table(table(field))["a"]
    assert got == value
    assert type(got) is type(value)
    for cut in range(1, len(table(field))):
        with pytest.raises(ProtocolError):
            decode_table(table(field)[:cut])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", 501),
        (b"\x00\x00\x00\x00!", 501),
        (b"\x00\x00\x00\x09\x01at\x01", 501),
        (b"\x00\x00\x00\x01\x09", 501),
        (b"\x00\x00\x00\x02\x01a", 501),
        (table(b"S\xff\xff\xff\xff"), 501),
        (table(b"A\xff\xff\xff\xff"), 501),
        (table(b"A\x00\x00\x00\x01I"), 501),
        (table(b"F\x00\x00\x00\x05\x01bt\x01"), 501),
        (table(b"?"), 502),
        (table(b"A\x00\x00\x00\x01?"), 502),
        (b"\x00\x00\x00\x03\x01\xffV", 502),
    ],
)
def test_malformed_tables(data: bytes, code: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_table(data)
    assert caught.value.reply_code == code


@pytest.mark.parametrize("kind", ["table", "array"])
def test_nesting_has_a_limit(kind: str) -> None:
    value: FieldValue = {} if kind == "table" else []
    for _ in range(NESTING_LIMIT - 2):
        value = {"n": value} if kind == "table" else [value]
    assert decode_table(encode_table({"n": value})) == {"n": value}
    with pytest.raises(InvalidArgument, match="nests deeper"):
        encode_table({"n": {"n": value}})
    data = encode_table({"n": value})
    outer = struct.pack(">I", len(data) + 3) + b"\x01nF" + data
    with pytest.raises(ProtocolError, match="nest deeper"):
        decode_table(outer)


@pytest.mark.parametrize(
    "value",
    [2**63, Timestamp(-1), Decimal("1e-300"), Decimal(2**31), Decimal("NaN"), "\ud800", object(), {"x" * 256: 1}],
)
def test_values_without_a_form(value: object) -> None:
    with pytest.raises(InvalidArgument, match="field"):
        encode_table({"field": value})


def test_conversions_on_the_way_out() -> None:
    at = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    data = encode_table({"at": at, "naive": at.replace(tzinfo=None), "tuple": (1, 2), "buffer": bytearray(b"x")})
    stamp = Timestamp(int(at.timestamp()))
    assert decode_table(data) == {"at": stamp, "naive": stamp, "tuple": [1, 2], "buffer": b"x"}


def test_last_of_equal_names_wins() -> None:
    assert decode_table(b"\x00\x00\x00\x08\x01at\x01\x01at\x00") == {"a": False}


FULL = Properties(
    content_type="application/json",
    content_encoding="gzip",
    headers={"a": 1},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_700_000_000,
    type="t",
    user_id="u",
    app_id="app",
    cluster_id="x",
)


def test_properties_there_and_back() -> None:
    data = encode(FULL)
    assert decode(data) == FULL
    assert peek(data) == Peek(2, 7, "60000", "u", {"a": 1})
    assert encode(Properties()) == EMPTY
    assert decode(EMPTY) == Properties()
    assert peek(EMPTY) == Peek(0, None, None, None, None)
    assert FULL.sent_at() == datetime.fromtimestamp(1_700_000_000, UTC)
    assert Properties(timestamp=2**63).sent_at() is None
    assert Properties().sent_at() is None


def test_headers_cut_anywhere_or_too_long_are_refused() -> None:
    data = encode(FULL)
    for broken in (*(data[:cut] for cut in range(len(data))), data + b"\x00", b"\x00\x01", b"\x00\x02" + data[2:]):
        for reader in (decode, peek, peeked):
            with pytest.raises(ProtocolError) as caught:
                reader(broken)
            assert caught.value.reply_code == 501


def test_text_that_is_no_text() -> None:
    for reader in (peek, peeked):
        with pytest.raises(ProtocolError) as caught:
            reader(b"\x80\x00\x01\xff")
        assert caught.value.reply_code == 502


@pytest.mark.parametrize(
    "properties",
    [Properties(priority=256), Properties(delivery_mode=-1), Properties(timestamp=2**64), Properties(type="x" * 256)],
)
def test_properties_out_of_range(properties: Properties) -> None:
    with pytest.raises(InvalidArgument):
        encode(properties)


def test_a_long_takes_64_bits_whatever_its_size() -> None:
    """RabbitMQ's `count` of a death is an `l`, and readers with typed fields rely on it."""
    assert encode_table({"n": Long(1)})[4:] == b"\x01nl" + (1).to_bytes(8, "big")
    assert encode_table({"n": 1})[4:] == b"\x01nI" + (1).to_bytes(4, "big")
