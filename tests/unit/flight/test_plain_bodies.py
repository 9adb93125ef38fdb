"""Plain batches are read by other readers, and what comes of them is the same: with bodies that nobody would write."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest

from choices import SEED
from penstock.spark.reading import bodies as reading
from penstock.spark.reading.bodies import BodyParser
from penstock.spark.reading.like_bodies import LikeBodies
from penstock.spark.reading.plain_bodies import BLOCK, BODY_MOST, PlainBodies, is_plain

COLUMNS: dict[str, Any] = {
    "id": pa.int64(), "region": pa.string(), "total": pa.float64(), "small": pa.int16(), "flag": pa.bool_(),
    "at": pa.timestamp("us", "UTC"), "o": pa.struct([("a", pa.int64())]), "l": pa.list_(pa.string()),
    "d": pa.decimal128(20, 2), "odd name": pa.float32(),
}  # fmt: skip
FLAT = {name: kind for name, kind in COLUMNS.items() if name not in ("o", "l")} | {
    "ID": pa.timestamp("us"), "day": pa.date32(),
}  # fmt: skip
SCHEMAS = {PlainBodies: pa.schema(list(COLUMNS.items())), LikeBodies: pa.schema(list(FLAT.items()))}
"""What each reader reads."""
TRIED, BULK = 200, 1_000
"""Batches, and where more than a sample is asked for, for each step of effort."""

NAMES = (*COLUMNS, "x", "id ", "ID", "day", "")
NUMBERS = (
    "-0", "0", "0.0", "-0.0", "01", "1.", "-", "+1", ".5", "1.0.0", "00", "-01", "0x1", "1_0", "NaN", "Infinity", "nul",
    "1e5", "1E400", "1e-400", "-1e400", "1e99999999999", "12345678901234567890123", "-9223372036854775808", "tru",
    "-9223372036854775809", "18446744073709551616", "0.1234567890123456789012345", "123456789012345678.5", "1e22",
    "1.7976931348623159e308", "4.9e-324", "1e", "1e+", "1E-5", "1.e5", "5e0", "40000", "1" * 310, "0.5e007",
)  # fmt: skip
TIMES = (
    '"2026-11-20T08:00:00Z"', '"2026-02-30T08:00:00Z"', '"2026-11-20T08:00:00.123Z"', '"2026-11-20T24:00:00Z"',
    '"0001-01-01T00:00:00Z"', '"2026-11-20T08:00:60Z"', '"2026-11-20T08:00:00.1234567Z"', '"2026-11-20"',
    '"9999-12-31T23:59:59.999999Z"', '"2026-02-30"', '"0001-01-01"', '"2026-1-01"', '"12.25"', '"-0.5"', '"1."',
    '"12.255"',
)  # fmt: skip
LETTERS = "abc \u00e9\U0001f642\x7f\u0080'/{}[]:,e9"
BYTES = b' {}[]",:0123456789.-+eEtfnul\xff\xc3\\\n\t\r\0\x1f'


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


class Forgiven(dict[Any, int]):
    """Misses of a reader that is never left out."""

    def __setitem__(self, reader: Any, misses: int) -> None:
        pass


class Both:
    """The same columns by the one reader of whole batches, and by the one that goes body by body."""

    def __init__(self, kind: type[Any]) -> None:
        self.schema: Any = SCHEMAS[kind]
        self._parsers = [self.parser(kind), self.parser()]
        self._quick = self._parsers[0]._quick[0]  # pyright: ignore[reportPrivateUsage]
        self._parsers[0]._misses = Forgiven({self._quick: 0})  # pyright: ignore[reportPrivateUsage]

    def parser(self, *kinds: type[Any]) -> BodyParser:
        """One with these readers of whole batches."""
        made = BodyParser(self.schema, self.schema.names)
        made._quick = [one for one in made._quick if isinstance(one, kinds)]  # pyright: ignore[reportPrivateUsage]
        assert len(made._quick) == len(kinds)  # pyright: ignore[reportPrivateUsage]
        return made

    def check(self, *bodies: bytes) -> bool:
        """Whether they were read at once."""
        batch: Any = pa.array(bodies, pa.binary())
        within: Any = pa.array([b"before", *bodies, b'"}' * BLOCK], pa.binary())  # as bodies of a log are in its file
        within = within.slice(1, len(bodies))
        taken = self._parsers[0]._at_once(batch) is not None  # pyright: ignore[reportPrivateUsage]
        assert (self._parsers[0]._at_once(within) is not None) is taken  # pyright: ignore[reportPrivateUsage]
        found = [parser.parse(given) for parser, given in zip(self._parsers, (within, batch), strict=True)]
        for name, column in found[0][0].items():
            assert column.type == self.schema.field(name).type
            column.validate(full=True)
        one, other = (([columns[name].to_pylist() for name in self.schema.names], errors) for columns, errors in found)
        assert repr(one) == repr(other), bodies
        return taken


@pytest.fixture(params=SCHEMAS, ids=lambda kind: kind.__name__)
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


def test_whatever_is_read_at_once_is_what_the_reader_of_each_body_says(both: Both, effort: int) -> None:
    made, taken = Bodies(SEED), 0
    for _ in range(TRIED if effort == 1 else BULK * effort):
        taken += both.check(*[made.body()] * made.random.choice([1, 1, 3]))
    assert taken > (14 if effort == 1 else 70 * effort)


def test_values_in_the_places_of_a_shape_are_what_the_reader_of_each_body_says(effort: int) -> None:
    both, random, taken = Both(LikeBodies), Random(SEED), 0
    odd = (*NUMBERS, "null", "true", "false", "nulL", "falsy", "true ", "", "{}", '"x"', "1,2", '1,"id":2', "]", "1]")
    for _ in range(TRIED if effort == 1 else BULK * effort):
        rows = list[bytes]()
        likely = random.choice([0.02, 0.2])
        for _ in range(random.randrange(1, 5)):
            short = repr(random.randrange(1, 10**7) / 10 ** random.randrange(7))
            usual = (str(random.randrange(-(10 ** random.randrange(12)), 10 ** random.randrange(12))),
                     f"{random.random() * 10.0 ** random.randrange(9):.{random.randrange(1, 9)}f}",
                     random.choice(["true", "false", "null"]), short)  # fmt: skip
            values = [random.choice(odd) if random.random() < likely else one for one in usual]
            text = "".join(random.choices("abc \u00e9", k=random.randrange(12)))
            cents = f"{random.randrange(-(10**9), 10**9) / 100:.2f}"
            exact = random.choice(odd) if random.random() < likely else cents
            day = (
                random.choice(["2026-02-29", "x"])
                if random.random() < likely
                else f"20{random.randrange(10, 99)}-02-28"
            )
            rows.append(b'{"id":%s,"total":%s,"flag":%s,"region":"%s","odd name": %s ,"d":%s,"day":"%s"}' % tuple(
                one.encode() for one in (*values[:3], text, values[3], exact, day)
            ))  # fmt: skip
        taken += both.check(*rows)
    assert taken > (50 if effort == 1 else 250 * effort)


def test_bodies_are_never_taken_for_parts_of_each_other(both: Both, effort: int) -> None:
    """What is one object only together with the next row, or two in one row, is bad in each."""
    random, taken = Random(SEED), 0
    pieces = [b"{", b"}", b"{}", b'{"id":1}', b'"', b",", b":", b"[", b"]", b'"x":', b" ", b"\n", b"\0", b"1", b"\\"]
    for _ in range(150 if effort == 1 else 300 * effort):
        whole = [b"".join(random.choices(pieces, k=random.randrange(1, 4))) for _ in range(random.randrange(1, 5))]
        taken += both.check(*(b"{" + one + b"}" if random.random() < 0.7 else one for one in whole))
    assert taken > 0
    both.check(b'{"id":1}{"id":2}', b'{"id":3}\0}', b'{"id":4}')
    both.check(b'{"region":"}', b'{":1}', b'{"id":1}{"id":2}')


def test_a_batch_is_read_at_once_or_left_whole(both: Both) -> None:
    good = [b'{"id":%d,"region":"EU","total":1.5,"at":"2026-11-20T08:00:00Z","y":[1]}' % n for n in range(50)]
    at_once = [
        b'{"id": null}', '{"region":"\u00e9"}'.encode(), b'{"total":1}', b"{}", b'{"y":"c0ffee17e4"}',
        b'{"y":1e20,"id":1}',
    ]  # fmt: skip
    left = [
        b'{"id":5.0}', b'{"id":"x"}', b"[]", b'{"y":1e400}', b'{"y":1e+0400}', b'{"region":"a\\"b"}',
        b'{"small":40000}', b'{"region":"\xff"}', b'{"region":"' + b"x" * BODY_MOST + b'"}',
        b'{"y":' + b"1" * 320 + b"}",
    ]  # fmt: skip
    for body in (*at_once, *left):
        assert both.check(*good, body, *good) is (body in at_once), body


@pytest.mark.parametrize("number", ["%s", "-%s"])
@pytest.mark.parametrize(
    "odd", ["0123456789", "00.123456", "123456789.", "123456789.e5", "0x123456789", "12345678x", "x2345678"]
)
def test_long_numbers_that_arrow_takes_and_json_does_not_are_told(odd: str, number: str) -> None:
    """Those of up to eight letters are read another way."""
    both, text = Both(LikeBodies), (number % odd).encode()
    for name, good in ((b"id", b"1234567890"), (b"total", b"1234567890.5")):
        body = b'{"%s":%s}'
        assert both.check(body % (name, good), body % (name, good))
        assert not both.check(body % (name, good), body % (name, text))


def five_shapes(rows: int) -> list[bytes]:
    return [b'{"id":%d%s}' % (n, b"".join(b',"y%d":%d' % (y, n) for y in range(n % 5))) for n in range(rows)]


def test_bodies_of_some_shapes_are_read_together_and_of_many_apart() -> None:
    both = Both(LikeBodies)
    shapes = (
        b'{"id":%d,"region":"EU"}', b'{"region":"a longer text than eight letters","id": -%d , "y":[1,{"z":"q"},true]}',
        b'{"id":null,"flag":true,"total":%d.25}', b'{"id":%d,"flag":null,"total":null,"region":""}',
    )  # fmt: skip
    assert both.check(*(shapes[n % 4] % n if b"%d" in shapes[n % 4] else shapes[n % 4] for n in range(1, 200)))
    assert both.check(*five_shapes(5_000))
    assert not both.check(*five_shapes(100)), "each costs something, whatever its rows"
    assert not both.check(*(b'{"id":%d%s}' % (n, b',"y":1' * (n % 5)) for n in range(5_000))), "a name twice"
    assert not both.check(b'{"id":1,"y":"%s"}' % (b"x" * 1000))


ODD: tuple[bytes | None, ...] = (
    b"no json", b"", b"[1]", b"{", b'{"id":1', b'{"region":"a\\"b"}', b'{"region":"\xff"}', b'{"id":\n1}',
    b'\t{"id":1}', None,
    b'{"region":"\\u00e9","total":1e400}', b'{"region":"' + b"x" * BODY_MOST + b'"}', b' {"id":7}', b'{"id":7} ', b"5}",
)  # fmt: skip
"""Bodies that are no plain ones, or no objects."""


def one_by_one() -> BodyParser:
    """One without readers of whole batches."""
    schema: Any = SCHEMAS[LikeBodies]
    made = BodyParser(schema, schema.names)
    made._quick = []  # pyright: ignore[reportPrivateUsage]
    return made


def test_a_few_odd_bodies_are_read_by_themselves_and_all_as_one_by_one(effort: int) -> None:
    schema: Any = SCHEMAS[LikeBodies]
    random, parser, slow, apart = Random(SEED), BodyParser(schema, schema.names), one_by_one(), 0
    parser._misses = Forgiven(dict.fromkeys(parser._quick, 0))  # pyright: ignore[reportPrivateUsage]
    for _ in range(150 * effort):
        count = random.randrange(1, 40)
        bodies: list[bytes | None] = [
            b'{"id":%d,"region":"%s","total":%d.5}' % (n, b"EU" * (n % 9), n * 37 % 1000) for n in range(count)
        ]
        for _ in range(random.randrange(5)):
            odd = Bodies(random.randrange(1 << 30)).body() if random.random() < 0.2 else random.choice(ODD)
            bodies.insert(random.randrange(count + 1), odd)
        batch: Any = pa.array([b"before", *bodies, b"behind"], pa.binary()).slice(1, len(bodies))
        (columns, errors), (others, told) = parser.parse(batch), slow.parse(batch)
        assert errors == told, bodies
        for name in schema.names:
            assert columns[name].type == schema.field(name).type
            columns[name].validate(full=True)
            assert repr(columns[name].to_pylist()) == repr(others[name].to_pylist()), (name, bodies)
        apart += parser._mixed  # pyright: ignore[reportPrivateUsage]
    assert apart > 50 * effort


def test_odd_bodies_alone_are_made_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()

    class Counted(reading.Rows):
        def __init__(self, bodies: Any, *more: Any) -> None:
            counts.append(len(bodies))
            super().__init__(bodies, *more)

    monkeypatch.setattr(reading, "Rows", Counted)
    parser = Both(LikeBodies).parser(LikeBodies, PlainBodies)
    good = [b'{"id":%d,"region":"EU"}' % n for n in range(50)]
    for odd in ODD[:-3]:  # blanks around it are read at once
        counts.clear()
        for _ in range(2):
            columns, errors = parser.parse(pa.array([*good, odd, *good, odd], pa.binary()))
            assert columns["id"].to_pylist()[:50] == [*range(50)]
            assert [place for place, error in enumerate(errors) if error is not None] in ([], [50, 101])
        assert counts == [2, 2], odd
    parser.parse(pa.array(good, pa.binary()))
    assert counts == [2, 2]
    parser.parse(pa.array([*good[:2], *ODD[:4]], pa.binary()))
    assert counts == [2, 2, 6], "more are odd than not"


def test_a_reader_that_reads_in_vain_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MISSES_MOST", 2)
    parser = Both(LikeBodies).parser(LikeBodies, PlainBodies)
    bad: Any = pa.array([b'{"id":"x"}'], pa.binary())
    mixed: Any = pa.array([b'{"region":5}'], pa.binary())
    for left, batch in ((2, mixed), (1, mixed), (1, bad), (0, bad)):
        parser.parse(batch)
        assert len(parser._quick) == left  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", ["g\nh", 'a"b', "a\\b", "\x00", "\u00e4\U0001f642", "it's", "", "f0", "class"])
def test_columns_have_any_name(name: str) -> None:
    schema: Any = pa.schema([("id", pa.int64()), (name, pa.int64())])
    body = orjson.dumps({"id": 1, name: 2})
    for quick in (True, False):
        parser = BodyParser(schema, ["id", name])
        parser._quick = parser._quick if quick else []  # pyright: ignore[reportPrivateUsage]
        columns, errors = parser.parse(pa.array([body], pa.binary()))
        assert (columns["id"].to_pylist(), columns[name].to_pylist(), errors) == ([1], [2], [None])


def test_slices_are_looked_at_alone() -> None:
    whole: Any = pa.array([b'{"id":1}', b"\\", b'{"id":2}', b'{"id":3}'], pa.binary())
    some = (whole.slice(2), whole.slice(2, 1), whole.slice(4), whole)
    assert [is_plain(one) for one in some] == [True, True, False, False]
    assert not is_plain(pa.array([b"{}", None], pa.binary()))
