"""Terms of a cluster: which of them wrote which LSNs of a log, up to where two logs are the same, and how they are
numbered where nobody else keeps the register.

In one term one member writes, and the LSNs of terms do not overlap: so two logs that have an LSN of the same term have
the same record there, and all records before it.

Where each member has a copy of the register of its own, and a person says who leads, two members that know nothing of
each other may both be told to lead.  So terms are made in lanes: a term modulo 64 is the number of the member that made
it, and the LSNs of a term follow from the term alone.  No term is made twice, and no LSN is ever used for two records,
whoever is told what.

    term 1 of p1 -> 65 p1 was started again -> 66 p2 was told to lead -> 129 p1 was told to lead, and so on
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Written(NamedTuple):
    """What a log has of one term."""

    term: int
    first: int  # its boot record
    last: int


def common(ours: Iterable[Written], theirs: Iterable[Written]) -> int:
    """The last LSN that two logs have in common; 0: none that is known.

    In the newest term that both know, it is the smaller of their ends.  Terms of which one of them knows nothing do not
    matter: their records are to be cut, or are to come.
    """
    known = {one.term: one.last for one in ours}
    both = [(one.term, min(one.last, known[one.term])) for one in theirs if one.term in known]
    return max(both)[1] if both else 0


LANES = 64
"""The first member's number is 1; none has 0."""

TERM_BITS = 32
"""Of the LSNs of a term."""

TERMS = 1 << 21
"""More than LSNs suffice for."""

LEFT_LEAST = 1 << 24
"""A leader that has fewer LSNs left of its term ends, to begin its next one."""

OVER_MOST = 128


def first_base(next_lsn: int) -> int:
    """Where the LSNs of term 0 would begin, of a log that goes on with this LSN; a multiple of a term's LSNs."""
    return (next_lsn >> TERM_BITS) + 1 << TERM_BITS


def start_of(base: int, term: int) -> int:
    """The first LSN of a term."""
    return base + (term << TERM_BITS)


def term_of(base: int, lsn: int) -> int:
    """The term that wrote an LSN; 0: it is older than the cluster."""
    return max(0, lsn - base >> TERM_BITS)


def in_stretches(base: int, stretches: Sequence[int], last: int) -> list[Written]:
    """Which terms wrote a log, as its own LSNs tell.

    stretches: of 2**32 LSNs each, in which it has records.  last: its last LSN.  Where a term ended is not told but of
    the newest: whoever goes on from there in another term has nothing behind its own end of it
    """
    found = list[Written]()
    for stretch in stretches:
        term = term_of(base, stretch << TERM_BITS)
        if term:
            start = start_of(base, term)
            found.append(Written(term, start, min(last, start_of(base, term + 1) - 1)))
    return found


def next_term(number: int, above: int) -> int:
    """The lowest term of a member that is higher than all that it knows of."""
    term = above - above % LANES + number
    return term if term > above else term + LANES


Runs = tuple[tuple[int, int], ...]
"""Terms of one lane from first to last, 64 apart."""


def runs(terms: Iterable[int]) -> Runs:
    """The same terms, with what follows each other in a lane as one; of too many the lowest are forgotten."""
    found = list[tuple[int, int]]()
    by_lane = sorted(set(terms), key=lambda term: (term % LANES, term))
    for term in by_lane:
        if found and found[-1][1] + LANES == term:
            found[-1] = (found[-1][0], term)
        else:
            found.append((term, term))
    return tuple(sorted(found)[-OVER_MOST:])


def unrolled(over: Runs) -> set[int]:
    """The terms of which `runs` made these."""
    return {term for first, last in over for term in range(first, last + 1, LANES)}


def includes(over: Runs, term: int) -> bool:
    """Whether a term is among these."""
    return any(first <= term <= last and (term - first) % LANES == 0 for first, last in over)


def ascending(over: Runs) -> bool:
    """Whether these are runs as they are made."""
    return all(0 < first <= last < TERMS and (last - first) % LANES == 0 for first, last in over) and all(
        one < other for one, other in pairwise(over)
    )
