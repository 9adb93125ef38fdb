"""Arrow agrees with Python on random trees and batches, and the shapes of bodies never lose a match."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock import expr
from penstock.expr import row_selection as selecting
from penstock.expr.batches import batch_of
from penstock.expr.functions import FUNCTIONS
from penstock.expr.row_selection import shapes_of
from penstock.records.properties import EMPTY
from property.test_expr import NAMES, NUMBERS, RECORDS, SCALARS, TEXTS, TREES, comparable, spell

KINDS = st.sampled_from(
    [
        st.integers(-5, 12),
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from([0.0, -0.0, 0.5, 2.0, -1.5, 1e300, 2.0**53, 10.0]),
        st.booleans(),
        TEXTS,
        st.one_of(st.none(), TEXTS),
        st.one_of(st.none(), st.integers(0, 3)),
        NUMBERS,
        SCALARS,
    ]
)


@st.composite
def columns(draw: st.DrawFn) -> list[dict[str, object]]:
    """Records whose fields are of one kind each, as they are in life."""
    count = draw(st.integers(1, 6))
    held = {name: draw(st.lists(draw(KINDS), min_size=count, max_size=count)) for name in NAMES}
    return [{name: held[name][at] for name in NAMES} for at in range(count)]


@settings(max_examples=examples(200))
@given(tree=TREES, records=st.one_of(columns(), st.lists(RECORDS, min_size=1, max_size=4)))
def test_arrow_equals_python(tree: tuple[object, ...], records: list[dict[str, object]]) -> None:
    text = spell(tree)
    bodies = [json.dumps(record).encode() for record in records]
    expected = list(map(comparable, expr.evaluate(text, bodies)))
    assert list(map(comparable, expr.evaluate(text, bodies, "arrow"))) == expected
    batch = batch_of(bodies, EMPTY, None, None, None)
    assert expr.compile_filter(text).on_batch(batch).to_pylist() == expr.compile_filter(text).matches(bodies)
    mixed = f"MESSAGE_SIZE() > 20 AND ({text})"
    assert expr.compile_filter(mixed).on_batch(batch).to_pylist() == expr.compile_filter(mixed).matches(bodies)


LEAVES = st.one_of(
    st.sampled_from(
        ["/a", "/b", "/c", "/a[0]", "/b[1]", "NULL", "TRUE", "0", "2", "-1.5", "1e300", "9223372036854775807"]
    ),
    st.sampled_from(["'a'", "'ab'", "'é'", "'2'", "'-'", "'%Y-%m-%d'", "'\\xff'", "BOOKMARK()", "LAST_UPDATED()"]),
)


@st.composite
def calls(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """A call of any function whose answer is the same a moment later."""
    function = FUNCTIONS[draw(st.sampled_from(sorted(set(FUNCTIONS) - {"UNIX_TIMESTAMP"})))]
    most = function.least + 2 if function.most is None else function.most
    count = draw(st.integers(function.least, most))
    patterns = st.sampled_from(["r'[0-9]+'", "'a'", "r'(.)b'", "'^2$'"])
    arguments = [draw(patterns if at in function.patterns else inner) for at in range(count)]
    return f"{function.name}({', '.join(arguments)})"


CALLS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        calls(inner),
        calls(LEAVES),
        st.tuples(inner, st.sampled_from(["=", "!=", "<", ">=", "+", "-", "*", "/", "%", "AND", "OR"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda one: f"({one} LIKE 'a')"),
        inner.map(lambda one: f"({one} BEGINS WITH ('a', '2'))"),
        inner.map(lambda one: f"({one} IN (2, 'a', /b))"),
        inner.map(lambda one: f"({one} IS NOT NULL)"),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(300))
@given(text=CALLS, records=st.one_of(columns(), st.lists(RECORDS, min_size=1, max_size=4)))
def test_arrow_equals_python_in_calls_of_every_function(text: str, records: list[dict[str, object]]) -> None:
    bodies = [json.dumps(record).encode() for record in records]
    rows = range(len(bodies))
    times = [1_000_000 * row for row in rows]

    def found(backend: str) -> list[object]:
        values = expr.evaluate(text, bodies, backend, lsns=list(rows), times=times, origin=7)
        return list(map(comparable, values))

    assert found("arrow") == found("python")
    batch = batch_of(bodies, EMPTY, None, list(rows), times)
    chosen = expr.compile_filter(text, expr.EVERYTHING)
    assert chosen.on_batch(batch, origin=7).to_pylist() == chosen.matches(
        bodies, lsns=list(rows), times=times, origin=7
    )


VALUES = st.one_of(
    st.sampled_from(
        [
            "paid",
            "unpaid",
            "é",
            'a"b',
            "a\\b",
            "500",
            "5e2",
            500,
            499,
            4,
            5,
            50,
            51,
            499.5,
            500.5,
            5e2,
            4999,
            12345,
            -600,
        ]
    ),
    st.sampled_from([True, None, 1e300, 0.1, 499.99999999999999, 7000]),
)
FIELDS = st.one_of(VALUES, st.lists(VALUES, max_size=3), st.lists(st.lists(VALUES, max_size=2), max_size=2))
CONDITIONS = st.one_of(
    st.tuples(
        st.sampled_from(["/s", "/t/s", "/s[1]", "/t/s[0]", "/t"]),
        st.sampled_from(["=", ">", ">=", "<", "<="]),
        st.sampled_from(["'paid'", "'é'", "'a\"b'", "500", "5", "50.5", "499.5", "2", "4", "'500'", "1", "-600"]),
    ).map(lambda parts: " ".join(parts if parts[2][0] != "-" or parts[1] == "=" else (parts[0], "=", "500"))),
    st.sampled_from(["/s IN ('paid', 'é')", "/t/s IN (500, 4)", "/s LIKE 'pai'", "/s LIKE '^un.*d$'", "500 < /s"]),
    st.sampled_from(["/s BEGINS WITH ('pa', 'un')", "/t/s ENDS WITH ('id')", "/s IN ('paid', 500)", "5 <= /t/s"]),
)


@st.composite
def spellings(draw: st.DrawFn) -> bytes:
    """A body with blanks, escapes and odd spellings of numbers."""
    body: object = draw(
        st.fixed_dictionaries({}, optional={"s": FIELDS, "t": st.one_of(FIELDS, st.fixed_dictionaries({"s": FIELDS}))})
    )
    if draw(st.booleans()):
        body = [body, {"t": [{"s": draw(FIELDS)}, {"s": draw(FIELDS)}]}]
    blank = draw(st.sampled_from(["", " ", "\n\t"]))
    text = json.dumps(body, ensure_ascii=draw(st.booleans()), separators=(f"{blank},", f"{blank}:{blank}"))
    for old, new in (("500", "5.0e2"), ("500", "499.99999999999999999999"), ('"s"', '"\\u0073"'), ("1e+300", "1E300")):
        if draw(st.integers(0, 3)) == 0:
            text = text.replace(old, new)
    return text.encode()


@settings(max_examples=examples(250))
@given(
    conditions=st.lists(CONDITIONS, min_size=1, max_size=3),
    joint=st.sampled_from([" AND ", " OR "]),
    bodies=st.lists(spellings(), min_size=1, max_size=5),
)
def test_shapes_never_lose_a_match(conditions: list[str], joint: str, bodies: list[bytes]) -> None:
    chosen = expr.compile_filter(joint.join(conditions))
    expected = chosen.matches(bodies)
    batch = batch_of(bodies, EMPTY, None, None, None)
    assert chosen.on_batch(batch).to_pylist() == expected
    shapes = shapes_of(chosen.tree)
    if shapes is not None:
        fits = selecting._fits(shapes, batch.column("body"))
        assert [found for found, wanted in zip(fits, expected, strict=True) if wanted and not found] == []


@settings(max_examples=examples(10))
@given(
    bodies=st.lists(spellings(), min_size=selecting.SAMPLE + 1, max_size=selecting.SAMPLE + 20), at=st.integers(0, 5)
)
def test_a_batch_large_enough_for_shapes(bodies: list[bytes], at: int) -> None:
    chosen = expr.compile_filter("/s = 'paid' AND /t/s > 50")
    batch = batch_of([b"{}"] * 200 + bodies, EMPTY, None, None, None).slice(at)
    assert chosen.on_batch(batch).to_pylist() == chosen.matches(([b"{}"] * 200 + bodies)[at:])
