"""Filters asked together, and filters over Arrow batches, give the answers of each filter alone."""

from __future__ import annotations

import json
import time
from functools import partial
from itertools import accumulate, cycle
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from choices import examples
from penstock import expr
from penstock.expr import scan
from penstock.expr.context import HandOver, meter
from penstock.expr.scan import Scan
from penstock.records.compute import compute
from penstock.records.entries import Topic
from penstock.records.properties import Properties, encode
from penstock.records.schema import COLUMNS
from property.test_expr import RECORDS, TREES, spell

HEADERS = [
    encode(Properties(headers=headers, type=kind))
    for headers in (None, {"x": 1}, {"x": "a"}, {"x": [1, "b"], "y": True})
    for kind in (None, "a")
]
TOPICS = [(None, "a"), (None, "orders"), (7, "a")]
SIMPLE = st.one_of(
    st.sampled_from(
        [
            "/a = 'ab'", "'é' = /a", "/a = 2", "/a = 12", "/a = '2'", "/a IN ('a', 'b', 2)", "/a IN ('zebra', NULL)",
            "/a = 2.0", "/a = TRUE", "/a/b = 'a'", "/a[1] = 'b'", "/b = 10 AND /a = 'ab'", "/a = 'a' AND /c > 1",
            "/a LIKE 'zeb'", "/a LIKE '^z.*a$'", "/a LIKE '1e'", "/a BEGINS WITH ('zeb', 'ab')", "/b ENDS WITH ('bra')",
            "/a LIKE '\\\\\\\\'", "/@headers/x = 1", "/@headers/x = 'b' AND /a = 'b'", "/@properties/type = 'a'",
            "TOPIC_NAME() = 'a'", "TOPIC_NAME() = 'ex/a' OR /a = 'b'", "/@headers/y AND /b = 'zebra'", "/a IS NULL",
            "/a = '\U0001f600'", "/a = '\uffff'", "MESSAGE_SIZE() > 20 AND /a = 'ab'", "TRUE", "/a = NULL", "1 = 2",
            "/a = 1.5", "/a = -1.5", "/a IN (0.25, 'ab', -0.5)", "/a IN (12, 12.75)", "/a = 1234567.8901", "/a = 1e-7",
            "/a = 100000", "/a = -1", "/a = ''", "BOOKMARK() IS NULL AND /c = 'ab'", "LAST_UPDATED() > 3",
        ]
    ),
    TREES.map(spell),
)  # fmt: skip
SPELLINGS = st.sampled_from(
    [
        b'{"a":1.2e1}', b'{"a":12.0}', b'{"a":0.12E+2}', b'{"a":11.9999999999999999999}', b'{"a":"12"}', b'{"a":1e5}',
        b'{"a":"\\u0061b"}', b'{"a":"a\\u0062","b":10}', b'{"a":"\\ud83d\\ude00"}', b'{"\\u0061":"ab"}', b'{"a":"+2"}',
        b'{"a":"\\\\"}', b'{"a":-1}', b'{"a":-1.0}', b'{"a":0.1e1, "b":"zebra"}', b'{"a":["x",["ab",2]]}', b"[]", b"",
        b'[{"a":"ab"},{"a":"b"}]', b"ab", b"\xff\xfe ab", b'{"a":"ab"', b'{"a":null}', b'{"a":""}', b'{"a":{"b":"a"}}',
        b'{"a":-1.50}', b'{"a":"-01.5"}', b'{"a":"+1.5"}', b'{"a":15e-1}', b'{"a":1.49999999999999999999}',
        b'{"a":".25"}',
        b'{"a":-0.5}', b'{"a":"-.50"}', b'{"a":-0.49999999999999999999}', b'{"a":12.75}', b'{"a":1234567.8901}',
        b'{"a":"0.2500000000000000000001"}', b'{"a":[1.5]}', b'{"a":1.50000000000000000001}', b'{"a":0.0000001}',
        b'{"a":"2e0"}', b'{"a":1e400}', b'{"a":"\xc3\xa9"}', b'{"a":"\xe9"}', b'{"a":1E1}', b'{"a":10.00,"b":1e1}',
    ]
)  # fmt: skip
BODIES = st.one_of(
    RECORDS.map(lambda record: json.dumps(record).encode()),
    RECORDS.map(lambda record: json.dumps(record, ensure_ascii=False).encode()),
    SPELLINGS,
    st.binary(max_size=12),
)
MESSAGES = st.lists(st.tuples(BODIES, st.sampled_from(HEADERS), st.sampled_from(TOPICS)), min_size=1, max_size=12)


