"""What bodies become, and the settings that type checkers know."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime, time, timedelta, timezone
from typing import Annotated, Any, ForwardRef, get_args, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

import penstock
from penstock.client.arguments import QueueOptions
from penstock.client.bodies import plain, reader_of
from penstock.client.json_bodies import body_of
from penstock.client.messages import Message, Rows
from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS
from penstock.config.queue_values import Kind
from penstock.errors import InvalidArgument, InvalidBody
from penstock.testing import Broker
from penstock.testing.topic_records import Record
from penstock.units import Duration

msgspec: Any = pytest.importorskip("msgspec")


class Odd:
    """Nothing that a type is made of."""


@dataclass
class Order:
    """A dataclass."""

    id: int
    total: float = 0.0


class Model(BaseModel):
    """A model of pydantic."""

    id: int


class Table(TypedDict):
    """A typed dictionary."""

    id: int


class Struct(msgspec.Struct):  # type: ignore[misc]
    """A struct of msgspec."""

    id: int


@pytest.mark.parametrize(
    ("annotation", "made"),
    [(Order, Order(7)), (Model, Model(id=7)), (Table, {"id": 7}), (Struct, Struct(7)), (dict[str, int], {"id": 7}),
     (bytes, b'{"id": 7}'), (str, '{"id": 7}')],
)  # fmt: skip
def test_a_body_becomes_what_was_asked_for(annotation: Any, made: object) -> None:
    assert reader_of(annotation, "test")(b'{"id": 7}', None) == made


class Created(msgspec.Struct, tag=True):  # type: ignore[misc,call-arg]
    """One of several structs."""

    id: int


class Gone(msgspec.Struct, tag=True):  # type: ignore[misc,call-arg]
    """Another one."""

    why: str


@pytest.mark.parametrize(
    ("annotation", "body", "made"),
    [
        (list[Struct], b'[{"id": 7}]', [Struct(7)]),
        (dict[str, Struct | None], b'{"a": {"id": 7}, "b": null}', {"a": Struct(7), "b": None}),
        (Created | Gone, b'{"type": "Gone", "why": "sold"}', Gone("sold")),
        (Annotated[list[Created | Gone], "events"], b'[{"type": "Created", "id": 1}]', [Created(1)]),
    ],
)
def test_structs_are_read_wherever_a_type_has_them(annotation: Any, body: bytes, made: object) -> None:
    assert reader_of(annotation, "test")(body, None) == made
    with pytest.raises(InvalidBody, match="the body is no "):
        reader_of(annotation, "test")(b'{"type": "Other"}', None)


def test_a_body_that_is_too_deep_is_told() -> None:
    for annotation in (Order, Model, Table, Struct, list[Struct], list[int]):
        with pytest.raises(InvalidBody, match="the body is no "):
            reader_of(annotation, "test")(b"[" * 100_000, None)


@pytest.mark.parametrize("annotation", [Order, Model, Table, Struct, list[int]])
@pytest.mark.parametrize("body", [b"{", b'{"id": "x"}', b"\xff"])
def test_one_that_does_not_fit_is_told(annotation: Any, body: bytes) -> None:
    with pytest.raises(penstock.InvalidBody, match="the body is no ") as told:
        reader_of(annotation, "test")(body, None)
    assert isinstance(told.value, ValueError)
    assert not told.value.retry


NOWHERE: list[tuple[str, Any]] = [("order", "Nowhere")]


@pytest.mark.parametrize(
    "annotation",
    [
        "Nowhere",
        list[ForwardRef("Nowhere")],
        make_dataclass("Unfinished", NOWHERE),
        msgspec.defstruct("Unfinished", NOWHERE),
    ],  # type: ignore[misc]
    ids=["text", "list", "dataclass", "struct"],
)
def test_a_type_that_names_what_is_nowhere_is_refused_before_any_body(annotation: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^consume 'q': bodies cannot become .*: name 'Nowhere' is not defined"):
        reader_of(annotation, "consume 'q'")


@pytest.mark.parametrize("annotation", [5, (int, str), {}, {"type": "int"}, object(), list[Odd], Odd], ids=str)
def test_what_is_no_type_is_refused_in_our_words(annotation: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^consume 'q': bodies cannot become .* is no type that JSON") as told:
        reader_of(annotation, "consume 'q'")
    assert "pydantic" not in str(told.value)


def test_without_a_type_it_is_what_its_publisher_says() -> None:
    assert plain(b'{"id": 7}', "application/json; charset=utf-8") == {"id": 7}
    assert plain(b'{"id": 7}', None) == b'{"id": 7}'
    rows = Rows(pa.record_batch({"body": pa.array([b"[1]"], pa.binary()), "content_type": ["application/json"]}))
    assert Message[Any](rows, 0).value == [1]


def test_every_setting_is_known_to_type_checkers() -> None:
    """A new one is a line of `client/arguments.py`."""
    hints = get_type_hints(QueueOptions)
    assert set(hints) == {*QUEUE_KEYS, *KEY_ALIASES}
    wanted: dict[Kind, object] = {
        Kind.TEXT: str | None, Kind.COUNT: int | None, Kind.DURATION: Duration | None, Kind.SIZE: str | int | None,
        Kind.FLAG: bool | None, Kind.FILE: bool | str | None,
    }  # fmt: skip
    for name, hint in hints.items():
        key = QUEUE_KEYS[KEY_ALIASES.get(name, name)]
        if name == "message_type":
            assert set(get_args(hint)) == {str, type(None)}, "its choices are those of the extras"
        elif key.kind is Kind.CHOICE:
            assert get_args(get_args(hint)[0]) == tuple(key.choices), name
        elif key.kind in wanted:
            assert set(get_args(hint)) == set(get_args(wanted[key.kind])), name


def _message(body: bytes, annotation: object = Any) -> Message[Any]:
    row = {
        "body": body, "bookmark": "0|7|", "lsn": 7, "topic": "orders", "queue": "to-ship", "exchange": "",
        "content_type": "application/json",
    }  # fmt: skip
    return Message(Rows(pa.RecordBatch.from_pylist([row]), reader_of(annotation, "test")), 0)


@pytest.mark.parametrize("annotation", [Any, str, Order, Model, Table, Struct, list[int]])
def test_a_value_that_does_not_fit_is_told_with_its_message_and_queue(annotation: object) -> None:
    with pytest.raises(InvalidBody, match=r"^the body of '0\|7\|' in queue 'to-ship' is no "):
        _ = _message(b"\xff", annotation).value


def test_a_body_that_is_no_json_or_no_text_is_named() -> None:
    """In the one tree of errors, with message, queue and place; still a ValueError, as before."""
    with pytest.raises(InvalidBody, match=r"^the body of '0\|7\|' in queue 'to-ship' is no JSON: .*column 7"):
        _message(b'{"id":').json()
    with pytest.raises(ValueError, match=r"^the body of '0\|7\|' in queue 'to-ship' is no UTF-8 text: .* at byte 2$"):
        _message(b"ab\xff").text()


def test_the_test_broker_names_a_body_that_is_no_json() -> None:
    with Broker(config={"queue": [{"name": "to-ship"}]}) as broker:
        bookmark = broker.publish("to-ship", b"{")
        [message] = broker.subscribe("to-ship").take()
        with pytest.raises(InvalidBody, match="queue 'to-ship' is no JSON") as caught:
            message.json()
        assert bookmark in str(caught.value)
        with pytest.raises(InvalidBody, match="topic 'to-ship' is no JSON"):
            Record(None, "to-ship", b"{", 7, bookmark).json()


@pytest.mark.parametrize(
    ("body", "place"),
    [({"x": float("nan")}, "nan at /x"), ([1, {"a": (float("inf"),)}], "inf at /1/a/0"), (float("nan"), "whole body"),
     (Order(1, float("-inf")), "-inf at /total"), ({"x": np.float32("nan")}, "nan at /x"),
     ([np.array([[1.0], [float("inf")]])], "inf at /0/1/0")],
)  # fmt: skip
def test_what_json_has_no_number_for_is_refused(body: object, place: str) -> None:
    """It would be null, which no reader of numbers takes."""
    with pytest.raises(InvalidArgument, match=place):
        body_of(body)


def test_null_and_numbers_become_json() -> None:
    assert body_of({"x": None, "y": 1.5, "z": "null"})[0] == b'{"x":null,"y":1.5,"z":"null"}'


@pytest.mark.parametrize(
    ("value", "written"),
    [(np.float64(1.5), b"1.5"), (np.float32(1.5), b"1.5"), (np.float16(1.5), b"1.5"), (np.longdouble(1.5), b"1.5"),
     (np.int64(-3), b"-3"), (np.uint8(3), b"3"), (np.bool_(True), b"true"), (np.str_("a"), b'"a"'),
     (np.array([1, 2]), b"[1,2]"), (np.array([[1, 2], [3, 4]])[:, 0], b"[1,3]"), (np.array(["a", "b"]), b'["a","b"]'),
     (np.array([1, None, "a"], dtype=object), b'[1,null,"a"]'),
     (np.datetime64("2026-11-20T08:00:00"), b'"2026-11-20T08:00:00"')],
    ids=lambda value: None if isinstance(value, bytes) else f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)  # fmt: skip
def test_values_of_numpy_are_numbers_truths_texts_and_lists(value: object, written: bytes) -> None:
    """As Python's own would be, wherever they stand in a body: they were texts."""
    assert body_of({"x": value})[0] == b'{"x":' + written + b"}"
    assert body_of([{"x": [value]}])[0] == b'[{"x":[' + written + b"]}]"


