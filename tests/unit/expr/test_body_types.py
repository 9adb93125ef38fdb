"""Every message type gives expressions the same fields, bounds and answers; what it cannot read has no fields."""

from __future__ import annotations

import encodings
import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import bson
import msgpack
import orjson
import pyarrow as pa
import pytest

from choices import EFFORT, SEED
from message_samples import SAMPLES, Sample, of_a_program
from penstock.errors import ExpressionError, InvalidArgument
from penstock.expr import FilterSet, bodies, compile_filter, compile_value, evaluate, grammar
from penstock.expr.bodies import body_type
from penstock.expr.bodies.body_type import Whole, why_no_json
from penstock.expr.grammar import parse
from penstock.expr.scan import Scan
from penstock.records.entries import Topic
from penstock.records.message_bodies import DEPTH
from penstock.records.message_types import MESSAGE_TYPES, typed
from penstock.records.properties import EMPTY
from penstock.records.schema import COLUMNS

ORDERS = [
    {"id": "a-1", "total": 700, "region": "north", "note": "x"},
    {"id": "a-2", "total": 9, "region": "south", "note": "paid"},
    {"id": "a-3", "total": 500.5, "region": "north", "note": "paid in full"},
]
FILTERS = {
    "{region} = 'north'": [True, False, True],
    "{total} > 500": [True, False, True],
    "{total} = 9": [False, True, False],
    "{note} LIKE 'paid'": [False, True, True],
    "{note} BEGINS WITH ('paid ')": [False, False, True],
    "{region} IN ('south', 'west') OR {id} = 'a-1'": [True, True, False],
    "{region} = 'north' AND {total} > 600": [True, False, False],
    "{region} IS NULL": [False, False, False],
    "MESSAGE_SIZE() > 1": [True, True, True],
}
TOPIC = Topic("/", "", "orders")
ALL = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


def _batch(bodies: list[bytes], sample: Sample) -> pa.RecordBatch:
    columns = {"body": pa.array(bodies, pa.binary())}
    if sample.headers:
        columns["properties"] = pa.array([sample.properties] * len(bodies), pa.binary())
    return pa.record_batch(columns)


