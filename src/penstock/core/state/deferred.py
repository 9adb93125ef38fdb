"""Deferred acks: what was said about messages that are not in their queue, remembered until they appear.

Each entry is what one command said.  It names its messages by their origin and their LSNs there, so it can tell a
message of this instance that never entered the queue from one that another instance gave its number to.  How long an
entry is remembered was decided when it was written; that it is forgotten is a record too, so no clock is asked here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import numpy as np

from penstock.records.chunks import as_chunk, pairs_of
from penstock.records.dataclass import dataclass


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
        int(str(header["origin"])), str(header["verb"]), str(header["by"]), cast(int, header["until"]), spread(pairs)
    )


def spread(pairs: Sequence[int]) -> array[int]:
    """The LSNs of flat exact pairs."""
    out = array("q")
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        out.extend(range(a, b))
    return out


def forget(deferred: DeferredAcks, queue: int, origin: int, lsns: array[int]) -> None:
    """Remember nothing of these messages any more: an UNDEFER record says so."""
    kept = list[DeferredAck]()
    for entry in deferred.get(queue, ()):
        if entry.origin == origin:
            left = array("q")
            left.frombytes(np.setdiff1d(np.frombuffer(entry.lsns, np.int64), np.frombuffer(lsns, np.int64)).tobytes())
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
