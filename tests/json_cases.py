"""JSON bodies for readers of typed columns: values of all kinds in columns of all types, and bodies that are no JSON.

`Cases` makes bodies `{"a": value}` by chance.  `TYPES` has the types of columns as Spark writes them and as Arrow does.
`expected` is what a body must give, by Python's own `json` with exact numbers, written down once more.
"""

from __future__ import annotations

import base64
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, cast

import numpy as np
import pyarrow as pa

SIMPLE: dict[str, Any] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(20,2)": pa.decimal128(20, 2),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(38,18)": pa.decimal128(38, 18),
}

TYPES: dict[str, Any] = {
    **SIMPLE,
    **{f"array<{name}>": pa.list_(kind) for name, kind in SIMPLE.items()},
    **{f"map<string,{name}>": pa.map_(pa.string(), kind) for name, kind in SIMPLE.items()},
    **{
        f"struct<b:{name},c:string>": pa.struct([("b", kind), ("c", pa.string())])  # type: ignore[list-item]
        for name, kind in SIMPLE.items()
    },
    "array<struct<b:array<decimal(20,2)>,c:map<string,bigint>>>": pa.list_(
        pa.struct([("b", pa.list_(pa.decimal128(20, 2))), ("c", pa.map_(pa.string(), pa.int64()))])
    ),
}

EDGES = [2**7, 2**8, 2**15, 2**31, 2**53, 2**63, 2**64, 10**10, 10**18, 10**20, 10**36, 10**38, 17 * 10**17]
NUMBERS = [
    "0", "-0", "-0.0", "1", "1.0", "5.5", "200", "1e2", "1E+2", "1.10", "0.125", "0.135", "-0.125", "0.005", "-0.005",
    "1e39", "3.4028235e38", "3.4028236e38", "3.5e38", "1e308", "1.7976931348623157e308", "1e309", "-1e309", "1e-400",
    "1e-45", "1e-999999999999999999", "4.9e-324", "12345678901234567.89", "0.99999999999999999999",
    "9007199254740993.0", "0.10000000000000001", "1" * 309, "9" * 400, "9" * 5000, "0." + "0" * 400 + "1", "1e0000001",
]  # fmt: skip
WORDS = [
    "", "x", "5", " 1 ", "1,234.5", "1e2", "+1", ".5", "5.", "1_0", "0x10", "١٢", "NaN", "sNaN", "Infinity", "-INF",
    "+INF", "INF", "inf", "nan", "+Infinity", "-Infinity", "true", "null", "{}", "YWJj", "YWI=", "YW=", "YQ==YQ==",
    "YWJ j", "a b", "1e999999999999", "12345678901234567.89", "1" * 39,
    "\0", "\x1f", '"', "\\", "😀", "\uffff", "\u2028",
]  # fmt: skip
TIMES = [
    "2026-11-20", "20261120", "2026-W47-5", "2026-W47", "2026-11", "2026", "0001-01-01", "0000-01-01", "9999-12-31",
    "10000-01-01", "2026-02-30", "2026-11-20T10:00:00Z", "2026-11-20 10:00:00", "2026-11-20T10:00", "2026-11-20T10",
    "2026-11-20T10:00:00.123456789", "2026-11-20T10:00:00,5", "2026-11-20T10:00:00+05:30", "2026-11-20T10:00:00+0530",
    "2026-11-20T10:00:00-23:59", "2026-11-20T10:00:00+24:00", "2026-11-20T10:00:00 Europe/Berlin", "2026-11-20+10:00",
    "2026-11-20-10:00", "2026-11-20x10:00", "2026-11-20T24:00:00Z", "2026-11-20T23:59:60Z", "20261120T100000Z",
    "16120101112", "1700000000", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59.999999-05:00", "10:00:00",
    "9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.9999999Z", "now", "epoch", "today", "2026-11-20T",
    "2026-11-20 ",
]  # fmt: skip
NAMES = ["b", "c", "d", "", "1", "a b", "ä"]

