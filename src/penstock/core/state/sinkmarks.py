"""What is remembered of a query beside its highest committed batch: when it committed, whose it is, its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from penstock.records.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SinkMark:
    """One query that has committed."""

    lsn: int = 0  # of its last SINK_COMMIT or DECIDED record; 0: written before this was kept
    once: bool = False  # it has one batch, and will never come again
    name: str = ""  # for people
    user: str = ""  # who may commit for it; empty: written before this was kept

    def told(self) -> dict[str, object]:
        """What a record says of it, beside the batch; nothing that is empty."""
        told: dict[str, object] = {"name": self.name, "once": self.once, "user": self.user}
        return {key: value for key, value in told.items() if value}


def mark_of(header: Mapping[str, object], lsn: int) -> SinkMark:
    """From the particulars of a SINK_COMMIT or DECIDED record."""
    return SinkMark(lsn, bool(header.get("once")), str(header.get("name", "")), str(header.get("user", "")))


def dump_marks(marks: Mapping[str, SinkMark]) -> dict[str, list[object]]:
    """As JSON, for the encoded durable state."""
    return {query: [mark.lsn, int(mark.once), mark.name, mark.user] for query, mark in sorted(marks.items())}


def load_marks(table: object) -> dict[str, SinkMark]:
    """The inverse of `dump_marks`; earlier ones said no user."""
    rows = cast("dict[str, list[object]]", table)
    return {
        query: SinkMark(cast(int, lsn), bool(once), str(name), *map(str, user))
        for query, (lsn, once, name, *user) in rows.items()
    }