def test_types_share_a_parser_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are made once; threads that read expressions over bodies of different types have fields of their own."""
    made, plain, kinds = list[object](), grammar.Lark, list(MESSAGE_TYPES)
    monkeypatch.setattr(grammar, "Lark", lambda *given, **named: (made.append(given), plain(*given, **named))[1])
    grammar._parser.cache_clear()  # pyright: ignore[reportPrivateUsage]
    parse(typed("/id = 1", kinds[0]))
    texts = {kind: typed(" AND ".join(["/id = 1"] * 30), kind) for kind in kinds}

    def read(kind: str) -> list[object]:
        return [parse(texts[kind]) for _ in range(20)]

    with ThreadPoolExecutor(len(kinds)) as pool:
        by_kind = dict(zip(kinds, pool.map(read, kinds), strict=True))
    assert len(made) == 1
    assert all(set(trees) == {parse(texts[kind])} for kind, trees in by_kind.items())
    assert len({trees[0] for trees in by_kind.values()}) == len(kinds)


@ALL
def test_every_way_of_asking_a_filter_gives_the_same(sample: Sample) -> None:
    bodies = [sample.body(order) for order in ORDERS]
    texts = [typed(sample.said(text), sample.name) for text in FILTERS]
    expected = list(FILTERS.values())
    alone, heads = [compile_filter(text) for text in texts], sample.properties
    assert [one.matches(bodies, heads) for one in alone] == expected
    assert [one.on_batch(_batch(bodies, sample)).to_pylist() for one in alone] == expected
    many = bodies * 50  # so many that shapes would be looked for
    assert [one.on_batch(_batch(many, sample)).to_pylist() for one in alone] == [answers * 50 for answers in expected]
    together = FilterSet(alone).matches(bodies, heads, TOPIC)
    assert FilterSet(alone).matches(bodies, [heads] * 3, TOPIC) == together
    assert [[row in together.get(slot, ()) for row in range(3)] for slot in range(len(alone))] == expected
    rows: dict[str, pa.Array] = {
        "body": pa.array(bodies, pa.binary()),
        "properties": pa.array([heads] * 3, pa.binary()),
        "lsn": pa.array([5, 6, 7], pa.int64()),
        "time": pa.array([1, 1, 1], COLUMNS.field("time").type),
    }
    log = pa.RecordBatch.from_arrays(
        [rows.get(name, pa.nulls(3, COLUMNS.field(name).type)) for name in COLUMNS.names], schema=COLUMNS
    )
    for one, answers in zip(alone, expected, strict=True):
        found, _ = Scan([one], lambda vias, names: [], lambda: 0).run(log)
        assert found == [[lsn for lsn, yes in zip((5, 6, 7), answers, strict=True) if yes]]


@ALL
def test_values_and_columns(sample: Sample) -> None:
    bodies = [sample.body(order) for order in ORDERS]
    text = typed(sample.said("{total} + 1"), sample.name)
    heads = sample.properties
    assert evaluate(text, bodies, properties=heads) == [701, 10, 501.5]
    assert evaluate(text, bodies, "arrow", properties=heads) == [701, 10, 501.5]
    assert compile_value(typed(sample.path("region"), sample.name)).values(bodies, heads) == ["north", "south", "north"]


def test_filters_of_several_types_are_asked_together() -> None:
    body = SAMPLES["msgpack"].body(ORDERS[0])
    texts = ["[msgpack] /region = 'north'", "/region = 'north'", "[nvfix] /region IS NULL", "[msgpack] /total > 1"]
    assert FilterSet([compile_filter(text) for text in texts]).matches([body], EMPTY, []) == {0: [0], 2: [0], 3: [0]}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_what_cannot_be_read_has_no_fields(kind: str) -> None:
    bad = [
        b"\xff\xfe\xfd",
        b"{",
        b"<a",
        b"\xc1",
        b"no pair",
        b"\x01\x00\x00\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ]
    row = body_type(kind)
    for body in bad:
        assert row.table(body) == {}
        assert compile_filter(typed("/a IS NULL", kind)).matches([body]) == [True]


def test_an_expression_says_what_it_reads() -> None:
    assert typed("/a = 1", "json") == "/a = 1"
    assert typed("[bson] /a = 1", "bson") == "[bson] /a = 1"
    assert typed("[json] /a = 1", "json") == "/a = 1"
    assert evaluate("[json] /a", [b'{"a": 1}']) == [1]
    with pytest.raises(InvalidArgument, match="reads json, and the bodies here are bson"):
        typed("[json] /a = 1", "bson")
    with pytest.raises(ExpressionError) as error:
        compile_filter("[nvfix] /a = ")
    assert error.value.place == len("[nvfix] /a =")
    with pytest.raises(ExpressionError):
        compile_filter("[nvfix] ")
    with pytest.raises(ExpressionError):
        compile_filter("[unknown] /a = 1")


def test_values_that_json_has_not() -> None:
    moment = datetime(2026, 11, 23, 4, 5, 6, 7000, UTC)
    packed = msgpack.packb({"b": b"\xff\x00", "t": moment, "e": msgpack.ExtType(4, b"x"), 7: "seven"}, datetime=True)
    assert body_type("msgpack").read(packed) == {
        "b": "/wA=",
        "t": "2026-11-23T04:05:06.007000Z",
        "e": "eA==",
        "7": "seven",
    }
    document = {
        "b": b"\xff\x00", "t": moment, "o": bson.ObjectId("0" * 24), "d": bson.Decimal128("1.10"),
        "u": bson.Binary.from_uuid(UUID(int=5)), "i": bson.Int64(5), "m": bson.MinKey(), "c": bson.Code("f()"),
    }  # fmt: skip
    assert body_type("bson").read(bson.encode(document)) == {
        "b": "/wA=", "t": "2026-11-23T04:05:06.007000Z", "o": "0" * 24, "d": "1.10", "u": str(UUID(int=5)), "i": 5,
        "m": None, "c": "f()",
    }  # fmt: skip
    for digits, text in (("0E-18", "0." + "0" * 18), ("1E+3", "1000"), ("-1.20E-7", "-0.000000120"), ("NaN", "NaN")):
        assert body_type("bson").read(bson.encode({"d": bson.Decimal128(digits)})) == {"d": text}
    assert evaluate("[bson] /d = 1.1", [bson.encode({"d": bson.Decimal128(Decimal("1.10"))})]) == [True]


def test_pairs() -> None:
    nvfix, fix = body_type("nvfix"), body_type("fix")
    assert nvfix.read(b"a=1\x01b=x=y\x01a=2\x01c=") == {"a": ["1", "2"], "b": "x=y", "c": ""}
    assert nvfix.read(b"") == {}
    assert fix.read(b"35=D\x0195=3\x0196=a\x01b\x0158=t\x01") == {"35": "D", "95": "3", "96": "a\x01b", "58": "t"}
    for body in (b"a=1\x01", b"95=9\x0196=ab\x01", b"95=1\x0158=a\x01", b"95=1\x01", b"95=x\x0196=a\x01", b"=1"):
        with pytest.raises(ValueError, match="."):
            fix.read(body)
    for body in (b"a", b"=1", b"a=1\x01b"):
        with pytest.raises(ValueError, match="is no name=value"):
            nvfix.read(body)


def test_xml() -> None:
    xml = body_type("xml")
    body = b'<?xml version="1.0"?><o xmlns:n="u" id="7"><n:l>a</n:l> <n:l>b</n:l><e/><m k="1">t<i/></m></o>'
    assert xml.read(body) == {"o": {"@id": "7", "l": ["a", "b"], "e": "", "m": {"@k": "1", "i": "", "#text": "t"}}}
    assert evaluate("[xml] /o/@id = 7 AND /o/l[1] = 'b'", [body]) == [True]
    for bad in (
        b"", b"<a>", b"text", b"<a/><b/>", b'<?xml version="1.0" encoding="nonsense"?><a/>',
        b'<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>', b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><a/>', b"<a>&e;</a>",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="."):
            xml.read(bad)


def test_a_namespace_does_not_make_more_of_a_body_than_it_is() -> None:
    """The parser keeps each name with its namespace: 79 KB took 400 MB."""
    xml, far = body_type("xml"), "n" * 40_000
    for inside, declared in (("<a{0}/>", "xmlns"), ("<n:a/>", "xmlns:n"), ('<a n:b{0}=""/>', "xmlns:n")):
        body = f'<r {declared}="{far}">{"".join(inside.format(n) for n in range(2000))}</r>'
        with pytest.raises(ValueError, match="its names, with their namespaces, are too long for its size"):
            xml.read(body.encode())
    usual = f'<r xmlns="urn:{"x" * 60}">' + "<a/>" * 50_000 + "</r>"
    assert xml.read(usual.encode()) == {"r": {"a": [""] * 50_000}}


def test_what_an_encoding_is_called_is_kept_by_nobody() -> None:
    """Python keeps each name that it was ever asked for: a message could have a name of a mebibyte."""
    xml, kept = body_type("xml"), len(encodings._cache)  # type: ignore[attr-defined]
    for number in range(1, 20):
        for name in (f"no-such-{number}{'x' * 1000}", f"iso-8859--{'-' * number}15", f"rot_{'_' * number}13"):
            with pytest.raises(ValueError, match="its encoding is unknown"):
                xml.read(Whole(f'<?xml version="1.0" encoding="{name}"?><a>x</a>'.encode()))
    assert len(encodings._cache) == kept  # type: ignore[attr-defined]
    for name in ("ISO-8859-15", "iso-8859-15", "windows-1252", "cp1252", "KOI8-R", "utf-8", "US-ASCII", "ISO-8859-1"):
        text = "\N{EURO SIGN}" if "15" in name or "1252" in name else "a"
        for quote in "'\"":
            head = f"<?xml version={quote}1.0{quote}\n encoding = {quote}{name}{quote} standalone='yes' ?>"
            assert xml.read(Whole(f"{head}<a>{text}</a>".encode(name))) == {"a": text}, name
    for head in ("", '<?xml version="1.0" encoding="UTF-16"?>'):
        assert xml.read(Whole(f"{head}<a>\N{EURO SIGN}</a>".encode("utf-16"))) == {"a": "\N{EURO SIGN}"}


def _nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {"a": 1}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("msgpack", lambda n: b"\x81\xa1a" * n + b"\x01"),
        ("msgpack", lambda n: b"\x91" * n + b"\x01"),
        ("xml", lambda n: b"<a>" * n + b"</a>" * n),
        ("bson", lambda n: bson.encode(_nested(n - 1)) if n < 500 else b""),
    ],
)
def test_depth_is_bounded(kind: str, write: object) -> None:
    row = body_type(kind)
    row.read(write(DEPTH - 5))  # type: ignore[operator]
    for levels in (DEPTH + 5, 100_000):
        with pytest.raises(ValueError, match="."):
            row.read(write(levels))  # type: ignore[operator]


def test_references_of_bson_are_levels_like_any_other() -> None:
    """A chain of them went on until the interpreter had no more levels, and stopped the queue that read the body."""
    row, reference = body_type("bson"), bson.DBRef("orders", 7, "shop", note=bson.DBRef("notes", 1))
    told = {"$ref": "orders", "$id": 7, "$db": "shop", "note": {"$ref": "notes", "$id": 1}}
    body = bson.encode({"a": reference})
    assert row.read(body) == {"a": told}
    assert row.exact(row.write({"a": row.exact(body)["a"]})) == {"a": reference}  # type: ignore[index,misc]

    def chain(levels: int) -> bytes:
        inner = b"\x0a" + b"x\0"  # NULL
        for _ in range(levels):
            parts = b"\x02$ref\0\x02\0\0\0a\0" + b"\x10$id\0\1\0\0\0" + inner
            inner = b"\x03x\0" + (len(parts) + 5).to_bytes(4, "little") + parts + b"\0"
        return (len(inner) + 5).to_bytes(4, "little") + inner + b"\0"

    row.read(Whole(chain(DEPTH - 5)))
    for levels in (DEPTH + 5, 450, 900, 5_000):
        for read in (row.read, row.exact):
            with pytest.raises(ValueError, match="nested|depth"):
                read(Whole(chain(levels)))


@pytest.mark.parametrize("head", [b"\xdc\x3f\x00", b"\xdd\x00\x00\x3f\x00"])
def test_lists_that_say_more_than_they_hold_get_no_room(head: bytes) -> None:
    """Room was made for each as it was met: 16 KiB took 70 MiB and 70 ms."""
    body = head * 1000 + b"\0" * (16_384 - 1000 * len(head))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="."):
            body_type("msgpack").read(body)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@ALL
def test_exactly_read_and_written_again(sample: Sample) -> None:
    row = body_type(sample.name)
    for order in ORDERS:
        body = row.one_whole(sample.body(order), sample.properties)
        assert orjson.loads(row.json(body)) == row.read(body)
        if row.write is not None:
            assert row.exact(row.write(row.object(body, "a body"))) == row.exact(body)
    assert (row.write is not None) == sample.merges
    with pytest.raises(InvalidArgument, match=f"a delta is no {row.title}" if sample.merges else "is not written here"):
        row.object(b"\xff", "a delta")


@ALL
def test_damaged_bodies_raise_nothing_else(sample: Sample) -> None:
    """Bytes of good bodies changed, cut and put together: each is read, or refused with a sentence."""
    chance = random.Random(SEED)
    row = body_type(sample.name)
    seeds = [sample.body(order) for order in ORDERS]
    for _ in range(1500 * EFFORT):
        body = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body) + 1)
            match chance.randrange(4):
                case 0:
                    body[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del body[at : at + chance.randrange(9)]
                case 2:
                    body[at:at] = chance.randbytes(chance.randrange(6))
                case _:
                    body[at:at] = chance.choice(seeds)[: chance.randrange(20)]
        whole = row.one_whole(bytes(body), sample.properties)
        said = ""
        try:
            row.read(whole)
        except ValueError as error:
            said = why_no_json(error) or "nothing"
        assert said != "nothing"
        assert not of_a_program(said), said
        if said:
            assert row.table(whole) == {}
        else:
            orjson.loads(row.json(whole))
            row.exact(whole)


EXTRAS = {
    "xml": {"defusedxml"}, "msgpack": {"msgpack"}, "bson": {"msgpack", "bson"}, "avro": {"msgpack", "fastavro"},
    "protobuf": {"google.protobuf"},
}  # fmt: skip
"""What the extra of a type installs."""


@ALL
def test_a_type_is_read_by_what_its_extra_installs(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = EXTRAS.get(sample.name.partition(":")[0], set())
    for library in set().union(*EXTRAS.values()) - needed:
        monkeypatch.setitem(sys.modules, library, None)
    for name in [one for one in sys.modules if one.startswith(f"{bodies.__name__}.") and not one.endswith("body_type")]:
        monkeypatch.delitem(sys.modules, name)  # what it loads it loads anew
        monkeypatch.delattr(bodies, name.rpartition(".")[2])
    assert body_type.__wrapped__(sample.name).name == sample.name.partition(":")[0]
