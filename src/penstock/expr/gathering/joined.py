"""Joins as they are written down: equalities of fields of two sources, read into what each row must match.

[orders]./customer = [customers]./id
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import ExpressionError
from penstock.expr.filter import parse
from penstock.expr.program import RunParsed
from penstock.expr.projection import compiled
from penstock.expr.tree import Compare, Field, Node
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
