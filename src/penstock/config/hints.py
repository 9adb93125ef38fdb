"""The nearest known name for one that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches


def known_name(name: str, known: Mapping[str, object] | frozenset[str] | set[str] | list[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or the empty text."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