NO_JSON: list[bytes] = [
    b"", b" ", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b'{"a":1}}', b'{"a":1} x', b"{'a':1}", b"{a:1}", b"nul",
    b'{"a":NaN}', b'{"a":Infinity}', b'{"a":01}', b'{"a":+1}', b'{"a":.5}', b'{"a":1.}', b'{"a":1e}', b'{"a":0x1}',
    b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}', b'{"a":"\\udc00x"}', b'{"\\ud800":1}', b'{"a":"\\x"}',
    b'{"a":"\n"}', b'{"a":"\x00"}', b"\x00", b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b"// c\n{}", b'{"a":1/**/}',
    b'{"a":' + b"[" * 1200 + b"]" * 1200 + b"}", b"1", b"[]", b'"a"', b"null", b"true", b'[{"a":1}]',
]  # fmt: skip
"""Bodies that are no JSON, or no object."""

BAD = object()
"""What `expected` gives where the value has no place in its column."""


class Cases:
    """Bodies by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def bodies(self, kind: Any, count: int) -> list[bytes]:
        """Bodies for a column `a` of this type: most have a value of its kind, well or badly formed."""
        return [self.body(kind) for _ in range(count)]

    def body(self, kind: Any) -> bytes:
        """One of them."""
        chance = self.chance
        if chance.random() < 0.03:
            return chance.choice(NO_JSON)
        value = self.text(kind)
        if chance.random() < 0.05:
            return f'{{"a": {self.anything(2)}, "a": {value}}}'.encode()
        if chance.random() < 0.05:
            return f'{{"z": {self.anything(2)}, "a": {value}}}'.encode()
        if chance.random() < 0.02:
            return self.damaged(f'{{"a": {value}}}'.encode())
        return f'{{"a": {value}}}'.encode() if chance.random() < 0.97 else b'{"b": 1}'

    def text(self, kind: Any) -> str:
        """The JSON of a value for a column of this type."""
        chance, types = self.chance, cast("Any", pa.types)
        if chance.random() < 0.1:
            return self.anything(3)
        if chance.random() < 0.05:
            return "null"
        if types.is_map(kind):
            return self._object({chance.choice(NAMES): self.text(kind.item_type) for _ in range(chance.randint(0, 3))})
        if types.is_list(kind):
            return f"[{', '.join(self.text(kind.value_type) for _ in range(chance.randint(0, 3)))}]"
        if types.is_struct(kind):
            fields = [field for field in kind if chance.random() < 0.9]
            return self._object({field.name: self.text(field.type) for field in fields})
        if types.is_boolean(kind):
            return chance.choice(["true", "false"])
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            return self.number() if chance.random() < 0.8 else self.word(WORDS)
        if types.is_binary(kind) and chance.random() < 0.5:
            return json.dumps(base64.b64encode(chance.randbytes(chance.randint(0, 9))).decode())
        if types.is_temporal(kind):
            return self.word(TIMES) if chance.random() < 0.5 else json.dumps(self.moment())
        return self.word(WORDS)

    def number(self) -> str:
        """Whole, broken, at a limit, or one of those that were thought of."""
        chance = self.chance
        way = chance.random()
        if way < 0.25:
            return chance.choice(NUMBERS)
        if way < 0.5:
            return str(chance.choice([-1, 1]) * chance.choice(EDGES) + chance.choice([-1, 0, 1]))
        digits = "".join(chance.choices("0123456789", k=chance.choice([1, 3, 8, 15, 17, 20, 38, 40])))
        whole = str(int(digits))
        if way < 0.65:
            return chance.choice(["", "-"]) + whole
        cut = chance.randint(0, len(digits) - 1)
        fraction = f"{int(digits[:cut] or 0)}.{digits[cut:]}"
        exponent = chance.choice(["", "", "", f"e{chance.randint(-30, 30)}"])
        return f"{chance.choice(['', '-'])}{fraction}{exponent}"

    def moment(self) -> str:
        """A time in one of the usual forms."""
        chance = self.chance
        at = datetime.fromtimestamp(chance.randrange(-(10**10), 10**11) / 10, UTC)
        form = chance.choice(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M"])
        text = at.strftime(form).zfill(10)
        return text + (chance.choice(["", "Z", "+01:00", "-11:30"]) if "H" in form else "")

    def word(self, words: list[str]) -> str:
        """A string as JSON, escaped in one of the ways there are."""
        word = self.chance.choice(words)
        if self.chance.random() < 0.05:
            word += self.chance.choice(["", " ", "0", "\t", "Z"])
        return json.dumps(word, ensure_ascii=self.chance.random() < 0.5)

    def anything(self, depth: int) -> str:
        """Any JSON."""
        chance = self.chance
        way = chance.random() if depth else chance.random() * 0.7
        if way < 0.25:
            return self.number()
        if way < 0.5:
            return self.word(WORDS)
        if way < 0.6:
            return self.word(TIMES)
        if way < 0.7:
            return chance.choice(["true", "false", "null"])
        if way < 0.72:
            deep = chance.choice([20, 200, 300, 900, 1015])
            return "[" * deep + chance.choice(["1", "1e400", "12345678901234567890.5"]) + "]" * deep
        if way < 0.86:
            return f"[{', '.join(self.anything(depth - 1) for _ in range(chance.randint(0, 4)))}]"
        return self._object({chance.choice(NAMES): self.anything(depth - 1) for _ in range(chance.randint(0, 4))})

    def damaged(self, body: bytes) -> bytes:
        """With a byte that is another, is missing or is there twice."""
        place = self.chance.randrange(len(body))
        put = self.chance.choice([b"", body[place : place + 1] * 2, bytes([self.chance.randrange(256)])])
        return body[:place] + put + body[place + 1 :]

    def _object(self, fields: dict[str, str]) -> str:
        return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"


def expected(kind: Any, body: bytes) -> Any:
    """What column `a` of this type gets from a body: the value, None, or `BAD`."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        row = read(body)
        return fitted(kind, cast("dict[str, Any]", row).get("a")) if isinstance(row, dict) else BAD
    except ValueError:
        return BAD
    finally:
        sys.setrecursionlimit(usual)


