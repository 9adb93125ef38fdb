"""What a queue knows of messages wherever they stand, by LSN: one row says how it is taken, told and taken up again.

Where a message stands, and how often it was out, the places tell (`core.queue.contained`); what is known of it outlives
its moves.  A further column is a row of `KNOWN` and its name in `core.state.queue_state.COLUMNS`.
"""

# the parameters of functions in rows are known by the rows' type
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock.core.queue.contained import Tell
from penstock.core.queue.contents import Contents
from penstock.core.queue.dedup import key_column
from penstock.core.queue.order.ranking import load_ranks
from penstock.core.queue.order.ranks import UNKNOWN
from penstock.core.queue.order.runs import packed
from penstock.core.queue.whole import DISPATCH
from penstock.core.state.lsns import Ints, flat, runs_among, runs_of, spread
from penstock.records.chunks import Chunk

Values: TypeAlias = Sequence[Ints]
"""Of each column of a row, of messages by ascending LSN; 0: nothing."""


class Known(NamedTuple):
    """Columns that belong together.

    take      refers to what is known now and will not change; None: nothing.  Any thread may ask what it gives
    wanted    whether the queue keeps it by its settings, and must hear at a start that nothing is known, too
    load      takes it up
    """

    columns: tuple[str, ...]
    take: Callable[[Contents], Tell | None]
    wanted: Callable[[Contents], bool]
    load: Callable[[Contents, Ints, Values], None]


def _take_deadlines(queue: Contents) -> Tell | None:
    if queue.expiry.empty:
        return None
    expiry = queue.expiry.copy()
    return lambda lsns: [runs_of(lsns, expiry.deadlines_of(packed(lsns)))]


def _load_deadlines(queue: Contents, lsns: Ints, values: Values) -> None:
    queue.ensure_expiry().load(lsns, values[0])


def _take_ranks(queue: Contents) -> Tell | None:
    if queue.ranks is None or queue.settings.rank_text is None:
        return None
    ranks = queue.ranks.copy()
    unranked = queue.ranking.pieces(queue.main) if queue.ranking is not None else []

    def tell(lsns: Ints) -> list[array[int]]:
        out = ranks.each(packed(lsns))
        if unranked:
            out[np.isin(lsns, np.concatenate(unranked))] = UNKNOWN
        return [runs_of(lsns, out)]

    return tell


def _load_ranks(queue: Contents, lsns: Ints, values: Values) -> None:
    if len(lsns):
        load_ranks(queue, lsns, values[0])


def _take_keys(queue: Contents) -> Tell | None:
    if queue.last_values is None:
        return None
    known = queue.last_values.known.copy()
    return lambda lsns: [runs_of(lsns, known.each(packed(lsns)))]


def _load_keys(queue: Contents, lsns: Ints, values: Values) -> None:
    assert queue.last_values is not None
    queue.last_values.known.load(lsns, values[0])
    queue.last_values.loaded = True  # what was out for delivery may have been replaced
    queue.agenda |= DISPATCH


def _take_unique(queue: Contents) -> Tell | None:
    if queue.dedup is None or queue.dedup.living is None:
        return None
    living = queue.dedup.living.copy()
    return lambda lsns: [runs_of(lsns, key_column(living, lsns))]


def _load_unique(queue: Contents, lsns: Ints, values: Values) -> None:
    if queue.dedup is not None:
        queue.dedup.load(lsns, values[0])


def _take_owners(queue: Contents) -> Tell | None:
    spans = [] if queue.foreign is None else queue.foreign.spans()  # LSNs [a, b), whose, and how it came to be theirs
    if not spans:
        return None
    table = np.array(spans, dtype=np.int64)
    return lambda lsns: [runs_among(lsns, table[:, [0, 1, column]]) for column in (2, 3)]


def _load_owners(queue: Contents, lsns: Ints, values: Values) -> None:
    if queue.foreign is not None:
        queue.foreign.load(lsns, *values)


KNOWN: tuple[Known, ...] = (
    Known(("rank",), _take_ranks, lambda queue: queue.ranks is not None, _load_ranks),
    Known(("expires_at",), _take_deadlines, lambda queue: False, _load_deadlines),
    Known(("owner", "claim"), _take_owners, lambda queue: False, _load_owners),
    Known(("key",), _take_keys, lambda queue: queue.last_values is not None, _load_keys),
    Known(("dedup",), _take_unique, lambda queue: False, _load_unique),
)
"""Ranks first: what comes then stands by them."""


def take_known(queue: Contents) -> list[tuple[tuple[str, ...], Tell]]:
    """What there is of each row."""
    return [(one.columns, tell) for one in KNOWN if (tell := one.take(queue)) is not None]


def load_known(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    """Take up what a state says of these messages, before they stand anywhere."""
    rows = [one for one in KNOWN if one.wanted(queue) or not columns.keys().isdisjoint(one.columns)]
    lsns = flat(waiting) if rows else np.zeros(0, dtype=np.int64)
    for one in rows:
        one.load(queue, lsns, [spread(lsns, columns.get(name, array("q"))) for name in one.columns])
