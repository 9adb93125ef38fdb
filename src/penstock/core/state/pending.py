"""What the durable state remembers because it is not over: decided batches, deferred acks, passes over the log.

A decided batch of a sink is too large for one group: a `DECIDED` record commits it, then it is copied in chunks.  The
record names the stages whose rows are the batch, in their order; each `CHUNK` says how many of these rows are in the
log with it.  So where the copying stands is one number, whatever size the chunks have.

A deferred ack is what one command said about messages that are not in their queue, remembered until they appear.  It
names them by their origin and their LSNs there, so it can tell a message of this instance that never entered the queue
from one that another instance gave its number to.  How long it is remembered was decided when it was written; that it
is forgotten is a record too, so no clock is asked here.

A pass says how far it is, for a queue that takes what was published before.  A queue is offered each message once, as
it is published or by a pass, so a later pass leaves out what an earlier one has been over (`reviewed`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, TypeAlias, cast

import numpy as np

from penstock.core.state.encoding import Shape
from penstock.records.chunks import as_chunk, lsns_in, merged_spans, pairs_of
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
    parts = [DecidedPart(*row[:8]) for row in cast("list[list[Any]]", header["parts"])]
    settle = cast("list[object]", header.get("settle") or [])
    settled = zip(map(str, settle[::2]), cast("list[int]", settle[1::2]), strict=True)
    return DecidedState(cast(int, header["batch"]), lsn, tuple(parts), tuple(settled))


def decided_copies(decided: Mapping[str, DecidedState]) -> dict[str, DecidedState]:
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
    """What is told of it, in the order of its fields."""
    row = astuple(part)
    return row if part.delta else row[:-1]


@dataclass(frozen=True, slots=True)
class SinkMark:
    """One query that has committed."""

    lsn: int = 0  # of its last SINK_COMMIT or DECIDED record; 0: written before this was kept
    once: bool = False  # it has one batch, and will never come again
    name: str = ""  # for people
    user: str = ""  # who may commit for it; empty: written before this was kept
    target: str = ""  # where its last batch went, in words; empty: nobody said, or each row says it


MARK = Shape(SinkMark, never=("lsn",))
"""What a SINK_COMMIT or DECIDED record says of its query, beside the batch; nothing that is empty."""


def dump_marks(marks: Mapping[str, SinkMark]) -> dict[str, list[object]]:
    """As JSON, for the encoded durable state."""
    return {
        query: [mark.lsn, int(mark.once), mark.name, mark.user, *([mark.target] if mark.target else [])]
        for query, mark in sorted(marks.items())
    }


def load_marks(table: object) -> dict[str, SinkMark]:
    """The inverse of `dump_marks`; earlier ones said no user, or no target."""
    rows = cast("dict[str, list[object]]", table)
    return {
        query: SinkMark(cast(int, lsn), bool(once), str(name), *map(str, more))
        for query, (lsn, once, name, *more) in rows.items()
    }


@dataclass(slots=True)
class DeferredAck:
    """One command's acks for messages that are not there."""

    origin: int
    verb: str  # "ack" or "expire"
    by: str  # who said so; empty: nobody in particular
    until: int  # microseconds since the epoch
    lsns: array[int]  # ascending, at the origin

    def header(self) -> dict[str, object]:
        """The particulars of its DEFER record; the body has the LSNs as exact pairs."""
        return {"origin": str(self.origin), "verb": self.verb, "by": self.by, "until": self.until}

    def pairs(self) -> list[int]:
        """Its LSNs as exact pairs."""
        return pairs_of(as_chunk(self.lsns), False)


DeferredAcks: TypeAlias = dict[int, list[DeferredAck]]
"""By queue id, in the order they came; no queue without any, no entry without LSNs."""


def deferred_of(header: Mapping[str, object], pairs: Sequence[int]) -> DeferredAck:
    """An entry from its DEFER record."""
    return DeferredAck(
        int(str(header["origin"])), str(header["verb"]), str(header["by"]), cast(int, header["until"]), lsns_in(pairs)
    )


TOGETHER_US = 60_000_000
"""What the same one says of the same origin within such a time is one entry: thousands of single acks may wait."""


