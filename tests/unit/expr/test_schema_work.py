"""What a JSON Schema makes of a value at most: beside a count of what it makes, and schemas that make too much."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import orjson
import pytest

from choices import EFFORT, SEED
from penstock.errors import InvalidArgument
from penstock.expr.json_schema import BODY_MOST, LEVELS, WORK_MOST, compile_check, work_of
from penstock.records.properties import EMPTY

KEYS = ("a", "b", "c")
DEEP = 6


def a_schema(chance: random.Random, names: list[str], depth: int = 3) -> Any:
    """Anything of what joins schemas, and references to definitions that do not join others on the spot."""
    if not depth or chance.random() < 0.15:
        return {"enum": list(range(chance.randrange(0, 40)))} if chance.random() < 0.5 else {"type": "integer"}

    def one() -> Any:
        return a_schema(chance, names, depth - 1)

    def ahead() -> Any:
        return {"$ref": f"#/$defs/{chance.choice(names)}"} if names and chance.random() < 0.5 else one()

    out: dict[str, Any] = {}
    for _ in range(chance.randrange(1, 4)):
        match chance.randrange(7):
            case 0:
                out[chance.choice(["allOf", "anyOf", "oneOf"])] = [one() for _ in range(chance.randrange(1, 3))]
            case 1:
                out[chance.choice(["not", "if", "then", "else"])] = one()
            case 2 | 3:
                out["properties"] = {key: ahead() for key in chance.sample(KEYS, chance.randrange(1, 4))}
            case 4:
                out["additionalProperties"] = ahead()
            case 5:
                out["items"] = ahead()
            case _:
                out["prefixItems"] = [ahead() for _ in range(chance.randrange(1, 3))]
    return out


def a_body(chance: random.Random, depth: int = DEEP) -> Any:
    if not depth or chance.random() < 0.2:
        return chance.randrange(50)
    if chance.random() < 0.5:
        return [a_body(chance, depth - 1) for _ in range(chance.randrange(3))]
    return {key: a_body(chance, depth - 1) for key in chance.sample([*KEYS, "d"], chance.randrange(4))}


class Tried:
    """A validator that tries everything, and counts."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.steps = Counter[tuple[object, ...]]()  # by the place of a value

    def look(self, schema: Any, value: Any, place: tuple[object, ...] = ()) -> None:
        self.steps[place] += 1 + len(schema.get("enum", ())) // 8
        if "$ref" in schema:
            self.look(self.whole["$defs"][schema["$ref"].rpartition("/")[2]], value, place)
        for key in ("allOf", "anyOf", "oneOf"):
            for one in schema.get(key, ()):
                self.look(one, value, place)
        for key in ("not", "if", "then", "else"):
            if key in schema:
                self.look(schema[key], value, place)
        for name, part in value.items() if isinstance(value, dict) else ():
            named = schema.get("properties", {})
            if name in named:
                self.look(named[name], part, (*place, name))
            elif "additionalProperties" in schema:
                self.look(schema["additionalProperties"], part, (*place, name))
        first = schema.get("prefixItems", ())
        for at, part in enumerate(value) if isinstance(value, list) else ():
            if at < len(first):
                self.look(first[at], part, (*place, at))
            elif "items" in schema:
                self.look(schema["items"], part, (*place, at))


def test_no_schema_makes_more_than_was_told() -> None:
    chance, tightest = random.Random(SEED), 0.0
    for _ in range(150 * EFFORT):
        names = [f"d{n}" for n in range(chance.randrange(4))]
        whole = {**a_schema(chance, names), "$defs": {name: a_schema(chance, names) for name in names}}
        told = work_of(whole)
        for _ in range(5):
            tried = Tried(whole)
            tried.look(whole, a_body(chance))
            for place, steps in tried.steps.items():
                bound = told[min(len(place), len(told) - 1)]
                assert steps <= max(bound, max(told[: len(place) + 1])), (whole, place, told)
                tightest = max(tightest, steps / bound)
    assert tightest == 1.0, "a bound that nothing reaches is none"


def doubled(times: int) -> Any:
    twice = [{"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(times)}}]
    return {"$ref": "#/$defs/d0", "$defs": {**twice[0]["$defs"], f"d{times}": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (doubled(40), r"makes \d+ steps for a byte; 134217728 are allowed"),
        ({"allOf": [{"$ref": "#"}]}, "leads to itself on the spot"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#b"}, "b": {"$anchor": "b", "not": {"$ref": "#/$defs/a"}}}},
         "leads to itself on the spot"),
    ],
)  # fmt: skip
def test_what_makes_too_much_of_anything_is_no_schema(schema: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        compile_check(orjson.dumps(schema).decode())


def nested(levels: int) -> Any:
    return 1 if not levels else {"a": nested(levels - 1)}


TWICE_A_LEVEL = {"allOf": [{"properties": {"a": {"$ref": "#"}}}] * 2}


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (TWICE_A_LEVEL, nested(50)),
        ({"pattern": "((a{1,50}){1,50})c"}, "a" * 100_000),
        ({"pattern": "(?x)( a{1,50} #(\n ){1,50}c"}, "a" * 100_000),
        ({"items": {"anyOf": [{"const": n} for n in range(3000)]}}, list(range(3000, 120_000))),
        ({"items": {"enum": list(range(9000))}}, [-1] * 200_000),
        ({"items": {"not": {"patternProperties": {"(a{1,1000}){1,9}$": True}}}}, [{"a" * 1000: 1}] * 500),
        *(
            ({"items": {key: {f"n{n}": one for n in range(500)}}}, [{}] * 300_000)
            for key, one in (("dependentRequired", ["z"]), ("dependentSchemas", True), ("dependencies", ["z"]))
        ),
        ({"items": {"allOf": [{"multipleOf": 1e-7}] * 50}}, [1e308] * 20_000),
        ({"items": {"allOf": [{"minimum": 0.5}] * 100}}, [1] * 200_000),
    ],
)
def test_a_body_of_which_it_would_make_too_much_does_not_fit(schema: Any, body: Any) -> None:
    check, sent = compile_check(orjson.dumps(schema).decode()), orjson.dumps(body)
    assert len(sent) <= BODY_MOST
    began = time.thread_time()
    assert not check.fits(sent, EMPTY)
    assert time.thread_time() - began < 1.0
    assert f"no more than {WORK_MOST} are made" in check.why(sent, EMPTY)


def test_what_people_have_is_looked_at_whole() -> None:
    tree: Any = 1
    for _ in range(12):
        tree = {"l": tree, "r": tree}
    order = {"properties": {**{f"p{n}": {"type": "integer"} for n in range(60)}, "to": {"properties": {"city": {}}}}}
    moment = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z$"}
    kinds = {"oneOf": [{"properties": {"kind": {"const": n}}, "required": ["kind"]} for n in range(50)]}
    for schema, body in (
        ({"properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}}, tree),
        ({"items": order}, [{"p1": 1, "to": {"city": "x"}}] * 30_000),
        ({"items": moment}, ["2026-11-23T00:00:00Z"] * 45_000),
        ({"items": kinds}, [{"kind": 7}] * 80_000),
        (TWICE_A_LEVEL, nested(12)),
    ):
        assert compile_check(orjson.dumps(schema).decode()).fits(orjson.dumps(body), EMPTY), schema
    assert len(work_of(TWICE_A_LEVEL)) <= LEVELS + 1
