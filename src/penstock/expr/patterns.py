"""Regular expressions of the language, and topic patterns; what RE2 takes is in `records.patterns`.

Patterns and texts are bytes, one character a byte: the language is not Unicode aware.  Matching is unanchored and
case-sensitive; `(?i)` changes the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from functools import lru_cache

from penstock.expr.values import TEXT_LIMIT, from_bytes, to_bytes
from penstock.records.dataclass import dataclass
from penstock.records.patterns import SPECIAL, compile_pattern
from penstock.records.patterns import PatternError as PatternError

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
