"""Messages older than some that a queue has had: what a pass over the log finds for it.

A queue that serves in order of arrival takes them at once, each at its own place.  Where the order says more than that
(barriers, priorities, a target depth) nothing goes out before the last of them is there: they wait (`order.found`), and
the queue is put in order once, at the end of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.contained import Contained
from penstock.core.queue.contents import Contents
from penstock.core.queue.order.found import Older
from penstock.core.queue.order.runs import Run, packed, tidy
from penstock.core.queue.priority.ranking import take_unranked
from penstock.core.queue.reordering import change_ranks, stage
from penstock.core.state.lsns import Ints


def waits(queue: Contents) -> bool:
    """Whether the queue has to be put in order before it may go on."""
    settings = queue.settings
    ordered = settings.barrier_expression is not None or settings.rank_text is not None
    ordered = ordered or bool(settings.target_queue_depth) or queue.shares is not None
    return ordered or queue.held > 0 or queue.ranks is not None


def expect_older(queue: Contents) -> None:
    """A pass begins or goes on: nothing goes out before its end where the order says more than arrival does."""
    if queue.older is None and waits(queue):
        queue.older = Older()


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
        queue.ensure_expiry().add_older(lsns, np.zeros(len(lsns), dtype=np.int64) if deadlines is None else deadlines)
    if len(lsns) and int(lsns[-1]) >= queue.floor():
        _mix(queue, int(lsns[-1]))
    if not_before is not None and (late := not_before > 0).any():
        _schedule(queue, lsns[late], not_before[late], barriers)
        lsns = lsns[~late]
    if not len(lsns):
        return
    if queue.older is not None:
        queue.older.add(packed(lsns), [lsn for lsn in barriers if _among(lsns, lsn)])
        return
    if queue.main.last() < int(lsns[0]):
        _append(queue, lsns)
    else:
        for chunk, _ in tidy(lsns):
            queue.put_back(Run(chunk, False))


def _append(queue: Contents, lsns: Ints) -> None:
    """They stand behind all that there is."""
    if queue.targets.lists:
        queue.targets.arrive(range(int(lsns[0]), int(lsns[0]) + 1), None, None, queue.main)
    for chunk, _ in tidy(lsns):
        queue.ensure_main().append(chunk, solid=False)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(packed(lsns))


def _schedule(queue: Contents, lsns: Ints, times: Ints, barriers: Sequence[int]) -> None:
    """Those of them that are not due yet."""
    queue.ensure_delays().schedule_older(lsns, times)
    dormant = set(lsns.tolist()).intersection(barriers)
    if dormant:
        queue.ensure_barriers().dormant.update(dormant)
    queue.barriers.delay(packed(lsns), 1)
    queue.ensure_main().seal(int(lsns[-1]))


def _mix(queue: Contents, last: int) -> None:
    """What comes, up to `last`, may lie between others: no array may be called solid any more."""
    for main in (
        queue.ensure_main(),
        *(barrier.main for barrier in queue.barriers.waiting() if barrier.main is not None),
    ):
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
        queue.ensure_barriers().dormant = dormant
    queue.load(contained.waiting(), contained.columns())
    for main in (queue.ensure_main(), queue.ensure_tail(), *(barrier.order() for barrier in queue.barriers.waiting())):
        main.loosen()
        main.seal(last)
    queue.renew_targets()
    queue.weigh()


def _among(lsns: Ints, lsn: int) -> bool:
    at = int(np.searchsorted(lsns, lsn))
    return at < len(lsns) and int(lsns[at]) == lsn
