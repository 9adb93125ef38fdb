"""What a view is: one value, with all that its rows depend on.

The rows of a view are a function of this definition and of the messages that are available in its source, in order of
their positions; of nothing else.  Whoever computes them otherwise, in a batch or elsewhere, gets the same.

Joins are equalities of fields of two sources, `[orders]./customer = [customers]./id`, read into what each row must
match.

What it shows are projections, `expr AS /path [HINT ...], ...`, read into trees in which aggregates may stand.  An
aggregate is not computed here: whoever gathers takes the trees apart (`split`) into what is asked of each message, what
is gathered of that, and what is made of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields, replace
from typing import Any, Literal, cast

from penstock.errors import ExpressionError
from penstock.expr import compile_filter
from penstock.expr.aggregates import STORES
from penstock.expr.check import check
from penstock.expr.compiler import RunParsed, compile_parsed
from penstock.expr.filter import Filter, parse
from penstock.expr.functions import AGGREGATES
from penstock.expr.tree import Call, Compare, Field, Node, walk_tree
from penstock.expr.tree import Literal as Constant
from penstock.records.dataclass import dataclass

_SELECT_BYTES_MAX = 64 * 1024
"""Bytes of a projection, and of a grouping, as AMPS limits them."""

LAST = "LAST"
"""What a projected value that is neither grouped nor aggregated is gathered by: the newest message has it."""

_SKIP = re.compile(r"""[^'"\[\](),]+|[rR]?'(?:[^'\\]|\\[\s\S])*'|[rR]?"(?:[^"\\]|\\[\s\S])*"|\[[^\]]*\]|[\s\S]""")
_NAMED = re.compile(r"([\s\S]*?\S)\s+AS\s+(\[/[^\]]*\]|/\S+)(?:\s+HINT\s+([\s\S]*))?\s*", re.IGNORECASE)
_MISNAMED = re.compile(r"\sAS\s+\w+\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Projection:
    """One projected field: its name, and the tree whose value it has."""

    text: str  # of the expression
    tree: Node
    path: tuple[str, ...]  # where its value goes in the row
    hints: tuple[str, ...] = ()  # as written; they change nothing


@dataclass(frozen=True, slots=True)
class Gather:
    """Something gathered over the messages of a group: an aggregate, or LAST."""

    name: str
    argument: Node
    extra: str | None = None  # the delimiter of GROUP_CONCAT


def _parse_projection(text: str | Sequence[str]) -> tuple[Projection, ...]:
    """The fields of a `select`.  ExpressionError for what cannot stand."""
    out: list[Projection] = []
    for piece in _all_pieces(text, "projection"):
        if out and out[-1].hints and re.fullmatch(r"\w+", piece):
            out[-1] = replace(out[-1], hints=(*out[-1].hints, piece))
        else:
            out.append(_projection(piece))
    if not out:
        raise ExpressionError("the projection is empty", text=str(text), place=0)
    _refuse_overlaps(out)
    return tuple(out)


def _projection(piece: str) -> Projection:
    named = _NAMED.fullmatch(piece)
    if named is not None:
        hints = tuple(word.strip() for word in (named[3] or "").split(",") if word.strip())
        path = _path(parse(named[2]), piece)
        return Projection(named[1], parse(named[1]), path, hints)
    if _MISNAMED.search(piece):
        raise ExpressionError("the name of a projected field is a path: expr AS /path", text=piece, place=0)
    tree = parse(piece)
    if not isinstance(tree, Field):
        raise ExpressionError("a projected expression needs a name: expr AS /path", text=piece, place=0)
    return Projection(piece, tree, _path(tree, piece))


def _refuse_overlaps(projections: list[Projection]) -> None:
    """No path is projected twice, nor one beside what stands below it."""
    seen = set[tuple[str, ...]]()
    for one in projections:
        above = {one.path[:size] for size in range(1, len(one.path) + 1)}
        if above & seen or any(other[: len(one.path)] == one.path for other in seen):
            raise ExpressionError(f"{_shown(one.path)} is projected twice", text=one.text, place=0)
        seen.add(one.path)


def parse_grouping(text: str | Sequence[str]) -> tuple[Node, ...]:
    """The expressions of a `group_by`; none for one group of everything."""
    pieces = _all_pieces(text, "grouping")
    trees = tuple(map(parse, pieces))
    for tree, piece in zip(trees, pieces, strict=True):
        found = next((node for node in walk_tree(tree) if isinstance(node, Call) and node.name in AGGREGATES), None)
        if found is not None:
            raise ExpressionError(f"{found.name} cannot be grouped by", text=piece, place=found.place)
    return trees


def split(projection: Projection, find: Callable[[Gather], str], grouped: Callable[[Node], str | None]) -> Node:
    """The tree over what was gathered: aggregates and values of messages are replaced by fields.

    find      gives a gathered value its name
    grouped   the name of the group's own value, if the tree is one that is grouped by
    ExpressionError for an aggregate of aggregates or with wrong arguments.
    """
    text = projection.text
    aggregated = any(isinstance(node, Call) and node.name in AGGREGATES for node in walk_tree(projection.tree))

    def named(name: str, at: Node) -> Node:
        return Field("body", (name,), place=at.place)

    def part(node: Node) -> Node | None:
        own = grouped(node)
        if own is not None:
            return named(own, node)
        if isinstance(node, Call) and node.name in AGGREGATES:
            return named(find(_gather(node, text)), node)
        if isinstance(node, Field):
            return named(find(Gather(LAST, node)), node)
        return None

    own = grouped(projection.tree)
    if own is not None:
        return named(own, projection.tree)
    if not aggregated:
        return named(find(Gather(LAST, projection.tree)), projection.tree)
    return _replaced(projection.tree, part)


def compiled(tree: Node, text: str, where: str, *, output: bool = False) -> RunParsed:
    """The function that gives the value of a tree for parsed messages (`compiler.compile_parsed`).

    ExpressionError when it cannot be used, or when its answer changes with time, `where` ("a view") it must not.
    """
    checked = check(tree, text)
    checked.refuse_changing(text, where)
    return compile_parsed(checked.tree, checked.metered and not output, "value")


def _gather(call: Call, text: str) -> Gather:
    most = 2 if call.name == "GROUP_CONCAT" else 1
    given = len(call.arguments)
    if not 1 <= given <= most:
        takes = "1 argument" if most == 1 else "1 or 2 arguments"
        raise ExpressionError(f"{call.name} takes {takes}, {given} were given", text=text, place=call.place)
    for argument in call.arguments:
        inner = next((n for n in walk_tree(argument) if isinstance(n, Call) and n.name in AGGREGATES), None)
        if inner is not None:
            raise ExpressionError(
                f"{inner.name} cannot stand inside {call.name}: a view gathers once", text=text, place=inner.place
            )
    extra = "," if most == 2 else None
    if given == 2:
        last = call.arguments[1]
        if not isinstance(last, Constant) or not isinstance(last.value, str):
            raise ExpressionError("the delimiter of GROUP_CONCAT must be a literal string", text=text, place=last.place)
        extra = last.value
    return Gather(call.name, call.arguments[0], extra)


def _replaced(node: Node, part: Callable[[Node], Node | None]) -> Node:
    new = part(node)
    if new is not None:
        return new
    changes: dict[str, Any] = {}
    for one in fields(node):
        value = cast("object", getattr(node, one.name))
        if isinstance(value, tuple) and value and not isinstance(value[0], str | int):
            changes[one.name] = tuple(_replaced(each, part) for each in cast("tuple[Node, ...]", value))
        elif one.name in ("operand", "left", "right", "low", "high"):
            changes[one.name] = _replaced(cast("Node", value), part)
    return replace(node, **changes) if changes else node


def _all_pieces(text: str | Sequence[str], what: str) -> list[str]:
    """ExpressionError for more than may be kept."""
    pieces = list(_pieces(text)) if isinstance(text, str) else [piece for one in text for piece in _pieces(one)]
    if sum(len(piece.encode("utf-8", "surrogatepass")) for piece in pieces) > _SELECT_BYTES_MAX:
        raise ExpressionError(f"the {what} has more than {_SELECT_BYTES_MAX} bytes", text=pieces[0], place=0)
    return pieces


def _pieces(text: str) -> Iterator[str]:
    """What stands between commas that are in no string, bracket or parenthesis."""
    depth = start = 0
    for found in _SKIP.finditer(text):
        sign = found[0]
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
        elif sign == "," and depth == 0:
            yield _piece(text, start, found.start())
            start = found.end()
    if text[start:].strip():
        yield _piece(text, start, len(text))


def _piece(text: str, start: int, end: int) -> str:
    piece = text[start:end].strip()
    if not piece:
        raise ExpressionError("there is nothing between two commas", text=text, place=start)
    return piece


def _path(target: Node, text: str) -> tuple[str, ...]:
    if not isinstance(target, Field) or target.source != "body" or any(isinstance(one, int) for one in target.steps):
        raise ExpressionError("the name of a projected field is a path of names, as in /total", text=text, place=0)
    return cast("tuple[str, ...]", target.steps)


def _shown(path: tuple[str, ...]) -> str:
    return "/" + "/".join(path)


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
        return int(str(node.steps[0])), Field("body", node.steps[1:], place=node.place)

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
    planning = _Planning()
    out, group_by, select = planning.out, definition.group_by, definition.select
    if definition.join:
        out.joined = parse_joins(definition.join, WHERE)
        sources = out.joined.sources
        group_by = tuple(qualified(one, sources) for one in group_by)
        select = tuple(qualified(one, sources) for one in select)
    planning.group(group_by)
    for projection in _parse_projection(select):
        planning.show(projection)
    if definition.filter is not None:
        out.filter = compile_filter(definition.filter)
        out.filter.require_deterministic(WHERE)
    return out


class _Planning:
    """A plan as it grows: what it has of the messages, the groups and their stores is there once."""

    def __init__(self) -> None:
        self.out = Plan()
        self._places: dict[Node, int] = {}  # of inputs
        self._own: dict[Node, str] = {}  # group values
        self._names: dict[Gather, str] = {}  # gathered values
        self._stores: dict[tuple[object, Node], int] = {}

    def _place_of(self, tree: Node, text: str) -> int:
        place = self._places.get(tree)
        if place is None:
            place = self._places[tree] = len(self.out.inputs)
            self.out.inputs.append(compiled(tree, text, WHERE))
        return place

    def group(self, group_by: tuple[str, ...]) -> None:
        """Group by these, the first inputs."""
        own = self._own
        for tree, text in zip(parse_grouping(group_by), group_by, strict=False):
            if self._place_of(tree, text) != len(own):
                raise ExpressionError("the view groups by this twice", text=text, place=0)
            own[tree] = f"g{len(own)}"
        self.out.groups = len(own)

    def show(self, projection: Projection) -> None:
        """Show one more column."""
        out, path = self.out, projection.path
        tree = split(projection, lambda gather: self._gathered(gather, projection.text), self._own.get)
        single = _single(tree)
        run = None if single is not None else compiled(tree, projection.text, WHERE, output=True)
        if out.joined is not None and isinstance(projection.tree, Field) and projection.tree.steps == path:
            path = path[1:]  # of `[topic]./field` without a name the field
        out.columns.append(Column(path, single, run))

    def _gathered(self, gather: Gather, text: str) -> str:
        """The name of a gathered value, and where it is kept."""
        out, name = self.out, self._names.get(gather)
        if name is not None:
            return name
        name = self._names[gather] = f"a{len(self._names)}"
        place = self._place_of(gather.argument, text)
        if gather.name in (LAST, "ANY"):
            (out.last if gather.name == LAST else out.any).append((name, place))
            return name
        known = STORES[gather.name][0], gather.argument
        store = self._stores.get(known)
        if store is None:
            store = self._stores[known] = len(out.stores)
            out.stores.append((gather.name, place))
        out.reads.append(Read(name, gather.name, store, gather.extra))
        return name


def _single(tree: Node) -> str | None:
    """The one gathered value that a tree is, if it is no more."""
    steps: Sequence[object] | None = getattr(tree, "steps", None)
    return str(steps[0]) if steps is not None and not isinstance(tree, Constant) else None
