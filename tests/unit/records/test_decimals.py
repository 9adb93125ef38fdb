"""A decimal becomes text without an exponent, as SQL writes it, wherever it does; and is the same when it is read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli.messagefiles import writing
from penstock.cli.output import json_text, shown
from penstock.cli.topics import plain
from penstock.client.json_bodies import body_of
from penstock.client.outgoing import headers_of
from penstock.client.showing import cell
from penstock.records.compute import decimal_texts
from penstock.records.field_tables import as_json
from penstock.units import as_text

VALUES = {
    Decimal("0E-18"): "0." + "0" * 18,
    Decimal("-1.20E-7"): "-0.000000120",
    Decimal("1E+3"): "1000",
    Decimal("12.50"): "12.50",
    Decimal("NaN"): "NaN",
    Decimal("1E+1000000"): "1E+1000000",  # nobody wants so many digits
    Decimal("1E-1000000"): "1E-1000000",
    Decimal("7" * 100): "7" * 100,
}


@dataclass
class Price:
    amount: Decimal


def in_lines(value: Decimal) -> str:
    sink = io.BytesIO()
    with writing("jsonl", sink, "text") as writer:
        writer.write(pa.record_batch({"a": pa.array([value], pa.decimal128(38, 18))}))
    return str(json.loads(sink.getvalue())["a"])


WAYS: dict[str, Callable[[Decimal], Any]] = {
    "a body": lambda value: json.loads(body_of({"a": [value]})[0])["a"][0],
    "a dataclass": lambda value: json.loads(body_of(Price(value))[0])["amount"],
    "a header": lambda value: (headers_of({"a": value}) or [])[0][1],
    "a field of a table": lambda value: json.loads(as_json({"a": value}))["a"],
    "a command's JSON": lambda value: json.loads(json_text({"a": value}))["a"],
    "a notebook": cell,
    "a table of a command": shown,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_decimal_is_written_without_an_exponent(way: str) -> None:
    for value, text in VALUES.items():
        assert WAYS[way](value) == text


@pytest.mark.parametrize("scale", [0, 6, 7, 18, 37])
def test_a_column_of_decimals_is_written_so_too(scale: int) -> None:
    unit = Decimal(1).scaleb(-scale)
    given = [None, 0 * unit, unit, -unit, 7 * unit, 10**scale * unit, None, 9 * unit]
    for column in (pa.array(given, pa.decimal128(38, scale)), pa.array(given, pa.decimal256(76, scale)).slice(1, 5)):
        told = decimal_texts(column)
        assert told.type == pa.string()
        assert told.to_pylist() == [None if one is None else f"{one:f}" for one in column.to_pylist()]
        assert told.cast(column.type) == column, "and it is read as it was"
    assert decimal_texts(pa.array([], pa.decimal128(38, 18))).to_pylist() == []


def test_a_file_of_rows_has_them_so() -> None:
    assert in_lines(Decimal(0)) == "0." + "0" * 18
    batch = pa.record_batch({"a": pa.array([Decimal(0)], pa.decimal128(38, 18))})
    assert plain(batch).column("a").to_pylist() == ["0." + "0" * 18]


def test_what_is_larger_than_anybody_reads_keeps_its_exponent() -> None:
    assert as_text(Decimal("1E+400")) == "1" + 400 * "0"
    assert as_text(Decimal("1E+401")) == "1E+401"
