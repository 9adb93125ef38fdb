"""What an audit finds in the log of a simulated disk."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.audit_log import Audit
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.testing.instance import FakeClock
from sim.serverkit import state_of


def audit(disk: SimDisk, clock: FakeClock) -> Sequence[object]:
    """What is wrong with a log: half of something, for instance."""
    log, found = Log.open(disk, clock, MEMORY), Audit()
    for table in log.replay():
        for batch in table.to_batches():
            found.feed(batch)
    log.close(clean=False)
    return found.finish(state_of(disk, clock)).findings
