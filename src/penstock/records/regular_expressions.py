"""Regular expressions of strangers (RE2): linear time and bounded memory, whoever wrote them.

Patterns and texts are bytes, one character a byte (RE2's Latin-1 mode).  What RE2 cannot do is refused with the
construct named, so that a user who knows Perl's expressions learns which part to change.

Byte strings as `str`: UTF-8 where they are, and escaped byte by byte where they are not.  A topic that holds a
character of expressions is a pattern of topics (`topic_pattern`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast


def from_bytes(data: bytes) -> str:
    """A byte string in its one form."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(value: str) -> bytes:
    """The bytes of a byte string; a lone surrogate that is no escaped byte keeps its three-byte form."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


PATTERN_LIMIT = 1_000
"""Bytes of one pattern."""

PROGRAM_BYTES = 1 << 20
"""Memory of one compiled pattern and its automaton; RE2's own default is eight times this."""

SPECIAL = frozenset("^$*+?()[]{}|\\")
"""Characters that make a topic a pattern.  A dot alone does not: names are full of dots."""

_REPEATED = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
_VERBOSE = re.compile(r"\(\?[a-zA-Z-]*x")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_POSSESSIVE = re.compile(r"(?:[*+?]|\{[0-9]*,?[0-9]*\})\+")
_RECURSION = re.compile(r"\(\?[+-]?[0-9]")
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
    """A pattern that RE2 cannot run.

    place    the offset in the pattern where the trouble starts
    why      the reason alone, for a sentence that names the pattern itself
    """

    def __init__(self, message: str, place: int, why: str) -> None:
        super().__init__(message)
        self.place = place
        self.why = why


class Match(Protocol):
    """One place where a pattern matches."""

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

    def compile(self, pattern: bytes, options: _Options) -> Compiled: ...


class Compiled(Protocol):
    """A compiled pattern; texts are bytes."""

    @property
    def groups(self) -> int: ...
    def search(self, text: bytes) -> Match | None: ...
    def finditer(self, text: bytes) -> Iterable[Match]: ...


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Compiled:
    """RE2's object for a pattern over bytes.  Raises PatternError naming the construct that RE2 does not have."""
    data = to_bytes(pattern)
    if len(data) > PATTERN_LIMIT:
        why = f"has {len(data)} bytes, at most {PATTERN_LIMIT} are allowed"
        raise PatternError(f"the pattern {why}", 0, f"it {why}")
    engine = cast("_Engine", import_module("re2"))
    options = engine.Options()
    options.encoding = engine.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES
    try:
        return engine.compile(data, options)
    except engine.error as problem:
        what, place = _unsupported(pattern)
        if what:
            why = f"uses {what}, which RE2 does not have"
            raise PatternError(f"the regular expression {why}", place, f"it {why}") from None
        detail = cast("object", problem.args[0])
        said = from_bytes(detail) if isinstance(detail, bytes) else str(detail)
        raise PatternError(f"the regular expression cannot be used: {said}", 0, said) from None


def positions(pattern: str) -> int:
    """How many a regular expression has when its counted repetitions are written out, or more.

    Where no automaton is small enough, a search takes so many steps for each byte, of some ten nanoseconds.
    """
    if _VERBOSE.search(pattern):  # comments may hide what closes
        return len(pattern) * math.prod(map(_times, _REPEATED.finditer(pattern)))
    open_ones, at = [[0]], 0  # of each group what stands in it: positions of its parts
    while at < len(pattern):
        last, letter = open_ones[-1], pattern[at]
        at += 1
        if letter == "(":
            open_ones.append([0])
        elif letter == ")":
            if len(open_ones) > 1:
                open_ones[-2].append(sum(open_ones.pop()))
        elif letter == "{" and (counted := _REPEATED.match(pattern, at - 1)):
            last[-1] *= _times(counted)
            at = counted.end()
        elif letter == "[" and (closed := _CLASS.match(pattern, at - 1)):
            last.append(1)
            at = closed.end()
        else:
            last.append(1)
            at += letter == "\\"
    return sum(map(sum, open_ones))


def _times(counted: re.Match[str]) -> int:
    """How often what stands before a counted repetition is written out."""
    return max(1, *(int(count or 0) for count in counted.groups()))


def _unsupported(pattern: str) -> tuple[str, int]:
    """The first construct of Perl's expressions that RE2 lacks, and its offset; an empty name if there is none."""
    place, in_class = 0, False
    while place < len(pattern):
        here = pattern[place]
        if here == "\\":
            if name := _unsupported_escape(pattern[place + 1 : place + 2], in_class):
                return name, place
            place += 2
            continue
        if in_class:
            in_class = here != "]"
        elif here == "[":
            in_class = True
            place += 2 if pattern.startswith("[^]", place) else 1 if pattern.startswith("[]", place) else 0
        elif here == "(":
            if name := _unsupported_group(pattern, place):
                return name, place
        elif place and (possessive := _POSSESSIVE.match(pattern, place)) is not None:
            return f"possessive quantifier {possessive[0]}", place
        place += 1
    return "", 0


def _unsupported_escape(following: str, in_class: bool) -> str:
    """The name of what a backslash and this character are; empty: nothing unusual."""
    if not in_class and following and following in "123456789":
        return f"back-reference \\{following}"
    return _ESCAPES.get(following, "")


def _unsupported_group(pattern: str, place: int) -> str:
    """The name of what begins with the parenthesis here; empty: nothing unusual."""
    for start, name in _GROUPS:
        if pattern.startswith(start, place):
            return name
    return "recursion " + pattern[place : place + 4] if _RECURSION.match(pattern, place) else ""


def topic_pattern(topic: str) -> Callable[[str], bool]:
    """Whether a key is shown by `topic`.  Raises ValueError saying what RE2 does not read."""
    if SPECIAL.isdisjoint(topic):
        return lambda key: key == topic
    try:
        compiled = compile_pattern(topic)
    except PatternError as error:
        raise ValueError(f"{topic!r} is no RE2 pattern: {error.why}") from None
    return lambda key: compiled.search(to_bytes(key)) is not None
