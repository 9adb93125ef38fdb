"""Whether a body fits a JSON Schema, and where it does not.  The library is loaded by those alone who have one.

A schema comes from whoever may declare topics, and bodies from whoever may publish, so both are bounded: nothing is
fetched, patterns run in linear time, references, which recur, go only as deep as the stack has room for whatever
the schema makes of a level, and a body is not looked at for which it would make too many steps.  What an error says
has no value of the body, for it is shown to others as well.

How much a schema makes of a value is known before the first body comes, by how deep the value stands in its body.
Each value is tried by its schema and by all that this one joins on the spot (`allOf`, `anyOf`, `$ref` ...), and a few
lines of references double that at each of them, or at each level of the body.  A pattern takes as many steps for each
byte as it has positions when its repetitions are written out, an `enum` as many as it has members, what depends on
names as many as there are names, and numbers are compared with fractions as fractions.  What is told is a bound, from
the graph of the schemas: where alternatives cannot be told apart, the costlier one counts.
"""

# what a schema is made of is known when it is looked at alone
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import orjson

from penstock.errors import InvalidArgument, PreconditionFailed, told_as
from penstock.expr.bodies import body_type
from penstock.records.ddl import TEXT_MOST
from penstock.records.message_types import JSON, MessageType
from penstock.records.regular_expressions import positions

LEVELS = 64
"""Of a body; deeper down it is the same, or more than anybody is allowed."""

ENOUGH = 1 << 40
"""Nobody is allowed so many, so there is no more to know."""

JOINED_MOST = 200_000
"""Of all schemas together, those of others that each has for its own: to tell what they ask takes so many steps."""

_HERE = {
    "one": ("not", "if", "then", "else"),
    "list": ("allOf", "anyOf", "oneOf"),
    "table": ("dependentSchemas", "dependencies"),
}
_ANY_CHILD = {
    "one": ("additionalProperties", "propertyNames", "unevaluatedProperties", "additionalItems", "items", "contains",
            "unevaluatedItems", "contentSchema"),
    "table": ("patternProperties",),
}  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
_FRACTIONS = {"minimum": 40, "maximum": 40, "exclusiveMinimum": 40, "exclusiveMaximum": 40, "multipleOf": 1000}
"""What it takes to compare with one: `multipleOf` works with all digits of 1e308."""

Node = int
"""The identity of a schema's object in memory."""


class _Joined(NamedTuple):
    """What one schema asks of a value and of its parts."""

    steps: int  # its own, for each byte of the value
    here: Counter[Node]  # how often each is tried on the value itself
    any_child: Counter[Node]  # on each part of it
    by_name: Mapping[object, Node]  # on the part with this name or number


