"""How much a JSON Schema makes of a value, by how deep the value stands in its body, before the first body comes.

Each value is tried by its schema and by all that this one joins on the spot (`allOf`, `anyOf`, `$ref` ...), and a few
lines of references double that at each of them, or at each level of the body.  A pattern takes as many steps for each
byte as it has positions when its repetitions are written out, an `enum` as many as it has members.  What is told is a
bound, from the graph of the schemas: where alternatives cannot be told apart, the costlier one counts.
"""

# what a schema is made of is known when it is looked at alone
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote

from penstock.errors import InvalidArgument
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
    return 1 + listed // 8 + sum(positions(one) for one in patterns if isinstance(one, str))


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
