"""Plain batches are read by another reader, and what comes of them is the same: with bodies that nobody would write."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest

from choices import SEED
from penstock.spark.reading import plain_bodies
from penstock.spark.reading.bodies import BodyParser
from penstock.spark.reading.plain_bodies import BODY_MOST, PlainBodies, is_plain

COLUMNS: dict[str, Any] = {
    "id": pa.int64(), "region": pa.string(), "total": pa.float64(), "small": pa.int16(), "flag": pa.bool_(),
    "at": pa.timestamp("us", "UTC"), "o": pa.struct([("a", pa.int64())]), "l": pa.list_(pa.string()),
    "d": pa.decimal128(20, 2), "odd name": pa.float32(),
}  # fmt: skip
SCHEMA = pa.schema(list(COLUMNS.items()))
NAMES = (*COLUMNS, "x", "id ", "ID", "")
NUMBERS = (
    "-0", "0", "0.0", "-0.0", "01", "1.", "-", "+1", ".5", "1.0.0", "00", "-01", "0x1", "1_0", "NaN", "Infinity", "nul",
    "1e5", "1E400", "1e-400", "-1e400", "1e99999999999", "12345678901234567890123", "-9223372036854775808", "tru",
    "-9223372036854775809", "18446744073709551616", "0.1234567890123456789012345", "123456789012345678.5", "1e22",
    "1.7976931348623159e308", "4.9e-324", "1e", "1e+", "1E-5", "1.e5", "5e0", "40000", "1" * 310, "0.5e007",
)  # fmt: skip
TIMES = (
    '"2026-11-20T08:00:00Z"', '"2026-02-30T08:00:00Z"', '"2026-11-20T08:00:00.123Z"', '"2026-11-20T24:00:00Z"',
    '"0001-01-01T00:00:00Z"', '"2026-11-20T08:00:60Z"', '"2026-11-20T08:00:00.1234567Z"', '"2026-11-20"',
    '"9999-12-31T23:59:59.999999Z"',
)  # fmt: skip
LETTERS = "abc \u00e9\U0001f642\x7f\u0080'/{}[]:,e9"
BYTES = b' {}[]",:0123456789.-+eEtfnul\xff\xc3\\\n'


class Bodies:
    """By chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def value(self, depth: int) -> str:
        random = self.random
        kind = random.randrange(12 if depth < 4 else 8)
        if kind < 1:
            return random.choice(["null", "true", "false"])
        if kind < 3:
            return str(random.randrange(-(10 ** random.randrange(1, 15)), 10 ** random.randrange(1, 15)))
        if kind == 3:
            return repr(random.random() * 10.0 ** random.randrange(-3, 8))
        if kind == 4:
            return random.choice(NUMBERS) if random.random() < 0.3 else "1"
        if kind == 5:
            return random.choice(TIMES)
        if kind < 8:
            return f'"{"".join(random.choices(LETTERS, k=random.randrange(6)))}"'
        inner = [self.value(depth + 1) for _ in range(random.randrange(4))]
        if kind < 10:
            return "{" + ",".join(f'"{random.choice(["id", "a", "o", ""])}":{one}' for one in inner) + "}"
        return f"[{','.join(inner)}]"

    def body(self) -> bytes:
        random = self.random
        names = random.choices(NAMES, k=random.randrange(6))
        fields = [f'"{name}"{random.choice([":", " : "])}{self.value(0)}' for name in names]
        made = bytearray(("{" + random.choice([",", ", "]).join(fields) + "}").encode())
        for _ in range(random.choice([0, 0, 0, 1, 3])):
            place = random.randrange(len(made) + 1)
            match random.randrange(4):
                case 0:
                    made[place : place + 1] = bytes([random.randrange(32, 256)])
                case 1:
                    del made[place : place + 1]
                case 2:
                    made[place:place] = bytes([random.choice(BYTES)])
                case _:
                    del made[place:]
        return bytes(made)


class Both:
    """The same columns with the other reader before it, and without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plain_bodies, "MISSES_MOST", 1 << 60)
        self._parsers = BodyParser(SCHEMA, SCHEMA.names), BodyParser(SCHEMA, SCHEMA.names)
        self._parsers[1]._plain = None  # pyright: ignore[reportPrivateUsage]

    def check(self, *bodies: bytes) -> None:
        batch: Any = pa.array(bodies, pa.binary())
        found = [parser.parse(batch) for parser in self._parsers]
        one, other = (([columns[name].to_pylist() for name in COLUMNS], errors) for columns, errors in found)
        assert repr(one) == repr(other), bodies


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(monkeypatch)


def test_whatever_is_read_as_plain_is_what_the_other_reader_says(both: Both, effort: int) -> None:
    made, taken = Bodies(SEED), 0
    for _ in range(3_000 * effort):
        body = made.body()
        both.check(body)
        taken += is_plain(pa.array([body], pa.binary()))
    assert taken > 1_500 * effort


def test_a_batch_is_read_at_once_or_left_whole(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, whole = list[bool](), PlainBodies.columns

    def noted(self: PlainBodies, bodies: Any) -> Any:
        found = whole(self, bodies)
        looks.append(found is not None)
        return found

    monkeypatch.setattr(PlainBodies, "columns", noted)
    good = [b'{"id":%d,"region":"EU","total":1.5,"at":"2026-11-20T08:00:00Z","x":[1]}' % n for n in range(50)]
    at_once = [b'{"id": null}', '{"region":"\u00e9"}'.encode(), b'{"total":1}', b"{}"]
    left = [
        b'{"id":5.0}', b'{"id":"x"}', b'{"region":"a\\"b"}', b"[]", b'{"id":\n1}', b'{"x":1e400}', b'{"x":"1e40"}',
        b'{"region":"\xff"}', b'{"region":"' + b"x" * BODY_MOST + b'"}', b'{"x":' + b"1" * 320 + b"}",
        b'{"small":40000}',
    ]  # fmt: skip
    for body in (*at_once, *left):
        both.check(*good, body, *good)
        assert looks.pop() is (body in at_once), body
    assert looks == []


@pytest.mark.parametrize("name", ["g\nh", 'a"b', "a\\b", "\x00", "\u00e4\U0001f642", "it's", "", "f0", "class"])
def test_columns_have_any_name(name: str) -> None:
    schema: Any = pa.schema([("id", pa.int64()), (name, pa.int64())])
    columns, errors = BodyParser(schema, ["id", name]).parse(pa.array([orjson.dumps({"id": 1, name: 2})], pa.binary()))
    assert (columns["id"].to_pylist(), columns[name].to_pylist(), errors) == ([1], [2], [None])


def test_slices_are_looked_at_alone() -> None:
    whole: Any = pa.array([b'{"id":1}', b"\\", b'{"id":2}', b'{"id":3}'], pa.binary())
    some = (whole.slice(2), whole.slice(2, 1), whole.slice(4), whole)
    assert [is_plain(one) for one in some] == [True, True, False, False]
    assert not is_plain(pa.array([b"{}", None], pa.binary()))
