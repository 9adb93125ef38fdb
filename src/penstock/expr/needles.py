"""What a condition asks the bytes of a body to show: an equality with literals, and texts of which it needs one.

A string of a JSON body that holds no backslash stands in the body byte for byte, so `/a = 'x'` can only be TRUE of
bodies that contain `x`, or a backslash.
"""

from __future__ import annotations

import re

from penstock.expr.tree import Affix, Compare, Field, In, Like, Literal, Node
from penstock.expr.values import parse_number, to_bytes
from penstock.records.dataclass import dataclass

NEEDLES_MOST = 16
"""More alternatives than this are not looked for one by one: each is a pass over the bodies."""

_NUMBER_TEXT = frozenset("0123456789.+-einfa")
"""A number is taken as text by its shortest form, which need not be the form in the body."""

_PIECES = re.compile(r"\^?((?:[^\\.^$*+?()\[\]{}|]|\.[*+]?)*)\$?")
_ANY = re.compile(r"\.[*+]?")

_EXACT_INTEGERS = 1 << 31
"""Below this an integer is no fraction's rounding unless six nines stand behind a point."""

ODD_NUMBER = r"[0-9.][eE][+-]?[0-9]|\.999999"
"""How a number equals an integer without showing its digits: an exponent, or a fraction that rounds up."""

ODD_FRACTION = r"[0-9.][eE][+-]?[0-9]|\.[0-9]*999999"
"""The same of one with a fraction of few digits: what rounds up to it has other digits before its nines."""

_FRACTION_DIGITS = 9
"""A number of more digits may be the rounding of one that has fewer than six nines."""


@dataclass(frozen=True, slots=True)
class Contains:
    """The body contains one of these, or a backslash."""

    needles: tuple[bytes, ...]
    odd: bool = False  # or a number in an unusual spelling, see ODD_NUMBER
    fractions: tuple[str, ...] = ()  # or a match of one of these patterns (RE2), or of ODD_FRACTION


@dataclass(frozen=True, slots=True)
class Equality:
    """A condition that is TRUE exactly when the field equals one of the values."""

    field: Field
    values: tuple[str | int | float, ...]  # at least one; no NULL, no NaN


def equality_of(node: Node) -> Equality | None:
    """The node as an equality, if it is one."""
    operands: tuple[Node, ...]
    match node:
        case Compare(operator="=", left=Literal(), right=Field() as field):
            operands = (node.left,)
        case Compare(operator="=", left=Field() as field):
            operands = (node.right,)
        case In(operand=Field() as field):
            operands = node.items
        case _:
            return None
    found = [operand.value for operand in operands if isinstance(operand, Literal)]
    values = tuple(value for value in found if value is not None and value != "" and value == value)
    return Equality(field, values) if values and len(found) == len(operands) else None


def needles_of(tree: Node) -> Contains | None:
    """The texts of a condition on one field of the body; None where it cannot be told by any."""
    match tree:
        case Like():
            return _like(tree)
        case Affix():
            return _affix(tree)
        case _:
            return _equality(tree)


def _equality(node: Node) -> Contains | None:
    equality = equality_of(node)
    if equality is None or equality.field.source != "body" or len(equality.values) > NEEDLES_MOST:
        return None
    needles: list[bytes] = []
    fractions: list[str] = []
    odd = False
    for value in equality.values:
        if isinstance(value, str):
            if parse_number(value) is not None:
                return None  # numbers in any spelling equal it
            needles.append(to_bytes(value))
        elif isinstance(value, int) and 2 <= abs(value) < _EXACT_INTEGERS:
            needles.append(str(abs(value)).encode())
            odd = True
        elif isinstance(value, float) and (pattern := _fraction(value)) is not None:
            fractions.append(pattern)
        else:
            return None
    return Contains(tuple(needles), odd, tuple(fractions))


def _fraction(value: float) -> str | None:
    """A pattern for a number with a fraction, as JSON and texts spell it; None where it has too many digits."""
    whole, _, fraction = repr(abs(value)).partition(".")
    if value.is_integer() or not (whole + fraction).isdigit():  # it may be spelled without a point; an exponent
        return None
    whole = whole.lstrip("0")
    if len(whole + fraction) > _FRACTION_DIGITS:
        return None
    return f"{'-' if value < 0 else '(?:^|[^0-9])'}0*{whole}\\.{fraction}"


def _like(node: Like) -> Contains | None:
    """A pattern of plain text, in which dots and `.*` may stand."""
    pattern = node.pattern.value
    if not _of_body(node.operand) or not isinstance(pattern, str):
        return None
    plain = _PIECES.fullmatch(pattern)
    if plain is None:
        return None
    needles = [to_bytes(piece) for piece in _ANY.split(plain[1]) if _telling(piece)]
    return Contains((max(needles, key=len),)) if needles else None


def _affix(node: Affix) -> Contains | None:
    values = [item.value for item in node.items if isinstance(item, Literal)]
    if not _of_body(node.operand) or not len(values) == len(node.items) <= NEEDLES_MOST:
        return None
    needles: list[bytes] = []
    for value in values:
        if value is None or value == "":
            continue  # NULL: never TRUE
        if not isinstance(value, str) or not _telling(value):
            return None
        needles.append(to_bytes(value))
    return Contains(tuple(needles)) if needles else None


def _of_body(node: Node) -> bool:
    return isinstance(node, Field) and node.source == "body"


def _telling(text: str) -> bool:
    """Whether a text that has this in it must be a string: no number's text has."""
    return not _NUMBER_TEXT.issuperset(text)
