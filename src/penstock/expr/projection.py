"""Projections: `expr AS /path [HINT ...], ...`, what a view shows of the messages it gathers.

Reads a list of them into trees in which aggregates may stand.  An aggregate is not computed here: whoever gathers takes
the trees apart (`split`) into what is asked of each message, what is gathered of that, and what is made of the result.
Owns the text; refuses to know groups and queues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from penstock.errors import ExpressionError
from penstock.expr.check import check
from penstock.expr.compiler import compile_parsed
from penstock.expr.filter import parse
from penstock.expr.functions import AGGREGATES
from penstock.expr.program import RunParsed
from penstock.expr.tree import Call, Field, Literal, Node, walk_tree
from penstock.records.dataclass import dataclass

SELECT_BYTES_MAX = 64 * 1024
"""Bytes of a projection, and of a grouping, as AMPS limits them."""

LAST = "LAST"
"""What a projected value that is neither grouped nor aggregated is gathered by: the newest message has it."""

_SKIP = re.compile(r"""[^'"\[\](),]+|[rR]?'(?:[^'\\]|\\[\s\S])*'|[rR]?"(?:[^"\\]|\\[\s\S])*"|\[[^\]]*\]|[\s\S]""")
_NAMED = re.compile(r"([\s\S]*?\S)\s+AS\s+(\[/[^\]]*\]|/\S+)(?:\s+HINT\s+([\s\S]*))?\s*", re.IGNORECASE)
_MISNAMED = re.compile(r"\sAS\s+\w+\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Projection:
    """One projected field."""

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


def parse_projection(text: str | Sequence[str]) -> tuple[Projection, ...]:
    """The fields of a `select`.  ExpressionError for what cannot stand."""
    pieces = list(_pieces(text)) if isinstance(text, str) else [piece for one in text for piece in _pieces(one)]
    if sum(len(piece.encode("utf-8", "surrogatepass")) for piece in pieces) > SELECT_BYTES_MAX:
        raise ExpressionError(f"the projection has more than {SELECT_BYTES_MAX} bytes", text=pieces[0], place=0)
    out: list[Projection] = []
    for piece in pieces:
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
    pieces = list(_pieces(text)) if isinstance(text, str) else [piece for one in text for piece in _pieces(one)]
    if sum(len(piece.encode("utf-8", "surrogatepass")) for piece in pieces) > SELECT_BYTES_MAX:
        raise ExpressionError(f"the grouping has more than {SELECT_BYTES_MAX} bytes", text=pieces[0], place=0)
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
        return Field("body", (name,), at.place)

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
    if checked.changing is not None:
        raise ExpressionError(
            f"{checked.changing.name} cannot be used in {where}: its answer changes with time",
            text=text,
            place=checked.changing.place,
        )
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
        if not isinstance(last, Literal) or not isinstance(last.value, str):
            raise ExpressionError("the delimiter of GROUP_CONCAT must be a literal string", text=text, place=last.place)
        extra = last.value
    return Gather(call.name, call.arguments[0], extra)


def _replaced(node: Node, part: Callable[[Node], Node | None]) -> Node:
    new = part(node)
    if new is not None:
        return new
    changes: dict[str, Any] = {}
    for field in fields(node):
        value = cast("object", getattr(node, field.name))
        if isinstance(value, tuple) and value and not isinstance(value[0], str | int):
            changes[field.name] = tuple(_replaced(one, part) for one in cast("tuple[Node, ...]", value))
        elif field.name in ("operand", "left", "right", "low", "high"):
            changes[field.name] = _replaced(cast("Node", value), part)
    return replace(node, **changes) if changes else node


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
