"""Where a setting stands: the file, the line, and what it is called there.

Settings that were not written as TOML are told in their writer's words: `jobs.xml:12: <MaxCancels> of <Queue> "Jobs"`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

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
