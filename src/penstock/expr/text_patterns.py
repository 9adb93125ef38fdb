"""Texts and patterns in expressions: regular expressions, topic patterns, and what a body's bytes must show.

Patterns and texts are bytes, one character a byte: the language is not Unicode aware.  Matching is unanchored and
case-sensitive; `(?i)` changes the second.  What RE2 takes is in `records.regular_expressions`.  LIKE, BEGINS WITH and
ENDS WITH are TRUE if any element of an array passes; numbers are taken as text.

A string of a JSON body that holds no backslash stands in the body byte for byte, so `/a = 'x'` can only be TRUE of
bodies that contain `x`, or a backslash: such needles are looked for before a body is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from penstock.expr.bodies import body_type
from penstock.expr.context import meter
from penstock.expr.tree import Affix, And, Compare, Field, In, Like, Literal, Node, Or
from penstock.expr.values import TEXT_LIMIT, Value, flatten, from_bytes, parse_number, text, to_bytes
from penstock.records.dataclass import dataclass
from penstock.records.regular_expressions import SPECIAL, compile_pattern, positions
from penstock.records.regular_expressions import PatternError as PatternError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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


Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Joined(Generic[Part]):
    """What a message must show: every part, or any one of them."""

    every: bool
    parts: tuple[Part | Joined[Part], ...]

    def mask(self, of: Callable[[Part], npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
        """Rows that show it; of: those that show a part."""
        masks = [cast("Joined[Part]", one).mask(of) if isinstance(one, Joined) else of(one) for one in self.parts]
        return reduce(lambda one, other: one & other if self.every else one | other, masks)


def necessary(tree: Node, of: Callable[[Node], Part | None], most: int | None = None) -> Part | Joined[Part] | None:
    """What a message must show for a tree to be TRUE, by what `of` says of its conditions; None: nothing is known.

    most: so many parts of an AND are enough.
    """
    told = of(tree)
    if told is not None or not isinstance(tree, And | Or):
        return told
    found = [necessary(item, of, most) for item in tree.items]
    parts = tuple(part for part in found if part is not None)
    if isinstance(tree, Or):
        return Joined(False, parts) if len(parts) == len(found) else None
    return Joined(True, parts[:most]) if len(parts) > 1 else parts[0] if parts else None


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
    if equality is None or not searchable(equality.field) or len(equality.values) > NEEDLES_MOST:
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
    return isinstance(node, Field) and searchable(node)


def searchable(field: Field) -> bool:
    """Whether the field stands in the body, and its value as an expression spells it."""
    return field.source == "body" and body_type(field.message_type).searchable


def _telling(text: str) -> bool:
    """Whether a text that has this in it must be a string: no number's text has."""
    return not _NUMBER_TEXT.issuperset(text)


REPLACED_TEXT_LIMIT = 1 << 16
"""Bytes of a text in which matches are replaced: each match may have to look at all of the rest."""

REPLACED_LIMIT = 1_000
"""Matches that are replaced in one text."""

REPEATED_FREE = 64
"""Positions beyond those that are written, from counted repetitions like `(a|b){900}`, of which nothing is counted."""

POSITION_US, FAST_US = 0.01, 0.001
"""What a byte takes RE2: at each position where its automaton would be too large, and with one."""

_PLAIN = re.compile(rb"(\^?)([^\\.^$*+?()\[\]{}|]+)(\$?)")
Search = Callable[[str], bool]


@lru_cache(maxsize=1024)
def searcher(pattern: str) -> Search:
    """A function that tells whether the pattern matches somewhere in a byte string.  Raises PatternError.

    A pattern without special characters, alone or behind `^` or before `$`, needs no regular expression.
    """
    compiled = compile_pattern(pattern)
    plain = _PLAIN.fullmatch(to_bytes(pattern))
    if plain is not None and plain[2].isascii():
        needle = plain[2].decode("ascii")
        if plain[1] and plain[3]:
            return needle.__eq__
        if plain[1]:
            return lambda value: value.startswith(needle)
        if plain[3]:
            return lambda value: value.endswith(needle)
        return lambda value: needle in value
    search = compiled.search
    us_a_byte = us_of(pattern)
    if not us_a_byte:
        return lambda value: search(to_bytes(value)) is not None

    def measured(value: str) -> bool:
        data = to_bytes(value)
        meter.take_time(int(len(data) * us_a_byte))
        return search(data) is not None

    return measured


def us_of(pattern: str) -> float:
    """Microseconds that a search may take for each byte, if it is more than what people's patterns take."""
    found = positions(pattern) - len(pattern)
    return found * POSITION_US if found >= REPEATED_FREE else 0.0


