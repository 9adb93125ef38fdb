"""Bodies without fields, large arrays, long lists, limits of functions; the rest is in `tests/expr_cases.py`."""

from __future__ import annotations

import orjson
import pytest

from expr_cases import MESSAGE
from penstock import expr
from penstock.expr.numbers import CRC64_TEXT_LIMIT
from penstock.expr.values import TEXT_LIMIT


def one(text: str, body: bytes = MESSAGE) -> object:
    value = expr.evaluate(text, [body])[0]
    matched = expr.compile_filter(text).matches([body])[0]
    assert matched is (isinstance(value, bool | int | float) and value == value and value != 0)
    inverted = expr.compile_filter(f"NOT ({text})").matches([body])[0]
    assert inverted is (isinstance(value, bool | int | float) and value == 0)
    return value


def test_a_body_that_is_an_array_flattens_too() -> None:
    body = b'[{"x":1,"y":"a"},{"x":[2,3]},7]'
    assert expr.evaluate("/x = 3 AND /x = 1 AND /y = 'a'", [body]) == [True]
    assert expr.evaluate("/x[2]", [body]) == [3]


@pytest.mark.parametrize("body", [b"", b"not json", b'{"a":', b"\xff", b"12", b'"text"', b"null", b"[" * 2000])
def test_a_body_without_fields(body: bytes) -> None:
    assert expr.evaluate("/a", [body]) == [None]
    assert expr.compile_filter("/a = 1 OR NOT /a = 1").matches([body]) == [False]
    assert expr.compile_filter("/a IS NULL").matches([body]) == [True]


def test_the_last_of_duplicate_keys_wins() -> None:
    assert expr.evaluate("/a", [b'{"a":1,"a":2}']) == [2]


def test_many_bodies_at_once() -> None:
    bodies = [b'{"total": %d, "region": "%c"}' % (at, b"nsew"[at % 4]) for at in range(20)]
    found = expr.compile_filter("/total > 5 AND /region IN ('n','s')").matches(bodies)
    assert found == [at > 5 and at % 4 < 2 for at in range(20)]
    assert expr.compile_filter("/total > 5").matches([]) == []


def test_long_alternatives_are_no_deep_tree() -> None:
    text = " OR ".join(f"/a = {at}" for at in range(100, 1000)) + " OR /a = 8"
    assert one(text) is True
    listed = ",".join(map(str, range(100, 3900)))
    assert one(f"/a IN ({listed})") is False


def test_what_arrays_may_cost_is_bounded() -> None:
    body = orjson.dumps({"a": list(range(20_000)), "b": 1})
    few = " OR ".join(["/a < 0"] * 5)
    many = " OR ".join(["/a < 0"] * 500)
    assert expr.compile_filter(f"NOT ({few}) AND /b = 1").matches([body, b'{"b":1}']) == [True, False]
    assert expr.evaluate(f"/b = 1 OR {many}", [body, b'{"b":1}']) == [None, True]
    assert expr.compile_filter(f"{many} OR /b = 1").matches([body, b'{"b":1}']) == [False, True]
    assert expr.compile_filter(f"/b = 1 OR {many}").matches([body, b'{"b":1}']) == [True, True]
    assert expr.evaluate(" OR ".join(["/a LIKE 'x'"] * 100), [body]) == [None]


def test_arrays_of_a_hundred_thousand_compare_in_linear_time() -> None:
    body = orjson.dumps({"a": list(range(100_000)), "b": list(range(200_000, 300_000)), "s": ["x"] * 100_000})
    assert expr.evaluate("/a = /b OR /a > /b OR /a = /s", [body]) == [False]
    assert expr.evaluate("/a != /b AND /a < /s", [body]) == [True]


@pytest.mark.parametrize(
    ("a", "b"), [("[2,'2.0']", "[2,'2']"), ("[2,2.0]", "[2]"), ("['2']", "[2]"), ("['x']", "[2]"), ("['2','3']", "[2]")]
)
def test_not_equal_on_arrays_is_some_pair_that_differs(a: str, b: str) -> None:
    body = f'{{"a":{a},"b":{b}}}'.replace("'", '"').encode()
    pairs = [(x, y) for x in eval(a) for y in eval(b)]  # the literals above
    differ = [expr.evaluate(f"{x!r} != {y!r}", [b""])[0] for x, y in pairs]
    assert expr.evaluate("/a != /b", [body]) == [True in differ]


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


def test_crc64_ends_at_its_limit() -> None:
    bodies = [b'{"s":"' + b"x" * size + b'"}' for size in (CRC64_TEXT_LIMIT, CRC64_TEXT_LIMIT + 1)]
    found = expr.evaluate("CRC64(/s)", bodies)
    assert isinstance(found[0], int)
    assert found[1] is None