def topics_of(vias: list[int | None] | None, names: list[str]) -> list[Topic]:
    return [
        Topic("/", "ex" if via else "", name)
        for via, name in zip(vias or [None] * len(names), names, strict=True)
    ]  # fmt: skip


def batch_of(messages: list[tuple[bytes, bytes, tuple[int | None, str]]]) -> pa.RecordBatch:
    n = len(messages)
    columns: dict[str, list[object]] = {name: [None] * n for name in COLUMNS.names}
    columns["lsn"] = [100 + 2 * row for row in range(n)]
    columns["kind"] = [1] * n
    columns["time"] = list(range(0, 1_000_000 * n, 1_000_000))
    columns["body"] = [body for body, _, _ in messages]
    columns["properties"] = [header for _, header, _ in messages]
    columns["via"] = [via for _, _, (via, _) in messages]
    columns["name"] = [name for _, _, (_, name) in messages]
    return pa.RecordBatch.from_pydict(columns, schema=COLUMNS)


def compiled(texts: list[str]) -> list[expr.Filter]:
    try:
        return [expr.compile_filter(text) for text in texts]
    except expr.ExpressionError:
        assume(False)
        raise


def alone(filters: list[expr.Filter], messages: list[tuple[bytes, bytes, tuple[int | None, str]]]) -> list[list[int]]:
    """By filter the rows that it matches, one evaluation each."""
    topics = [topics_of([via], [name])[0] for _, _, (via, name) in messages]
    times = [1_000_000 * row for row in range(len(messages))]
    lsns = [100 + 2 * row for row in range(len(messages))]
    return [
        [
            row
            for row, yes in enumerate(
                one.matches(
                    [body for body, _, _ in messages], [h for _, h, _ in messages], topics, lsns=lsns, times=times
                )
            )
            if yes
        ]
        for one in filters
    ]


@settings(max_examples=examples(400, 6))
@given(texts=st.lists(SIMPLE, min_size=1, max_size=12), messages=MESSAGES, gone=st.sets(st.integers(0, 11)))
def test_filters_asked_together_answer_as_each_alone(
    texts: list[str], messages: list[tuple[bytes, bytes, tuple[int | None, str]]], gone: set[int]
) -> None:
    filters = compiled(texts)
    together = expr.FilterSet()
    slots = [together.add(one) for one in [*filters, *filters]]
    for place, slot in enumerate(slots):
        if place >= len(filters) or place in gone:
            together.remove(slot)
    kept = {slot: place for place, slot in enumerate(slots[: len(filters)]) if place not in gone}
    topics = [topics_of([via], [name])[0] for _, _, (via, name) in messages]
    found = together.matches(
        [body for body, _, _ in messages],
        [header for _, header, _ in messages],
        topics,
        lsns=[100 + 2 * row for row in range(len(messages))],
        times=[1_000_000 * row for row in range(len(messages))],
    )
    expected = alone(filters, messages)
    assert {kept[slot]: rows for slot, rows in found.items()} == {
        place: expected[place] for place in kept.values() if expected[place]
    }
    assert len(together) == len(kept)


@settings(max_examples=examples(400, 6))
@given(
    texts=st.lists(SIMPLE, min_size=1, max_size=12), messages=MESSAGES, start=st.integers(0, 3),
    some=st.none() | st.sets(st.integers(0, 11)), trial=st.sampled_from((1, 5, 1 << 14)),
    costs=st.lists(st.integers(0, 9), min_size=4, max_size=4),
)  # fmt: skip
def test_a_scan_finds_what_the_filter_matches_in_whichever_way_it_looks(
    texts: list[str], messages: list[tuple[bytes, bytes, tuple[int | None, str]]], start: int, some: set[int] | None,
    trial: int, costs: list[int],
) -> None:  # fmt: skip

    filters = compiled(texts)
    batch = batch_of(messages).slice(min(start, len(messages) - 1))
    first = len(messages) - batch.num_rows
    rows = None if some is None else np.array(sorted(row for row in some if row < batch.num_rows), np.int64)
    looked = range(batch.num_rows) if rows is None else rows.tolist()
    expected = [[100 + 2 * row for row in answer if row - first in looked] for answer in alone(filters, messages)]
    with patch.object(scan, "TRIAL_BYTES", trial):
        one = Scan(filters, topics_of, partial(next, accumulate(cycle(costs))))
        for _ in range(2):  # the second time it may know which way is the better one
            assert one.run(batch, rows) == (expected, [])


