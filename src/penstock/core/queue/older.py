"""Messages older than some that a queue has had: what a pass over the log finds for it.

A queue that serves in order of arrival takes them at once, each at its own place.  Where the order says more than that
(barriers, priorities, a target depth) nothing goes out before the last of them is there: they wait here, and the queue
is put in order once, at the end of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue import lasting
from penstock.core.queue.contained import Contained
from penstock.core.queue.order.runs import Run, packed, sift, tidy
from penstock.core.queue.priority.ranking import change_ranks, take_unranked
from penstock.core.queue.shares.shares import stage
from penstock.core.state.lsns import Ints
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.effects import Sink
    from penstock.core.queue.contents import Contents


class Older:
    """What was found and waits for the end of the pass."""

    __slots__ = ("barriers", "chunks", "count")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []  # in order, disjoint
        self.barriers: set[int] = set()  # those of them that are barriers
        self.count = 0

    def add(self, chunk: Chunk, barriers: Sequence[int]) -> None:
        """More of them."""
        self.chunks.append(chunk)
        self.barriers.update(barriers)
        self.count += len(chunk)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        out: list[Run] = []
        kept: list[Chunk] = []
        for chunk in self.chunks:
            inside, outside, _ = sift(chunk, wanted)
            if inside is not None:
                out.append(Run(inside, False))
                self.count -= len(inside)
                self.barriers.difference_update(inside)
            kept += outside
        if out:
            self.chunks = kept
        return out

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self.chunks = [move.chunk(chunk) for chunk in self.chunks]

    def clear(self) -> None:
        """They are gone."""
        self.chunks, self.count = [], 0
        self.barriers.clear()


def waits(queue: Contents) -> bool:
    """Whether the queue has to be put in order before it may go on."""
    settings = queue.settings
    ordered = settings.barrier_expression is not None or settings.rank_text is not None
    ordered = ordered or bool(settings.target_queue_depth) or queue.shares is not None
    return ordered or queue.held > 0 or queue.ranks is not None


def take_older(
    queue: Contents, lsns: Ints, deadlines: Ints | None, not_before: Ints | None, barriers: Sequence[int]
) -> None:
    """Take messages, ascending, that a record says the queue took.

    deadlines, not_before    microseconds, 0 for never and at once; None: all are 0
    barriers                 those of them that are barriers
    """
    if queue.ranks is not None:
        take_unranked(queue, lsns)
    if deadlines is not None or not queue.expiry.empty:
        queue.timed().add_older(lsns, np.zeros(len(lsns), dtype=np.int64) if deadlines is None else deadlines)
    if len(lsns) and int(lsns[-1]) >= queue.floor():
        _mix(queue, int(lsns[-1]))
    if not_before is not None:
        late = not_before > 0
        if late.any():
            delayed = set(lsns[late].tolist())
            queue.late().schedule_older(lsns[late], not_before[late])
            dormant = delayed.intersection(barriers)
            if dormant:
                queue.fenced().dormant.update(dormant)
            queue.barriers.delay(packed(lsns[late]), 1)
            queue.filled().seal(int(lsns[late][-1]))
            lsns = lsns[~late]
    if not len(lsns):
        return
    if queue.older is not None:
        queue.older.add(packed(lsns), [lsn for lsn in barriers if _among(lsns, lsn)])
        return
    if queue.main.last() < int(lsns[0]):
        if queue.targets.lists:
            queue.targets.arrive(range(int(lsns[0]), int(lsns[0]) + 1), None, None, queue.main)
        for chunk, _ in tidy(lsns):
            queue.filled().append(chunk, solid=False)
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(packed(lsns))
    else:
        for chunk, _ in tidy(lsns):
            queue.put_back(Run(chunk, False))


def _mix(queue: Contents, last: int) -> None:
    """What comes, up to `last`, may lie between others: no array may be called solid any more."""
    for main in (queue.filled(), *(barrier.main for barrier in queue.barriers.waiting() if barrier.main is not None)):
        main.loosen()
        main.seal(last)
    for place in queue.places():
        for run in place.back():
            run.solid = False
    for consumer in queue.holders():  # of leases in no order `runs` told copies
        consumer.leases.loosen()


def put_in_order(queue: Contents, last: int, sink: Sink) -> None:
    """The pass is over: what was found takes its place among what is ready or held.  `last`: the last LSN given."""
    older, queue.older = queue.older, None
    if older is None:
        return
    if queue.ranks is not None:
        if queue.shares is not None:
            stage(queue, older.chunks)
        else:
            change_ranks(queue, older.chunks)
        queue.weigh()
        return
    contained = Contained([*older.chunks])
    for place in queue.places("ready", "held", "inactive"):
        contained.main += place.fresh()
        contained.runs += (Run(run.chunk, False, run.tally, run.place) for run in place.back())
    barriers = np.array(sorted({*older.barriers, *queue.barriers.all_lsns()}), dtype=np.int64)
    contained.barriers = packed(barriers) if len(barriers) else range(0)
    dormant = queue.barriers.dormant
    queue.begin_anew()
    if dormant:
        queue.fenced().dormant = dormant
    lasting.load(queue, contained.waiting(), contained.columns())
    for main in (queue.filled(), queue.inactive_order(), *(barrier.order() for barrier in queue.barriers.waiting())):
        main.loosen()
        main.seal(last)
    queue.renew_targets()
    queue.weigh()


def _among(lsns: Ints, lsn: int) -> bool:
    at = int(np.searchsorted(lsns, lsn))
    return at < len(lsns) and int(lsns[at]) == lsn
