"""What people change in a register: it is read, changed and swapped in, again while others change it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import Unavailable
from penstock.replication.register import ClusterState, decode

if TYPE_CHECKING:
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