class Moment(datetime):
    """As pandas, pendulum and freezegun have their own."""


class Share(float):
    """A number of another kind."""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Moment(2026, 1, 1), b'"2026-01-01T00:00:00"'),
        (Moment(2026, 1, 1, 2, 30, 0, 5, tzinfo=timezone(timedelta(hours=1))), b'"2026-01-01T02:30:00.000005+01:00"'),
        (pd.Timestamp("2026-01-01", tz="Europe/Berlin"), b'"2026-01-01T00:00:00+01:00"'),
        (pd.Timestamp("2026-01-01 00:00:00.123456789"), b'"2026-01-01T00:00:00.123456"'),
        (np.timedelta64(3_000_000_000, "ns"), b'"P0DT3S"'),
        (np.timedelta64(3, "s"), b'"P0DT3S"'),
        (np.array([1_500_000_000], "m8[ns]"), b'["P0DT1.5S"]'),
        (type("Day", (date,), {})(2026, 1, 1), b'"2026-01-01"'),
        (type("Hour", (time,), {})(1, 2), b'"01:02:00"'),
        (Share(1.5), b"1.5"),
    ],
)
def test_times_and_numbers_of_other_kinds_are_written_as_all_are(value: object, written: bytes) -> None:
    """With a space instead of the T, which Spark takes for a bad body; a number as text."""
    assert body_of({"v": value}) == (b'{"v":' + written + b"}", "application/json")