def test_a_scan_of_many_filters_is_not_sieved_for_more_than_the_evaluation_costs(monkeypatch: Any) -> None:
    spent = [0]
    passes = list[bytes]()

    def substring(bodies: Any, *, pattern: bytes) -> Any:
        spent[0] += sum(len(body.as_py()) for body in bodies)
        passes.append(pattern)
        return contained(bodies, pattern=pattern)

    def evaluated(self: expr.FilterSet, bodies: list[bytes], *others: Any, **more: Any) -> Any:
        spent[0] += 2 * sum(map(len, bodies))
        return matches(self, bodies, *others, **more)

    contained, matches = compute.match_substring, expr.FilterSet.matches
    monkeypatch.setattr(compute, "match_substring", substring)
    monkeypatch.setattr(expr.FilterSet, "matches", evaluated)
    messages = [(b'{"a":"%s","pad":"%s"}' % (b"zebra%d" % (n % 60), b"x" * 1000), HEADERS[0], TOPICS[0])
                for n in range(300)]  # fmt: skip
    for filters in (1, 50):
        passes.clear()
        one = Scan(compiled([f"/a = 'zebra{n}'" for n in range(filters)]), topics_of, lambda: spent[0])
        found, _ = one.run(batch_of(messages))
        assert found == [[100 + 2 * row for row in range(n, 300, 60)] for n in range(filters)]
        tried = len(passes)
        assert passes
        assert one.run(batch_of(messages))[0] == found
        assert (len(passes) > tried) == (filters == 1), f"{filters} filters"


def test_large_bodies_are_named_instead_of_evaluated() -> None:
    messages = [(body, HEADERS[0], TOPICS[0]) for body in (b'{"a":"ab"}', b'{"a":"ab","x":"' + b"y" * 500 + b'"}')]
    found, large = Scan(compiled(["/a = 'ab'"]), topics_of, lambda: 0, body_most=100).run(batch_of(messages))
    assert (found, large) == ([[100]], [102])


def test_a_cheap_filter_on_a_huge_array_is_handed_over() -> None:
    body = b'{"a":[' + b",".join(b"%d" % i for i in range(30_000)) + b"]}"
    one = expr.compile_filter("/a = 29999")
    together = expr.FilterSet([one, expr.compile_filter("/a = 5 OR /b = 5")])
    with meter.bounded(), pytest.raises(HandOver):
        together.matches([body], HEADERS[0], Topic("/", "", "a"))
    assert one.matches([body]) == [True]
    assert together.matches([body], HEADERS[0], Topic("/", "", "a")) == {0: [0], 1: [0]}


@pytest.mark.parametrize(
    "asked",
    ["/a LIKE '([ab]{1,100}[ab]{1,100}){10}c'", "REGEXP_MATCH(/a, '(a|b)*a(a|b){900}c')",
     "REGEXP_REPLACE(/a, '[ab]{1,900}c|a', '') = 'x'", "REGEXP_REPLACE(/a, '[ab]*c|a', '') = 'x'"],
)  # fmt: skip
def test_a_pattern_that_takes_long_is_handed_over_before_it_does(asked: str) -> None:
    """Without an automaton RE2 takes so many steps for a byte as a pattern has positions: seconds for 100 KB."""
    one, body = expr.compile_filter(asked), json.dumps({"a": "ab" * 30_000}).encode()
    together, began = expr.FilterSet([one]), time.thread_time()
    with meter.bounded(), pytest.raises(HandOver):
        together.matches([body], HEADERS[0], Topic("/", "", "a"))
    assert time.thread_time() - began < 0.5
    with meter.bounded():
        assert together.matches([b'{"a":"abab"}'], HEADERS[0], Topic("/", "", "a")) == {}


def test_patterns_that_people_have_stay() -> None:
    body = json.dumps({"at": "2026-11-23T04:05:06Z", "mail": "a" * 60_000 + "@b.example", "id": "x" * 36}).encode()
    asked = [
        r"/at LIKE r'^\d{4}-\d{2}-\d{2}T'", r"/mail LIKE r'^[\w.+-]{1,64}@[a-z.]+$'",
        "/id LIKE '^[0-9a-f]{8}-[0-9a-f]{4}'", "/mail LIKE 'one|two|three|four|five'",
    ]  # fmt: skip
    with meter.bounded():
        assert expr.FilterSet(compiled(asked)).matches([body], HEADERS[0], Topic("/", "", "a")) == {0: [0]}
