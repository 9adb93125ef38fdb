"""Which term wrote which LSNs of a log, and up to where two logs are the same.

In one term one member writes, and the LSNs of terms do not overlap: so two logs that have an LSN of the same term have
the same record there, and all records before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Written(NamedTuple):
    """What a log has of one term."""

    term: int
    first: int  # its boot record
    last: int


class Terms:
    """Of one log, oldest first."""

    def __init__(self, written: Iterable[Written] = ()) -> None:
        self._all = list[Written]()
        for one in written:
            self.begin(one.term, one.first)
            self.reach(one.last)

    def __iter__(self) -> Iterator[Written]:
        return iter(self._all)

    @property
    def newest(self) -> int:
        """The highest term that wrote here; 0: none did."""
        return self._all[-1].term if self._all else 0

    def begin(self, term: int, first: int) -> None:
        """A leader's first record.  ValueError where the log says otherwise: that is damage."""
        if self._all and (term <= self.newest or first <= self._all[-1].last):
            raise ValueError(f"term {term} begins at LSN {first}, behind term {self.newest} up to {self._all[-1].last}")
        self._all.append(Written(term, first, first))

    def reach(self, lsn: int) -> None:
        """The log goes up to here."""
        if self._all:
            self._all[-1] = self._all[-1]._replace(last=max(lsn, self._all[-1].last))

    def cut(self, lsn: int) -> None:
        """The log has nothing above `lsn` any more."""
        self._all = [one._replace(last=min(one.last, lsn)) for one in self._all if one.first <= lsn]

    def of(self, lsn: int) -> int | None:
        """The term that wrote a record; None: it is older than the cluster, or not here."""
        at = bisect_right(self._all, lsn, key=lambda one: one.first) - 1
        return self._all[at].term if at >= 0 and lsn <= self._all[at].last else None


def common(ours: Iterable[Written], theirs: Iterable[Written]) -> int:
    """The last LSN that two logs have in common; 0: none that is known.

    In the newest term that both know, it is the smaller of their ends.  Terms of which one of them knows nothing do not
    matter: their records are to be cut, or are to come.
    """
    known = {one.term: one.last for one in ours}
    both = [(one.term, min(one.last, known[one.term])) for one in theirs if one.term in known]
    return max(both)[1] if both else 0
