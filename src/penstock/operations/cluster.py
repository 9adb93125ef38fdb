"""A cluster of servers, to whoever runs it: who leads, who is a member, which format its log has."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PreconditionFailed
from penstock.operations.operation import Answer, Operation, Path
from penstock.records.rights import ADMINISTERS
from penstock.wire.fields import name, text

if TYPE_CHECKING:
    from penstock.operations.house import House
    from penstock.replication.register import ClusterState
    from penstock.server.access import Who


def switchover(house: House, who: Who, member: str | None) -> Answer:
    """The doors close, all that was taken is copied, another leads, and this process ends to follow."""
    return house.cluster.switch(member)


async def remove(house: House, who: Who, member: str) -> Answer:
    """One that is not needed any more, or whose machine is gone.  Its process ends when it sees it."""
    after = await house.cluster.change(partial(removed, member=member))
    return {"members": sorted(after.members), "in_sync": sorted(after.in_sync)}


def removed(state: ClusterState, member: str) -> ClusterState:
    """The value without it.  NotFound, InvalidArgument for the leader."""
    return state.without_member(state.key_of(member))


async def finalize(house: House, who: Who) -> Answer:
    """After an upgrade of all members: from now on the log is written so that older versions cannot read it."""
    after = await house.cluster.change(finalized)
    return {"format": after.format}


def finalized(state: ClusterState) -> ClusterState:
    """The value with the newest format that all can read.  PreconditionFailed where that is the present one."""
    after = state.finalized()
    if after == state:
        reads = ", ".join(f"{one.name} reads {one.reads}" for _, one in sorted(state.members.items()))
        raise PreconditionFailed(f"the log is of format {state.format} already: {reads}")
    return after


_BY_HAND = "who runs a cluster asks by command or over HTTP"

SWITCHOVER = Operation(
    "cluster_switchover", switchover, "look", "member: hand the lead over, to this one or to any that is level",
    ADMINISTERS, (text("member"),), cli="cluster switchover", missing=_BY_HAND,
    path=Path("POST", "/api/cluster/switchover", {}, "Hand the lead over to a member that is level", "member"),
)  # fmt: skip
REMOVE = Operation(
    "cluster_remove", remove, "change", "member: it is none any more", ADMINISTERS, (name("member"),),
    cli="cluster remove", missing=_BY_HAND,
    path=Path("POST", "/api/cluster/remove", {}, "Remove a member that does not lead", "member"),
)  # fmt: skip
FINALIZE = Operation(
    "cluster_finalize", finalize, "change", "the newest format of the log that all members can read", ADMINISTERS,
    cli="cluster finalize", missing=_BY_HAND,
    path=Path("POST", "/api/cluster/finalize", {}, "End an upgrade: the newest format that all members can read"),
)  # fmt: skip
