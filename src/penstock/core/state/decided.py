"""Decided batches: sink batches too large for one group, committed by a `DECIDED` record and then copied in chunks.

The record names the stages whose rows are the batch, in their order; each `CHUNK` says how many of these rows are in
the log with it.  So where the copying stands is one number, whatever size the chunks have.  No file is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from penstock.records.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DecidedPart:
    """One stage of a decided batch."""

    stage: str  # its name: the file is `stage/<name>.arrows`
    rows: int
    bytes: int  # of the file
    crc: int  # CRC-32C of the file
    topic: str | None  # of rows that name none
    exchange: str
    vhost: str
    delta: bool = False  # bodies are merged into the present records of their keys


@dataclass(slots=True)
class DecidedState:
    """A decided batch whose rows are not all in the log yet."""

    batch: int
    lsn: int  # of its DECIDED record: what was decided first is copied first
    parts: tuple[DecidedPart, ...]
    settle: tuple[tuple[str, int], ...] = ()  # (stream, batch) of the inputs, settled by the group of the record
    chunks: int = 0  # in the log
    rows: int = 0  # of the parts, in order, that these chunks hold

    @property
    def total(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def complete(self) -> bool:
        """Whether every row is in the log."""
        return self.rows >= self.total

    def header(self) -> dict[str, object]:
        """The particulars of its DECIDED record."""
        told: dict[str, object] = {"batch": self.batch, "parts": [_row(part) for part in self.parts]}
        if self.settle:
            told["settle"] = [one for pair in self.settle for one in pair]
        return told

    def copied(self, header: Mapping[str, object]) -> None:
        """Take in a CHUNK record.  ValueError for one that does not follow."""
        batch, chunk, rows = (cast(int, header[key]) for key in ("batch", "chunk", "rows"))
        if (batch, chunk) != (self.batch, self.chunks + 1) or not self.rows < rows <= self.total:
            raise ValueError(
                f"chunk {chunk} of batch {batch} up to row {rows} follows chunk {self.chunks} of batch {self.batch} up "
                f"to row {self.rows} of {self.total}"
            )
        self.chunks, self.rows = chunk, rows


def decided_of(header: Mapping[str, object], lsn: int) -> DecidedState:
    """A batch from its DECIDED record."""
    parts = [_part(row) for row in cast("list[list[object]]", header["parts"])]
    settle = cast("list[object]", header.get("settle") or [])
    settled = zip(map(str, settle[::2]), cast("list[int]", settle[1::2]), strict=True)
    return DecidedState(cast(int, header["batch"]), lsn, tuple(parts), tuple(settled))


def copies(decided: Mapping[str, DecidedState]) -> dict[str, DecidedState]:
    """The same batches, of which one copy may go on without the other."""
    return {query: replace(state) for query, state in decided.items()}


def dump_decided(decided: Mapping[str, DecidedState]) -> dict[str, dict[str, object]]:
    """As JSON, for the encoded durable state."""
    return {
        query: {**state.header(), "lsn": state.lsn, "chunks": state.chunks, "rows": state.rows}
        for query, state in sorted(decided.items())
    }


def load_decided(table: object) -> dict[str, DecidedState]:
    out = dict[str, DecidedState]()
    for query, told in cast("dict[str, dict[str, object]]", table).items():
        state = out[query] = decided_of(told, cast(int, told["lsn"]))
        state.chunks, state.rows = cast(int, told["chunks"]), cast(int, told["rows"])
    return out


def _row(part: DecidedPart) -> Sequence[object]:
    row: list[object] = [part.stage, part.rows, part.bytes, part.crc, part.topic, part.exchange, part.vhost]
    return [*row, True] if part.delta else row


def _part(row: Sequence[object]) -> DecidedPart:
    stage, rows, size, crc, topic, exchange, vhost = row[:7]
    return DecidedPart(
        str(stage), cast(int, rows), cast(int, size), cast(int, crc), None if topic is None else str(topic),
        str(exchange), str(vhost), len(row) > 7 and bool(row[7]),
    )  # fmt: skip


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