class _Asked:
    """What some schemas, and all that these join on the spot, ask of a value and of its parts."""

    __slots__ = ("any_child", "by_name", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.any_child = Counter[Node]()
        self.by_name: dict[object, Counter[Node]] = {}

    @property
    def size(self) -> int:
        return 1 + len(self.any_child) + sum(map(len, self.by_name.values()))

    def add(self, other: _Asked, times: int) -> None:
        """All of it, beside what is asked already."""
        self.steps += times * other.steps
        _add(self.any_child, other.any_child, times)
        for name, nodes in other.by_name.items():
            _add(self.by_name.setdefault(name, Counter()), nodes, times)

    def join(self, other: _Asked) -> None:
        """One or the other: the larger number of each."""
        self.steps = max(self.steps, other.steps)
        self.any_child |= other.any_child
        for name, nodes in other.by_name.items():
            self.by_name[name] = self.by_name.get(name, Counter()) | nodes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and all(getattr(self, one) == getattr(other, one) for one in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


def _add(to: Counter[Node], nodes: Counter[Node], times: int) -> None:
    for node, count in nodes.items():
        to[node] += times * count


def work_of(schema: Any) -> list[int]:
    """At the top, and at each level below that: so many steps are made for a byte of a value there, or fewer.

    InvalidArgument where a schema leads to itself on the spot, or where too much is joined to tell.
    """
    asked = _asked(_Graph(schema))
    at, out = asked[id(schema)], list[int]()
    while len(out) <= LEVELS:
        out.append(at.steps)
        if at.steps >= ENOUGH:
            break
        below = _Asked()
        for one in at.by_name.values():
            below.join(_all_of(one, asked))
        below.add(_all_of(at.any_child, asked), 1)
        if below == at or not below.steps:
            break
        at = below
    return out


def _all_of(nodes: Counter[Node], asked: Mapping[Node, _Asked]) -> _Asked:
    out = _Asked()
    for node, times in nodes.items():
        out.add(asked[node], times)
    return out


def _asked(graph: _Graph) -> dict[Node, _Asked]:
    """Of each schema with all that it joins on the spot."""
    try:
        order = list(TopologicalSorter({node: one.here for node, one in graph.joined.items()}).static_order())
    except CycleError:
        raise InvalidArgument("json_schema has a reference that leads to itself on the spot") from None
    out, size = dict[Node, _Asked](), 0
    for node in order:
        one, here = graph.joined[node], _Asked()
        here.steps, here.any_child = one.steps, Counter(one.any_child)
        here.by_name = {name: Counter([child]) for name, child in one.by_name.items()}
        for other, times in one.here.items():
            here.add(out[other], times)
        out[node] = here
        size += here.size
        if size > JOINED_MOST:
            raise InvalidArgument(f"json_schema joins more than {JOINED_MOST} schemas on the spot")
    return out


class _Graph:
    """The schemas that a document leads to, each with those that it joins."""

    def __init__(self, schema: Any) -> None:
        self.joined: dict[Node, _Joined] = {}
        self._bases: dict[Node, Any] = {}  # the document that references of each are about
        self._named: dict[str, list[Any]] = {}  # by anchor, and by the last part of an id
        self._walk(schema)
        waiting = [schema]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict) and id(one) not in self.joined:
                self.joined[id(one)] = self._join(one, waiting)
            elif not isinstance(one, dict):
                self.joined[id(one)] = _Joined(1, Counter(), Counter(), {})

    def _walk(self, schema: Any) -> None:
        """Everything that may be one: a reference leads anywhere."""
        waiting = [(schema, schema)]
        while waiting:
            one, base = waiting.pop()
            if isinstance(one, list):
                waiting += [(each, base) for each in one]
            elif isinstance(one, dict):
                for name in ("$id", "id", "$anchor", "$dynamicAnchor"):
                    if isinstance(said := one.get(name), str):
                        base = one if name.endswith("id") and not said.startswith("#") else base
                        self._named.setdefault(said.rstrip("#").rpartition("/")[2].lstrip("#"), []).append(one)
                self._bases[id(one)] = base
                waiting += [(each, base) for each in one.values()]

    def _join(self, schema: dict[str, Any], waiting: list[Any]) -> _Joined:
        """waiting: takes those that it joins."""
        here, any_child = list(_schemas(schema, _HERE)), list(_schemas(schema, _ANY_CHILD))
        for key in _REFERENCES:
            if isinstance(said := schema.get(key), str):
                here += self._meant(said, self._bases[id(schema)])
        by_name: dict[object, Any] = {}
        for key in ("prefixItems", "items"):
            if isinstance(found := schema.get(key), list):
                by_name |= dict(enumerate(found))
        if isinstance(found := schema.get("properties"), dict):
            by_name |= found
        waiting += [*here, *any_child, *by_name.values()]
        times = 2 if any(key in schema for key in _UNEVALUATED) else 1  # it tries again, to see what was seen
        tried = Counter({node: times * count for node, count in Counter(map(id, here)).items()})
        return _Joined(
            _steps(schema), tried, Counter(map(id, any_child)), {name: id(one) for name, one in by_name.items()}
        )

    def _meant(self, reference: str, base: Any) -> list[Any]:
        """Where a reference leads; all that it may mean, where that is not known."""
        whole, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._named.get(fragment, [])
        roots = self._named.get(whole.rpartition("/")[2], []) if whole else [base]
        return [one for root in roots for one in _at(root, fragment)]


def _schemas(schema: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Those that stand under these keys."""
    for shape, names in keys.items():
        for name in names:
            found = schema.get(name)
            if shape == "one" and isinstance(found, dict):
                yield found
            elif shape == "list" and isinstance(found, list):
                yield from (one for one in found if isinstance(one, dict))
            elif shape == "table" and isinstance(found, dict):
                yield from (one for one in found.values() if isinstance(one, dict))


def _steps(schema: Mapping[str, Any]) -> int:
    """What it takes by itself."""
    patterns = [schema.get("pattern"), *(schema.get("patternProperties") or ())]
    members = schema.get("enum")
    listed = len(members) if isinstance(members, list) else 0
    named = sum(len(one) for key in _DEPENDENT if isinstance(one := schema.get(key), dict))
    compared = sum(steps for key, steps in _FRACTIONS.items() if isinstance(schema.get(key), float))
    return 1 + listed // 8 + named + compared + sum(positions(one) for one in patterns if isinstance(one, str))


def _at(root: Any, pointer: str) -> Iterator[dict[str, Any]]:
    found = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            return
    if isinstance(found, dict):
        yield found


BODY_MOST = 1 << 20
"""Bytes of a body that is looked at: a mebibyte takes 40 ms."""

DEEPEST = 64
"""Levels of a body whose schema has references, unless each level takes many steps."""

STEPS = 20_000
"""Of the validator on its stack, at the deepest: a thread of a mebibyte has room for 12,000 of the costliest kind on
200 levels, and where schemas are looked at the stack has eight."""

PARTS_MOST = 2_000
"""Objects and lists of a schema with references."""

WORK_MOST = 1 << 27
"""Bytes of a body times the steps that its schema makes for one: less than a second, and 128 steps for the largest."""

TOLD_MOST = 1 << 22
"""Steps of a schema that are made to say why a body does not fit."""

TOLD_EACH = 32
"""Times as many where there are alternatives: each thing that is wrong by any of them is put down, in a kilobyte."""

ENOUGH_TO_ASK = 1 << 16
"""Steps of which it is worth to know how deep a body may be."""

DEPTH_MOST = 200
"""Levels of a schema itself; the library's own limit is about the same."""

SHOWN = 300
"""Letters of a reason."""

_REFERS = frozenset(_REFERENCES)


class BodyCheck:
    """A schema, ready to be asked.  Of a body of another type than JSON it sees the JSON that readers see of it."""

    __slots__ = ("_deepest", "_told", "_type", "_validator", "_work", "kind", "name", "text")

    def __init__(self, text: str, kind: MessageType) -> None:
        """kind: of the bodies.

        InvalidArgument for what is no schema; PreconditionFailed without the library."""
        schema = _read(text)
        parts, depth, refers = _measured(schema)
        if depth > DEPTH_MOST:
            raise InvalidArgument(f"json_schema is nested {depth} levels deep; {DEPTH_MOST} are allowed")
        if refers and parts > PARTS_MOST:
            raise InvalidArgument(
                f"json_schema has references and {parts} objects and lists; with references {PARTS_MOST} are allowed"
            )
        self.text, self.kind = text, kind
        self.name = f"json_schema [{kind}] {text}"  # of its answers, among those of filters
        self._type = None if kind == JSON else body_type(kind)
        self._deepest = max(8, min(DEEPEST, STEPS // parts)) if refers else 1 << 62
        self._validator = _validator(schema)
        self._work = list(accumulate(work_of(schema), max))  # by the levels of a body
        alternatives, required = _told_of(schema)
        self._told = (TOLD_EACH, required) if alternatives else (1, 0)
        if self._work[0] > WORK_MOST:
            raise InvalidArgument(f"json_schema makes {self._work[0]} steps for a byte; {WORK_MOST} are allowed")

    @property
    def costliest(self) -> int:
        """Steps that it makes for a byte at most, however deep it stands."""
        return self._work[-1]

    def fits(self, body: bytes, properties: bytes) -> bool:
        """Whether a body is JSON within the bounds and as its schema asks."""
        try:
            body = self._shown(body, properties)
            value: object = orjson.loads(body)
        except ValueError:
            return False
        brackets = body.count(b"{") + body.count(b"[")  # no fewer than its levels
        if brackets > self._deepest or self._steps(body, brackets) > WORK_MOST:
            depth = _measured(value)[1]
            if depth > self._deepest or self._steps(body, depth) > WORK_MOST:
                return False
        return bool(self._validator.is_valid(value))

    def _shown(self, body: bytes, properties: bytes) -> bytes:
        """A body as JSON.  ValueError for one that is none of its type, or too large."""
        if self._type is not None and len(body) <= BODY_MOST:
            try:
                body = self._type.json(self._type.one_whole(body, properties))
            except ValueError as error:
                raise ValueError(f"it is no {self._type.title}: {error}") from None
        if len(body) > BODY_MOST:
            raise ValueError(f"it has {len(body)} bytes, and no more than {BODY_MOST} are looked at")
        return body

    def _steps(self, body: bytes, depth: int) -> int:
        """For a body of so many levels, at most."""
        return len(body) * self._work[min(depth, len(self._work) - 1)]

    def bound(self, body: bytes) -> int:
        """The steps for a body at most, without reading it."""
        whole = len(body) * self.costliest
        if whole <= ENOUGH_TO_ASK or self._type is not None:
            return whole
        return self._steps(body, body.count(b"{") + body.count(b"["))

    def told_steps(self, body: bytes) -> int:
        """What it takes to say why a body does not fit."""
        times, required = self._told
        return times * (self.bound(body) + required * len(body))

    def why(self, body: bytes, properties: bytes) -> str:
        """The first thing that is wrong with a body that does not fit, and where; no value of it."""
        try:
            body = self._shown(body, properties)
            value: object = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return f"it is no JSON: {error}"
        except ValueError as error:
            return str(error)
        depth = _measured(value)[1]
        if depth > self._deepest:
            return f"it is nested {depth} levels deep, and no more than {self._deepest} are looked at"
        if (steps := self._steps(body, depth)) > WORK_MOST:
            return f"its schema would make {steps} steps, and no more than {WORK_MOST} are made"
        if (steps := self.told_steps(body)) > TOLD_MOST:
            return f"where would take {steps} steps of its schema to tell, and {TOLD_MOST} are made"
        return _first(self._validator, value)


@lru_cache(maxsize=256)
def compile_check(text: str, kind: MessageType = JSON) -> BodyCheck:
    """The check that a text spells, of bodies of a type."""
    return BodyCheck(text, kind)


def _first(validator: Any, value: object) -> str:
    """The first thing that is wrong with a value.  `iter_errors` would make all of them, a kilobyte each, for one."""
    import jsonschema_rs

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as wrong:
        place = "".join(f"/{step}" for step in cast("Iterable[object]", wrong.instance_path)) or "/"
        return f"{place}: {wrong.message}"[:SHOWN]
    return "it fits"


def _told_of(schema: Any) -> tuple[bool, int]:
    """Whether something in a schema has alternatives, and how many names all of it requires."""
    alternatives, required, waiting = False, 0, [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            alternatives = alternatives or "anyOf" in one or "oneOf" in one
            required += len(names) if isinstance(names := one.get("required"), list) else 0
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return alternatives, required


def _read(text: str) -> Any:
    if len(text) > TEXT_MOST:
        raise InvalidArgument(f"json_schema has {len(text)} letters; {TEXT_MOST} are allowed")
    with told_as(InvalidArgument, "json_schema is no JSON: "):
        schema: Any = orjson.loads(text)
    if type(schema) not in (dict, bool):
        raise InvalidArgument(f"json_schema is an object, not {text[:60]!r}")
    return schema


def _validator(schema: Any) -> Any:
    try:
        import jsonschema_rs
    except ImportError:
        raise PreconditionFailed("json_schema needs the library jsonschema-rs: penstock[json-schema]") from None
    try:
        return jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True, mask="the value"
        )
    except (ValueError, jsonschema_rs.ValidationError) as error:
        said = getattr(error, "message", None) or str(error)
        raise InvalidArgument(f"json_schema: {said[:SHOWN]}") from None


def _measured(value: object) -> tuple[int, int, bool]:
    """Objects and lists in a value, its levels, and whether a key of it is one of a reference."""
    parts, depth, refers = 0, 0, False
    level: list[Any] = [value]
    while level:
        tables = [one for one in level if one.__class__ is dict]
        lists = [one for one in level if one.__class__ is list]
        parts += len(tables) + len(lists)
        depth += bool(tables or lists)
        refers = refers or not all(map(_REFERS.isdisjoint, tables))
        level = [each for one in tables for each in one.values()] + [each for one in lists for each in one]
    return parts, depth, refers
