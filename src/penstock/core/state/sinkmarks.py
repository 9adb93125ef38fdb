"""What is remembered of a query beside its highest committed batch: when it committed, and what people call it."""

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

    def told(self) -> dict[str, object]:
        """What a record says of it, beside the batch; nothing that is empty."""
        return {**({"name": self.name} if self.name else {}), **({"once": True} if self.once else {})}


def mark_of(header: Mapping[str, object], lsn: int) -> SinkMark:
    """From the particulars of a SINK_COMMIT or DECIDED record."""
    return SinkMark(lsn, bool(header.get("once")), str(header.get("name", "")))


def dump_marks(marks: Mapping[str, SinkMark]) -> dict[str, list[object]]:
    """As JSON, for the encoded durable state."""
    return {query: [mark.lsn, int(mark.once), mark.name] for query, mark in sorted(marks.items())}


def load_marks(table: object) -> dict[str, SinkMark]:
    """The inverse of `dump_marks`."""
    rows = cast("dict[str, list[object]]", table)
    return {query: SinkMark(cast(int, lsn), bool(once), str(name)) for query, (lsn, once, name) in rows.items()}