def replace(value: str, pattern: str, replacement: str) -> str | None:
    """Every match replaced; `\\1` to `\\9` stand for groups, `\\0` for the match.  None beyond the limits."""
    compiled = compile_pattern(pattern)
    data = to_bytes(value)
    if len(data) > REPLACED_TEXT_LIMIT:
        return None
    parts = _template(replacement)
    us_a_byte = us_of(pattern) or FAST_US  # a match is looked for to the end of the text, if need be
    out: list[bytes] = []
    size = done = 0
    for count, found in enumerate(compiled.finditer(data)):
        pieces = [data[done : found.start()]]
        for part in parts:
            pieces.append(
                part if isinstance(part, bytes) else (found.group(part) or b"" if part <= compiled.groups else b"")
            )
        done = found.end()
        meter.take_time(int((len(data) - done) * us_a_byte))
        out += pieces
        size += sum(map(len, pieces))
        if size > TEXT_LIMIT or count >= REPLACED_LIMIT:
            return None
    out.append(data[done:])
    return from_bytes(b"".join(out))


@lru_cache(maxsize=256)
def _template(replacement: str) -> tuple[bytes | int, ...]:
    """A replacement as bytes and group numbers."""
    out: list[bytes | int] = []
    done = 0
    for found in re.finditer(r"\\(.)", replacement, re.DOTALL):
        out.append(to_bytes(replacement[done : found.start()]))
        out.append(int(found[1]) if found[1] in "0123456789" else to_bytes(found[1]))
        done = found.end()
    out.append(to_bytes(replacement[done:]))
    return tuple(part for part in out if part != b"")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """What a queue's underlying topic or a subscription names: one topic, or all that a pattern matches.

    A text with none of `^ $ * + ? ( ) [ ] { } | \\` is one literal name; anything else is an RE2 pattern, unanchored.
    Raises PatternError (a ValueError) at once when the pattern cannot be used.
    """

    text: str
    literal: bool = field(init=False)
    _matches: Search = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        literal = SPECIAL.isdisjoint(self.text)
        object.__setattr__(self, "literal", literal)
        object.__setattr__(self, "_matches", self.text.__eq__ if literal else searcher(self.text))

    def matches(self, name: str) -> bool:
        """Whether a topic of this name is meant."""
        return self._matches(name)


TEXT_VISITS = 4
"""What the meter counts for a text test of an element beyond looking at it."""

_ESCAPED = re.compile("[\ud800-\udfff]")


class Affixes:
    """Beginnings or ends to look for, prepared once where they are literals."""

    __slots__ = ("data", "plain", "texts", "unknown")

    def __init__(self, items: Iterable[Value]) -> None:
        found = [text(item) for value in items for item in flatten(value) or [None]]
        self.texts = tuple(item for item in found if item is not None)
        self.unknown = len(self.texts) < len(found)
        # UTF-8 keeps its step: a whole character stands in the bytes exactly where it stands in the text.
        self.plain = not any(map(_ESCAPED.search, self.texts))
        self.data = () if self.plain else tuple(map(to_bytes, self.texts))


def _any(value: Value, test: Callable[[str], bool], unknown: bool) -> bool | None:
    items = flatten(value)
    if len(items) > 1:
        meter.spend(TEXT_VISITS * len(items))
    for item in items or [None]:
        found = text(item)
        if found is None:
            unknown = True
        elif test(found):
            return True
    return None if unknown else False


def like(value: Value, search: Search) -> bool | None:
    """Does the pattern match somewhere in the text?"""
    if value.__class__ is list:
        return _any(value, search, False)
    found = text(value)
    return None if found is None else search(found)


def begins(value: Value, affixes: Affixes | list[Value]) -> bool | None:
    """Does the text begin with one of them?"""
    wanted = affixes if isinstance(affixes, Affixes) else Affixes(affixes)
    if wanted.plain:
        return _any(value, lambda found: found.startswith(wanted.texts), wanted.unknown)
    return _any(value, lambda found: to_bytes(found).startswith(wanted.data), wanted.unknown)


def ends(value: Value, affixes: Affixes | list[Value]) -> bool | None:
    """Does the text end with one of them?"""
    wanted = affixes if isinstance(affixes, Affixes) else Affixes(affixes)
    if wanted.plain:
        return _any(value, lambda found: found.endswith(wanted.texts), wanted.unknown)
    return _any(value, lambda found: to_bytes(found).endswith(wanted.data), wanted.unknown)
