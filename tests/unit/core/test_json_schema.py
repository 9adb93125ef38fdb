"""JSON Schema of topics: what does not fit is refused with its place, or counted, whichever way it comes in."""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from message_samples import SAMPLES
from penstock.core.commands.transactions import Transaction
from penstock.core.publishing import body_checks
from penstock.core.publishing.published import Published
from penstock.core.streams.sinks import Batch
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.expr.bodies import body_type
from penstock.expr.json_schema import BODY_MOST, DEEPEST, compile_check
from penstock.records.entries import Publishes
from penstock.records.properties import EMPTY
from penstock.server.asking.judging import _answers, check_there, note  # pyright: ignore[reportPrivateUsage]
from unit.core.world import DURABLE, World

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "lines": {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}},
    },
}
GOOD, BAD = {"id": 1, "lines": [{"sku": "a"}]}, {"id": 2, "lines": [{"sku": "a"}, {"sku": 4711}]}
NAME = ("/", "", "orders")


def made(**settings: object) -> World:
    world = World()
    world.core.declare_topic(world.now, *NAME, {"json_schema": text(SCHEMA), **settings})
    world.declare("orders")
    return world


def text(value: object) -> str:
    return json.dumps(value)


def rows(world: World, *bodies: object, **more: Any) -> Publishes:
    given = [body if isinstance(body, bytes) else orjson.dumps(body) for body in bodies]
    return Publishes(world.core.topic(*NAME), DURABLE, given, **more)


def publish(world: World, *bodies: object) -> Published:
    return world.core.publish(world.now, rows(world, *bodies))


def contents(world: World) -> list[object]:
    world.turn()
    return [orjson.loads(body) for body in world.contents(world.core.queue("/", "orders"))]


def reasons(published: Published) -> dict[int, str]:
    return {row: str(why) for row, why in published.refused}


def test_a_body_that_does_not_fit_is_refused_with_its_place() -> None:
    world = made()
    told = reasons(publish(world, GOOD, BAD, b"no json", {"lines": []}, GOOD))
    assert sorted(told) == [1, 2, 3]
    assert told[1] == (
        "the body does not fit the JSON Schema of topic 'orders': /lines/1/sku: the value is not of type \"string\""
    )
    assert "it is no JSON" in told[2]
    assert told[3].endswith('/: "id" is a required property')
    assert contents(world) == [GOOD, GOOD]
    noted = world.core.check_failures(NAME)
    assert (noted.count, "4711" in noted.last) == (3, False)


@pytest.mark.parametrize(("mode", "count"), [("warn", 1), ("off", 0)])
def test_warn_counts_and_off_does_not_look(mode: str, count: int) -> None:
    world = made(json_schema_check=mode)
    assert publish(world, GOOD, BAD).refused == ()
    assert contents(world) == [GOOD, BAD]
    assert world.core.check_failures(NAME).count == count


def test_other_topics_and_what_leaves_the_schema() -> None:
    world = made()
    world.core.declare_topic(world.now, "/", "", "others", {})
    assert not world.core.publish(world.now, Publishes(world.core.topic("/", "", "others"), DURABLE, [b"x"])).refused
    mixed = Publishes([world.core.topic("/", "", "others"), world.core.topic(*NAME)], DURABLE, [b"x", b"x"])
    assert sorted(reasons(world.core.publish(world.now, mixed))) == [1]
    world.core.declare_topic(world.now, *NAME, {})
    assert publish(world, BAD).refused == ()


def test_a_pattern_of_topics_holds_all_that_match() -> None:
    world = World()
    world.core.declare_topic(world.now, "/", "", "^ord", {"json_schema": text(SCHEMA)})
    assert sorted(reasons(publish(world, GOOD, BAD))) == [1]


def test_transactions_and_batches_of_sinks_are_refused_whole() -> None:
    world = made()
    with pytest.raises(PreconditionFailed, match=r"message 2 of 2 is refused: .*/lines/1/sku"):
        world.core.transact(world.now, Transaction(rows(world, GOOD, BAD), []))
    with pytest.raises(PreconditionFailed, match=r"its message 2 is refused: .*/lines/1/sku"):
        world.core.sink_commit(world.now, Batch("q", 0), [rows(world, GOOD, BAD)])
    assert contents(world) == []
    world.core.sink_commit(world.now, Batch("q", 0), [rows(world, GOOD)])
    assert contents(world) == [GOOD]


def test_what_was_decided_is_copied_whatever_the_schema_is_by_then() -> None:
    from penstock.core.state.pending import DecidedPart

    world = World()
    world.declare("orders")
    world.core.sink_decide(world.now, Batch("q", 0), [DecidedPart("0" * 32, 1, 300, 1, "orders", "", "/")])
    world.core.declare_topic(world.now, *NAME, {"json_schema": text(SCHEMA)})
    world.core.sink_copy(world.now, "q", 1, [rows(world, BAD)])
    world.turn()
    assert contents(world) == [BAD]


