"""The tables of the language, case by case: what an expression is of a given body."""

from __future__ import annotations

import math

import orjson
import pytest

from penstock import expr

SAMPLE = b'{"data":[1,2,3,"zebra",5],"other":[14,34,23,5]}'
MESSAGE = orjson.dumps(
    {
        "a": 8,
        "b": 2,
        "a-b": 5,
        "n": "10",
        "x.y:z_1": "dotted",
        "14": 3,
        "6": 6,
        "21964": 42,
        "@id": "attribute",
        "odd name!": "odd",
        "empty": "",
        "null": None,
        "yes": True,
        "no": False,
        "half": 0.5,
        "big": 2**64 - 1,
        "low": -(2**63),
        "object": {"inner": {"deep": [10, [20, 30]]}},
        "c": [{"x": 1}, {"x": 2}, {"y": 9}],
        "none": [],
        "nulls": [None, ""],
        "word": "Crank It Up",
        "accent": "é",
    }
)
NAN = float("nan")


def one(text: str, body: bytes = MESSAGE) -> object:
    value = expr.evaluate(text, [body])[0]
    matched = expr.compile_filter(text).matches([body])[0]
    assert matched is (isinstance(value, bool | int | float) and value == value and value != 0)
    inverted = expr.compile_filter(f"NOT ({text})").matches([body])[0]
    assert inverted is (isinstance(value, bool | int | float) and value == 0)
    return value


def same(found: object, expected: object) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the slash
        ("/a / /b", 4),
        ("/a/b", None),
        ("/a/ /b", 4),
        ("10/5", 2),
        ("10 / 5", 2),
        ("(10)/5", 2),
        ("/14*5", 15),
        ("/6*/14", 18),
        ("/21964 IN (/14*5, /6*/14, 42)", True),
        ("/21964 IN (/14*14, /6*7, 1000)", True),
        ("/21964 IN (/14*5, /6*/14, 1000)", False),
        ("ABS(-4)/2", 2),
        ("/object/inner/deep[0]", 10),
        ("/object/inner/deep[0]/2", None),
        ("/object/inner/deep[0] /2", 5),
        # names
        ("/a-b", 5),
        ("/a -/b", 6),
        ("/a- /b", 6),
        ("/x.y:z_1", "dotted"),
        ("/@id", "attribute"),
        ("[/odd name!]", "odd"),
        ("[/object/inner]", None),
        ("[/a]/2", 4),
        # precedence
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-2 * 3", -6),
        ("- 2 + 3", 1),
        ("7 - 2 - 1", 4),
        ("100 / 5 / 2", 10),
        ("7 MOD 4 * 2", 6),
        ("2 - -2", 4),
        ("1 + 1 = 2 AND 2 < 3", True),
        ("1 = 2 AND 1 = 2 OR 1 = 1", True),
        ("1 = 1 OR 1 = 2 AND 1 = 2", True),
        ("(1 = 1 OR 1 = 2) AND 1 = 2", False),
        ("NOT 1 = 2 AND 1 = 1", True),
        ("NOT (1 = 2 OR 1 = 1)", False),
        ("(1 < 2) = 1", True),
        # spelling
        ("not 1 == 2 And 3 <> 4 oR null IS NULL", True),
        ("upper('x') = Upper('x')", True),
        ("  \n/a\t=\n8 ", True),
        ("TRUE", True),
        ("false", False),
        ("1e3", 1000.0),
        ("1.5E-1", 0.15),
        ("'it\\'s'", "it's"),
        ('"say \\"hi\\""', 'say "hi"'),
        ("'\\x41\\102\\n\\q'", "AB\nq"),
        ("'\\xc3\\xa9' = /accent", True),
        ("r'\\x41\\n'", "\\x41\\n"),
        ("R\"a\\\"b\"", 'a\\"b'),
        ("''", None),
    ],
)  # fmt: skip
def test_grammar(text: str, expected: object) -> None:
    assert same(one(text), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 < 2", True),
        ("10 < '2'", False),
        ("'2.000' <> '2.0'", True),
        ("2 = 2.0", True),
        ("10 < 'Crank It Up'", True),
        ("/word > 1e300", True),
        ("10 = 'Crank It Up'", False),
        ("10 != 'Crank It Up'", True),
        ("10 < ''", None),
        ("10 > ''", None),
        ("'' = ''", None),
        ("'' IS NULL", True),
        ("/empty IS NULL", True),
        ("/a == NULL", None),
        ("/a != NULL", None),
        ("/missing = 1", None),
        ("/missing IS NULL", True),
        ("/missing IS NOT NULL", False),
        ("/null IS NULL", True),
        ("/object IS NULL", True),
        ("/object = 1", None),
        ("/a BETWEEN 8 AND 9", True),
        ("/a BETWEEN 7 AND 8", True),
        ("/a BETWEEN 9 AND 10", False),
        ("/a NOT BETWEEN 9 AND 10", True),
        ("/a BETWEEN 9 AND NULL", False),
        ("/a BETWEEN 7 AND NULL", None),
        ("/a IN (1, 8)", True),
        ("/a IN (1, 9)", False),
        ("/a NOT IN (1, 9)", True),
        ("/a IN (1, NULL)", None),
        ("/a IN (8, NULL)", True),
        ("/missing IN (1, 2)", None),
        ("NOT /missing IN (1)", None),
        ("/word IN ('crank it up')", False),
        ("/word IN ('Crank It Up', 'x')", True),
        ("/n = '10'", True),
        ("/n = 10", True),
        ("/n < '9'", True),
        ("/n < 9", False),
        ("/n IN (10, 11)", True),
        ("/a IN ('8', 'x')", True),
        ("NAN_VALUE() = NAN_VALUE()", None),
        ("NAN_VALUE() != 1", None),
        ("NAN_VALUE() < 'abc'", None),
        ("NAN_VALUE() IS NAN", True),
        ("1 IS NAN", False),
        ("'abc' * 1 IS NAN", True),
        ("NULL IS NAN", False),
        ("/yes = 1", True),
        ("/yes = TRUE", True),
        ("/no = 0", True),
        ("/yes > /no", True),
        ("/half < 1", True),
        ("/big > 9223372036854775807", True),
        ("'é' > 'z'", True),
        ("'\\xff' > 'é'", True),
        ("CHAR_VALUE(255) > '\U0001f600'", True),
        ("CHAR_VALUE(128) < 'é'", True),
    ],
)
def test_comparison(text: str, expected: object) -> None:
    assert same(one(text), expected)


