"""SQL reads the fields of bodies of every message type, and shows what cannot be read as bodies without fields."""

from __future__ import annotations

import msgpack
import orjson
import pyarrow as pa
import pytest

from message_samples import SAMPLES, Sample
from penstock.errors import InvalidArgument
from penstock.expr.batches import PROPERTIES as NAMES
from penstock.records.properties import Properties, encode
from penstock.server.sql.duckdb_engine import Engine
from penstock.server.sql.statement import Use

pytest.importorskip("duckdb")

ALL = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
ORDERS = [
    {"id": "a-1", "total": 7, "region": "north", "note": "x"},
    {"id": "a-2", "total": 9, "region": "south", "note": "y"},
]


def asked(
    engine: Engine, sql: str, bodies: list[bytes], kind: str, properties: bytes | None = None
) -> list[dict[str, object]]:
    columns = {"lsn": pa.array(range(len(bodies)), pa.int64()), "body": pa.array(bodies, pa.binary())}
    if properties is not None:
        columns["properties"] = pa.array([properties] * len(bodies), pa.binary())
    batch = pa.record_batch(columns)
    engine.table(Use("", "t"), engine.examine(sql), batch.schema, [batch], kind)
    _, rows = engine.run(sql)
    return [row for one in rows for row in one.to_pylist()]


@ALL
def test_fields_are_columns(sample: Sample, engine: Engine) -> None:
    bodies = [*(sample.body(order) for order in ORDERS), b"\xc1<"]
    field = ".".join(f'"{step}"' for step in sample.path("region").strip("/").split("/"))
    found = asked(engine, f"SELECT lsn, {field} AS region FROM t ORDER BY lsn", bodies, sample.name, sample.properties)
    assert found == [{"lsn": 0, "region": "north"}, {"lsn": 1, "region": "south"}, {"lsn": 2, "region": None}]


@ALL
def test_what_bodies_are_read_by_is_no_column(sample: Sample, engine: Engine) -> None:
    [first] = asked(engine, "SELECT * FROM t", [sample.body(ORDERS[0])], sample.name, sample.properties)
    assert ("properties" in first, "lsn" in first) == (False, True)


@ALL
def test_the_body_as_json(sample: Sample, engine: Engine) -> None:
    bodies = [sample.body(ORDERS[0]), b"\xc1<"]
    [one, other] = asked(engine, "SELECT json FROM t ORDER BY lsn", bodies, sample.name, sample.properties)
    assert orjson.loads(str(one["json"])) == sample.read(bodies[0])
    assert other["json"] is None


@pytest.mark.parametrize(
    ("sql", "near"),
    [
        ("SELECT regoin FROM t", "; did you mean 'region'?"),
        ("SELECT x.Regoin FROM t AS x", "; did you mean 'region'?"),
        ("SELECT lsn FROM t ORDER BY totl", "; did you mean 'total'?"),
        ("SELECT regoin.city FROM t", "; did you mean 'region'?"),
        ("SELECT stat FROM t", "; did you mean 'state'?"),
        ("SELECT zzzz FROM t", ""),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_near_one(sql: str, near: str, engine: Engine) -> None:
    with pytest.raises(InvalidArgument) as caught:
        asked(engine, sql, [orjson.dumps(one) for one in ORDERS], "json")
    told = str(caught.value)
    assert near in told
    assert "Candidate" not in told if near else "did you mean" not in told
    assert told.endswith("\nFields of the bodies are columns, too: id, total, region, note.")


def test_nor_are_very_many_fields_told(engine: Engine) -> None:
    with pytest.raises(InvalidArgument, match=r"f00, .*, f19 and 280 more\.$"):
        asked(engine, "SELECT zzzz FROM t", [orjson.dumps({f"f{n:02}": n for n in range(300)})], "json")


def test_nor_where_there_are_none(engine: Engine) -> None:
    with pytest.raises(InvalidArgument, match="too: none of the bodies there has one"):
        asked(engine, "SELECT zzzz FROM t", [b"[1]"], "json")


def test_what_a_table_of_the_statement_lacks_is_not_proposed_though_bodies_have_it(engine: Engine) -> None:
    sql = "WITH x AS (SELECT id FROM t) SELECT region FROM x"
    with pytest.raises(InvalidArgument, match='"region" not found in FROM clause!\nCandidate bindings: "id"\nFields'):
        asked(engine, sql, [orjson.dumps(one) for one in ORDERS], "json")


def test_bodies_without_fields(engine: Engine) -> None:
    assert asked(engine, "SELECT json FROM t", [b'{"a": 1}'], "binary") == [{"json": None}]


def test_numbers_keep_their_types(engine: Engine) -> None:
    bodies = [msgpack.packb({"a": n, "b": n / 2, "c": [n], "d": {"e": True}}) for n in (1, 2**63)]
    found = asked(engine, "SELECT a, b, c[1] AS c, d.e AS e FROM t ORDER BY lsn", bodies, "msgpack")
    assert found == [{"a": 1, "b": 0.5, "c": 1, "e": True}, {"a": 2**63, "b": 2.0**62, "c": 2**63, "e": True}]


HEADS = [
    encode(Properties(content_type="text/plain", message_id="m-1", priority=7, timestamp=2**64 - 1)),
    encode(Properties(correlation_id="c", reply_to="r", headers={"a": 1}, type="order", user_id="guest")),
    encode(Properties()),
]


def test_what_messages_say_of_themselves_is_a_column_by_its_name_in_expressions(engine: Engine) -> None:
    """Fields of bodies with the same names stay what they are."""
    body = b'{"message_id": "of the body", "@properties": 5}'
    columns = '"@properties".message_id AS id, "@properties" AS said, message_id, json->>\'@properties\' AS field'
    found = asked_of(engine, f"SELECT {columns} FROM t ORDER BY lsn", body, HEADS)
    nothing = dict.fromkeys(NAMES)
    assert [(row["id"], row["message_id"], row["field"]) for row in found] == [
        ("m-1", "of the body", "5"), (None, "of the body", "5"), (None, "of the body", "5")
    ]  # fmt: skip
    assert [row["said"] for row in found] == [
        {**nothing, "content_type": "text/plain", "message_id": "m-1", "priority": 7, "timestamp": 2**64 - 1},
        {**nothing, "correlation_id": "c", "reply_to": "r", "type": "order", "user_id": "guest"},
        nothing,
    ]


def test_they_are_no_column_of_everything(engine: Engine) -> None:
    [first, *_] = asked_of(engine, "SELECT * FROM t ORDER BY lsn", b'{"a": 1}', HEADS)
    assert first == {"lsn": 0, "a": 1}


def asked_of(engine: Engine, sql: str, body: bytes, heads: list[bytes]) -> list[dict[str, object]]:
    batch = pa.record_batch({
        "lsn": pa.array(range(len(heads)), pa.int64()), "body": pa.array([body] * len(heads), pa.binary()),
        "properties": pa.array(heads, pa.binary()),
    })  # fmt: skip
    engine.table(Use("", "t"), engine.examine(sql), batch.schema, [batch])
    _, rows = engine.run(sql)
    return [row for one in rows for row in one.to_pylist()]
