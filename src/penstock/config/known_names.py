"""Names that are known, and what bodies are read as.

An unknown name is told with the nearest known one.  Bodies are JSON, which may be said; every other type is refused by
its name.  What is no JSON is stored and delivered all the same as it is, and has no fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches


def known_name(name: str, known: Mapping[str, object] | frozenset[str] | set[str] | list[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or the empty text."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


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
