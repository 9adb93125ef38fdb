"""What a message must show from outside, before its body is parsed, to have a chance with a filter.

A sieve never drops a match; what it lets through is evaluated exactly.  A string of a JSON body that holds no backslash
stands in the body byte for byte, so `/a = 'x'` can only be TRUE of bodies that contain `x`, or a backslash.  Conditions
on the AMQP header and the topic alone are evaluated once for each distinct header and topic.  Whatever cannot be judged
so lets everything through (None).

Refuses to know Arrow: `scan` runs a sieve.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from penstock.expr.check import check
from penstock.expr.compiler import compile_tree
from penstock.expr.equalities import equality_of
from penstock.expr.filter import Filter
from penstock.expr.tree import Affix, And, Field, Like, Literal, Node, Or
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
class Outside:
    """The condition holds; it asks for header and topic alone."""

    filter: Filter


@dataclass(frozen=True, slots=True)
class Both:
    """All of these."""

    parts: tuple[Sieve, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of these."""

    parts: tuple[Sieve, ...]


Sieve: TypeAlias = Contains | Outside | Both | Either


def sieve_of(tree: Node) -> Sieve | None:
    """The sieve of a checked tree; None: everything has to be evaluated."""
    if compile_tree(tree, "filter", False).needs <= {"properties", "topic"}:
        checked = check(tree, "")
        return Outside(Filter("", checked, compile_tree(tree, "filter", False)))
    match tree:
        case And():
            parts = [part for part in map(sieve_of, tree.items) if part is not None]
            return None if not parts else parts[0] if len(parts) == 1 else Both(tuple(parts))
        case Or():
            found = list(map(sieve_of, tree.items))
            parts = [part for part in found if part is not None]
            return Either(tuple(parts)) if len(parts) == len(found) else None
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


def _like(node: Like) -> Sieve | None:
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
