"""Names that are known, patterns of topics, and what bodies are read as.

An unknown name is told with the nearest known one.  An `underlying_topic` may be a pattern (RE2, unanchored, linear in
the text).  Bodies are JSON, which may be said; every other type is refused by its name.  What is no JSON is stored and
delivered all the same as it is, and has no fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from penstock.records.regular_expressions import SPECIAL, PatternError, compile_pattern


def known_name(name: str, known: Mapping[str, object] | frozenset[str] | set[str] | list[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or the empty text."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def topic_pattern(topic: str) -> Callable[[str], bool]:
    """Whether a key is shown by `topic`.  Raises ValueError saying what RE2 does not read."""
    from penstock.records.message_bodies import to_bytes  # loads Arrow, and sessions import this

    if SPECIAL.isdisjoint(topic):
        return lambda key: key == topic
    try:
        compiled = compile_pattern(topic)
    except PatternError as error:
        raise ValueError(f"{topic!r} is no RE2 pattern: {error.why}") from None
    return lambda key: compiled.search(to_bytes(key)) is not None


MESSAGE_TYPE = "message_type"

NATIVE_TYPE = "json"


def wrong_type(value: object) -> str | None:
    """Why this cannot be a message type; None for the one that can."""
    if value == NATIVE_TYPE:
        return None
    return (
        f"{str(value)[:60]!r}: fields are read of 'json' alone, and a body that is none has no fields; "
        "another message type is not supported in this version"
    )
