"""Topics as patterns: when an `underlying_topic` is one, and what it matches (RE2, unanchored, linear in the text)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.records.regular_expressions import SPECIAL, PatternError, compile_pattern, to_bytes


def topic_pattern(topic: str) -> Callable[[str], bool]:
    """Whether a key is shown by `topic`.  Raises ValueError saying what RE2 does not read."""
    if SPECIAL.isdisjoint(topic):
        return lambda key: key == topic
    try:
        compiled = compile_pattern(topic)
    except PatternError as error:
        raise ValueError(f"{topic!r} is no RE2 pattern: {error.why}") from None
    return lambda key: compiled.search(to_bytes(key)) is not None
