"""Bodies of all kinds through Spark: no body ends a read or a stream, or keeps one from being planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from choices import SEED
from json_cases import NO_JSON, SIMPLE, TYPES, Cases
from spark_lab import Lab, sentence

KINDS = [*SIMPLE, "array<bigint>", "map<string,double>", "struct<b:decimal(20,2),c:string>"]
SCHEMA = ", ".join(f"f{place} {name}" for place, name in enumerate(KINDS))


def odd_bodies(each: int) -> list[bytes]:
    """A good one, what is no JSON, and for each field some that have just this one."""
    cases = Cases(SEED)
    bodies = [b"{}", *NO_JSON]
    for place, kind in enumerate(TYPES[name] for name in KINDS):
        bodies += [b'{"f%d": %s}' % (place, cases.text(kind).encode()) for _ in range(each)]
    return bodies


def publish(lab: Lab, topic: str, bodies: list[bytes]) -> None:
    lab.client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary())}))


def test_every_body_is_a_row_or_is_put_aside(lab: Lab, effort: int) -> None:
    lab.declare("odd", "odd-bad")
    bodies = odd_bodies(10 * effort)
    publish(lab, "odd", bodies)
    told = lab.read(topic="odd", schema=SCHEMA).select("body", "parse_error").collect()
    assert [bytes(row.body) for row in told] == bodies
    bad = [bytes(row.body) for row in told if row.parse_error is not None]
    assert len(NO_JSON) < len(bad) < len(bodies)
    good = lab.read(topic="odd", schema=SCHEMA, badRecordsTopic="odd-bad").select("body").collect()
    assert [bytes(row.body) for row in good] == [bytes(row.body) for row in told if row.parse_error is None]
    letters = lab.client.peek("odd-bad", count=len(bodies))
    assert sorted(letter.body for letter in letters) == sorted(bad)
    assert all(letter.headers["x-error"] for letter in letters)


@pytest.mark.parametrize("aside", [False, True])
def test_a_queue_of_odd_bodies_is_worked_off(lab: Lab, tmp_path: Path, aside: bool, effort: int) -> None:
    name = f"worked-{aside}".lower()
    lab.declare(name, f"{name}-out", f"{name}-bad")
    bodies = odd_bodies(3 * effort)
    publish(lab, name, bodies)
    options = {"badRecordsTopic": f"{name}-bad"} if aside else {}
    stream = lab.stream(queue=name, stream=name, schema=f"{SCHEMA}, id bigint NOT NULL", **options)
    lab.write(stream.select("lsn"), tmp_path / "checkpoint", topic=f"{name}-out")
    assert lab.counts(name) == (0, 0, len(bodies))
    rows, bad = lab.client.queue(f"{name}-out")["ready"], lab.client.queue(f"{name}-bad")["ready"]
    assert (rows, bad) == ((0, len(bodies)) if aside else (len(bodies), 0))  # none has an id


def test_a_field_that_may_not_be_null_makes_its_body_bad(lab: Lab) -> None:
    lab.declare("sure", "sure-bad")
    publish(lab, "sure", [b'{"id": 1, "s": {"b": 1}}', b'{"id": null}', b'{"id": 2, "s": {}}'])
    schema = "id bigint NOT NULL, s struct<b: int NOT NULL>"
    rows = lab.read(topic="sure", schema=schema).select("id", "s.b", "parse_error").collect()
    assert [tuple(row) for row in rows] == [
        (1, 1, None),
        (None, None, "field 'id' is null or missing, not bigint"),
        (None, None, "field 's.b' is null or missing, not int"),
    ]
    good = lab.read(topic="sure", schema=schema, badRecordsTopic="sure-bad")
    assert not good.schema["id"].nullable
    assert [row.id for row in good.collect()] == [1]
    with pytest.raises(AnalysisException) as caught:
        lab.read("id bigint NOT NULL", topic="sure", parse="json").count()
    assert "column 'id' is NOT NULL, and a bad body has null" in sentence(caught.value)


@pytest.mark.parametrize(
    "schema", ["ä.b: bigint, s struct<a-b: int>", "ä.b bigint NOT NULL, s struct<a-b: int COMMENT 'x'>"]
)
def test_names_of_columns_have_any_letters(lab: Lab, schema: str) -> None:
    lab.client.declare_topic("named", schema="ä.b: bigint, s struct<a-b: int>")
    if not lab.read(topic="named").count():
        publish(lab, "named", ['{"ä.b": 1, "s": {"a-b": 2}}'.encode()])
    for said in (schema, "registered"):
        assert lab.read(topic="named", schema=said).select("`ä.b`", "s.`a-b`").collect() == [(1, 2)]


def test_columns_are_found_whatever_the_bodies_are(lab: Lab) -> None:
    bodies: list[Any] = [
        {"": 1, "id": 1}, {"ID": "x"}, {"a b": 1, "c.d": 2, "e`f": 3, "g\nh": 4, "ä😀": 5, "x;y": 6, "it's": 7},
        {"s": {"": 1, "t": 2, "T": 3}}, {"n" * 300: 1},
    ]  # fmt: skip
    lab.declare("found")
    deep = [b'{"deep": ' + b"[" * levels + b"1" + b"]" * levels + b"}" for levels in (40, 400, 1000)]
    publish(lab, "found", [*(json.dumps(body).encode() for body in bodies), *deep, *NO_JSON])
    rows = lab.read(topic="found", parse="json").select("id", "`c.d`", "s.t", "deep", "parse_error").collect()
    assert [row.id for row in rows if row.id is not None] == [1]
    assert sum(row.parse_error is None for row in rows) >= len(bodies)
