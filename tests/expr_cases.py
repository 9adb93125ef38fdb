"""One table of cases of the expression language: text, the message it is asked of, and the answer.

Those of its grammar and its truth tables stand in `tests/expr_tables.py`, those of functions, edges and messages here.

Every backend runs it: Python and Arrow all in `tests/unit/expr/test_cases.py`, Spark in one job what it judges itself,
and of what it has Python judge a sample, in `tests/spark/test_expressions.py`.  The messages are the rows of one batch.
"""

# fmt: off

from __future__ import annotations

import math
from itertools import product

import orjson

from expr_tables import AND, ARITHMETIC, ARRAYS, COMPARISON, GRAMMAR, LOGIC, NAN, OR, PATHS, TEXT_TESTS
from penstock import expr
from penstock.expr.functions import FUNCTIONS as KNOWN
from penstock.expr.tree import Call, walk_tree
from penstock.records.entries import Topic
from penstock.records.properties import Properties, encode

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
WORDS = b'{"s":"fandango","l":["b","a",null,"c"],"n":[3,1,2],"m":null}'
TWICE = b'{"a":1,"a":2,"o":{"x":1},"o":{"y":3},"l":[1],"l":[],"n":[1,{"z":4,"z":5}]}'

FUNCTIONS: list[tuple[str, object]] = [
    ("INSTR('hello', 'l')", 3),
    ("INSTR('hello', 'l') != 0", True),
    ("INSTR('hello', 'x')", 0),
    ("INSTR('hello', 'L')", 0),
    ("INSTR(/m, 'x')", None),
    ("INSTR('é!', '!')", 3),
    ("INSTR_I('hello', 'LL')", 3),
    ("STREQUAL_I('AbC', 'aBc')", 1),
    ("STREQUAL_I('AbC', 'aBc') == 1", True),
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
    ("CHAR_VALUE(0) = '\\x00'", True),
    ("CHAR_VALUE(255) = '\\xff'", True),
    ("CHAR_VALUE(256)", None),
    ("CHAR_VALUE(-1)", None),
    ("CRC32('123456789')", 0xCBF43926),
    ("CRC64('123456789')", 0x995DC9BBDF1939FA),
    ("CRC64(NULL)", None),
    ("CRC32(12) = CRC32('12')", True),
    ("ARRAY_AVG(/n)", 2.0),
    ("ARRAY_AVG(/m)", None),
    ("ARRAY_AVG(/l)", NAN),
    ("ARRAY_COUNT(/l)", 3),
    ("ARRAY_COUNT(/m)", 0),
    ("ARRAY_TO_STRING(/l, '-')", "b-a-c"),
    ("ARRAY_TO_STRING(/n)", "3,1,2"),
    ("ARRAY_MIN(/n)", 1),
    ("ARRAY_MAX(/l)", "c"),
    ("ARRAY_SUM(/n)", 6),
    ("ARRAY_SUM(/m)", None),
    ("COALESCE(/m, '', /l, 5)", "b"),
    ("COALESCE(/m)", None),
    ("COALESCE(NULL, NAN_VALUE(), 1)", NAN),
    ("IF(1 = 1, 'yes', 'no')", "yes"),
    ("IF(1 = 2, 'yes', 'no')", "no"),
    ("IF(NULL, 'yes', 'no')", "no"),
    ("IF('text', 'yes', 'no')", "no"),
    ("IF(NAN_VALUE(), 'yes', 'no')", "no"),
    ("IF(0.5, 'yes', 'no')", "yes"),
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
    ("GREATEST(1, NAN_VALUE())", NAN),
    ("LEAST(NAN_VALUE(), 1)", NAN),
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
    ("STRPTIME('1970-01-02T01:00:01', '%FT%T')", 90001.0),
    ("STRPTIME('01/02/70 1:00', '%D %R')", 90000.0),
    ("STRPTIME('100%', '100%%') IS NULL", False),
    ("STRPTIME('1 1', '%d %d')", None),
    ("STRPTIME('2/3', '%m/%d')", -2206137600.0),
    ("STRPTIME('2/29', '%m/%d')", None),
    ("STRPTIME('x', '%')", None),
]

NAMED_TWICE: list[tuple[str, object]] = [
    ("/a", 2),
    ("/a = 1", False),
    ("/o/x", None),
    ("/o/y", 3),
    ("/l IS NULL", True),
    ("/n/z = 4", False),
    ("/n/z", 5),
]
"""Of two equal names in one object the last counts."""

