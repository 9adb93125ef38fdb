"""Filters and values over batches: headers, topics, positions, sharing; topic patterns."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from penstock import expr
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY, Properties, encode

HEADER = encode(
    Properties(
        content_type="application/json",
        headers={
            "region": "EU",
            "retries": 3,
            "rate": 0.5,
            "flag": True,
            "raw": b"\xff\x00",
            "nested": {"level": 7, "list": [1, "two", {"x": 5}]},
            "nothing": None,
        },
        priority=5,
        correlation_id="c-1",
        timestamp=1_700_000_000,
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/@headers/region", "EU"),
        ("/@headers/region = 'EU' AND /@headers/retries > 2", True),
        ("/@headers/rate", 0.5),
        ("/@headers/flag", True),
        ("/@headers/raw = '\\xff\\x00'", True),
        ("/@headers/nested/level", 7),
        ("/@headers/nested/list = 'two'", True),
        ("/@headers/nested/list/x", 5),
        ("/@headers/nothing IS NULL", True),
        ("/@headers/absent IS NULL", True),
        ("[/@headers/region]", "EU"),
        ("/@properties/content_type", "application/json"),
        ("/@properties/priority * 2", 10),
        ("/@properties/timestamp", 1_700_000_000),
        ("/@properties/user_id IS NULL", True),
        ("CORRELATION_ID()", "c-1"),
        ("MESSAGE_SIZE()", 7),
        ("/a + /@headers/retries", 4),
    ],
)
def test_header(text: str, expected: object) -> None:
    assert expr.evaluate(text, [b'{"a":1}'], properties=HEADER) == [expected]
    assert expr.evaluate(text, [b'{"a":1}'] * 3, properties=[HEADER] * 3) == [expected] * 3


@pytest.mark.parametrize("header", [EMPTY, b"", b"\xff\xff", b"\x20\x00\x00\x00\x00\x05ab"])
def test_a_header_without_fields(header: bytes) -> None:
    found = expr.evaluate(
        "/@headers/x IS NULL AND /@properties/type IS NULL AND CORRELATION_ID() IS NULL", [b""], properties=header
    )
    assert found == [True]


def test_one_header_or_one_a_row() -> None:
    other = encode(Properties(headers={"region": "US"}))
    chosen = expr.compile_filter("/@headers/region = 'EU'")
    assert chosen.matches([b"", b"", b""], [HEADER, other, HEADER]) == [True, False, True]
    assert chosen.matches([b"", b"", b""], HEADER) == [True] * 3
    assert not chosen.needs_body
    assert expr.compile_filter("/a = 1").needs_body


def test_topic_position_and_time() -> None:
    a, b = Topic("/", "", "orders.eu"), Topic("/", "events", "created")
    assert expr.evaluate("TOPIC_NAME()", [b"", b""], topics=[a, b]) == ["orders.eu", "events/created"]
    assert expr.compile_filter("TOPIC_NAME() BEGINS WITH ('orders')").matches([b"", b""], EMPTY, a) == [True, True]
    assert expr.evaluate("TOPIC_NAME()", [b""]) == [None]
    assert expr.evaluate("BOOKMARK()", [b"", b""], lsns=[7, 8], origin=42) == ["42|7|", "42|8|"]
    assert expr.evaluate("BOOKMARK()", [b""], lsns=[7]) == [None]
    assert expr.evaluate("LAST_UPDATED()", [b"", b""], times=[1_500_000, 2_000_000]) == [1.5, 2.0]
    assert expr.evaluate("LAST_UPDATED()", [b"", b""], times=1_500_000) == [1.5, 1.5]
    assert expr.evaluate("UNIX_TIMESTAMP() - LAST_UPDATED()", [b""], times=[1_500_000], now=4_500_000) == [3.0]


def test_the_system_clock_answers_when_no_instant_is_given() -> None:
    found = expr.evaluate("UNIX_TIMESTAMP()", [b"", b""])
    assert found[0] == found[1]
    assert isinstance(found[0], float)


def test_determinism() -> None:
    assert expr.compile_filter("/a > 1 AND TOPIC_NAME() = 'x'").deterministic
    assert not expr.compile_filter("/a > 1 OR ABS(UNIX_TIMESTAMP()) > 5").deterministic


def test_cost() -> None:
    assert expr.compile_filter("/a > 1").cost == 2
    assert expr.compile_filter("/a/b IN (1, 2, 3) OR UPPER(/a) LIKE 'x'").cost == 5 + 1 + 1 + 10 + 1 + 10


def test_equal_texts_share_one_filter() -> None:
    assert expr.compile_filter("/a = 77") is expr.compile_filter("/a = 77")
    assert expr.compile_filter("/a = 77").text == "/a = 77"
    assert repr(expr.compile_filter("/a = 77")) == "Filter('/a = 77')"
    assert "def run" in expr.compile_filter("/a = 77").source


def test_trees_of_equal_meaning_are_equal() -> None:
    assert expr.parse("/a == 1 and /b <> 2") == expr.parse("/a = 1 AND  (/b != 2)")
    assert expr.parse("/a = 1") != expr.parse("/a = 2")


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("trade", "trade", True),
        ("trade", "trades", False),
        ("trade.info", "trade.info", True),
        ("trade.info", "trade-info", False),
        ("^trade", "trades", True),
        ("^trade", "my trade", False),
        ("orders.*", "my orders.eu", True),
        ("a|b", "xbx", True),
        (r"trade\.info$", "trade-info", False),
        ("(?i)^TRADE$", "trade", True),
    ],
)
def test_topic_patterns(text: str, name: str, expected: bool) -> None:
    pattern = expr.TopicPattern(text)
    assert pattern.matches(name) is expected
    assert pattern.literal is (text in ("trade", "trade.info"))


def test_a_topic_pattern_that_cannot_be_used() -> None:
    with pytest.raises(expr.PatternError, match="look-ahead"):
        expr.TopicPattern("^(?=a)")


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench_expr.py", "--fast"])
    runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "bench_expr.py"), run_name="__main__")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all({"machine", "what", "value"} <= line.keys() and line["value"] > 0 for line in lines)
    judged = {line["what"] for line in lines if "ratio" in line}
    assert judged >= {"filter, 5 predicates, python", "filter, 5 predicates, arrow"}
