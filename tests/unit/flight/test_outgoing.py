"""What callers give to publish: bodies and tables of any kind, addresses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

import msgspec
import orjson
import pyarrow as pa
import pytest
from pydantic import BaseModel, ConfigDict, Field

from penstock.client.admin import _plain  # pyright: ignore[reportPrivateUsage]
from penstock.client.bodies import reader_of
from penstock.client.outgoing import BATCH_ROWS, batches_of, body_of, headers_of, one_row, when
from penstock.client.urls import Address, parse_url
from penstock.errors import InvalidArgument
from penstock.units import span


def test_bytes_and_text_go_as_they_are_and_the_rest_as_json() -> None:
    assert body_of(b"x") == (b"x", None)
    assert body_of(bytearray(b"x")) == (b"x", None)
    assert body_of("é") == ("é".encode(), None)
    assert body_of({"a": [1, None, Decimal("1.5")]}) == (b'{"a":[1,null,"1.5"]}', "application/json")
    assert body_of(None) == (b"null", "application/json")


def test_what_has_a_text_goes_by_it() -> None:
    texts = [1j, {2}, deque([3]), MappingProxyType({"a": 4}), Path("/x"), b"y", memoryview(b"z")]
    assert body_of(texts) == (b'["1j",[2],[3],{"a":4},"/x","y","z"]', "application/json")
    pandas = pytest.importorskip("pandas")
    assert body_of([pandas.Timestamp("2026-01-02")])[0] == b'["2026-01-02T00:00:00"]'


class Repr:
    def __repr__(self) -> str:
        return "Repr()"


NO_TEXT = "has no text of its own: give a dict, a dataclass or a model"
NO_JSON = [
    (object(), f"a body of type object does not become JSON: an object {NO_TEXT}"),
    ({"a": Repr()}, f"a body of type dict does not become JSON: at /a: a Repr {NO_TEXT}"),
    ([lambda: 1], f"a function {NO_TEXT}"),
    ((number for number in range(3)), f"a generator {NO_TEXT}"),
    (Repr, f"a type {NO_TEXT}"),
    ({"a": 2**64}, "18446744073709551616 at /a is no whole number of 64 bits: make it text"),
    ({"a": b"\xff"}, r"bytes that are no UTF-8 text \(invalid start byte at byte 0\)"),
]


@pytest.mark.parametrize(("body", "why"), NO_JSON)
def test_what_has_no_form_in_json_is_refused(body: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=f"does not become JSON: .*{why}|{why}"):
        body_of(body)


class Colour(Enum):
    RED = "red"


class Amount(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    net: Decimal = Field(alias="netAmount")


@dataclass
class Line:
    at: datetime
    lasts: timedelta
    colours: set[Colour]
    amount: Amount | None = None


class Parcel(BaseModel):
    order_id: UUID = Field(alias="orderId")
    lines: list[Line]
    by_day: dict[date, Decimal]


class Crate(msgspec.Struct, rename="camel", tag="crate"):
    order_id: UUID
    lasts: timedelta
    label: bytes
    at: datetime


AT = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
LINES = [
    Line(AT, lasts, {Colour.RED}, Amount(netAmount=Decimal("1.10")))
    for lasts in (timedelta(0), timedelta(days=400, microseconds=7), timedelta(seconds=-5), timedelta(days=-2, hours=1))
]
TYPED: list[object] = [
    *LINES,
    Parcel(orderId=UUID(int=7), lines=LINES, by_day={date(2026, 1, 2): Decimal("0.30")}),
    *(Crate(UUID(int=8), line.lasts, b"\xff\x00", AT) for line in LINES),
    AMOUNT := Amount(netAmount=Decimal("2.50")),
]


@pytest.mark.parametrize("value", TYPED)
def test_what_is_published_with_a_type_is_read_with_it(value: object) -> None:
    body, kind = body_of(value)
    assert reader_of(type(value), "here")(body, kind) == value
    assert orjson.loads(body_of({"inner": [value]})[0]) == {"inner": [orjson.loads(body)]}


def test_a_model_goes_by_its_aliases_and_has_no_numbers_that_json_has_not() -> None:
    assert body_of(AMOUNT)[0] == b'{"netAmount":"2.50"}'

    class Reading(BaseModel):
        celsius: float

    with pytest.raises(InvalidArgument, match="nan at /0/celsius is none of its numbers"):
        body_of([Reading(celsius=float("nan"))])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1, "delay is -1: a duration is not negative"),
        (timedelta(seconds=-1), "a duration is not negative"),
        ("-3s", "delay: '-3s' is not a duration"),
        ("soon", "delay: 'soon' is not a duration"),
        ("30", "delay: duration '30' needs a unit"),
        (float("nan"), "delay: nan is no duration"),
        (float("inf"), "delay: inf is no duration"),
        (1e300, "delay: 1e[+]300 is no duration"),
        (10**400, "delay: 1000.* is no duration"),
        ("99999999d", "delay: duration '99999999d' is too large"),
        (True, "delay is True, not a duration"),
        (["1s"], r"delay is \['1s'\], not a duration"),
    ],
)
def test_what_is_no_duration_is_named(value: object, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        span(value, "delay")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgument, match=said):
        when("not_before", None, "delay", value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_setting_that_json_cannot_hold_is_named() -> None:
    assert _plain({"lease_period": timedelta(minutes=1)}) == {"lease_period": "1m"}
    with pytest.raises(InvalidArgument, match="lease_period is nan"):
        _plain({"lease_period": float("nan")})
    with pytest.raises(InvalidArgument, match="initial is inf"):
        _plain({"retry": {"initial": float("inf")}})


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([1], "not names with their values"), ({1: 2}, "the name 1 is not text"), ({"a": object()}, "header 'a'"),
        ({"a": [1]}, "header 'a' is .*, which has no text of its own"), ({"a": {"b": 1}}, "header 'a'"),
        ({"a": lambda: 1}, "header 'a'"), ({"a": b"\xff"}, "header 'a' is .*, which is no text in UTF-8"),
    ],
)  # fmt: skip
def test_headers_are_names_and_texts(headers: object, said: str) -> None:
    assert headers_of({"a": 1, "b": None, "c": Decimal("1.5")}) == [("a", "1"), ("b", "None"), ("c", "1.5")]
    assert headers_of({"a": True, "b": "é".encode()}) == [("a", "True"), ("b", "é")]
    assert headers_of({}) is None
    with pytest.raises(InvalidArgument, match=said):
        headers_of(headers)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_column_of_the_wrong_type_is_named() -> None:
    with pytest.raises(InvalidArgument, match="priority is 'high', not int16"):
        one_row({"body": b"x", "priority": "high"})
    with pytest.raises(InvalidArgument, match="not_before is 9{30}, not timestamp"):
        one_row({"body": b"x", "not_before": int("9" * 30)})


def test_a_table_with_bodies_is_taken_as_it_is() -> None:
    table = pa.table({"body": ["x", "y"], "topic": pa.array(["a", "b"]).dictionary_encode(), "priority": [1, 2]})
    schema, batches = batches_of(table)
    assert schema.names == ["body", "topic", "priority"]
    [batch] = list(batches)
    assert batch.to_pylist() == [
        {"body": b"x", "topic": "a", "priority": 1},
        {"body": b"y", "topic": "b", "priority": 2},
    ]


def test_a_table_with_views_is_taken_as_one_of_bytes() -> None:
    for body in (pa.binary_view(), pa.string_view()):
        table = pa.table({"body": pa.array(["x", "y" * 20], body), "topic": pa.array(["a", "b"], pa.string_view())})
        [batch] = list(batches_of(table)[1])
        assert batch.to_pylist() == [{"body": b"x", "topic": "a"}, {"body": b"y" * 20, "topic": "b"}]


def test_rows_of_any_other_table_become_json() -> None:
    _, batches = batches_of(pa.table({"id": [1, 2], "at": [datetime(2026, 1, 2, tzinfo=UTC), None]}))
    [batch] = list(batches)
    assert batch.column("body").to_pylist() == [b'{"id":1,"at":"2026-01-02T00:00:00+00:00"}', b'{"id":2,"at":null}']
    assert set(batch.column("content_type").to_pylist()) == {"application/json"}


def test_large_tables_go_in_parts() -> None:
    _, batches = batches_of(pa.table({"body": [b"x"] * (BATCH_ROWS + 1)}))
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS, 1]
    _, batches = batches_of(pa.table({"body": [b"x" * 2**20] * 40}))
    assert max(batch.num_rows for batch in batches) <= 16


def test_pandas_frames_are_tables() -> None:
    pandas = pytest.importorskip("pandas")
    _, batches = batches_of(pandas.DataFrame({"a": [1, 2]}))
    assert next(batches).column("body").to_pylist() == [b'{"a":1}', b'{"a":2}']


def test_dicts_of_a_frame_are_headers() -> None:
    """What makes tables of them makes a struct with a child for each name that any has; which others have not."""
    pandas = pytest.importorskip("pandas")
    headers = [{"lang": "en"}, {"tries": 2}, {}, None]
    [batch] = list(batches_of(pandas.DataFrame({"body": ["a", "b", "c", "d"], "headers": headers}))[1])
    assert batch.column("headers").to_pylist() == [[("lang", "en")], [("tries", "2")], None, None]
    [batch] = list(batches_of(pa.table({"body": ["a"], "headers": [{}]}))[1])
    assert batch.column("headers").to_pylist() == [None]
    with pytest.raises(InvalidArgument, match="column 'topic' cannot be string"):
        list(batches_of(pa.table({"body": ["a"], "topic": [{"a": "b"}]}))[1])
    kind: pa.DataType = pa.int64()
    for _ in range(300):
        kind = pa.struct([("a", kind)])
    with pytest.raises(InvalidArgument, match="column 'body' cannot be binary: Unsupported cast") as refused:
        list(batches_of(pa.table({"body": pa.nulls(1, kind)}))[1])
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("table", [1, "x", {"a": [1]}, object()])
def test_what_is_no_table_is_refused(table: object) -> None:
    with pytest.raises(InvalidArgument, match="is no table"):
        batches_of(table)


def test_rows_as_dicts_are_told_how_they_become_a_table() -> None:
    with pytest.raises(InvalidArgument, match=r"a list is no table: .*pyarrow\.Table\.from_pylist"):
        batches_of([{"id": 1}])


def test_a_misspelt_column_is_named() -> None:
    with pytest.raises(InvalidArgument, match="no column 'prioriy'; did you mean 'priority'"):
        batches_of(pa.table({"body": [b"x"], "prioriy": [1]}))
    with pytest.raises(InvalidArgument, match="column 'priority' cannot be int16"):
        list(batches_of(pa.table({"body": [b"x"], "priority": ["high"]}))[1])


def test_times_are_given_once() -> None:
    told = when("not_before", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "delay", None)
    assert told == {"not_before": 1_000_000, "delay": None}
    assert when("not_before", None, "delay", None) == {"not_before": None, "delay": None}
    later = when("expires_at", None, "expiration", timedelta(hours=1))
    assert later == {"expires_at": None, "expiration": 3_600_000_000}  # the server counts from when it takes it
    with pytest.raises(InvalidArgument, match="either"):
        when("not_before", 5, "delay", "1s")


def test_a_row_has_only_the_columns_it_needs() -> None:
    row = one_row({"body": b"x", "priority": None, "message_id": "m"})
    assert row.to_pylist() == [{"body": b"x", "message_id": "m"}]


def test_addresses() -> None:
    assert parse_url("penstock://localhost") == Address("localhost", 8815, "guest", "guest", "/", False)
    assert parse_url("penstocks://localhost") == Address("localhost", 8815, "guest", "guest", "/", True)
    assert parse_url("penstocks://u:p%40ss@host:99/v%2Fx") == Address("host", 99, "u", "p@ss", "v/x", True)
    assert parse_url("host:99", user="a", password="b") == Address("host", 99, "a", "b", "/", False)
    assert parse_url("penstock://[::1]:7").location == "grpc://[::1]:7"
    assert "secret" not in str(parse_url("penstock://u:secret@h"))
    for said in ("penstock://u@h:8815/", "penstock://u@h:8815/orders", "penstocks://u@h:1/a%2Fb"):
        assert str(parse_url(said)) == said


@pytest.mark.parametrize("url", ["amqp://h", "penstock://", "penstock://h:99999", "penstock://h?x=1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_url(url)
