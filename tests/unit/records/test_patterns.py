"""Strangers' regular expressions: one place says what is taken, so a settings file and a running server agree."""

from __future__ import annotations

import pytest

from penstock import expr
from penstock.errors import shown
from penstock.records.regular_expressions import PATTERN_LIMIT, PatternError, compile_pattern, topic_pattern
from penstock.wire.http.lists import BadQuery, name_search

LONG = "a" * PATTERN_LIMIT + "*"
GREEDY = "(?:" + "x{1000}" * 100 + ")"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(", "missing ): a("),
        ("(?=x)", "it uses look-ahead (?=...), which RE2 does not have"),
        (LONG, f"it has {len(LONG)} bytes, at most {PATTERN_LIMIT} are allowed"),
        (GREEDY, "pattern too large - compile failed"),
    ],
)
def test_what_one_door_refuses_all_refuse_for_the_same_reason(pattern: str, why: str) -> None:
    with pytest.raises(PatternError) as refused:
        compile_pattern(pattern)
    assert refused.value.why == why
    with pytest.raises(ValueError, match="is no RE2 pattern") as in_settings:
        topic_pattern(pattern)
    assert str(in_settings.value) == f"{pattern!r} is no RE2 pattern: {why}"
    with pytest.raises(BadQuery) as over_http:
        name_search(pattern)
    assert str(over_http.value) == f"name {shown(pattern)} is no regular expression that RE2 reads: {why}"
    with pytest.raises(expr.PatternError):
        expr.TopicPattern(pattern)


@pytest.mark.parametrize("name", ["größe", "a\udcffb", "plain"])
def test_names_of_any_bytes_are_searched(name: str) -> None:
    assert topic_pattern("^" + name + "$")(name)
    assert name_search("." + name[-1])(name)
    assert expr.TopicPattern("^" + name + "$").matches(name)
