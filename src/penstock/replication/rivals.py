"""Which of two copies of the register is to be believed, where each member has its own.

Which of two values is to be believed is no matter of the higher number: the one that knows of the other's term went on
from it.  Of two that know nothing of each other one may be known to have confirmed nothing, since it waits for the very
member that leads in the other.  If not, both have, and only a person can say which is to be given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from penstock.replication.register import ClusterState, written
from penstock.replication.terms import Written, common


class Verdict(Enum):
    """Of another's value beside ours."""

    OLD = "old"  # ours goes on from it, or is the same
    NEW = "new"  # it goes on from ours, and ours confirmed nothing that it lacks
    RIVAL = "rival"  # both may have confirmed what the other lacks
    TWICE = "twice"  # two processes made the same term: one has an older copy of the folder of the other


def compared(ours: ClusterState, theirs: ClusterState) -> Verdict:
    """Which of two values is to be believed.  Both are of the same cluster."""
    if ours.term == theirs.term:
        if ours.leader is not None and theirs.leader is not None and _starts(ours) != _starts(theirs):
            return Verdict.TWICE
        return Verdict.NEW if theirs.beat > ours.beat else Verdict.OLD
    if ours.knows(theirs.term):
        return Verdict.OLD
    if theirs.knows(ours.term):
        return Verdict.NEW
    empty, ours_empty = _is_empty(theirs, ours), _is_empty(ours, theirs)
    if empty and ours_empty:
        return Verdict.NEW if theirs.term > ours.term else Verdict.OLD
    if empty or ours_empty:
        return Verdict.OLD if empty else Verdict.NEW
    return Verdict.OLD if theirs.leader in ours.gone else Verdict.RIVAL


def _is_empty(line: ClusterState, other: ClusterState) -> bool:
    """Whether a value that another knows nothing of is known to have confirmed nothing since they parted.

    Who is in sync is dropped with its own word, or by a person in a new term: so the leader of the other is waited for.
    It has acked nothing here, unless it gave up its own line and followed this one: then the value that has it in sync
    tells that something was confirmed, see `insync`.
    """
    since = next((one.start for one in line.terms if not other.knows(one.term)), line.ceiling)
    return other.leader in line.in_sync and line.committed < since


def _starts(state: ClusterState) -> tuple[int, str] | None:
    """Of the process that made its term: each start makes another."""
    leader = None if state.leader is None else state.members[state.leader]
    return None if leader is None else (leader.starts, leader.process)


def end_of_line(state: ClusterState, log: Sequence[Written]) -> int | None:
    """The last LSN of a log that a value goes on from: what lies above was set aside.  None: it tells nothing of it.

    log: as its own LSNs tell.  Terms before those that the value tells of are left alone.
    """
    line = written(state, state.ceiling - 1)
    if shared := common(log, line):
        return shared
    known = {one.term for one in line}
    foreign = [one.first for one in log if one.term not in known and one.first >= state.terms[0].start]
    return min(foreign) - 1 if foreign else None
