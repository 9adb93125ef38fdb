"""The codecs against themselves, there and back, and against pika's own."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, cast

import pika
from hypothesis import given
from hypothesis import strategies as st
from pika import data as pika_data
from pika import spec

from penstock.records.field_tables import FieldValue, Timestamp, decode_table, encode_table
from penstock.records.properties import Properties, decode, encode, peek
from penstock.wire.amqp import methods as m

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
decimals = st.builds(lambda n, scale: Decimal(n).scaleb(-scale), st.integers(-(2**31), 2**31 - 1), st.integers(0, 20))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | texts
    | st.binary(max_size=20)
    | st.builds(Timestamp, st.integers(0, 2**64 - 1))
    | decimals
)
floats = st.floats(allow_nan=False)


def tables(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, FieldValue]]:
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
    )
    return st.dictionaries(texts, values, max_size=4)


any_tables = tables(scalars | floats)
# pika reads floats as whole numbers and times as datetimes, and writes a decimal without its last zeros
pika_tables = tables(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | texts
    | st.binary(max_size=20)
    | decimals.map(Decimal.normalize)
)

short = st.none() | texts
properties = st.builds(
    Properties,
    content_type=short,
    content_encoding=short,
    headers=st.none() | any_tables,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=short,
    reply_to=short,
    expiration=short,
    message_id=short,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=short,
    user_id=short,
    app_id=short,
    cluster_id=short,
)


@given(any_tables)
def test_tables_there_and_back(table: dict[str, FieldValue]) -> None:
    assert decode_table(encode_table(table)) == table


def test_not_a_number_survives() -> None:
    back = decode_table(encode_table({"a": math.nan}))["a"]
    assert isinstance(back, float)
    assert math.isnan(back)


@given(pika_tables)
def test_pika_reads_our_tables_and_we_its(table: dict[str, FieldValue]) -> None:
    ours = encode_table(table)
    assert pika_data.decode_table(ours, 0) == (table, len(ours))
    pieces: list[bytes] = []
    pika_data.encode_table(pieces, cast("Any", table))
    assert decode_table(b"".join(pieces)) == table


@given(properties)
def test_properties_there_and_back(value: Properties) -> None:
    data = encode(value)
    assert decode(data) == value
    seen = peek(data)
    assert seen.delivery_mode == (value.delivery_mode or 0)
    assert (seen.priority, seen.expiration, seen.user_id) == (value.priority, value.expiration, value.user_id)
    assert seen.headers == value.headers


@given(properties, pika_tables)
def test_pika_reads_our_properties_and_we_its(value: Properties, headers: dict[str, FieldValue]) -> None:
    value.headers = headers or None
    names = [name for name in Properties.__slots__ if name != "type"]
    theirs = spec.BasicProperties().decode(encode(value))
    for name in [*names, "type"]:
        assert getattr(theirs, name) == getattr(value, name)
    made = pika.BasicProperties(type=cast("Any", value.type), **{name: getattr(value, name) for name in names})
    assert decode(b"".join(made.encode())) == value


WIRE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "B": st.integers(0, 255),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
    "Q": st.integers(0, 2**63 - 1),
    "bit": st.booleans(),
    "short": texts,
    "long": st.binary(max_size=30),
    "table": pika_tables,
}

PIKA_METHODS = cast("dict[int, Any]", spec.methods)


@given(st.data(), st.sampled_from(sorted(m.METHODS)))
def test_methods_there_and_back_and_as_pika(data: st.DataObject, method_id: int) -> None:
    made = m.METHODS[method_id]
    values: dict[str, Any] = {name: data.draw(WIRE_VALUES[kind], name) for name, kind in made.FIELDS}
    ours = made(**values)
    payload = ours.encode()
    assert m.decode_method(payload) == ours
    # pika's reserved fields are constants, and it reads some long strings as text
    fixed = {"ticket": 0, "out_of_band": "", "capabilities": "", "insist": False, "known_hosts": "", "cluster_id": ""}
    plain = {name: fixed.get(name, value) for name, value in values.items()}
    plain = {name: b"plain" if isinstance(value, bytes) else value for name, value in plain.items()}
    payload = made(**plain).encode()
    theirs = PIKA_METHODS[method_id]().decode(payload[4:]) if method_id != m.ConnectionUpdateSecret.ID else None
    if theirs is not None:
        for name, value in plain.items():
            got = getattr(theirs, name)
            assert (got.encode() if isinstance(value, bytes) and isinstance(got, str) else got) == value, name
        assert payload[4:] == b"".join(theirs.encode())


def test_every_method_of_pika_is_known() -> None:
    foreign = {method_id for method_id in PIKA_METHODS if method_id >> 16 != 30}  # class access is not in 0-9-1
    assert foreign == set(m.METHODS)