UNITS: tuple[Any, ...] = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")


def without_unit(value: object, kind: str) -> Any:
    """A time or duration as NumPy has them without a unit, for as long as it has them: it warns since 2.5."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return np.array(value, kind)[()]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"when": [pd.NaT]}, "NaT at /when/0 is no time; None becomes null$"),
        *[({"v": np.datetime64("NaT", unit)}, "NaT at /v is no time; None becomes null$") for unit in UNITS],
        ({"v": without_unit("NaT", "M8")}, "NaT at /v is no time; None becomes null$"),
        ({"v": pd.Series([pd.NaT, pd.Timestamp(0)]).to_numpy()}, "NaT at /v/0 is no time; None becomes null$"),
        ({"v": np.timedelta64("NaT", "ns")}, "NaT at /v is no time; None becomes null$"),
        (np.array([["2026-01-01", "NaT"]], "M8[D]"), "NaT at /0/1 is no time; None becomes null$"),
        ({"v": np.array([5, "NaT"], "m8[s]")}, "NaT at /v/1 is no time; None becomes null$"),
        ({"v": [np.timedelta64(3, "M")]}, "3 months at /v/0 is no time; None becomes null$"),
        ({"v": without_unit(3, "m8")}, "3 of no unit at /v is no time; None becomes null$"),
        ({"v": Share("nan")}, "nan at /v is none of its numbers; None becomes null$"),
        ({"a": {Moment(2026, 1, 1): 1}}, r"the key Moment\(2026, 1, 1, 0, 0\) at /a is a Moment, not a text$"),
    ],
)
def test_and_none_of_those_is_refused(body: object, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        body_of(body)