KINDS = {"NULL": "NULL", "NaN": "NAN_VALUE()", "TRUE": "TRUE", "0": "0", "2": "2", "2.5": "2.5", "'2'": "'2'",
         "'x'": "'x'", "/a": "/a", "/half": "/half", "/word": "/word", "/yes": "/yes", "/missing": "/missing",
         "/c/x": "/c/x", "/object": "/object", "/empty": "/empty", "/big": "/big"}
"""Operands of every kind: each operator is asked of each pair, and the backends have to agree."""

PAIRS = [
    f"{left} {operator} {right}"
    for operator in ("=", "!=", "<", ">=", "+", "*", "/", "%", "AND", "OR", "<=", ">", "-")
    for left, right in product(KINDS.values(), repeat=2)
]
SINGLES = [
    form.format(one)
    for one in KINDS.values()
    for form in (
        "NOT {0}", "-{0}", "+{0}", "{0} IS NULL", "{0} IS NOT NAN", "{0} LIKE '2'", "{0} BEGINS WITH ('2', 'C')",
        "{0} NOT ENDS WITH ('x')", "{0} IN (2, 'x', NULL)", "{0} BETWEEN 1 AND 'y'", "IF({0}, {0}, NULL)",
        "COALESCE({0}, 7)", "CONCAT({0}, 'z')", "ABS({0})", "INSTR({0}, 'I')", "REVERSE({0})",
    )
]

EDGES: list[tuple[str, object]] = [
    ("9223372036854775807 = 9223372036854775808", False),
    ("9223372036854775807 = 9223372036854775807.0", False),
    ("9007199254740993 = 9007199254740992.0", False),
    ("9007199254740992 = 9007199254740992.0", True),
    ("/big = 18446744073709551615", True),
    ("/big - 1", 2**64 - 2),
    ("/low - 1 < /low", False),
    ("/low - 2000 < /low", True),
    ("-/low", 2**63),
    ("ABS(/low)", 2**63),
    ("9223372036854775807 * 2", 2**64 - 2),
    ("9223372036854775807 * 3", 3.0 * 2**63),
    ("/low % -1", 0),
    ("0.0 = -0.0", True),
    ("-1 / 2", 0),
    ("1 / 0.0", NAN),
    ("0.0 / 0", NAN),
    ("1e308 * 10", math.inf),
    ("-1e308 * 10", -math.inf),
    ("1e308 * 10 - 1e308 * 10", NAN),
    ("(1e308 * 10) % 2", NAN),
    ("5 % (1e308 * 10)", 5.0),
    ("NAN_VALUE() AND FALSE", False),
    ("NAN_VALUE() OR TRUE", True),
    ("NOT NAN_VALUE()", None),
    ("NAN_VALUE() IN (1, NULL)", None),
    ("NAN_VALUE() BETWEEN 1 AND 2", None),
    ("COALESCE(NAN_VALUE(), 1)", NAN),
    ("'a\\x00b' LIKE '^a.b$'", True),
    ("CONCAT('a\\x00b', '') = 'a\\x00b'", True),
    ("CHAR_VALUE(233) LIKE r'^\\xe9$'", True),
    ("/accent LIKE r'^\\xc3\\xa9$'", True),
    ("/accent LIKE r'^\\w'", False),
    ("'É' LIKE '(?i)é'", False),
    ("REVERSE(/accent) = '\\xa9\\xc3'", True),
    ("SUBSTR(/accent, 2) = '\\xa9'", True),
    ("/word LIKE r'^(?:Crank|Turn) It (?P<way>Up|Down)$'", True),
    ("/word LIKE '^Crank'", True),
    ("/a IN (" + ", ".join(map(str, range(100))) + ")", True),
    ("/a IN (" + ", ".join(map(str, range(100, 300))) + ")", False),
    ("MESSAGE_SIZE() > 100 AND /a = 8", True),
    ("MESSAGE_SIZE() < 100 OR /a = 9", False),
    ("NOT (MESSAGE_SIZE() > 100 AND /missing = 8)", None),
    ("MESSAGE_SIZE() * 2 - 1 > 100", True),
    ("/yes = TRUE AND /no = FALSE", True),
]

