"""Publishers that change sides: a message that was sent to two sites is recognised by its publisher and sequence.

A publisher that hears nothing of its messages sends them again, to another site: then two logs have one message, each
as its own.  That of the lower origin is to be worked: who owns the other one lets it go, and says that it was a twin.
Where one of them is gone for another reason it was worked, and who owns the other one lets that go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from penstock.records.chunks import LSN_LIMIT

KEPT = 16_384
"""Sequences of a publisher that are remembered at each site, behind its highest there."""

_LOOKS_AT, _CUTS = 512, 256


class Numbered(NamedTuple):
    """Messages that stand here from `lsn` on, published at a site (`core.links.identity`), with adjacent sequences."""

    publisher: str
    peer: int
    sequence: int
    lsn: int
    size: int


class Twin(NamedTuple):
    """Two messages of this log that are one: LSNs here, and the sites to which they were published."""

    one: int
    peer: int
    other: int
    other_peer: int


class Sequences:
    """Where messages of publishers stand, by their sequences."""

    __slots__ = ("_runs",)

    def __init__(self, told: Iterable[Numbered] = ()) -> None:
        self._runs = dict[str, dict[int, list[tuple[int, int, int]]]]()  # by publisher and site: sequence, LSN, count
        for one in told:
            self._runs.setdefault(one.publisher, {}).setdefault(one.peer, []).append((one.sequence, one.lsn, one.size))

    def __iter__(self) -> Iterator[Numbered]:
        for publisher, sites in sorted(self._runs.items()):
            for peer, runs in sorted(sites.items()):
                yield from (Numbered(publisher, peer, *run) for run in runs)

    def __bool__(self) -> bool:
        return any(runs for sites in self._runs.values() for runs in sites.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequences) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Sequences:
        """The same, of which one may go on without the other."""
        out = Sequences()
        out._runs = {name: {peer: list(runs) for peer, runs in sites.items()} for name, sites in self._runs.items()}
        return out

    def add(self, new: Numbered) -> list[Twin]:
        """Messages are stored; those of them that another site had, too."""
        sites = self._runs.setdefault(new.publisher, {})
        out = list[Twin]()
        for peer, runs in sites.items():
            if peer != new.peer:
                out += _shared(new, peer, runs)
        runs = sites.setdefault(new.peer, [])
        last = runs[-1] if runs else (0, 0, 0)
        if last[2] and last[0] + last[2] == new.sequence and last[1] + last[2] == new.lsn:
            runs[-1] = (last[0], last[1], last[2] + new.size)
        else:
            insort(runs, (new.sequence, new.lsn, new.size))
        if len(runs) >= _LOOKS_AT and runs[_CUTS - 1][0] + KEPT < runs[-1][0]:
            del runs[:_CUTS]
        return out

    def twins(self) -> list[Twin]:
        """All pairs of runs that two sites have of one publisher's numbers."""
        out = list[Twin]()
        for publisher, sites in self._runs.items():
            for peer, runs in sites.items():
                for other, others in sites.items():
                    if peer < other and others:
                        out += [
                            twin for run in runs for twin in _shared(Numbered(publisher, peer, *run), other, others)
                        ]
        return out

    def forget(self, lsns: Collection[int]) -> None:
        """These went because they were twins: they say nothing of others any more."""
        gone = sorted(lsns)
        for sites in self._runs.values():
            for peer, runs in sites.items():
                if any(_some(gone, run) for run in runs):
                    sites[peer] = [part for run in runs for part in _without(run, _some(gone, run))]

    def gone(self, publishers: Iterable[str]) -> None:
        """Nothing comes of them any more."""
        for publisher in publishers:
            self._runs.pop(publisher, None)


def _shared(new: Numbered, peer: int, runs: list[tuple[int, int, int]]) -> Iterator[Twin]:
    stop = new.sequence + new.size
    at = max(bisect_right(runs, (new.sequence, LSN_LIMIT, 0)) - 1, 0)
    for sequence, lsn, count in runs[at : bisect_left(runs, (stop, 0, 0))]:
        for number in range(max(sequence, new.sequence), min(sequence + count, stop)):
            yield Twin(new.lsn + number - new.sequence, new.peer, lsn + number - sequence, peer)


def _some(lsns: list[int], run: tuple[int, int, int]) -> list[int]:
    """Those of ascending LSNs that are in a run."""
    return lsns[bisect_left(lsns, run[1]) : bisect_left(lsns, run[1] + run[2])]


def _without(run: tuple[int, int, int], lsns: list[int]) -> Iterator[tuple[int, int, int]]:
    sequence, lsn, count = run
    ends = [one - lsn for one in lsns]
    for low, high in zip([0, *(end + 1 for end in ends)], [*ends, count], strict=True):
        if low < high:
            yield sequence + low, lsn + low, high - low
