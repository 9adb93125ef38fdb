"""An audit that several make together, and the verdict of them all.

Each message belongs to one share, by its LSN, and its share sees everything that happens to it.  One share sees the
rest: order and times of all records, groups, publishers, policies, sinks.  Control records concern everybody, so what
several find in them is the same, and counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.core.audit.histories import ENDED, NONE
from penstock.core.state.lsns import Ints
from penstock.records.dataclass import dataclass

LSNS_MOST = 1000
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Share(NamedTuple):
    """Messages with LSNs in [low, high), and whether all else is this one's too."""

    low: int = _LEAST
    high: int = _MOST
    rest: bool = True

    @property
    def messages(self) -> bool:
        """Whether any message can be in it."""
        return self.low < self.high

    def own(self, lsns: Ints) -> Ints:
        """Those that are in it."""
        return lsns[(lsns >= self.low) & (lsns < self.high)]

    def cut(self, pairs: Ints) -> Ints:
        """The part of pairs, shape (n, 2), that is in it."""
        return np.clip(pairs, self.low, self.high)


WHOLE = Share()
REST = Share(0, 0)
"""Everything but the messages."""


def shares(borders: Sequence[int]) -> list[Share]:
    """One share more than there are borders, which ascend, and at the end the rest."""
    edges = [_LEAST, *borders, _MOST]
    return [*(Share(a, b, False) for a, b in pairwise(edges)), REST]


@dataclass(slots=True)
class Finding:
    """One broken promise; `lsns` are the messages and records that show it, 1,000 at most."""

    guarantee: str
    lsns: list[int]
    text: str


@dataclass(slots=True)
class Report:
    """What an audit says; no findings is good."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    findings: list[Finding] = field(default_factory=list[Finding])


class QueuePart(NamedTuple):
    """What a share knows of a queue."""

    title: str
    ended: bool
    counts: dict[str, int]
    waiting: Ints  # messages, ascending


class Part(NamedTuple):
    """What a share has found."""

    findings: dict[tuple[str, str], list[Ints]]  # (guarantee, sentence) -> LSNs
    counts: dict[str, int]
    queues: dict[int, QueuePart]


def verdict(parts: Sequence[Part], folded: Mapping[int, Ints] | None = None) -> Report:
    """What all shares of an audit say together, in the order of their messages.

    folded: what waits in each queue as the fold of the same records has it, to be compared.
    """
    findings: dict[tuple[str, str], list[Ints]] = {}
    counts, queues = Counter[str](), dict[int, list[QueuePart]]()
    for part in parts:
        counts.update(part.counts)
        for key, lsns in part.findings.items():
            findings.setdefault(key, []).extend(lsns)
        for number, queue in part.queues.items():
            queues.setdefault(number, []).append(queue)
    waiting = dict[int, Ints]()
    for number, pieces in sorted(queues.items()):
        waiting[number] = np.concatenate([NONE, *(piece.waiting for piece in pieces)])
        its = Counter[str]()
        for piece in pieces:
            its.update(piece.counts)
        for name, count in its.items():
            counts[f"queue messages {name}"] += count
        counts["queue messages waiting"] += len(waiting[number])
        ended = sum(its[name] for name in ENDED)
        if its["taken"] != ended + len(waiting[number]):
            text = f"{pieces[0].title} took {its['taken']} messages; {ended} ended and {len(waiting[number])} wait"
            findings.setdefault(("counts", text), []).append(np.array([number]))
    if folded is not None:
        _compare(queues, waiting, folded, findings)
    found = [
        Finding(guarantee, np.unique(np.concatenate(lsns))[:LSNS_MOST].tolist(), text)
        for (guarantee, text), lsns in findings.items()
    ]
    return Report(dict(sorted(counts.items())), found)


def _compare(
    queues: Mapping[int, Sequence[QueuePart]],
    waiting: Mapping[int, Ints],
    folded: Mapping[int, Ints],
    findings: dict[tuple[str, str], list[Ints]],
) -> None:
    def find(lsns: Ints, text: str) -> None:
        findings.setdefault(("counts", text), []).append(np.unique(lsns)[:LSNS_MOST])

    living = {number for number, pieces in queues.items() if not pieces[0].ended}
    for number in sorted(living ^ set(folded)):
        find(np.array([number]), "the fold knows other queues than the records tell of")
    for number in sorted(living & set(folded)):
        here, there = waiting[number], folded[number]
        if not np.array_equal(there, here):
            text = f"{queues[number][0].title}: the fold finds {len(there)} messages waiting, the records {len(here)}"
            find(np.setxor1d(there, here), text)
