"""Functions, one line each: value, NULL, and the edges."""

from __future__ import annotations

import math

import pytest

from penstock import expr
from penstock.expr.functions import FUNCTIONS
from penstock.expr.values import TEXT_LIMIT

BODY = b'{"s":"fandango","l":["b","a",null,"c"],"n":[3,1,2],"m":null}'
NAN = float("nan")

CASES: list[tuple[str, object]] = [
    ("INSTR('hello', 'l')", 3),
    ("INSTR('hello', 'x')", 0),
    ("INSTR('hello', 'L')", 0),
    ("INSTR(/m, 'x')", None),
    ("INSTR('é!', '!')", 3),
    ("INSTR_I('hello', 'LL')", 3),
    ("STREQUAL_I('AbC', 'aBc')", 1),
    ("STREQUAL_I('AbC', 'abd')", 0),
    ("STREQUAL_I(/m, 'abd')", None),
    ("CONCAT('a', 1, 2.5, TRUE)", "a12.5true"),
    ("CONCAT('a', NULL, 'b')", "ab"),
    ("CONCAT(NULL)", None),
    ("CONCAT(CHAR_VALUE(195), CHAR_VALUE(169)) = 'é'", True),
    ("UPPER('aé')", "Aé"),
    ("LOWER('AÉ')", "aÉ"),
    ("REPLACE('banana', 'an', 'AN')", "bANANa"),
    ("REPLACE('banana', 'an', NULL)", "ba"),
    ("REPLACE('banana', NULL, 'x')", "banana"),
    ("REPLACE('a', 'a', '')", None),
    ("REGEXP_REPLACE('a1b22', r'[0-9]+', '#')", "a#b#"),
    (r"REGEXP_REPLACE('key=value', r'(\w+)=(\w+)', r'\2=\1')", "value=key"),
    ("REGEXP_REPLACE('abc', r'b', NULL)", "ac"),
    ("REGEXP_REPLACE('abc', r'', '-')", "-a-b-c-"),
    ("REGEXP_MATCH('abc', 'B')", False),
    ("REGEXP_MATCH('abc', '(?i)B')", True),
    ("SUBSTR('fandango', 5)", "ango"),
    ("SUBSTR('fandango', 1, 3)", "fan"),
    ("SUBSTR('fandango', 0, 3)", "fa"),
    ("SUBSTR('fandango', -5, 3)", None),
    ("SUBSTR('fandango', 9)", None),
    ("SUBSTR('fandango', 2.9, 1)", "a"),
    ("SUBSTR('aé', 2, 2) = 'é'", True),
    ("LEFT('fandango', 3)", "fan"),
    ("RIGHT('fandango', 3)", "ngo"),
    ("RIGHT('fandango', 0)", None),
    ("REVERSE('abc')", "cba"),
    ("TRIM(' a ')", "a"),
    ("CONCAT(LTRIM(' a '), RTRIM(' b '))", "a  b"),
    ("TRIM('  ')", None),
    ("CHAR_VALUE(65)", "A"),
    ("CHAR_VALUE(256)", None),
    ("CHAR_VALUE(-1)", None),
    ("CRC32('123456789')", 0xCBF43926),
    ("ARRAY_TO_STRING(/l, '-')", "b-a-c"),
    ("ARRAY_TO_STRING(/n)", "3,1,2"),
    ("ARRAY_MIN(/n)", 1),
    ("ARRAY_MAX(/l)", "c"),
    ("ARRAY_SUM(/n)", 6),
    ("ARRAY_SUM(/m)", None),
    ("COALESCE(/m, '', /l, 5)", "b"),
    ("COALESCE(/m)", None),
    ("IF(1 = 1, 'yes', 'no')", "yes"),
    ("IF(1 = 2, 'yes', 'no')", "no"),
    ("IF(NULL, 'yes', 'no')", "no"),
    ("IF('text', 'yes', 'no')", "no"),
    ("IF(/n = 2, SUBSTR(/s, 1, 1), NULL)", "f"),
    ("TRUE_VALUE()", True),
    ("FALSE_VALUE()", False),
    ("TRUE_VALUE() = 1", True),
    ("NAN_VALUE()", NAN),
    ("ABS(-3)", 3),
    ("ABS(-2.5)", 2.5),
    ("ABS('x')", NAN),
    ("ABS(NULL)", None),
    ("ROUND(2.5)", 3.0),
    ("ROUND(-2.5)", -3.0),
    ("ROUND(2.675, 2)", 2.68),
    ("ROUND(1234, -2)", 1200),
    ("ROUND(4, -2)", 0),
    ("ROUND(5)", 5),
    ("ROUND(1e300, 5)", 1e300),
    ("FLOOR(-1.5)", -2),
    ("CEILING(-1.5)", -1),
    ("FLOOR(1e300)", 1e300),
    ("SIGN(-0.5)", -1),
    ("SQRT(9)", 3.0),
    ("SQRT(-1)", NAN),
    ("POWER(2, 10)", 1024.0),
    ("POWER(0, -1)", NAN),
    ("POWER(10, 1000)", math.inf),
    ("POWER(-10, 1001)", -math.inf),
    ("EXP(0)", 1.0),
    ("EXP(10000)", math.inf),
    ("LOG2(8)", 3.0),
    ("LOG2(0)", NAN),
    ("SIN(0) + COS(0) + TAN(0) + ASIN(0) + ATAN(0) + ACOS(1)", 1.0),
    ("ATAN2(0, 1)", 0.0),
    ("GREATEST(1, 'x', NULL, 5)", "x"),
    ("LEAST(3, 1, NULL, 2)", 1),
    ("LEAST(NULL, NULL)", None),
    ("WIDTH_BUCKET(5.35, 0.024, 10.06, 5)", 3),
    ("WIDTH_BUCKET(-1, 0, 10, 5)", 0),
    ("WIDTH_BUCKET(10, 0, 10, 5)", 6),
    ("ROUND(GEO_DISTANCE(52.52, 13.405, 48.8566, 2.3522) / 1000)", 877.0),
    ("STRFTIME('%Y-%m-%dT%H:%M:%S', 0)", "1970-01-01T00:00:00"),
    ("STRFTIME('%H:%M:%S.%03f|%f', 1.234567)", "00:00:01.234|234567"),
    ("STRFTIME('%Q', 0)", None),
    ("STRFTIME('%Y', 1e30)", None),
    ("STRFTIME('%Y', NAN_VALUE())", None),
    ("STRFTIME('%A%A%A%A%A%A%A%A%A%A%A%A%A%A%A%A%A%A%A%A', 0) = ''", None),
    ("STRPTIME('1970-01-02', '%Y-%m-%d')", 86400.0),
    ("STRPTIME('1970-01-01 01:00 +0100', '%Y-%m-%d %H:%M %z')", 0.0),
    ("STRPTIME('00:00:01.250', '%H:%M:%S.%03f') - STRPTIME('00:00:01', '%H:%M:%S')", 0.25),
    ("STRPTIME('tomorrow', '%Y-%m-%d')", None),
    ("STRPTIME('1 1', '%d %d')", None),
    ("STRPTIME('x', '%')", None),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_functions(text: str, expected: object) -> None:
    found = expr.evaluate(text, [BODY])[0]
    if isinstance(expected, float) and math.isnan(expected):
        assert isinstance(found, float)
        assert math.isnan(found)
    else:
        assert type(found) is type(expected)
        assert found == expected


def test_every_function_has_a_case() -> None:
    elsewhere = {"MESSAGE_SIZE", "CORRELATION_ID", "LAST_UPDATED", "BOOKMARK", "TOPIC_NAME", "UNIX_TIMESTAMP"}
    written = " ".join(text for text, _ in CASES)
    assert [name for name in FUNCTIONS if f"{name}(" not in written and name not in elsewhere] == []


def test_a_formatted_time_is_cut_at_128_bytes() -> None:
    assert len(str(expr.evaluate(f"STRFTIME('{'%A' * 60}', 0)", [b""])[0])) == 128


def test_texts_do_not_grow_without_bound() -> None:
    body = b'{"s":"' + b"x" * 1000 + b'"}'
    assert expr.evaluate("REPLACE(REPLACE(REPLACE(/s, 'x', /s), 'x', /s), 'x', /s)", [body]) == [None]
    assert expr.evaluate("REGEXP_REPLACE(/s, 'x', /s)", [body]) == ["x" * 1_000_000]
    assert expr.evaluate("REGEXP_REPLACE(CONCAT(/s, 'x'), 'x', 'y')", [body]) == [None]
    assert expr.evaluate("REGEXP_REPLACE(REPLACE(/s, 'x', /s), '^x', 'y')", [body]) == [None]
    doubled = "/s"
    for _ in range(20):
        doubled = f"CONCAT({doubled}, {doubled})" if len(doubled) < 600 else doubled
    found = expr.evaluate(doubled, [body])[0]
    assert found is None or len(str(found)) <= TEXT_LIMIT
