"""Which rows of the log a durable state still needs.

That is what waits in a queue, what is the present record of a key, and what a stream may be asked for again.

Nothing is ever put into a queue at an old LSN, so what a state does not need no later state will.  It answers for the
bodies alone: what the fold needs is another question, and a base answers it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.core.state.durable import DurableState
from penstock.core.state.lsns import Ints, ints, merged, to_array, within
from penstock.records.chunks import LSN_LIMIT


def needed_pairs(state: DurableState, first: int, last: int) -> Ints:
    """The LSNs in [first, last] whose rows are needed, as ascending disjoint pairs [a, b), shape (n, 2)."""
    return merged([piece for piece in _pieces(state, first, last + 1) if len(piece)])


def held_from(state: DurableState) -> int:
    """The first LSN that a reader in log mode, or an action, may come back to: nothing from there on may go.

    LSN_LIMIT: none may.
    """
    lows = [low for one in state.streams.values() if one.mode == "log" and (low := one.holds_from) is not None]
    if state.acted:
        lows.append(state.acted.floor + 1)  # what set actions off that may not be done
    return min(lows, default=LSN_LIMIT)


def _pieces(state: DurableState, a: int, b: int) -> Iterator[Ints]:
    for queue in state.queues.values():
        for chunk in queue.waiting:
            if len(chunk) and chunk[0] < b and chunk[-1] >= a:
                yield within(chunk, a, b)
    for sow in state.sows.values():
        lsns = ints(sow.lsns)
        lsns = np.sort(lsns[(lsns >= a) & (lsns < b)])
        if len(lsns):
            yield within(to_array(lsns), a, b)
    for stream in state.streams.values():
        if stream.released:
            continue
        for plan in (*stream.plans.values(), stream.counted):
            pairs = ints(plan).reshape(-1, 2)
            touching = pairs[(pairs[:, 0] < b) & (pairs[:, 1] > a)]
            if len(touching):
                yield touching.clip(a, b)
