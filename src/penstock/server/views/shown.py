"""Rows with a key that somebody shows and others follow: those of a view, or of a conflated topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Told(NamedTuple):
    """What became of a row."""

    key: str
    body: bytes | None  # None: it is gone
    before: bytes | None  # None: it is new
    reason: str = ""  # why it is gone: deleted, expired, match


class Shown(Protocol):
    """Whoever shows rows.  All methods belong to the loop's thread."""

    told: list[Callable[[Sequence[Told]], None]]  # who follows

    @property
    def name(self) -> str:
        """As people ask for it."""
        ...

    @property
    def vhost(self) -> str:
        """Its vhost."""
        ...

    def rows(self) -> dict[str, bytes]:
        """The rows by key."""
        ...

    def when_current(self, then: Callable[[], None]) -> None:
        """Call back once the rows have all that was decided so far; perhaps before this returns."""
        ...