def read(body: bytes) -> Any:
    """JSON with every number exact.  ValueError for what is none, or has a number beyond those of a double."""
    text = body.decode()
    if text.startswith("\ufeff"):
        raise ValueError("begins with a byte order mark")
    value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refused)
    json.dumps(_plain(value), ensure_ascii=False).encode()  # half a pair is no text
    if _depth(value) > 1024:
        raise ValueError("nested too deeply")
    return value


NEARLY_ZERO = Decimal("1e-999999")
"""A number whose exponent is beyond all bounds, which a double takes and a decimal does not."""


def _number(text: str) -> Decimal:
    if math.isinf(float(text)):
        raise ValueError("beyond a double")
    try:
        return Decimal(text) if text != "-0" else Decimal(0)
    except InvalidOperation:  # an exponent beyond all bounds; it is below zero, or it were no double
        return -NEARLY_ZERO if text.startswith("-") else NEARLY_ZERO


def _refused(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return 0
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in cast("dict[str, Any]", value).items()}
    return value


NOT_FINITE = {"NaN": math.nan, **dict.fromkeys(("Infinity", "+Infinity", "+INF"), math.inf),
              **dict.fromkeys(("-Infinity", "-INF"), -math.inf)}  # fmt: skip


def fitted(kind: Any, value: Any) -> Any:
    """A JSON value in a column of this type."""
    types: Any = pa.types
    if value is None:
        return None
    if types.is_map(kind):
        return _each(value, dict, lambda: [(name, fitted(kind.item_type, one)) for name, one in value.items()])
    if types.is_list(kind):
        return _each(value, list, lambda: [fitted(kind.value_type, one) for one in value])
    if types.is_struct(kind):
        return _each(value, dict, lambda: {field.name: fitted(field.type, value.get(field.name)) for field in kind})
    if types.is_string(kind):
        return _as_text(value)
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else BAD
    if types.is_decimal(kind):
        return _decimal(kind, value)
    if types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        whole = isinstance(value, Decimal) and value == value.to_integral_value() and -most <= value < most
        return int(value) if whole else BAD
    if types.is_floating(kind):
        return _floating(kind, value)
    return _of_text(kind, value) if isinstance(value, str) else BAD


def _each(value: Any, wanted: type, made: Callable[[], Any]) -> Any:
    if not isinstance(value, wanted):
        return BAD
    whole = made()
    parts: Iterable[Any] = whole.values() if isinstance(whole, dict) else whole
    return BAD if any(one is BAD or (isinstance(one, tuple) and one[1] is BAD) for one in parts) else whole


DEPTH = 250
"""Levels of a value that has a text."""


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return BAD if _depth(value) > DEPTH else Json(value)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while nested := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [part for one in nested for part in (one.values() if isinstance(one, dict) else one)]
    return depth


