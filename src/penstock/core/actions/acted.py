"""What actions have done, as the log says: the fold and the living core share it.

A trigger is a record of the log that sets actions off; its place is its LSN.  All triggers up to the `floor` are done
with.  Above it `done` says which messages of which triggers an action has done, so that a start after a crash runs the
others, and those alone.  `since` says from where on each action watches: what was there before it was set up is not
its business.

    ACTED  name: the action, empty: none; header {"floor", "cause"?, "since"?}; body: pairs of LSNs

A published message is its own trigger: its pairs have no cause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import cast

import numpy as np
import numpy.typing as npt

from penstock.records.chunks import Chunk, as_chunk, pairs_of
from penstock.records.dataclass import dataclass

Ints = npt.NDArray[np.int64]

OWN = 0
"""The cause of messages that are triggers themselves."""


@dataclass(slots=True)
class Acted:
    """The state; equal histories give equal states."""

    floor: int = 0
    since: dict[str, int] = field(default_factory=dict[str, int])  # by action
    done: dict[str, dict[int, list[int]]] = field(
        default_factory=dict[str, dict[int, list[int]]]
    )  # action -> cause -> LSNs of messages, ascending

    def __bool__(self) -> bool:
        return bool(self.since)

    def copy(self) -> Acted:
        """A copy: what is folded into one of the two the other does not have."""
        done = {name: {cause: list(lsns) for cause, lsns in some.items()} for name, some in self.done.items()}
        return Acted(self.floor, dict(self.since), done)

    def fold(self, name: str, header: Mapping[str, object], pairs: Sequence[int]) -> None:
        """Take in an ACTED record; pairs: its body."""
        if "since" in header:
            self.since = dict(sorted(cast("dict[str, int]", header["since"]).items()))
            self.done = {one: some for one, some in self.done.items() if one in self.since}
        if pairs and name in self.since:
            cause = cast("int", header.get("cause", OWN))
            lsns = self.done.setdefault(name, {}).setdefault(cause, [])
            fresh = {lsn for at in range(0, len(pairs), 2) for lsn in range(pairs[at], pairs[at + 1])}
            lsns[:] = sorted(fresh.union(lsns))
        self._pass(max(self.floor, cast("int", header["floor"])))

    def _pass(self, floor: int) -> None:
        """What the floor covers needs no other word."""
        self.floor = floor
        for name, some in list(self.done.items()):
            for cause, lsns in list(some.items()):
                if cause == OWN:
                    lsns[:] = [lsn for lsn in lsns if lsn > floor]
                if not lsns or (cause != OWN and cause <= floor):
                    del some[cause]
            if not some:
                del self.done[name]

    def wants(self, name: str, place: int) -> bool:
        """Whether an action has perhaps not done what a trigger at this LSN sets off."""
        return place > self.floor and self.since.get(name, place) < place

    def left(self, name: str, cause: int, lsns: Sequence[int]) -> list[int]:
        """The messages of a trigger that an action has not done."""
        did = set(self.done.get(name, {}).get(cause, ()))
        return [lsn for lsn in lsns if lsn not in did]

    # -- as a part of an encoded durable state

    def dump(self) -> dict[str, object]:
        """For the JSON of an encoded durable state."""
        done = [
            [name, cause, pairs_of(as_chunk(lsns), False)]
            for name, some in sorted(self.done.items())
            for cause, lsns in sorted(some.items())
        ]
        return {"floor": self.floor, "since": self.since, "done": done}

    @classmethod
    def load(cls, plain: object) -> Acted:
        """The inverse; of a state without one the empty one."""
        if not plain:
            return cls()
        table = cast("dict[str, object]", plain)
        out = cls(cast("int", table["floor"]), dict(cast("dict[str, int]", table["since"])))
        for name, cause, pairs in cast("list[tuple[str, int, list[int]]]", table["done"]):
            out.done.setdefault(name, {})[cause] = list(_spread(pairs))
        return out


def _spread(pairs: Sequence[int]) -> Iterator[int]:
    for at in range(0, len(pairs), 2):
        yield from range(pairs[at], pairs[at + 1])


def exact(chunks: Sequence[Chunk]) -> list[int]:
    """The LSNs of chunks as ascending pairs that hold nothing else."""
    ends = [pairs_of(chunk, False) for chunk in chunks]
    pairs = sorted((some[at], some[at + 1]) for some in ends for at in range(0, len(some), 2))
    return [end for pair in pairs for end in pair]


HOPS_MOST = 8
"""Rounds after which a message sets off nothing more."""

SPANS_MOST = 65_536


class Hops:
    """Published LSN -> actions on the way to it."""

    __slots__ = ("_ends", "_hops", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._hops: list[int] = []

    def of(self, lsn: int) -> int:
        """0 for what a client published."""
        if not self._starts or lsn < self._starts[0]:
            return 0
        at = bisect_right(self._starts, lsn) - 1
        return self._hops[at] if lsn < self._ends[at] else 0

    def any(self, first: int, end: int) -> bool:
        """Whether some message of [first, end) was published by an action."""
        if not self._starts or end <= self._starts[0]:
            return False
        at = bisect_right(self._starts, end - 1) - 1
        return self._ends[at] > first

    def add(self, first: int, end: int, hops: int) -> None:
        """The messages in [first, end), newer than all before."""
        if self._ends and self._ends[-1] == first and self._hops[-1] == hops:
            self._ends[-1] = end
            return
        self._starts.append(first)
        self._ends.append(end)
        self._hops.append(hops)
        if len(self._starts) > SPANS_MOST:
            for column in (self._starts, self._ends, self._hops):
                del column[: SPANS_MOST // 2]
