"""What a person who has a member lead is told first, and what the member's copy of the register says then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PreconditionFailed
from penstock.log.disk import OsDisk
from penstock.replication.register import ClusterState, decode
from penstock.replication.rivals import Verdict, compared
from penstock.server.cluster import folder

if TYPE_CHECKING:
    from penstock.ports import Disk


def told_to_lead(data: str, state: ClusterState, member: str, lose: int | None) -> ClusterState:
    """The register with an order to lead.  data: the folder of the member with these settings.

    NotFound, PreconditionFailed, InvalidArgument.
    """
    key = state.key_of(member)
    if not state.manual:
        return state.promoted(key, lose)
    disk = OsDisk(data)
    known = folder.read(disk)
    if known is None or known.member != key:
        here = "no member" if known is None else state.members[known.member].name
        raise PreconditionFailed(
            f"{data} is the folder of {here}: with registry = 'manual' run this beside the folder of {member}"
        )
    return promoted(disk, state, key, lose)


def promoted(disk: Disk, copy: ClusterState, key: str, lose: int | None) -> ClusterState:
    """A member's copy of the register with an order to lead.  PreconditionFailed as `ClusterState.told_to_lead`.

    disk: the member's own folder, which says what the copy does not
    """
    known, rival = folder.read(disk), rival_of(disk, copy)
    lacks = known is not None and not known.intact
    return copy.told_to_lead(key, lacks=lacks, rival=rival, lose=lose)


def rival_of(disk: Disk, copy: ClusterState) -> ClusterState | None:
    """Another copy that went on without this one, as this one did without it; None: there is none."""
    data = folder.read_rival(disk)
    rival = None if data is None else decode(data)
    return rival if rival is not None and compared(copy, rival) is Verdict.RIVAL else None
