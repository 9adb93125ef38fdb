"""Why a process cannot be what the register says of its member: as sentences, empty where it can."""

from __future__ import annotations

from penstock.replication.register import ClusterState, Member
from penstock.server.cluster.folder import Known
from penstock.server.cluster.log_sending import FORMAT


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
