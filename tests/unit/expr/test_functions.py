"""Limits of functions; what each does is in `tests/expr_cases.py`."""

from __future__ import annotations

from penstock import expr
from penstock.expr.numbers import CRC64_TEXT_LIMIT
from penstock.expr.values import TEXT_LIMIT


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
