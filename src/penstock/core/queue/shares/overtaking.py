"""Into a ring what is due enters at the head: it may come before the one that stands for its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import NEVER, Run

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.shares.shares import Shares


def overtakes(shares: Shares, queue: Contents, run: Run, lsn: int) -> bool:
    """Whether this message of the run, which is in the line of its group, changes places with the one before the line.

    Nowhere but in a ring; and only with one that is ready, not with one that is leased or in back-off.
    """
    if queue.limits is None or queue.limits.ring == NEVER:
        return False
    groups, tenants = shares.groups, shares.tenants
    assert groups is not None
    key = groups.keys.of(lsn)
    first = groups.front(key)
    one = range(first, first + 1)
    found = queue.main.extract(one) or queue.returned.extract(one)
    if not found and tenants is not None:
        found = tenants.extract(one)
    if not found:
        return False
    queue.targets.left(one)
    if groups.change_places(run, lsn, found[0]):
        return True
    queue.offer(found[0])
    return False