AND = {
    ("TRUE", "TRUE"): True,
    ("TRUE", "FALSE"): False,
    ("TRUE", "NULL"): None,
    ("FALSE", "TRUE"): False,
    ("FALSE", "FALSE"): False,
    ("FALSE", "NULL"): False,
    ("NULL", "TRUE"): None,
    ("NULL", "FALSE"): False,
    ("NULL", "NULL"): None,
}
OR = {
    ("TRUE", "TRUE"): True,
    ("TRUE", "FALSE"): True,
    ("TRUE", "NULL"): True,
    ("FALSE", "TRUE"): True,
    ("FALSE", "FALSE"): False,
    ("FALSE", "NULL"): None,
    ("NULL", "TRUE"): True,
    ("NULL", "FALSE"): None,
    ("NULL", "NULL"): None,
}


@pytest.mark.parametrize(("pair", "expected"), AND.items())
def test_kleene_and(pair: tuple[str, str], expected: object) -> None:
    assert one(f"{pair[0]} AND {pair[1]}") is expected


@pytest.mark.parametrize(("pair", "expected"), OR.items())
def test_kleene_or(pair: tuple[str, str], expected: object) -> None:
    assert one(f"{pair[0]} OR {pair[1]}") is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NOT NULL", None),
        ("NOT TRUE", False),
        ("NOT FALSE", True),
        ("NOT 0", True),
        ("NOT 5", False),
        ("NOT 'abc'", None),
        ("/missing = 1 OR /b = 2", True),
        ("/b = 2 OR /missing = 1", True),
        ("/missing IS NULL OR /missing = 1", True),
        ("5 AND 1", True),
        ("5 AND 0.0", False),
        ("NAN_VALUE() OR 0", None),
        ("/yes AND NOT /no", True),
    ],
)
def test_logic(text: str, expected: object) -> None:
    assert same(one(text), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data = 1", True),
        ("/data != 'zebra'", True),
        ("/data = 42", False),
        ("/data LIKE 'z'", True),
        ("/other > 30", True),
        ("/other > 50", False),
        ('/data[3] = "zebra"', True),
        ("/data[1] != 1", True),
        ("/data = /other", True),
        ("/data != /other", True),
        ("3 IN (/data)", True),
        ('NOT /data IN ("zebra","lion")', False),
        ("/data[9] IS NULL", True),
        ("/data[9] = 1", None),
        ("30 < /other", True),
        ("50 < /other", False),
        ("/other BETWEEN 20 AND 30", True),
        ("/data + 1", 2),
        ("UPPER(/data[3])", "ZEBRA"),
        ("CONCAT(/other, '!')", "14!"),
        ("/data", 1),
        ("/data < /other", True),
        ("/other <= /data", True),
        ("/data BEGINS WITH ('ze')", True),
        ("/data NOT ENDS WITH ('bra', 'x')", False),
    ],
)
def test_arrays(text: str, expected: object) -> None:
    assert same(one(text, SAMPLE), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/c/x = 1", True),
        ("/c/x = 2", True),
        ("/c/x = 9", False),
        ("/c/x[1]", 2),
        ("/c[1]/x", 2),
        ("/c[2]/x", None),
        ("/object/inner/deep = 30", True),
        ("/object/inner/deep[2]", 30),
        ("/none = 1", None),
        ("/none IS NULL", True),
        ("/none + 1", None),
        ("/nulls IS NULL", True),
        ("/nulls = 1", None),
        ("/a[0]", 8),
        ("/a[1]", None),
        ("/a/b/c", None),
    ],
)
def test_paths_flatten(text: str, expected: object) -> None:
    assert same(one(text), expected)


