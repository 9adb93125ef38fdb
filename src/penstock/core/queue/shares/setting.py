"""Another expression, or a start: all that is ready waits for its keys from now on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.queue.agenda import SHARES
from penstock.core.queue.order.runs import Run, sorted_chunk
from penstock.core.queue.shares.shares import Shares, expressions
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def stage(queue: Contents, more: Sequence[Chunk] = ()) -> None:
    """The queue, new or loaded, or with other settings: what is ready waits for its keys from now on.

    more    messages that are ready too, and counted as such
    """
    settings = queue.settings
    fresh: list[Chunk] = [*more]
    back: list[Run] = []
    for place in queue.places("ready"):
        fresh += place.fresh() if place.fresh is not None else ()
        runs = place.back() if place.back is not None else ()
        back += [Run(run.chunk, False, run.tally, run.place) for run in runs]
    queue.main = queue.main.emptied()
    queue.clear_returned()
    everything = sorted_chunk([chunk for chunk in fresh if len(chunk)])
    queue.shares = shares = Shares(settings, queue.ranks) if expressions(settings) else None
    queue.plan = None
    queue.agenda |= SHARES
    main = queue.main if shares is None else shares.staging.main
    if len(everything):
        for start in range(0, len(everything), 8192):
            main.append(everything[start : start + 8192], solid=False)
        queue.main.seal(everything[-1])
    if shares is None:
        for run in back:
            queue.coming_back().push(run)
    else:
        for run in back:
            shares.staging.returned.push(run)
        for run in queue.leased_runs():
            shares.staging.out.update(dict.fromkeys(run.chunk, True))
        for run in queue.delays.retries.runs():
            shares.staging.out.update(dict.fromkeys(run.chunk, False))
    queue.renew_targets()
