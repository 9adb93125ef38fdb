"""Bytes of what a queue holds, by state: counted when somebody asks, from what is there at that moment.

Body bytes alone count: no header, no key.  A range of messages costs two searches, scattered ones a look at each.

Where a limit asks for the bytes of what is ready they are counted along the way.  A queue that is given such a limit
while it holds very many is weighed in steps: the limit begins to hold when that is over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.queue.agenda import WEIGHING
from penstock.core.queue.limits.limits import Weighing, limits_of
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.places import State, chunks, places

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents

STEP = 1 << 20
"""Messages that are weighed together: some five milliseconds, where they lie scattered."""

UNKNOWN = 1 << 56
"""Stands in `weight` for what is not weighed yet; more bytes than any queue has."""


class Weight(NamedTuple):
    """Bytes of a queue's messages."""

    ready: int
    leased: int
    held: int
    total: int  # in whatever state: also delayed, beyond the target depth, and dying


def ready_bytes(queue: Contents) -> int:
    """Of the messages that `ready` counts."""
    return sum(map(queue.sizes.total, chunks(queue, "ready")))


def weighed(queue: Contents) -> Weight:
    """Of all that it holds, by state."""
    by_state = dict[State, int]()
    for place in places(queue):
        by_state[place.state] = by_state.get(place.state, 0) + sum(
            [queue.sizes.total(chunk) for chunk in place.chunks()]
        )
    told = by_state.get
    return Weight(told("ready", 0), told("leased", 0), told("held", 0), sum(by_state.values()))


def begin(queue: Contents) -> None:
    """The limits are others: count the bytes of what is ready from now on, if they ask for them."""
    limits = queue.limits
    if limits is None or limits.size == NEVER:
        queue.weight, queue.weighing = -1, None
    elif queue.weight < 0 and queue.ready <= STEP:
        queue.weigh()
    else:
        if queue.weight < 0:
            queue.weight, queue.weighing = UNKNOWN, Weighing(queue.chunks("ready"), queue.sizes)
            queue.agenda |= WEIGHING
        if queue.weighing is not None:
            queue.limits = limits_of(replace(queue.settings, max_length_bytes=None))


def go_on(queue: Contents) -> None:
    """The next step of a weighing; after the last the limit holds."""
    weighing = queue.weighing
    if weighing is not None and weighing.go_on(STEP):
        queue.weight += weighing.total - UNKNOWN
        queue.weighing = None
        queue.limits = limits_of(queue.settings)
