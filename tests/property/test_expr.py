"""The compiled function against a small interpreter that nobody doubts, on random trees and messages; random text."""

from __future__ import annotations

import json
import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from choices import examples
from penstock import errors, expr
from penstock.expr.functions import FUNCTIONS

# The interpreter: strings are bytes, NULL is None, arrays are tuples.  It reads its own tuples, not penstock's tree.

INT_MIN, INT_MAX = -(2**63), 2**64 - 1


def clean(value: object) -> object:
    """A JSON value: bytes, numbers, True, False, None; arrays flat tuples; '' and objects are NULL."""
    if isinstance(value, str):
        return value.encode() or None
    if isinstance(value, list):
        out: list[object] = []
        for item in value:
            found = clean(item)
            out += found if isinstance(found, tuple) else [found]
        return tuple(out)
    return None if isinstance(value, dict) else value


def scalar(value: object) -> object:
    return (value[0] if value else None) if isinstance(value, tuple) else value


def is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def spelled(data: bytes) -> object:
    if not re.fullmatch(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", data):
        return None
    return limited(int(data)) if re.fullmatch(rb"[+-]?\d+", data) else float(data)


def limited(value: object) -> object:
    return float(value) if isinstance(value, int) and not INT_MIN <= value <= INT_MAX else value


def compare(operator: str, a: object, b: object) -> object:
    """One pair of scalars."""
    if a is None or b is None:
        return None
    if isinstance(a, bytes) != isinstance(b, bytes):
        if isinstance(a, bytes):
            a, b = (spelled(a), b) if spelled(a) is not None else (1, 0) if b == b else (None, None)
        else:
            a, b = (a, spelled(b)) if spelled(b) is not None else (0, 1) if a == a else (None, None)
        if a is None:
            return None
    if a != a or b != b:
        return None
    return {"=": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[operator]  # type: ignore[operator]


def any_of(found: list[object]) -> object:
    return True if True in found else None if None in found or not found else False


def elements(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def pairs(operator: str, a: object, b: object) -> object:
    return any_of([compare(operator, x, y) for x in elements(a) for y in elements(b)])


def judged(value: object) -> object:
    value = scalar(value)
    return value != 0 if is_number(value) and value == value else None


def both(a: object, b: object) -> object:
    return False if a is False or b is False else None if a is None or b is None else True


def inverse(a: object) -> object:
    return None if a is None else not a


def amount(value: object) -> object:
    value = scalar(value)
    if isinstance(value, bytes):
        found = spelled(value)
        return math.nan if found is None else found
    return int(value) if isinstance(value, bool) else value


def calculate(operator: str, a: object, b: object) -> object:
    x, y = amount(a), amount(b)
    if x is None or y is None:
        return None
    assert isinstance(x, int | float)
    assert isinstance(y, int | float)
    if x != x or y != y:
        return math.nan
    if operator in "/%" and y == 0:
        return math.nan
    exact = isinstance(x, int) and isinstance(y, int)
    if operator == "/":
        return limited(int(abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)) if exact else x / y
    if operator == "%":
        if exact:
            return abs(x) % abs(y) * (-1 if x < 0 else 1)
        return math.nan if math.isinf(x) else math.fmod(x, y)
    return limited({"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y}[operator]())


def words(value: object) -> object:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return repr(value).encode() if is_number(value) else value


def run(node: tuple[object, ...], record: dict[str, object]) -> object:
    """The value of a tree of tuples: the definition, word by word."""
    kind, *parts = node
    if kind == "literal":
        return clean(parts[0])
    if kind == "field":
        return clean(record.get(str(parts[0])))
    if kind == "item":
        found = elements(clean(record.get(str(parts[0]))))
        return found[int(str(parts[1]))] if int(str(parts[1])) < len(found) else None
    if kind == "not":
        return inverse(judged(run(parts[0], record)))  # type: ignore[arg-type]
    values = [run(part, record) for part in parts[1:]]  # type: ignore[arg-type]
    if kind == "compare":
        return pairs(str(parts[0]), *values)
    if kind == "arithmetic":
        return calculate(str(parts[0]), *values)
    if kind == "logic":
        a, b = map(judged, values)
        return both(a, b) if parts[0] == "AND" else inverse(both(inverse(a), inverse(b)))
    if kind == "between":
        return both(pairs(">=", values[0], values[1]), pairs("<=", values[0], values[2]))
    if kind == "in":
        return any_of([pairs("=", values[0], item) for item in values[1:]])
    if kind == "like":
        pattern = re.compile(str(parts[0]).encode())
        return any_of([None if words(x) is None else bool(pattern.search(words(x))) for x in elements(values[0])])  # type: ignore[type-var]
    if kind == "affix":
        test = bytes.startswith if parts[0] == "BEGINS" else bytes.endswith
        ends = [y for item in values[1:] for y in elements(item) or (None,)]
        found = [(words(x), words(y)) for x in elements(values[0]) for y in ends]
        return any_of([None if x is None or y is None else test(x, y) for x, y in found])  # type: ignore[arg-type]
    if kind == "is":
        items = elements(values[0])
        return all(x is None for x in items) if parts[0] == "NULL" else any(x != x for x in items)
    assert kind == "if"
    return scalar(values[1] if judged(values[0]) is True else values[2])


def spell(node: tuple[object, ...]) -> str:
    """The tree as text, with every pair of parentheses that could be needed."""
    kind, *parts = node
    if kind == "literal":
        value = parts[0]
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return (
            {None: "NULL", True: "TRUE", False: "FALSE"}[value]
            if value is None or isinstance(value, bool)
            else repr(value)
        )  # type: ignore[index]
    if kind == "field":
        return f"/{parts[0]}"
    if kind == "item":
        return f"/{parts[0]}[{parts[1]}]"
    if kind == "not":
        return f"NOT ({spell(parts[0])})"  # type: ignore[arg-type]
    texts = [f"({spell(part)})" for part in parts[1:]]  # type: ignore[arg-type]
    if kind in ("compare", "arithmetic", "logic"):
        return f" {parts[0]} ".join(texts)
    if kind == "between":
        return f"{texts[0]} BETWEEN {texts[1]} AND {texts[2]}"
    if kind == "in":
        return f"{texts[0]} IN ({', '.join(texts[1:])})"
    if kind == "like":
        return f"{texts[0]} LIKE r'{parts[0]}'"
    if kind == "affix":
        return f"{texts[0]} {parts[0]} WITH ({', '.join(texts[1:])})"
    if kind == "is":
        return f"{texts[0]} IS {parts[0]}"
    return f"IF({', '.join(texts)})"


NAMES = ("a", "b", "c")
TEXTS = st.sampled_from(
    ["", "a", "ab", "b", "é", "\U0001f600", "2", "2.0", "10", "1e1", "zebra", "-1", "'", "\\", "nan", "\uffff"]
)
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([0.0, 0.5, 2.0, 10.0, -1.5, 1e300, 2**53 + 1, 2.0**53, INT_MAX, 2**63, INT_MIN, 2**63 - 1]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner)),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.sampled_from(NAMES), JSON)
PLAIN = st.one_of(
    SCALARS.map(lambda value: ("literal", value)),
    st.sampled_from(NAMES).map(lambda name: ("field", name)),
    st.tuples(st.just("item"), st.sampled_from(NAMES), st.integers(0, 2)),
)
COMPARISONS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


def larger(inner: st.SearchStrategy[tuple[object, ...]]) -> st.SearchStrategy[tuple[object, ...]]:
    lists = st.lists(st.one_of(PLAIN, inner), min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("compare"), COMPARISONS, inner, inner),
        st.tuples(st.just("compare"), COMPARISONS, PLAIN, PLAIN),
        st.tuples(st.just("arithmetic"), st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("logic"), st.sampled_from(["AND", "OR"]), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("between"), st.none(), inner, inner, inner),
        st.tuples(inner, lists).map(lambda found: ("in", None, found[0], *found[1])),
        st.tuples(PLAIN, lists).map(lambda found: ("in", None, found[0], *found[1])),
        st.tuples(st.just("like"), st.sampled_from(["a", "^a", "b$", "^2$", "[0-9]e", "z.b", "^-?1"]), inner),
        st.tuples(st.sampled_from(["BEGINS", "ENDS"]), inner, lists).map(
            lambda found: ("affix", found[0], found[1], *found[2])
        ),
        st.tuples(st.just("is"), st.sampled_from(["NULL", "NAN"]), inner),
        st.tuples(st.just("if"), st.none(), inner, inner, inner),
    )


TREES = st.recursive(PLAIN, larger, max_leaves=12)


def comparable(value: object) -> object:
    """A value with its type, NaN equal to itself, strings as bytes."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    return (type(value).__name__, "NaN" if value != value else value)


@settings(max_examples=examples(500))
@given(tree=TREES, records=st.lists(RECORDS, min_size=1, max_size=3))
def test_compiled_equals_interpreted(tree: tuple[object, ...], records: list[dict[str, object]]) -> None:
    text = spell(tree)
    bodies = [json.dumps(record).encode() for record in records]
    expected = [run(tree, record) for record in records]
    assert [comparable(value) for value in expr.evaluate(text, bodies)] == [
        comparable(scalar(value)) for value in expected
    ]
    assert expr.compile_filter(text).matches(bodies) == [judged(value) is True for value in expected]
    assert expr.compile_filter(f"NOT ({text})").matches(bodies) == [judged(value) is False for value in expected]


TOKENS = st.sampled_from(
    ["/a", "/a/b", "/", "(", ")", ",", "=", "==", "<", "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "NAN"]
    + ["'x'", "r'\\d+'", "'(?=x)'", '"', "'", "5", "1e9", "1e999", "-", "+", "*", "%", "MOD", "BEGINS", "WITH", "ENDS"]
    + [
        "UPPER",
        "IF",
        "SUBSTR",
        "CONCAT",
        "STRPTIME",
        "STRFTIME",
        "REGEXP_REPLACE",
        "[/x y]",
        "[0]",
        "[",
        "]",
        "@",
        "#",
        "é",
    ]
    + ["/@headers/x", "/@properties/type", "/@properties/x", "TRUE", " ", "\n", "\\", "\x00", "\ud800"]
)


@settings(max_examples=examples(300))
@given(
    text=st.one_of(st.lists(TOKENS, max_size=25).map("".join), st.lists(TOKENS, max_size=25).map(" ".join), st.text())
)
def test_random_text_is_an_expression_or_an_expression_error(text: str) -> None:
    refused: errors.ExpressionError | None = None
    try:
        expr.evaluate(text, [b'{"a":1}', b"no json"])
        expr.compile_filter(text).matches([b'{"a":[1,"x",null]}', b"[]"])
    except errors.ExpressionError as error:
        refused = error
    if refused is not None:
        assert 0 <= refused.place <= len(text)
        assert refused.text == text
        assert refused.pointed()


CALLS = st.sampled_from([name for name in sorted(FUNCTIONS) if name not in ("REGEXP_REPLACE", "REGEXP_MATCH")])


@settings(max_examples=examples(300))
@given(
    name=CALLS,
    arguments=st.lists(
        st.one_of(SCALARS, st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False)), max_size=4
    ),
)
def test_functions_never_raise(name: str, arguments: list[object]) -> None:
    function = FUNCTIONS[name]
    body = json.dumps({f"p{at}": value for at, value in enumerate(arguments)}).encode()
    if len(arguments) < function.least or (function.most is not None and len(arguments) > function.most):
        return
    text = f"{name}({', '.join(f'/p{at}' for at in range(len(arguments)))})"
    found = expr.evaluate(text, [body])[0]
    assert found is None or (isinstance(found, bool | int | float | str) and found != "")
    if isinstance(found, int):
        assert INT_MIN <= found <= INT_MAX


@settings(max_examples=examples(200))
@given(pattern=st.text(alphabet="ab(?)*+[]{}1,\\.^$|:=!<>é", max_size=12), value=st.text(alphabet="abé1", max_size=8))
def test_random_patterns_are_patterns_or_errors(pattern: str, value: str) -> None:
    try:
        found = expr.TopicPattern(pattern)
    except expr.PatternError:
        return
    assert isinstance(found.matches(value), bool)


@settings(max_examples=examples(300))
@given(body=st.binary(max_size=40), header=st.binary(max_size=40))
def test_random_messages_never_raise(body: bytes, header: bytes) -> None:
    text = "/a = 1 OR /@headers/x = 1 OR /@properties/type LIKE 'x' OR CORRELATION_ID() = 'y' OR /a/b[1] < 5"
    assert isinstance(expr.compile_filter(text).matches([body], header)[0], bool)
