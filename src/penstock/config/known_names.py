"""What a mistake is told with: where a setting stands, and the known name that is nearest to an unknown one.

A setting that was not written as TOML is told in its writer's words: `jobs.xml:12: <MaxCancels> of <Queue> "Jobs"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple, TypeAlias


def known_name(name: str, known: Mapping[str, object] | frozenset[str] | set[str] | list[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or the empty text."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


Path_: TypeAlias = tuple[str | int, ...]
"""Place of a value in our settings: section, index in a list of tables, key, deeper keys."""


class Place(NamedTuple):
    """Where a value was read.  `line` counts from 1; 0 where the format has no lines to speak of."""

    file: str
    line: int
    what: str

    @property
    def where(self) -> str:
        """`jobs.xml:12`"""
        return f"{self.file}:{self.line}" if self.line else self.file

    def told(self, text: str) -> str:
        """One line about this place."""
        return f"{self.where}: {self.what}: {text}"
