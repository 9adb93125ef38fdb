"""Bodies as typed columns beside Spark's own `from_json`: the same values, but for differences that the page names.

Thousands of values in one job.  A body may be bad here and not there, and the other way round, only in the ways of
`STRICTER` and `MORE`, which the table in docs/spark.md tells.  `PENSTOCK_SEED` repeats the choices.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from choices import EFFORT, SEED
from json_cases import BAD, SIMPLE, TYPES, Cases, read
from penstock.spark.reading.bodies import BodyParser

BODIES = 75 if EFFORT == 1 else 150
"""For each type; `PENSTOCK_EFFORT` multiplies it."""

ARABIC_ONE = "\u0661"

NESTED = [
    "array<decimal(20,2)>", "array<struct<b:array<decimal(20,2)>,c:map<string,bigint>>>", "map<string,double>",
    "map<string,timestamp>", "struct<b:float,c:string>", "struct<b:bigint,c:string>", "array<date>", "array<binary>",
]  # fmt: skip

Difference = tuple[str, Callable[[str, Any], bool]]
"""Types that have it, and whether a body and what Spark makes of it are such a case."""

STRICTER: list[Difference] = [
    ("", lambda body, _: not _is_json(body)),  # NaN, single quotes, text behind the end, numbers beyond a double
    ("float|double", lambda _, theirs: _has_infinity(theirs)),
    ("tinyint", lambda _, theirs: theirs < 0),  # 128 to 255 come round
    ("decimal", lambda body, _: "1,234" in body or ARABIC_ONE in body or "\\u0661" in body),
    ("binary", lambda body, _: re.search(r'\\u00[01]| |\\t|=[^"]*=[^"=]', body) is not None),
    ("date", lambda body, _: True),
    ("timestamp", lambda body, _: True),
    ("string", lambda body, _: "[" * 200 in body),
]
MORE: list[Difference] = [
    ("", lambda body, _: "[" * 990 in body),  # from_json takes 1,000 levels, ours 1,024
    ("", lambda body, _: re.match(r'\{"a": .*, "a": ', body) is not None),  # an earlier one is unfit, the last is not
    ("tinyint|smallint|int|bigint", lambda body, _: re.search(r"[0-9](\.[0-9]|[eE])", body) is not None),
    ("timestamp", lambda body, _: True),
    ("decimal", lambda body, _: re.search(r"[eE]-[0-9]{3}", body) is not None),
]


def test_values_are_those_of_from_json(spark: Any, effort: int) -> None:
    from pyspark.sql import functions

    cases, names = Cases(SEED), [*SIMPLE, *NESTED]
    bodies = {name: _texts(cases, TYPES[name], BODIES * effort) for name in names}
    given = spark.createDataFrame(pa.table({f"b{place}": bodies[name] for place, name in enumerate(names)}))
    options = {"columnNameOfCorruptRecord": "_bad"}
    read = [functions.from_json(f"b{place}", f"a {name}, _bad string", options) for place, name in enumerate(names)]
    theirs = given.select(*(column.alias(f"b{place}") for place, column in enumerate(read))).toArrow()
    seen = 0
    for place, name in enumerate(names):
        parser = BodyParser(pa.schema([pa.field("a", TYPES[name])]), ["a"])
        columns, errors = parser.parse(pa.array([body.encode() for body in bodies[name]], pa.binary()))
        column, bad = theirs.column(place).combine_chunks().flatten()
        for row, (body, error) in enumerate(zip(bodies[name], errors, strict=True)):
            their = BAD if bad[row].is_valid else _value(column[row])
            seen += _agree(name, body, BAD if error is not None else columns["a"][row].as_py(), their)
    assert seen > len(names) * BODIES * effort // 3, "most bodies should have a value in both"


def _texts(cases: Cases, kind: Any, count: int) -> list[str]:
    """Bodies that are text, as `from_json` wants them."""
    found = list[str]()
    while len(found) < count:
        try:
            found.append(cases.body(kind).decode())
        except UnicodeDecodeError:
            continue
    return found


def _agree(name: str, body: str, mine: Any, theirs: Any) -> bool:
    """Whether both have a value.  AssertionError where they should not differ as they do."""
    told = f"{body[:300]!r} as {name} is {mine!r}, and of from_json {theirs!r}"
    if mine is BAD:
        assert theirs is BAD or theirs is None or _is_one_of(STRICTER, name, body, theirs), told
    elif theirs is BAD:
        assert _is_one_of(MORE, name, body, mine), told
    else:
        assert _same(mine, theirs), told
    return mine is not BAD and theirs is not BAD


def _is_one_of(differences: list[Difference], name: str, body: str, value: Any) -> bool:
    return any(re.search(rf"\b({kinds})", name) is not None and found(body, value) for kinds, found in differences)


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return "a time beyond Python's"


def _is_json(body: str) -> bool:
    try:
        read(body.encode())
    except (ValueError, RecursionError):
        return False
    return True


def _has_infinity(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_infinity, parts)) or (isinstance(value, float) and math.isinf(value))


def _same(mine: Any, theirs: Any) -> bool:
    """Texts of JSON values may be written in another way: a number in Java's, and with the digits of a double."""
    if isinstance(mine, str) and isinstance(theirs, str) and mine != theirs:
        return _same(json.loads(mine), json.loads(theirs))
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_same(mine[one], theirs[one]) for one in mine)
    if isinstance(mine, float) and isinstance(theirs, float):
        return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
    return bool(mine == theirs)


@pytest.mark.parametrize("text", ["1e39", "-3.5e38"])
def test_a_number_beyond_a_float_is_infinity_to_from_json_and_a_bad_body_here(spark: Any, text: str) -> None:
    from pyspark.sql import functions

    body = f'{{"a": {text}}}'
    [row] = spark.range(1).select(functions.from_json(functions.lit(body), "a float").alias("r")).collect()
    assert math.isinf(row.r.a)
    _, [error] = BodyParser(pa.schema([pa.field("a", pa.float32())]), ["a"]).parse(pa.array([body.encode()]))
    assert str(error).endswith("more than float holds")
