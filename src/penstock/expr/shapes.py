"""What the text of a JSON body must look like, key and value, for a filter to have a chance with it.

A name without a backslash in the body stands there in quotes before a colon, and its value follows: `/status = 'paid'`
can only be TRUE where `"status":` is followed by `"paid"` or by an array, and `/total > 500` where `"total":` is
followed by three digits that begin with 5 or more, by four digits, or by what could become such a number (a text, an
array, an exponent, a fraction that rounds up).  Bodies with a backslash pass always.  Sharper than `sieve`, which asks
for the value alone, and dearer: one regular expression a condition.  A shape never drops a match.

Refuses to know Arrow: `selecting` runs a shape.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from penstock.expr.equalities import equality_of
from penstock.expr.sieve import NEEDLES_MOST, Contains, sieve_of
from penstock.expr.tree import Affix, And, Compare, Field, Like, Literal, Node, Or
from penstock.expr.values import parse_number, to_bytes
from penstock.records.dataclass import dataclass

SHAPES_MOST = 8
"""More regular expressions than this take as long as reading the bodies."""

_BLANK = r"[ \t\n\r]*"
_ODD = r"[0-9.]+[eE]|[0-9]+\.9{6}"
"""A number whose digits do not show its size: an exponent, or a fraction that may round up."""

_LARGEST = 1 << 31
_EXCHANGED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Shape:
    """Somewhere in the body the pattern matches (RE2, Latin-1), or there is a backslash."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Each:
    """All of these."""

    parts: tuple[Shapes, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """One of these."""

    parts: tuple[Shapes, ...]


Shapes: TypeAlias = Shape | Each | Some


def shapes_of(tree: Node) -> Shapes | None:
    """The shape of bodies of which the tree can be TRUE; None: any."""
    found = _of(tree)
    return found if found is not None and _count(found) <= SHAPES_MOST else None


def _count(shape: Shapes) -> int:
    return 1 if isinstance(shape, Shape) else sum(map(_count, shape.parts))


def _of(tree: Node) -> Shapes | None:
    match tree:
        case And():
            parts = [part for part in map(_of, tree.items) if part is not None][:SHAPES_MOST]
            return None if not parts else parts[0] if len(parts) == 1 else Each(tuple(parts))
        case Or():
            found = list(map(_of, tree.items))
            parts = [part for part in found if part is not None]
            return Some(tuple(parts)) if len(parts) == len(found) else None
        case Like() | Affix():
            sieve = sieve_of(tree)
            if not isinstance(sieve, Contains) or sieve.odd:
                return None
            return Shape("|".join(map(quoted, sieve.needles)))
        case Compare() if tree.operator in _EXCHANGED:
            return _order(tree)
        case _:
            return _equality(tree)


def quoted(data: bytes) -> str:
    """A pattern that matches these bytes."""
    return "".join(f"\\x{byte:02x}" if byte > 126 or byte < 32 else re.escape(chr(byte)) for byte in data)


def _named(field: Field, values: list[str]) -> Shape | None:
    """The field's last name and one of the values behind it, or an array."""
    if field.source != "body":
        return None
    name = next((step for step in reversed(field.steps) if isinstance(step, str)), None)
    if name is None:
        return None
    wanted = "|".join((*values, r"\["))
    return Shape(f'"{quoted(to_bytes(name))}"{_BLANK}:{_BLANK}(?:{wanted})')


def _equality(node: Node) -> Shape | None:
    equality = equality_of(node)
    if equality is None or len(equality.values) > NEEDLES_MOST:
        return None
    values = list[str]()
    for value in equality.values:
        if isinstance(value, str):
            if parse_number(value) is not None:
                return None  # numbers in any spelling equal it
            values.append(f'"{quoted(to_bytes(value))}"')
        elif isinstance(value, int) and 2 <= abs(value) < _LARGEST:
            values += [f"-?{abs(value)}", '"']  # a text may spell it
        else:
            return None
    if any(not isinstance(value, str) for value in equality.values):
        values.append(f"-?(?:{_ODD})")
    return _named(equality.field, values)


def _order(node: Compare) -> Shape | None:
    """`field > number` for a number of at least 2, from its first digit and their count."""
    field, literal, operator = node.left, node.right, str(node.operator)
    if isinstance(field, Literal):
        field, literal, operator = literal, field, _EXCHANGED[operator]
    if not isinstance(field, Field) or not isinstance(literal, Literal) or operator not in (">", ">="):
        return None
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 2 <= value < _LARGEST:
        return None
    digits = str(int(value))
    more = len(digits)
    return _named(field, [f"[{digits[0]}-9][0-9]{{{more - 1}}}", f"[0-9]{{{more + 1}}}", _ODD, '"'])
