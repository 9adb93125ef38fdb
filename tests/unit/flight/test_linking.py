"""Words and rows of a link: each value in its bounds, or a sentence that says which is not."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.schema import CARRIED
from penstock.wire.flight.commands import Link
from penstock.wire.flight.linking import (
    BEAT,
    LEVEL,
    LINKED,
    Heard,
    Said,
    Welcome,
    ask_words,
    read_heard,
    read_rows,
    read_said,
)
from penstock.wire.flight.received import Bounds, receive
from penstock.wire.flight.tickets import parse_exchange

GOOD: dict[str, Any] = {
    "lsn": 5, "name": "work", "time": 7, "expires_at": None, "not_before": None, "priority": None,
    "properties": b"\x10\x00\x02", "body": b"x",
}  # fmt: skip


def rows(**changes: Any) -> pa.RecordBatch:
    values = {**GOOD, **changes}
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in CARRIED]
    columns = [pa.array([values[name]], kind) for name, kind in zip(CARRIED.names, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=CARRIED.names).cast(CARRIED)


def test_rows_come_as_they_were_sent() -> None:
    batch = rows(expires_at=7, priority=3)
    assert read_rows(receive(batch, LINKED, Bounds()), Bounds()).equals(batch)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lsn": None}, "'lsn' has 1 nulls"),
        ({"lsn": 0}, "lsn is 0"),
        ({"lsn": 1 << 60}, "not in 1.."),
        ({"name": None}, "'name' has 1 nulls"),
        ({"name": "n" * 256}, "bytes of a name is 256"),
        ({"body": None}, "'body' has 1 nulls"),
        ({"body": b"x" * 100}, "a body has 100 bytes; at most 50"),
        ({"properties": None}, "'properties' has 1 nulls"),
        ({"properties": b"p" * ((1 << 20) + 1)}, "bytes of properties"),
        ({"properties": b""}, "properties of a message"),
        ({"properties": b"\x10\x00"}, "properties of a message"),
        ({"properties": b"\x80\x00\x05hi"}, "properties of a message"),
        ({"properties": b"\x80\x00\x01\xff"}, "properties of a message"),
        ({"properties": b"\x20\x00\x00\x00\x00\x09k"}, "properties of a message"),
        ({"expires_at": -1}, "expires_at is -1"),
        ({"time": -1}, "time is -1"),
        ({"time": None}, "'time' has 1 nulls"),
        ({"not_before": 1 << 62}, "not_before is"),
        ({"priority": 256}, "priority is 256"),
        ({"priority": -1}, "priority is -1"),
    ],
)
def test_a_value_out_of_its_bounds_is_told(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match="link: ") as told:
        read_rows(receive(rows(**changes), LINKED, Bounds()), Bounds(body_bytes=50))
    assert why in str(told.value)


def test_columns_must_all_be_there() -> None:
    with pytest.raises(InvalidArgument, match="column 'properties' is missing"):
        receive(rows().drop_columns(["properties"]), LINKED, Bounds())


def test_an_ask_a_site_that_is_level_and_a_sign_of_life_are_told_apart() -> None:
    assert read_said(ask_words(b'["/","work",[[5,1,2]]]')) == Said(ask=b'["/","work",[[5,1,2]]]')
    assert read_said(LEVEL) == Said(level=True)
    assert read_said(BEAT) == Said()


@pytest.mark.parametrize("words", [b'{"say":"ask"}', b'{"say":"ask","ask":5}', b'{"say":"more"}', b"[", b'{"say":1}'])
def test_nothing_else_is_said(words: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_said(words)


def test_a_welcome_comes_as_it_was_sent() -> None:
    welcome = Welcome("b", 2**63 + 5, "eu", 17, [{"identity": []}], [("c", 9, "us")])
    found = read_heard(welcome.words()).welcome
    assert found == welcome._replace(sites=(("c", 9, "us"),))
    assert read_heard(b'{"ack":9}') == Heard(None, 9, None)
    assert read_heard(b'{"ended":"why"}').ended == "why"


@pytest.mark.parametrize(
    "words",
    [
        b"{", b'{"ack":-1}', b'{"more":1}', b'{"welcome":5}', b'{"welcome":{"site":"b","origin":5,"has":0}}',
        b'{"welcome":{"site":"b","origin":"x","has":0}}', b'{"welcome":{"site":"b","origin":"5"}}',
        b'{"welcome":{"site":"b","origin":"5","has":0,"sites":[["c","5"]]}}',
    ],
)  # fmt: skip
def test_a_site_that_speaks_no_link_is_known_by_it(words: bytes) -> None:
    with pytest.raises(ProtocolError, match="speaks no link"):
        read_heard(words)


def command(**changes: object) -> bytes:
    return orjson.dumps({"link": {"name": "b", "site": "a", "origin": "5", "group": "g", **changes}})


def test_the_command_says_who_calls_whom() -> None:
    assert parse_exchange(command(sync=True)) == Link("b", "a", 5, "g", True, [], ())
    assert parse_exchange(command(sites=[["c", "7", ""]])) == Link("b", "a", 5, "g", False, [], (("c", 7, ""),))


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": 5}, {"origin": "-5"}, {"origin": str(2**64)}, {"origin": "9" * 5000}, {"name": ""}, {"offers": {}},
        {"sites": [["c", "7"]]}, {"sites": [["", "7", ""]]}, {"sites": [[1, "7", ""]]},
        {"sites": [["c", "7", ""]] * 1001}, {"more": 1},
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="link"):
        parse_exchange(command(**changes))
