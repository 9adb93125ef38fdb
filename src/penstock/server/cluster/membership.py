"""What the register says of a process, or is to say; why it cannot be that: as sentences, empty where it can."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from penstock.records.kinds import FORMAT
from penstock.replication.messages import Hello
from penstock.replication.register import ClusterState, Member
from penstock.server.cluster.folder import Known
from penstock.server.cluster.outside import Terms


def mine_of(known: Known, terms: Terms) -> Member:
    """What the register is to say of a member."""
    return Member(terms.name, terms.address, FORMAT, known.starts, terms.process)


def not_ours(known: Known, state: ClusterState, origin: int) -> str:
    """Why this folder is of another cluster.  origin: of its log; 0: it has none yet."""
    if known.cluster and state.cluster != known.cluster:
        return f"the register is of cluster {state.cluster}, and this folder of {known.cluster}"
    if state.format > FORMAT:
        return f"the cluster's log is of format {state.format}, and this version reads formats up to {FORMAT}"
    if origin not in {0, state.origin}:
        return f"the cluster's log is of origin {state.origin}, and this folder's of {origin}"
    return ""


def no_longer(known: Known, state: ClusterState, mine: Member, *, registered: bool) -> str:
    """Why this process cannot be what the register has under its id; empty: it can, or is to be listed.

    registered: the register had it as it is, so whoever it shows now came later
    """
    there = state.members.get(known.member)
    if there is None:
        removed = known.member in state.gone if state.manual else known.listed
        return f"member {known.member} was removed from the cluster" if removed else ""
    if there != mine.numbered(there.number) and (registered or there.starts >= mine.starts):
        return (
            f"the register knows of {there.starts} starts of member {known.member}, and this folder of "
            f"{mine.starts}: it is an older copy, or another process has it"
        )
    return ""


def listing(hello: Hello, state: ClusterState, here: AbstractSet[str]) -> tuple[str, ClusterState | None]:
    """Why a follower that has a copy of the register has to come again, and what its leader is to keep first.

    here: members that follow, and the leader.  A new one is taken when all others are: so each number is given once
    """
    there = state.members.get(hello.member)
    says = Member(hello.name, hello.address, hello.reads, hello.starts, hello.process)
    known = state.numbering(hello.numbers)
    if hello.term != state.term:
        why = f"this is term {state.term}, and the follower's copy of the register is of term {hello.term}"
        return why, known if known != state else None
    if state.leader is not None and hello.maker != state.members[state.leader].process:
        return f"another process made term {state.term} too, from an older copy of the folder of its leader", None
    if there is not None and there == says.numbered(there.number):
        return "", None
    if hello.member in state.gone:
        return f"{hello.member} was removed from the cluster", None
    if there is not None and there.starts >= hello.starts:
        why = f"{there.name} was started {there.starts} times, and this folder {hello.starts}: it is an older copy"
        return why, None
    if there is None and (away := state.members.keys() - here):
        names = ", ".join(sorted(state.members[one].name for one in away))
        return f"a new member is taken when all others are here: {names} is away, or to be removed", None
    return "it is being listed", known.with_member(hello.member, says)