def remember(deferred: DeferredAcks, queue: int, new: DeferredAck) -> None:
    """Take in a DEFER record, of messages that were not remembered."""
    entries = deferred.setdefault(queue, [])
    told = (new.origin, new.verb, new.by, new.until // TOGETHER_US)
    for entry in reversed(entries):
        if (entry.origin, entry.verb, entry.by, entry.until // TOGETHER_US) == told:
            in_order = not entry.lsns or entry.lsns[-1] < new.lsns[0]
            both = entry.lsns + new.lsns
            entry.lsns = both if in_order else array("q", sorted(both))
            entry.until = max(entry.until, new.until)
            return
    entries.append(replace(new))


def forget(deferred: DeferredAcks, queue: int, origin: int, lsns: array[int]) -> None:
    """Remember nothing of these messages (ascending) any more: an UNDEFER record says so."""
    gone, kept = np.frombuffer(lsns, np.int64), list[DeferredAck]()
    for entry in deferred.get(queue, ()):
        if entry.origin == origin and lsns and entry.lsns[0] <= lsns[-1] and lsns[0] <= entry.lsns[-1]:
            known = np.frombuffer(entry.lsns, np.int64)
            places = np.minimum(np.searchsorted(known, gone), len(known) - 1)
            left = array("q")
            left.frombytes(np.delete(known, places[known[places] == gone]).tobytes())
            entry.lsns = left
        if entry.lsns:
            kept.append(entry)
    if kept:
        deferred[queue] = kept
    else:
        deferred.pop(queue, None)


def copies(deferred: Mapping[int, Sequence[DeferredAck]]) -> DeferredAcks:
    """The same entries, of which one copy may go on without the other."""
    return {queue: [replace(entry) for entry in entries] for queue, entries in deferred.items() if entries}


def dump_deferred(deferred: DeferredAcks) -> list[object]:
    """As JSON, for the encoded durable state."""
    return [
        [queue, [[entry.header(), entry.pairs()] for entry in entries]] for queue, entries in sorted(deferred.items())
    ]


def load_deferred(table: object) -> DeferredAcks:
    rows = cast("list[tuple[int, list[tuple[dict[str, object], list[int]]]]]", table)
    return {queue: [deferred_of(header, pairs) for header, pairs in entries] for queue, entries in rows}


Spans: TypeAlias = "tuple[tuple[int, int], ...]"
"""Disjoint, ascending LSN spans [a, b)."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A pass under way: it goes from `start` to before `until`, and is over what lies before `at`."""

    start: int
    until: int
    at: int
    time: int = 0  # microseconds: what was published earlier is left out


def begin(
    reviewed: Spans, passing: Passing | None, header: dict[str, object], until: int
) -> tuple[Spans, Passing | None]:
    """What a RECOVER record at LSN `until` begins, with what it ends."""
    start, time = cast(int, header["from"]), cast(int, header.get("time") or 0)
    if passing is not None:
        reviewed = joined(reviewed, passing.start, passing.at)
    return reviewed, (Passing(start, until, start, time) if start < until else None)


def go_on(reviewed: Spans, passing: Passing | None, upto: int, first: int = 0) -> tuple[Spans, Passing | None]:
    """The pass is over what lies before `upto`; first: what the queue took of it begins there; 0: it took nothing.

    One that began at a time is over what lies behind the first that it took: nobody had looked where that time is.
    """
    if passing is None:
        return reviewed, None
    if passing.time and first and not passing.start:
        passing = replace(passing, start=first)
    if upto < passing.until:
        return reviewed, Passing(passing.start, passing.until, upto, passing.time)
    return joined(reviewed, passing.start, passing.until), None


def joined(spans: Spans, low: int, high: int) -> Spans:
    """The spans and one more."""
    return spans if low >= high else tuple(merged_spans((*spans, (low, high))))


def dump(reviewed: Spans, passing: Passing | None) -> dict[str, object]:
    """For the JSON part of an encoded state; empty for a queue that never had a pass."""
    out: dict[str, object] = {}
    if reviewed:
        out["reviewed"] = [list(span) for span in reviewed]
    if passing is not None:
        out["passing"] = [passing.start, passing.until, passing.at, passing.time]
    return out


def read(table: dict[str, object]) -> tuple[Spans, Passing | None]:
    spans = cast("Sequence[tuple[int, int]]", table.get("reviewed", ()))
    numbers = cast("Sequence[int] | None", table.get("passing"))
    return tuple((a, b) for a, b in spans), (Passing(*numbers) if numbers is not None else None)