class Json:
    """Equals each text of a JSON value, with its numbers exact."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other, parse_int=_number, parse_float=_number) == self.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"the JSON of {self.value!r}"


def _decimal(kind: Any, value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        value = Decimal(value)
    if not isinstance(value, Decimal) or value.copy_abs() == NEARLY_ZERO:
        return BAD
    try:
        return Context(kind.precision, ROUND_HALF_UP).quantize(value, Decimal(1).scaleb(-kind.scale))
    except InvalidOperation:
        return BAD


def _floating(kind: Any, value: Any) -> Any:
    if isinstance(value, str):
        return NOT_FINITE.get(value, BAD)
    if not isinstance(value, Decimal):
        return BAD
    number = float(value)
    if kind.bit_width == 32:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    return BAD if math.isinf(number) else number


BASE64 = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
"""RFC 4648, which `from_json` holds to and Python's library does not: it lets padding stand where none belongs."""

MOMENT = re.compile(r"(\d{4}-\d\d-\d\d|\d{4}-W\d\d-\d)([T ].+)?|\d{8}T.+", re.DOTALL | re.ASCII)


def _of_text(kind: Any, value: str) -> Any:
    types: Any = pa.types
    try:
        if types.is_binary(kind):
            return base64.b64decode(value) if BASE64.fullmatch(value) else BAD
        if types.is_date(kind):
            return date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII) else BAD
        if not MOMENT.fullmatch(value):
            return BAD
        at = datetime.fromisoformat(value)
        zoned = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        return zoned if kind.tz is not None else zoned.replace(tzinfo=None)
    except (ValueError, OverflowError):
        return BAD


def _deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


LONG = b',"b":12345678901234567'
"""A number for which some readers ask Python's own JSON instead."""

ODD: dict[str, tuple[bytes, object]] = {
    "a string": (b'{"a":"s"}', "s"),
    "nanoseconds": (b'{"a":1700000000123456789}', 1700000000123456789),
    "an object": (b'{"a":{"b":1}}', {"b": 1}),
    "twice": (b'{"a":1,"a":2}', 2),
    "twice, the last null": (b'{"a":1,"a":null}', None),
    "twice, of two kinds": (b'{"a":1,"a":{"b":3}}', {"b": 3}),
    "twice, spaced": (b'{"a" : 1, "a": 2}', 2),
    "twice, escaped": (b'{"a":1,"\\u0061":2}', 2),
    "twice inside": (b'{"a":{"b":1,"b":2}}', {"b": 2}),
    "twice in a list": (b'{"a":[{"b":1,"b":2.50}]}', [{"b": 2.5}]),
    "twice, long": (b'{"b":1,"a":12345678901234567' + LONG + b"}", 12345678901234567),
    "a colon in a text": (b'{"a":"x\\":y"}', 'x":y'),
    "nothing": (b'{"a":"\\u0000"}', "\0"),
    "tiny": (b'{"a":-1e-400}', 0.0),
    **{
        f"{name}{more}": (b'{"a":' + text + tail + b"}", None)
        for more, tail in (("", b""), (", long", LONG))
        for name, text in {
            "1e400": b"1e400",
            "NaN": b"NaN",
            "Infinity": b"-Infinity",
            "5,000 digits": b"9" * 5000,
            "400 digits": b"9" * 400,
            "half a pair": b'"\\ud800"',
            "no UTF-8": b'"\xff"',
            "a surrogate in UTF-8": b'"\xed\xa0\x80"',
            "1,200 deep": _deep(1200),
            "a comma": b"1,",
            "a zero": b"01",
        }.items()
    },
    "half a pair as a name": (b'{"\\ud800":1,"a":1}', None),
    "a byte order mark": (b'\xef\xbb\xbf{"a":1}', None),
    "empty": (b"", None),
    "a number": (b"1", None),
}
"""Bodies on which readers of JSON differ, and what each of ours finds at `a`: nothing where the body is no JSON."""

DEEP: dict[str, bytes] = {
    f"{name}{more}": b'{"a":' + text + tail + b"}"
    for more, tail in (("", b""), (", long", LONG))
    for name, text in {
        "1,000 lists": _deep(1000),
        "1,000 objects": b'{"a":' * 1000 + b"1" + b"}" * 1000,
        "500 lists": _deep(500),
        "twice in 900": b"[" * 900 + b'{"a":1,"a":2}' + b"]" * 900,
    }.items()
}
"""Bodies that are JSON, and nested so deeply that not every reader goes to their end: none of them may fail for it."""
