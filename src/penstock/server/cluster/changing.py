"""What people change in a register: it is read, changed and swapped in, again while others change it meanwhile.

Of an order to lead: what a person is told first, and what the member's copy of the register says then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import PreconditionFailed, Unavailable
from penstock.log.disk import OsDisk
from penstock.replication.register import ClusterState, Verdict, compared, decode
from penstock.server.cluster import folder

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.cluster.registers import Register


TRIES = 50
PAUSE_S = 0.05


def state_of(register: Register) -> tuple[int, ClusterState]:
    """Version and value.  Unavailable where there is none."""
    kept = register.read()
    if not kept.value:
        raise Unavailable("the register is empty: `penstock cluster init` makes a cluster")
    return kept.version, decode(kept.value)


def changed(register: Register, change: Callable[[ClusterState], ClusterState]) -> ClusterState:
    """What the register holds after a change.  It blocks; Unavailable, and what `change` raises."""
    for _ in range(TRIES):
        version, state = state_of(register)
        wanted = change(state)
        if wanted == state:
            return state
        if isinstance(register.swap(version, wanted.encode()), int):
            return wanted
        time.sleep(PAUSE_S)  # its leader swaps too, some times in a lease; what nobody knows is looked at anew
    raise Unavailable("the register changes all the time, or does not tell: nothing is known to have changed")


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
