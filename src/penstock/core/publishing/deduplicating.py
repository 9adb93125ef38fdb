"""Which rows of a batch are duplicates in which queues, before it is written: row by row each queue decides alone.

A duplicate does not enter that queue; others take the row.  The batch is cut where a row's answer depends on what
becomes of one before it: a queue may refuse that for a limit, or have let it go by then.  Elsewhere one look decides
for all rows.  It knows neither a route nor a record; what a queue took it is told as the rows arrive (`arrivals`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.evaluating import last_keys_of
from penstock.core.publishing.published import Banned, Published, banned_in, joined
from penstock.core.publishing.traits import TraitsMemo
from penstock.core.queue.view import Queue
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.message_bodies import size_of
from penstock.records.queue_settings import QueueSettings
from penstock.records.schema import GROUP_BYTES_MAX

Store: TypeAlias = "Callable[[Publishes, int, Banned], Published]"
"""Publishes a batch from a row on, but for what queues of these names must not take, by row."""


def dedup_keys(settings: QueueSettings, batch: Publishes, rows: Sequence[int], memo: TraitsMemo) -> list[int]:
    """The key of each of these rows in a queue: its header's, else what the queue's expression gives; 0: none."""
    expression, keys = settings.dedup_key, [0] * len(rows)
    if settings.dedup_window:
        if isinstance(batch.properties, bytes):
            if own := memo[batch.properties].dedup:
                return [own] * len(rows)
        else:
            properties = batch.properties
            keys = [memo[properties[row]].dedup for row in rows]
    if expression is None or all(keys):
        return keys
    if not any(keys):
        return last_keys_of(expression, batch, rows)
    left = [place for place, own in enumerate(keys) if not own]
    for place, key in zip(left, last_keys_of(expression, batch, [rows[place] for place in left]), strict=True):
        keys[place] = key
    return keys


class Deduplication:
    """Keeps duplicates out of queues."""

    def __init__(self, outbox: Outbox[Effect], memo: TraitsMemo) -> None:
        self._outbox = outbox
        self._memo = memo

    def publish(
        self,
        now: Now,
        batch: Publishes,
        skip: int,
        takers: Sequence[tuple[Queue, Sequence[int]]],
        banned: Banned | None,
        store: Store,
        admitted: bool,
        *,
        singly: bool = False,
    ) -> Published:
        """Publish a batch whose rows these queues, which want no duplicates, would take, ascending.

        admitted: none of them will refuse a row for a limit.
        singly: what becomes of a row elsewhere may have let go what one of them has before the next comes.
        """
        for queue, _ in takers:
            if queue.is_due(now):
                queue.tick(now, self._outbox)
        keys = [dedup_keys(queue.settings, batch, rows, self._memo) for queue, rows in takers]
        if not singly and size_of(batch.bodies) < GROUP_BYTES_MAX // 2 and all(map(_new, takers, keys)):
            return self._in_group(batch, skip, banned or {}, store)
        by_row = _by_row(takers, keys)
        if not by_row:
            return store(batch, skip, banned or {})
        sure = {queue: _sure(queue, batch, admitted) for queue, _ in takers}
        size, start = len(batch.bodies), skip
        keyed = sorted(by_row)
        parts: list[Published] = []
        while start < size:
            most = start + 1 if singly else size
            stop, duplicates = self._part(batch, start, most, keyed, by_row, sure, dict(takers))
            rows = range(start, stop)
            some = batch if not start and stop == size else batch.select(rows)
            if some is not batch:
                some.delta = batch.delta
            some.deduplicated = True
            spared = [(row, queue) for row, queues in duplicates.items() for queue in queues]
            for _, queue in spared:
                queue.spared(1)
            bans = banned_in(rows, banned, ((row, queue.name) for row, queue in spared))
            parts.append(_told(self._in_group(some, 0, bans, store), rows, duplicates))
            start = stop
        return joined(parts, skip, self._outbox.last_lsn)

    def _in_group(self, batch: Publishes, skip: int, bans: Banned, store: Store) -> Published:
        """Stored with the keys that queues took of it."""
        self._outbox.begin()
        published = store(batch, skip, bans)
        self._outbox.end()
        return published

    def _part(
        self,
        batch: Publishes,
        start: int,
        most: int,
        keyed: Sequence[int],
        by_row: Mapping[int, Sequence[tuple[Queue, int]]],
        sure: Mapping[Queue, tuple[bool, bool]],
        takes: Mapping[Queue, Sequence[int]],
    ) -> tuple[int, dict[int, list[Queue]]]:
        """Up to where, `most` at most, it is known which rows from `start` on are duplicates where, and these."""
        time = self._outbox.time
        fresh: set[tuple[Queue, int]] = set()
        out: dict[Queue, int] = {}  # rows that a queue does not take
        bans: dict[int, list[Queue]] = {}
        stop = most if size_of(batch.bodies) < GROUP_BYTES_MAX // 2 else min(most, start + 1)
        for row in keyed[bisect_left(keyed, start) : bisect_left(keyed, stop)]:
            kept_out: list[Queue] = []
            for queue, key in by_row[row]:
                enters, stays = sure[queue]
                if queue.had_key(key, time):
                    known = True
                elif (queue, key) in fresh:
                    known = enters and (stays or queue.window is not None)
                elif queue.has_key(key):
                    known = stays or _entered(takes[queue], start, row) <= out.get(queue, 0)
                else:
                    continue
                if not known:
                    return row, bans
                kept_out.append(queue)
            fresh.update(one for one in by_row[row] if one[0] not in kept_out)
            if kept_out:
                bans[row] = kept_out
                out.update((queue, out.get(queue, 0) + 1) for queue in kept_out)
        return stop, bans


def _by_row(
    takers: Sequence[tuple[Queue, Sequence[int]]], keys: Sequence[Sequence[int]]
) -> dict[int, list[tuple[Queue, int]]]:
    """By row the queues in which it has a key, and which."""
    out: dict[int, list[tuple[Queue, int]]] = {}
    for (queue, rows), some in zip(takers, keys, strict=True):
        for row, key in zip(rows, some, strict=True):
            if key:
                out.setdefault(row, []).append((queue, key))
    return out


def _new(taker: tuple[Queue, Sequence[int]], keys: Sequence[int]) -> bool:
    """Whether the queue knows none of these keys, and none comes twice: then there is nothing to look at row by row."""
    some = [key for key in keys if key] if 0 in keys else keys
    return len(set(some)) == len(some) and not taker[0].knows_any(some)


def _entered(rows: Sequence[int], start: int, stop: int) -> int:
    """How many of these rows, ascending, lie in [start, stop)."""
    return bisect_left(rows, stop) - bisect_left(rows, start)


def _sure(queue: Queue, batch: Publishes, admitted: bool) -> tuple[bool, bool]:
    """Whether each row of the batch enters, and whether what is in the queue stays while they do."""
    enters = not queue.rejects or (admitted and not queue.drops_newest)
    return enters, queue.keeps_what_it_has and batch.expires_at is None


def _told(published: Published, rows: Sequence[int], bans: Mapping[int, Sequence[Queue]]) -> Published:
    """The outcome of a part, in rows of the whole; what only duplicates kept from being stored is one."""
    told = published.among(rows)
    duplicates = sum(row in bans for row in told.unroutable)
    left = [row for row in told.unroutable if row not in bans]
    return replace(told, unroutable=left, duplicates=told.duplicates + duplicates)