MESSAGES: list[tuple[str, object]] = [
    (f"MESSAGE_SIZE() = {len(MESSAGE)}", True),
    ("MESSAGE_SIZE() BETWEEN 100 AND 1000", True),
    ("CORRELATION_ID()", "c-1"),
    ("/@properties/type LIKE 'created'", True),
    ("/@headers/region IN ('EU', 'US')", True),
    ("/@headers/retries + /a", 11),
    ("LAST_UPDATED()", 1.5),
    ("LAST_UPDATED() < 2", True),
    ("BOOKMARK()", "42|1|"),
    ("TOPIC_NAME()", "events/orders.eu"),
    ("TOPIC_NAME() LIKE 'orders' AND /b = 2", True),
    ("TOPIC_NAME() LIKE r'^events/.*eu$'", True),
    ("TOPIC_NAME() BEGINS WITH ('a', 'events/')", True),
    ("TOPIC_NAME() ENDS WITH ('.us', NULL)", None),
    ("TOPIC_NAME() NOT IN ('a', 'b')", True),
    ("TOPIC_NAME() > 'event'", True),
    ("TOPIC_NAME() > 5", True),
    ("TOPIC_NAME() IS NULL", False),
    ("CONCAT(TOPIC_NAME(), ':', BOOKMARK())", "events/orders.eu:42|1|"),
    ("UNIX_TIMESTAMP() > 1.6e9", True),
    ("CLIENT_NAME()", "till-7"),
    ("CLIENT_VERSION()", "1.4"),
    ("USER()", "anna"),
    ("AMPS_INSTANCE_NAME()", "north"),
    ("SOW_KEY()", "123456789"),
    ("SOW_KEY_HASH() = CRC64(SOW_KEY())", True),
    ("SOW_KEY_HASH()", 0x995DC9BBDF1939FA),
    ("LAST_READ()", 2.5),
    ("UNIX_TIMESTAMP() - LAST_LEASED() > 100", True),
    ("LEASE_COUNT() >= 3", True),
    ("LEASE_COUNT() >= 3 AND /a = 8", True),
]

HEADER = encode(Properties(headers={"region": "EU", "retries": 3}, type="order.created", correlation_id="c-1"))
BODIES = [MESSAGE, SAMPLE, WORDS, TWICE, b"no json", b"", b'[{"a":"8"},{"a":2.5}]',
          b'{"a":"x","half":2,"word":5,"yes":null}']
ROWS = len(BODIES)
TOPICS = ["events/orders.eu"] * (ROWS - 1) + [None]
LSNS = list(range(1, ROWS + 1))
TIMES = [1_500_000 * lsn for lsn in LSNS]
ORIGIN = 42
CONTEXT = expr.Context("till-7", "1.4", "anna", "north", "123456789", 2.5, 3.5, 3)

CASES: list[tuple[str, int, object]] = [
    *((text, 0, expected) for group in (GRAMMAR, COMPARISON, LOGIC, PATHS, ARITHMETIC, TEXT_TESTS, EDGES, MESSAGES)
      for text, expected in group),
    *((f"{left} {word} {right}", 0, expected) for word, table in (("AND", AND), ("OR", OR))
      for (left, right), expected in table.items()),
    *((text, 1, expected) for text, expected in ARRAYS),
    *((text, 2, expected) for text, expected in FUNCTIONS),
    *((text, 3, expected) for text, expected in NAMED_TWICE),
]
"""Text, row, answer.  Of the other rows the backends have to say the same."""


def answer(text: str, backend: str = "python") -> list[object]:
    """The value of each row."""
    parts = [topic.partition("/") if topic else None for topic in TOPICS]
    topics = [Topic("/", part[0], part[2]) if part else None for part in parts]
    return list(
        expr.evaluate(text, BODIES, backend, properties=HEADER, topics=topics, lsns=LSNS, times=TIMES,  # type: ignore[arg-type]
                      origin=ORIGIN, context=CONTEXT)
    )


def comparable(value: object) -> object:
    """A value with its type, NaN equal to itself."""
    return (type(value).__name__, "NaN" if value != value else value)


def unused() -> list[str]:
    """Functions that no case calls."""
    called = {node.name for text, _, _ in CASES for node in walk_tree(expr.parse(text)) if isinstance(node, Call)}
    return sorted(set(KNOWN) - called)
