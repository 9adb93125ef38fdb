"""Regular expressions of the language, and topic patterns; what RE2 takes is in `records.patterns`.

Patterns and texts are bytes, one character a byte: the language is not Unicode aware.  Matching is unanchored and
case-sensitive; `(?i)` changes the second.

LIKE, BEGINS WITH and ENDS WITH are TRUE if any element of an array passes; numbers are taken as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import lru_cache

from penstock.expr.meter import meter
from penstock.expr.values import TEXT_LIMIT, Value, flatten, from_bytes, text, to_bytes
from penstock.records.dataclass import dataclass
from penstock.records.regular_expressions import SPECIAL, compile_pattern
from penstock.records.regular_expressions import PatternError as PatternError

REPLACED_TEXT_LIMIT = 1 << 16
"""Bytes of a text in which matches are replaced: each match may have to look at all of the rest."""

REPLACED_LIMIT = 1_000
"""Matches that are replaced in one text."""

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
    return lambda value: search(to_bytes(value)) is not None


def replace(value: str, pattern: str, replacement: str) -> str | None:
    """Every match replaced; `\\1` to `\\9` stand for groups, `\\0` for the match.  None beyond the limits."""
    compiled = compile_pattern(pattern)
    data = to_bytes(value)
    if len(data) > REPLACED_TEXT_LIMIT:
        return None
    parts = _template(replacement)
    out: list[bytes] = []
    size = done = 0
    for count, found in enumerate(compiled.finditer(data)):
        pieces = [data[done : found.start()]]
        for part in parts:
            pieces.append(
                part if isinstance(part, bytes) else (found.group(part) or b"" if part <= compiled.groups else b"")
            )
        done = found.end()
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
        """Is this topic meant?"""
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
