"""What rejecting queues let in of a batch, before it is written: row by row each queue decides alone.

A row that some queue refuses is refused to its publisher, once, whoever else takes it: the others keep their copy.  The
batch is cut where a refusal depends on what is dispatched meanwhile; a queue that is full or has room for all, and a
queue whose dispatch can be reckoned, cuts nothing.  It is also cut behind a refused row whose dead letter may come to a
queue of this batch.  It knows neither a route nor a record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.published import Published, banned_in, joined
from penstock.core.publishing.traits import Refusal
from penstock.core.queue.limits import refusing
from penstock.core.queue.view import Queue
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes

Store: TypeAlias = "Callable[[Publishes, int, Mapping[int, frozenset[str]]], Published]"
"""Publishes a batch from a row on, but for what queues of these names must not take, by row."""


Dying: TypeAlias = "tuple[Queue, Publishes, Sequence[int]]"
"""A queue that refused rows of a batch, and wants them to be dead letters."""


@dataclass(slots=True)
class Funeral:
    """What becomes of refused rows that are to be dead letters."""

    bury: Callable[[list[Dying]], None]  # called behind each part that has some
    comes_back: Callable[[Sequence[Queue]], bool]  # whether letters of these may come to a queue of this batch


class Admission:
    """Cuts batches for queues that refuse."""

    def __init__(self, outbox: Outbox[Effect]) -> None:
        self._outbox = outbox

    def publish(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        takers: Sequence[tuple[Queue, Sequence[int]]],
        banned: Mapping[int, frozenset[str]] | None,
        store: Store,
        funeral: Funeral | None = None,
    ) -> Published:
        """Publish a batch whose rows these rejecting queues would take, ascending.

        funeral: needed if any of them makes dead letters of what it refuses.
        """
        for queue, rows in takers:
            refusing.settled(queue, now, self._outbox, len(rows))
        size = len(batch.bodies)
        start, parts = skip, list[Published]()
        while start < size:
            stop, refused = self._judge(now, batch, takers, start)
            if funeral is not None:
                stop, refused = _up_to_letter(stop, refused, funeral)
            if start == skip and stop == size and not refused:
                return store(batch, skip, banned or {})
            rows = range(start, stop)
            whole = not start and stop == size
            bans = banned_in(rows, banned, ((row, queue.name) for queue, some in refused for row in some))
            reasons, silent = _refused(refused)
            published = store(batch if whole else batch.select(rows), 0, bans)
            parts.append(_with(published, rows, reasons, silent))
            dying = [(queue, batch, some) for queue, some in refused if queue.buries]
            if dying and funeral is not None:
                funeral.bury(dying)
            start = stop
        if len(parts) == 1 and not skip:
            return parts[0]
        return joined(parts, skip, self._outbox.last_lsn)

    def _judge(
        self, now: Now, batch: Publishes, takers: Sequence[tuple[Queue, Sequence[int]]], start: int
    ) -> tuple[int, list[tuple[Queue, Sequence[int]]]]:
        """Up to where it is known who refuses which rows from `start` on, and these."""
        stop = len(batch.bodies)
        told: list[tuple[Queue, Sequence[int]]] = []
        for queue, rows in takers:
            left = rows[bisect_left(rows, start) :]
            if len(left):
                refused, unknown = refusing.judged(queue, now, batch, left)
                if len(refused):
                    told.append((queue, refused))
                if unknown is not None:
                    stop = min(stop, unknown)
        out = [(queue, rows[: bisect_left(rows, stop)]) for queue, rows in told]
        return stop, [(queue, rows) for queue, rows in out if len(rows)]


def _up_to_letter(
    stop: int, refused: list[tuple[Queue, Sequence[int]]], funeral: Funeral
) -> tuple[int, list[tuple[Queue, Sequence[int]]]]:
    """The same, but not beyond a row whose dead letter comes before the next row in some queue."""
    dying = [(queue, rows[0]) for queue, rows in refused if queue.buries]
    if not dying or not funeral.comes_back([queue for queue, _ in dying]):
        return stop, refused
    stop = min(row for _, row in dying) + 1
    some = [(queue, rows[: bisect_left(rows, stop)]) for queue, rows in refused]
    return stop, [(queue, rows) for queue, rows in some if len(rows)]


def _refused(refused: Iterable[tuple[Queue, Sequence[int]]]) -> tuple[dict[int, Refusal], set[int]]:
    """Rows of which their publisher hears why, and those that go without a word; the queues count them."""
    reasons: dict[int, Refusal] = {}
    silent: set[int] = set()
    for queue, rows in refused:
        if queue.drops_newest:
            refusing.dropped(queue, len(rows))
            silent.update(rows)
        else:
            why = refusing.refusal(queue, len(rows))
            reasons.update((row, why) for row in rows if row not in reasons)
    return reasons, silent


def _with(published: Published, rows: Sequence[int], reasons: Mapping[int, Refusal], silent: set[int]) -> Published:
    """The outcome of a part with what queues refused of it, in rows of the whole."""
    told = published.among(rows)
    dropped = [row for row in told.unroutable if row in silent and row not in reasons]
    lost = {*told.unroutable, *(row for row, _ in told.refused)}
    return replace(
        told,
        unroutable=[row for row in told.unroutable if row not in silent and row not in reasons],
        refused=sorted({**reasons, **dict(told.refused)}.items(), key=_row),
        kept=[row for row in sorted(reasons) if row not in lost],
        dropped=sorted([*dropped, *told.dropped]),
    )


def _row(item: tuple[int, Refusal]) -> int:
    return item[0]
