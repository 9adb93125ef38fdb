"""Which rows of the log a durable state still needs.

That is what waits in a queue, what is the present record of a key, and what a stream may be asked for again.

Nothing is ever put into a queue at an old LSN, so what a state does not need no later state will.  It answers for the
bodies alone: what the fold needs is another question, and a base answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from penstock.core.state.durable import DurableState, Ints, QueueState, ints, to_array
from penstock.records.chunks import LSN_LIMIT, Chunk

_NONE = np.zeros((0, 2), dtype=np.int64)


def needed_pairs(state: DurableState, first: int, last: int) -> Ints:
    """The LSNs in [first, last] whose rows are needed, as ascending disjoint pairs [a, b), shape (n, 2)."""
    return merged([piece for piece in _pieces(state, first, last + 1) if len(piece)])


def count(pairs: Ints) -> int:
    """How many LSNs lie in disjoint pairs."""
    return int((pairs[:, 1] - pairs[:, 0]).sum())


def held_from(state: DurableState) -> int:
    """The first LSN that a reader in log mode, or an action, may come back to: nothing from there on may go.

    LSN_LIMIT: none may.
    """
    lows = [low for one in state.streams.values() if one.mode == "log" and (low := one.holds_from) is not None]
    if state.acted:
        lows.append(state.acted.floor + 1)  # what set actions off that may not be done
    return min(lows, default=LSN_LIMIT)


def living_pairs(queues: Iterable[QueueState]) -> Ints:
    """What waits in these queues, as ascending disjoint LSN pairs [a, b), shape (n, 2)."""
    return merged([within(chunk) for queue in queues for chunk in queue.waiting if len(chunk)])


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


def within(chunk: Chunk, a: int = 0, b: int = LSN_LIMIT) -> Ints:
    """The pairs of a chunk's LSNs in [a, b)."""
    if isinstance(chunk, range):
        return np.array([[max(chunk.start, a), min(chunk.stop, b)]], dtype=np.int64)
    lsns = ints(chunk)
    lsns = lsns[np.searchsorted(lsns, a) : np.searchsorted(lsns, b)]
    if not len(lsns):
        return _NONE
    breaks = np.flatnonzero(np.diff(lsns) != 1) + 1
    starts = lsns[np.concatenate(([0], breaks))]
    ends = lsns[np.concatenate((breaks, [len(lsns)])) - 1] + 1
    return np.stack((starts, ends), axis=1)


def merged(pieces: Sequence[Ints]) -> Ints:
    """Pairs in any order, made ascending and disjoint."""
    if not pieces:
        return _NONE
    pairs = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    ordered = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    begins = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    starts = ordered[begins, 0]
    ends = reach[np.concatenate((np.flatnonzero(begins)[1:] - 1, [len(ordered) - 1]))]
    return np.stack((starts, ends), axis=1)