def test_a_delta_is_held_to_what_it_makes_of_its_record() -> None:
    world = made(key=["/id"])
    assert publish(world, GOOD).refused == ()
    batch = rows(world, {"id": 1, "lines": []}, {"id": 1, "lines": [{"sku": 5}]}, {"id": "x"}, delta=True)
    world.turn()
    lacking = world.core.lacking(batch)
    world.core.bodies_from(Held({lsn: orjson.dumps(GOOD) for lsn in lacking}))
    assert sorted(reasons(world.core.publish(world.now, batch))) == [1, 2]
    assert contents(world)[-1] == {"id": 1, "lines": []}


class Held:
    """Bodies of present records."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self._bodies = bodies

    def has(self, lsn: int) -> bool:
        return lsn in self._bodies

    def keep(self, lsn: int, body: bytes) -> None:
        self._bodies[lsn] = body

    def get(self, lsn: int) -> bytes | None:
        return self._bodies.get(lsn)


def test_a_large_batch_is_looked_at_off_the_loop_with_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_checks, "LOOP_ROWS", 3)
    world = made()
    bodies: list[object] = [GOOD, BAD, b"x" * 9000, GOOD, BAD]
    batch = rows(world, *bodies)
    [question] = world.core.unjudged(batch)
    note(batch, [question], _answers([(batch, [question])], None)[0])
    assert world.core.unjudged(batch) == []
    with patch.object(type(compile_check(text(SCHEMA))), "fits", side_effect=AssertionError("it is known")):
        there = reasons(world.core.publish(world.now, batch))
    assert there == reasons(publish(made(), *bodies))
    assert sorted(there) == [1, 2, 4]


COSTLY: dict[str, Any] = {"items": {"anyOf": [{"const": n} for n in range(1, 3000)]}}


def test_what_takes_many_steps_is_looked_at_off_the_loop_however_short_it_is() -> None:
    world = made(json_schema=text(COSTLY))
    zeros: list[object] = [[0] * 700] * 40
    batch = rows(world, [1], *zeros)
    assert batch.size < 8192 * 8
    short = rows(world, *zeros[:1])
    assert world.core.at_once < 1401
    told = list[str]()

    def ask(job: str, values: dict[str, Any]) -> dict[str, Any]:
        told.append(job)
        bodies = {key: memoryview(values[key]) for key in ("text", "body", "properties")}
        return dict(check_there(None, kind=values["kind"], **bodies))  # type: ignore[arg-type]

    for one in (short, batch):
        [question] = world.core.unjudged(one)
        note(one, [question], _answers([(one, [question])], ask)[0])
    assert told == ["check"] * 41
    with patch.object(type(compile_check(text(COSTLY))), "fits", side_effect=AssertionError("it is known")):
        there = reasons(world.core.publish(world.now, batch))
    assert sorted(there) == [*range(1, 41)]
    assert "where would take" in there[1]
    assert "like others" in there[40]


def test_what_is_wrong_is_told_without_making_all_that_is_wrong() -> None:
    """A kilobyte for each alternative of each value: forty kilobytes of a body became gigabytes."""
    check = compile_check(text({"items": {"anyOf": [{"const": n} for n in range(1, 50)]}}))
    assert check.why(orjson.dumps([0] * 500), EMPTY).startswith("/0: ")
    several = compile_check(text({"anyOf": [{"items": {"required": ["a", "b"]}}] * 10}))
    assert several.why(orjson.dumps([{}] * 50), EMPTY).startswith("/: ")
    for large, body in ((check, [0] * 20_000), (several, [{}] * 20_000)):
        assert "where would take" in large.why(orjson.dumps(body), EMPTY)
    wide = compile_check(text({"items": {"type": "string"}}))
    assert wide.why(orjson.dumps([0] * 400_000), EMPTY).startswith("/0: ")


def test_deltas_of_which_a_costly_schema_would_make_too_much_are_refused() -> None:
    world = made(key=["/id"], json_schema=text({"properties": {"all": COSTLY}}))
    record = {"id": 1, "all": [1] * 1000}
    assert publish(world, record).refused == ()
    batch = rows(world, *({"id": 1, "n": n} for n in range(5)), delta=True)
    world.turn()
    world.core.bodies_from(Held({lsn: orjson.dumps(record) for lsn in world.core.lacking(batch)}))
    told = reasons(world.core.publish(world.now, batch))
    assert sorted(told) == [2, 3, 4]
    assert "publish fewer at a time, or whole records" in told[2]


def test_bodies_and_schemas_are_bounded() -> None:
    check = compile_check(text({"properties": {"a": {"$ref": "#"}}}))
    deep = b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1)
    assert not check.fits(deep, EMPTY)
    assert "levels deep" in check.why(deep, EMPTY)
    assert check.fits(deep[5:-1], EMPTY)
    assert not check.fits(b'"' + b"x" * BODY_MOST + b'"', EMPTY)
    assert "no more than" in check.why(b" " * (BODY_MOST + 1), EMPTY)
    nested: object = {"type": "integer"}
    for _ in range(150):
        nested = {"allOf": [nested]}
    for wrong, why in (
        ("{", "no JSON"),
        ("[]", "is an object"),
        ('{"type": "nonsense"}', "json_schema: "),
        ('{"pattern": "(?=a)"}', "json_schema: "),
        ('{"$ref": "http://127.0.0.1:1/schema"}', "is disabled"),
        ('{"$ref": "file:///etc/passwd"}', "is disabled"),
        (text(nested), "levels deep"),
        (text({"$ref": "#/x", "allOf": [{}] * 2000}), "with references 2000 are allowed"),
        (text({"enum": ["x" * 1000] * 300}), "letters; 65536 are allowed"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            compile_check(wrong)


def test_a_schema_that_can_be_read_can_be_declared_and_a_longer_one_can_neither() -> None:
    world, empty = World(), len(text({"title": ""}))
    longest = text({"title": "x" * (65_536 - empty)})
    compile_check(longest)
    world.core.declare_topic(world.now, *NAME, {"json_schema": longest})
    longer = text({"title": "x" * (65_537 - empty)})
    with pytest.raises(InvalidArgument, match="65536"):
        compile_check(longer)
    with pytest.raises(InvalidArgument, match="65536"):
        world.core.declare_topic(world.now, *NAME, {"json_schema": longer})


def test_settings_that_cannot_be() -> None:
    world = World()
    for settings, why in (
        ({"json_schema": "{"}, "no JSON"),
        ({"json_schema": "{}", "json_schema_check": "maybe"}, "is one of off, warn, reject"),
        ({"json_schema_check": "warn"}, "give one"),
        ({"json_schema": "{}", "message_type": "binary"}, "bodies with fields"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            world.core.declare_topic(world.now, *NAME, settings)


def test_without_the_library_it_is_told_and_nothing_slips_through() -> None:
    world = made()
    compile_check.cache_clear()
    with patch.dict(sys.modules, {"jsonschema_rs": None}):
        with pytest.raises(PreconditionFailed, match=r"penstock\[json-schema\]"):
            World().core.declare_topic(world.now, *NAME, {"json_schema": "{}"})
        assert "penstock[json-schema]" in reasons(publish(world, GOOD))[0]
    compile_check.cache_clear()
    assert publish(world, GOOD).refused == ()


@pytest.mark.parametrize("name", ["msgpack", "bson", "avro", "protobuf", "avro-by-header", "protobuf-by-header"])
def test_bodies_of_other_types_have_bounds_by_the_json_that_readers_see(name: str) -> None:
    sample = SAMPLES[name]
    total = {"maxLength": 2} if sample.texts else {"maximum": 99}
    bounds = {"properties": {"total": total, "region": {"enum": ["north", "south"]}}}
    world = World()
    world.core.declare_topic(world.now, *NAME, {"json_schema": text(bounds), "message_type": sample.name})
    world.declare("orders", message_type=sample.name)
    given = ((99, "north"), (101, "north"), (1, "x"))
    orders = [{"id": "a", "total": total, "region": where} for total, where in given]
    given_rows = rows(world, *map(sample.body, orders), b"\xc1")
    given_rows.properties = sample.properties if sample.headers else DURABLE
    published = world.core.publish(world.now, given_rows)
    told = reasons(published)
    assert published.stored == 1
    assert sorted(told) == [1, 2, 3]
    assert "/total: " in told[1]
    assert "/region: " in told[2]
    assert f"it is no {body_type(sample.name).title}: " in told[3]


def test_where_every_value_is_a_text_bounds_are_of_texts() -> None:
    world = World()
    bounds = {"properties": {"side": {"pattern": "^(buy|sell)$"}, "qty": {"maxLength": 3}}}
    world.core.declare_topic(world.now, *NAME, {"json_schema": text(bounds), "message_type": "nvfix"})
    published = publish(world, b"side=buy\x01qty=100\x01", b"side=hold\x01", b"qty=1000\x01")
    assert sorted(reasons(published)) == [1, 2]


def test_what_a_body_becomes_is_bounded_as_well() -> None:
    check = compile_check("{}", "msgpack")
    assert check.fits(b"\xdc\x00\x02\x01\x02", EMPTY)
    large = b"\xdd" + (300_000).to_bytes(4, "big") + b"\xcd\xff\xff" * 300_000  # of three bytes each, six as JSON
    assert len(large) < BODY_MOST
    assert not check.fits(large, EMPTY)
    assert "no more than" in check.why(large, EMPTY)
