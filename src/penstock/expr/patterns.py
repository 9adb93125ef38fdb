"""Regular expressions (RE2) and topic patterns: linear time, whoever wrote them.

Patterns and texts are bytes, one character a byte (RE2's Latin-1 mode): the language is not Unicode aware.  Matching is
unanchored and case-sensitive; `(?i)` changes the second.  What RE2 cannot do is refused with the construct named, so
that a user who knows Perl's expressions learns which part to change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, cast

import re2

from penstock.expr.values import TEXT_LIMIT, from_bytes, to_bytes

PATTERN_LIMIT = 1_000
"""Bytes of one pattern."""

PROGRAM_BYTES = 1 << 20
"""Memory of one compiled pattern and its automaton; RE2's own default is eight times this."""

REPLACED_TEXT_LIMIT = 1 << 16
"""Bytes of a text in which matches are replaced: each match may have to look at all of the rest."""

REPLACED_LIMIT = 1_000
"""Matches that are replaced in one text."""

SPECIAL = frozenset("^$*+?()[]{}|\\")
"""Characters that make a topic a pattern.  A dot alone does not: names are full of dots."""

_PLAIN = re.compile(rb"(\^?)([^\\.^$*+?()\[\]{}|]+)(\$?)")
_QUANTIFIED = re.compile(r"(?:[*+?]|\{[0-9]*,?[0-9]*\})")
_GROUPS = (
    ("(?=", "look-ahead (?=...)"),
    ("(?!", "negative look-ahead (?!...)"),
    ("(?<=", "look-behind (?<=...)"),
    ("(?<!", "negative look-behind (?<!...)"),
    ("(?>", "atomic group (?>...)"),
    ("(?|", "branch reset (?|...)"),
    ("(?#", "comment (?#...)"),
    ("(?(", "conditional (?(...)...)"),
    ("(?R", "recursion (?R)"),
    ("(?&", "recursion (?&name)"),
    ("(?P>", "recursion (?P>name)"),
    ("(?P=", "back-reference (?P=name)"),
    ("(*", "verb (*...)"),
)
_ESCAPES = {
    "k": "back-reference \\k",
    "g": "back-reference \\g",
    "h": "\\h (horizontal space; write [ \\t])",
    "H": "\\H",
    "R": "\\R (line break; write \\r?\\n)",
    "K": "\\K",
    "G": "\\G",
    "X": "\\X",
    "N": "\\N (write [^\\n])",
    "Z": "\\Z (write \\z)",
}


class PatternError(ValueError):
    """A pattern that RE2 cannot run.  `place` is the offset in the pattern where the trouble starts."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


class _Match(Protocol):
    def start(self, group: int = 0) -> int: ...
    def end(self, group: int = 0) -> int: ...
    def group(self, group: int = 0) -> bytes | None: ...


class _Encoding(Protocol):
    LATIN1: object


class _Options(Protocol):
    Encoding: _Encoding
    encoding: object
    log_errors: bool
    max_mem: int

    def __call__(self) -> _Options: ...


class _Engine(Protocol):
    """The part of the re2 module that is used here; the package has no types of its own."""

    Options: _Options
    error: type[Exception]

    def compile(self, pattern: bytes, options: _Options) -> _Compiled: ...


class _Compiled(Protocol):
    """A compiled pattern."""

    @property
    def groups(self) -> int: ...
    def search(self, text: bytes) -> _Match | None: ...
    def finditer(self, text: bytes) -> Iterable[_Match]: ...


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> _Compiled:
    """RE2's object for a pattern over bytes.  Raises PatternError naming the construct that RE2 does not have."""
    data = to_bytes(pattern)
    if len(data) > PATTERN_LIMIT:
        raise PatternError(f"the pattern has {len(data)} bytes, at most {PATTERN_LIMIT} are allowed", 0)
    engine = cast("_Engine", re2)
    options = engine.Options()
    options.encoding = engine.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES
    try:
        return engine.compile(data, options)
    except engine.error as problem:
        what, place = _unsupported(pattern)
        if what:
            raise PatternError(f"the regular expression uses {what}, which RE2 does not have", place) from None
        detail = cast("object", problem.args[0])
        said = from_bytes(detail) if isinstance(detail, bytes) else str(detail)
        raise PatternError(f"the regular expression cannot be used: {said}", 0) from None


def _unsupported(pattern: str) -> tuple[str, int]:
    """The first construct of Perl's expressions that RE2 lacks, and its offset; an empty name if there is none."""
    place, in_class = 0, False
    while place < len(pattern):
        here = pattern[place]
        if here == "\\":
            following = pattern[place + 1 : place + 2]
            if not in_class and following and following in "123456789":
                return f"back-reference \\{following}", place
            if following in _ESCAPES:
                return _ESCAPES[following], place
            place += 2
            continue
        if in_class:
            in_class = here != "]"
        elif here == "[":
            in_class = True
            place += 2 if pattern.startswith("[^]", place) else 1 if pattern.startswith("[]", place) else 0
        elif here == "(":
            for start, name in _GROUPS:
                if pattern.startswith(start, place):
                    return name, place
            if re.match(r"\(\?[+-]?[0-9]", pattern[place:]):
                return "recursion " + pattern[place : place + 4], place
        else:
            quantifier = _QUANTIFIED.match(pattern, place)
            if (
                quantifier is not None
                and place
                and len(quantifier[0])
                and pattern[quantifier.end() : quantifier.end() + 1] == "+"
            ):
                return f"possessive quantifier {quantifier[0]}+", place
        place += 1
    return "", 0


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
