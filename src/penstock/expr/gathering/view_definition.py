"""What a view is: one value, with all that its rows depend on.

The rows of a view are a function of this definition and of the messages that are available in its source, in order of
their positions; of nothing else.  Whoever computes them otherwise, in a batch or elsewhere, gets the same.

Joins are equalities of fields of two sources, `[orders]./customer = [customers]./id`, read into what each row must
match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from penstock.errors import ExpressionError
from penstock.expr import compile_filter
from penstock.expr.filter import Filter, parse
from penstock.expr.gathering.aggregates import STORES
from penstock.expr.program import RunParsed
from penstock.expr.projection import LAST, Gather, compiled, parse_grouping, parse_projection, split
from penstock.expr.tree import Compare, Field, Node
from penstock.expr.tree import Literal as Constant
from penstock.records.dataclass import dataclass

_QUALIFIED = re.compile(
    r"""('(?:[^'\\]|\\[\s\S])*'|"(?:[^"\\]|\\[\s\S])*")"""
    r"""|(?:\[[^\]]*\]\s*\.\s*)?\[([^\]]+)\]\s*\.\s*(?:(/[^\s,()=<>!+*%\]]+)|\[(/[^\]]+)\])"""
)


@dataclass(frozen=True, slots=True)
class Condition:
    """`mine` of a later source equals `theirs` of an earlier one."""

    mine: RunParsed
    earlier: int
    theirs: RunParsed


@dataclass(frozen=True, slots=True)
class Joined:
    """What joins say: the sources in order, and for each after the first what it must match."""

    sources: tuple[str, ...]
    conditions: tuple[tuple[Condition, ...], ...]  # of the first source: none


def parse_joins(joins: Sequence[str], where: str) -> Joined:
    """Read the joins of a view.  ExpressionError for anything but equalities of two sources."""
    sources: list[str] = []
    found: list[list[Condition]] = []

    def side(node: Node, whole: str) -> tuple[int, Field]:
        if not isinstance(node, Field) or node.source != "body" or len(node.steps) < 2:
            raise ExpressionError("a join is [topic]./field = [topic]./field", text=whole, place=0)
        return int(str(node.steps[0])), Field("body", node.steps[1:], node.place)

    for whole in joins:
        names = [match[2] for match in _QUALIFIED.finditer(whole) if match[2]]
        for name in names:
            if name not in sources:
                sources.append(name)
                found.append([])
        tree = parse(qualified(whole, sources))
        if not isinstance(tree, Compare) or tree.operator != "=":
            raise ExpressionError("a join is an equality: [topic]./field = [topic]./field", text=whole, place=0)
        (one, left), (other, right) = side(tree.left, whole), side(tree.right, whole)
        if one == other:
            raise ExpressionError(f"both sides of the join are of '{sources[one]}'", text=whole, place=0)
        if one > other:
            one, left, other, right = other, right, one, left
        found[other].append(Condition(compiled(right, whole, where), one, compiled(left, whole, where)))
    for place, conditions in enumerate(found):
        if place and not conditions:
            raise ExpressionError(f"'{sources[place]}' is joined to nothing before it", text=joins[0], place=0)
    return Joined(tuple(sources), tuple(map(tuple, found)))


def qualified(whole: str, sources: Sequence[str]) -> str:
    """An expression whose `[topic]./field` are fields of a row that has each source's row by its number.

    ExpressionError for a topic that is not joined.
    """

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        if match[2] not in sources:
            raise ExpressionError(f"'{match[2]}' is not among the joined topics", text=whole, place=match.start())
        number, path = sources.index(match[2]), match[3] or match[4]
        return f"/{number}{path}" if match[3] else f"[/{number}{path}]"

    return _QUALIFIED.sub(one, whole)


WHERE = "a view"


@dataclass(frozen=True, slots=True)
class Definition:
    """A view as it is written down."""

    name: str
    source: str  # a queue, a topic with a key, or a view before it
    select: tuple[str, ...]
    group_by: tuple[str, ...] = ()
    filter: str | None = None
    vhost: str = "/"
    conflation: Literal["none", "inline"] = "none"
    join: tuple[str, ...] = ()  # instead of a source: what is joined, and how (`joins`)
    null_equivalency: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One projected field of a row."""

    path: tuple[str, ...]
    name: str | None  # the gathered value or group value that it is; None: `run` makes it of those
    run: RunParsed | None


@dataclass(frozen=True, slots=True)
class Read:
    """A value that is read from a store of the group."""

    name: str  # as columns ask for it
    aggregate: str
    store: int  # place in `Plan.stores`
    extra: str | None


@dataclass(slots=True)
class Plan:
    """A definition ready to run.  Inputs are expressions of one message; the first ones are those grouped by."""

    inputs: list[RunParsed] = field(default_factory=list[RunParsed])
    groups: int = 0
    stores: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # aggregate that makes it, input
    last: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # name, input: of the newest message
    any: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # of the oldest that has a value
    reads: list[Read] = field(default_factory=list[Read])
    columns: list[Column] = field(default_factory=list[Column])
    filter: Filter | None = None
    joined: Joined | None = None


def plan(definition: Definition) -> Plan:
    """How a definition is computed.

    ExpressionError where an expression cannot stand, or changes with time.
    """
    out = Plan()
    group_by, select = definition.group_by, definition.select
    if definition.join:
        out.joined = parse_joins(definition.join, WHERE)
        sources = out.joined.sources
        group_by = tuple(qualified(one, sources) for one in group_by)
        select = tuple(qualified(one, sources) for one in select)
    places: dict[Node, int] = {}

    def place_of(tree: Node, text: str) -> int:
        place = places.get(tree)
        if place is None:
            place = places[tree] = len(out.inputs)
            out.inputs.append(compiled(tree, text, WHERE))
        return place

    trees = parse_grouping(group_by)
    own: dict[Node, str] = {}
    for tree, text in zip(trees, group_by, strict=False):
        if place_of(tree, text) != len(own):
            raise ExpressionError("the view groups by this twice", text=text, place=0)
        own[tree] = f"g{len(own)}"
    out.groups = len(own)
    names: dict[Gather, str] = {}
    made: dict[tuple[object, Node], int] = {}
    for projection in parse_projection(select):

        def find(gather: Gather, text: str = projection.text) -> str:
            name = names.get(gather)
            if name is not None:
                return name
            name = names[gather] = f"a{len(names)}"
            place = place_of(gather.argument, text)
            if gather.name in (LAST, "ANY"):
                (out.last if gather.name == LAST else out.any).append((name, place))
                return name
            kind = STORES[gather.name][0]
            store = made.get((kind, gather.argument))
            if store is None:
                store = made[kind, gather.argument] = len(out.stores)
                out.stores.append((gather.name, place))
            out.reads.append(Read(name, gather.name, store, gather.extra))
            return name

        tree = split(projection, find, own.get)
        single = _single(tree)
        run = None if single is not None else compiled(tree, projection.text, WHERE, output=True)
        path = projection.path
        if out.joined is not None and isinstance(projection.tree, Field) and projection.tree.steps == path:
            path = path[1:]  # of `[topic]./field` without a name the field
        out.columns.append(Column(path, single, run))
    if definition.filter is not None:
        out.filter = compile_filter(definition.filter)
        out.filter.require_deterministic(WHERE)
    return out


def _single(tree: Node) -> str | None:
    """The one gathered value that a tree is, if it is no more."""
    steps: Sequence[object] | None = getattr(tree, "steps", None)
    return str(steps[0]) if steps is not None and not isinstance(tree, Constant) else None