def test_a_body_that_is_an_array_flattens_too() -> None:
    body = b'[{"x":1,"y":"a"},{"x":[2,3]},7]'
    assert expr.evaluate("/x = 3 AND /x = 1 AND /y = 'a'", [body]) == [True]
    assert expr.evaluate("/x[2]", [body]) == [3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 5", 0),
        ("1.0 / 5", 0.2),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-5 % 3", -2),
        ("5 % -3", 2),
        ("5.5 % 2", 1.5),
        ("-5.5 MOD 2", -1.5),
        ("1 / 0", NAN),
        ("1.5 / 0", NAN),
        ("1 % 0", NAN),
        ("1 + NULL", None),
        ("NAN_VALUE() + NULL", None),
        ("NAN_VALUE() + 1", NAN),
        ("1 + 1.0", 2.0),
        ("'10' + 1", 11),
        ("'1.5' * 2", 3.0),
        ("'1e2' + 0", 100.0),
        ("'abc' + 1", NAN),
        ("' 1' + 1", NAN),
        ("'1_0' + 1", NAN),
        ("'nan' + 1", NAN),
        ("'' + 1", None),
        ("-'5'", -5),
        ("+'5'", 5),
        ("-/missing", None),
        ("/yes + 1", 2),
        ("9223372036854775807 + 1", 2**63),
        ("/big + 1", 2.0**64),
        ("/big * /big", float((2**64 - 1) ** 2)),
        ("/low - 1", -(2.0**63)),
        ("/low / -1", 2**63),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2.0**64),
    ],
)
def test_arithmetic(text: str, expected: object) -> None:
    assert same(one(text), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/word LIKE 'It'", True),
        ("/word LIKE 'it'", False),
        ("/word LIKE '(?i)it'", True),
        ("/word LIKE '^Crank'", True),
        ("/word LIKE '^It'", False),
        ("/word LIKE 'Up$'", True),
        ("/word LIKE 'It$'", False),
        ("/word LIKE '^Crank It Up$'", True),
        ("/word LIKE 'C%'", False),
        ("/word NOT LIKE 'xyz'", True),
        ("/word LIKE r'\\bIt\\b'", True),
        ("/word LIKE 'C.*p'", True),
        ("/missing LIKE 'x'", None),
        ("/a LIKE '^8$'", True),
        ("/yes LIKE 'true'", True),
        ("/accent LIKE '^..$'", True),
        ("/accent LIKE 'é'", True),
        ("'a\\nb' LIKE 'a.b'", False),
        ("/word LIKE ''", None),
        ("/word BEGINS WITH ('x', 'Crank')", True),
        ("/word BEGINS WITH ('It')", False),
        ("/word NOT BEGINS WITH ('It')", True),
        ("/word ENDS WITH ('Up')", True),
        ("/word ENDS WITH ('up', NULL)", None),
        ("/word BEGINS WITH (SUBSTR(/word, 1, 3))", True),
        ("/accent ENDS WITH ('\\xa9')", True),
        ("/accent BEGINS WITH ('\\xc3')", True),
        ("/missing BEGINS WITH ('x')", None),
        ("/a BEGINS WITH ('8')", True),
    ],
)
def test_text_tests(text: str, expected: object) -> None:
    assert same(one(text), expected)


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
