"""Rows become rows of the log, then arrive in the queues that took them: each queue gets its rows as one chunk.

It knows who takes what, not why.  What goes into the log beside the rows lies in one group with them.  What only a
later start or a later death needs to know of a message (transient, written as a dead letter) is kept here for all
queues, as LSN spans that grow at the end.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain

import numpy as np
import numpy.typing as npt

from penstock.core.effects import Deliver, Effect, Sink
from penstock.core.outbox import Outbox
from penstock.core.publishing.evaluating import keys_of, last_keys_of, ranks_of
from penstock.core.publishing.published import Published, TraitsMemo
from penstock.core.publishing.routed import dedup_keys
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.dispatching.dispatch import straight
from penstock.core.queue.order.runs import holds, view
from penstock.core.queue.queue import Queue
from penstock.core.sizes import Sizes
from penstock.core.state.lsns import Ints, chunked, ints, to_array
from penstock.core.topology.register import DEFAULT_VHOST, Interning
from penstock.core.topology.routing import Plan
from penstock.expr.readings import sharing
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs, pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.properties import PERSISTENT


class Marks:
    """Messages with the property: those published in [a, b) for each pair a, b."""

    __slots__ = ("bridge", "pairs")

    def __init__(self) -> None:
        self.pairs = array("q")
        self.bridge = False  # nothing without the property was published since the last span

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def add(self, a: int, b: int) -> None:
        """The messages in [a, b) have it; the span joins the one before if only control records lie between."""
        if self.pairs and (self.bridge or self.pairs[-1] == a):
            self.pairs[-1] = b
        else:
            self.pairs.extend((a, b))
        self.bridge = True

    def part(self) -> None:
        """A message without the property was published."""
        self.bridge = False

    def add_rows(self, first: int, flags: Sequence[bool]) -> None:
        """New messages from `first` on; `flags`: which have it."""
        for lsn, flag in enumerate(flags, first):
            if flag:
                self.add(lsn, lsn + 1)
            else:
                self.bridge = False

    def add_older(self, lsns: Ints) -> None:
        """These have it, ascending, older than what was published last; they may be known or forgotten already."""
        new = lsns[~self.among(lsns)]
        if len(new):
            spans = np.concatenate((ints(self.pairs).reshape(-1, 2), np.stack((new, new + 1), axis=1)))
            self.bridge = self.bridge and len(self.pairs) > 0 and int(new[-1]) < self.pairs[-1]
            self.pairs = to_array(spans[np.argsort(spans[:, 0], kind="stable")].reshape(-1))

    def has(self, lsn: int) -> bool:
        """Whether this message has it."""
        return bisect_right(self.pairs, lsn) % 2 == 1

    def among(self, lsns: Ints) -> npt.NDArray[np.bool_]:
        """Which of the ascending LSNs have it."""
        return (np.searchsorted(ints(self.pairs), lsns, side="right") & 1).astype(bool)

    def retain(self, used: npt.NDArray[np.bool_], upto: int) -> None:
        """Forget those of the first spans that nobody needs, if they end at `upto` or before."""
        held = ints(self.pairs).reshape(-1, 2)
        count = min(len(used), int(np.searchsorted(held[:, 1], upto + 1, side="right")))
        if not used[:count].all():
            keep = np.ones(len(held), dtype=bool)
            keep[:count] = used[:count]
            self.bridge = self.bridge and bool(keep[-1])  # the last span left is not the last published
            self.pairs = to_array(held[keep].reshape(-1))

    def reset(self, lsns: Ints) -> None:
        """Of the messages published so far these alone matter any more; ascending."""
        self.pairs = array("q")
        for chunk in chunked(lsns):
            self.pairs.extend(pairs_of(chunk, False))
        self.bridge = False


NO_BARRIERS: Mapping[Queue, Sequence[int]] = {}
ALONE = nullcontext()
"""Around what one queue does with a batch: nobody else looks at its bodies."""


class Arrivals:
    """Stores batches and lets them arrive."""

    def __init__(
        self, outbox: Outbox[Effect], interning: Interning, touched: set[Queue], sizes: Sizes, traits: TraitsMemo
    ) -> None:
        """touched: where queues that took something are noted.  sizes: told of what is stored."""
        self._outbox = outbox
        self._interning = interning
        self._touched = touched
        self._sizes = sizes
        self._traits = traits
        self.transient = Marks()  # stored rows that a restart does not keep

    def store(
        self,
        batch: Publishes,
        unnamed: Sequence[tuple[Queue, list[int] | None]],
        barriers: Mapping[Queue, Sequence[int]] = NO_BARRIERS,
    ) -> int:
        """Write the rows; the first one's LSN.

        unnamed: where the table of routes is full, the queues that took rows, to be named beside them; None: all rows.
        barriers: rows that are barriers in a queue, ascending; a record of the same group says so.
        """
        if not unnamed and not barriers:
            first = self._outbox.publish(batch)
        else:
            self._outbox.begin()
            first = self._outbox.publish(batch)
            for queue, taken in unnamed:
                if taken is not None and not taken:
                    continue
                rows = range(first, first + len(batch.bodies)) if taken is None else [first + row for row in taken]
                self._interning.took(queue, as_chunk(array("q", rows)))
            for queue, marked in barriers.items():
                pairs = pairs_of(as_chunk([first + row for row in marked]), False)
                self._outbox.record(Kind.BARRIER, queue.name, body=pack_pairs(queue.id, pairs))
            self._outbox.end()
        if batch.wanted:  # a topic alone keeps the others
            self._sizes.add(first, batch)
        if batch.transient is True:
            self.transient.add(first, first + len(batch.bodies))
        elif batch.transient is False:
            self.transient.bridge = False
        else:
            self.transient.add_rows(first, batch.transient)
        return first

    def store_plain(self, batch: Publishes, topic: Topic, plan: Plan, now: Now) -> Published:
        """Store rows whose headers ask for nothing, by a plan by which nothing else is asked, and let them arrive."""
        size, queues = len(batch.bodies), plan.queues
        if topic.via == NO_VIA and (topic.exchange or topic.vhost != DEFAULT_VHOST or topic.blind):
            self._interning.place(topic)  # whoever asked about the batch before may have had the route, not the place
        batch.routes, batch.wanted, batch.judged = plan.route, size * len(queues), None
        batch.transient = batch.plain != PERSISTENT
        first = self.store(batch, [(queue, None) for queue in queues] if plan.route == NO_ROUTE else ())
        chunk, rows = range(first, first + size), range(size)
        if len(queues) == 1 and straight(queues[0], now, chunk, self._outbox):
            queues[0].arrived += size
            self._touched.add(queues[0])
        elif queues:
            self.arrive(now, batch, [(queue, chunk, rows) for queue in queues])
        return Published(first, first + size - 1, stored=size)

    def arrive(
        self,
        now: Now,
        batch: Publishes,
        taken: Sequence[tuple[Queue, Chunk, Sequence[int]]],
        barriers: Mapping[Queue, Sequence[int]] = NO_BARRIERS,
    ) -> None:
        """Let a stored batch arrive in several queues; in order of its messages where their consumers share credit.

        taken: for each queue the LSNs that it takes, and their rows in the batch.
        """
        with sharing(batch) if len(taken) > 1 else ALONE:
            if len(taken) > 1 and [queue for queue, _, _ in taken if queue.shares_credit]:

                def give(queue: Queue, chunk: Chunk, rows: Sequence[int]) -> None:
                    self.arrive_in(queue, now, chunk, batch, rows, barriers.get(queue))

                share_out(now, [Share(*one) for one in taken], self._outbox, self._outbox.effects, give)
                return
            usual = not barriers and not batch.deduplicated and batch.expires_at is None and batch.not_before is None
            out, touched = self._outbox, self._touched
            for queue, chunk, rows in taken:
                if usual and straight(queue, now, chunk, out):
                    queue.arrived += len(chunk)
                    touched.add(queue)
                else:
                    self.arrive_in(queue, now, chunk, batch, rows, barriers.get(queue) if barriers else None)

    def arrive_in_each(self, queues: Sequence[Queue], now: Now, batch: Publishes) -> None:
        """Let all rows of a stored batch arrive in each of these queues."""
        size = len(batch.bodies)
        chunk, rows = range(batch.first, batch.first + size), range(size)
        timed = batch.expires_at is not None or batch.not_before is not None
        if len(queues) == 1 and not (timed or batch.deduplicated) and straight(queues[0], now, chunk, self._outbox):
            queues[0].arrived += size
            self._touched.add(queues[0])
        elif queues:
            self.arrive(now, batch, [(queue, chunk, rows) for queue in queues])

    def arrive_in(
        self,
        queue: Queue,
        now: Now,
        chunk: Chunk,
        batch: Publishes,
        rows: Sequence[int],
        marked: Sequence[int] | None = None,
    ) -> None:
        """Let rows of a stored batch, which have the LSNs of the chunk, arrive in one queue.

        marked: rows of the batch that are barriers in it, ascending.
        """
        expires_at, not_before = batch.expires_at, batch.not_before
        if len(rows) < len(batch.bodies):
            expires_at = None if expires_at is None else [expires_at[row] for row in rows]
            not_before = None if not_before is None else [not_before[row] for row in rows]
        queue.arrived += len(rows)
        self._touched.add(queue)
        if queue.is_plain and marked is None and not batch.deduplicated:
            queue.arrive(now, chunk, self._outbox, batch=batch, rows=rows, expires_at=expires_at, not_before=not_before)
            return
        ranks = None if (text := queue.ranked_by) is None else ranks_of(text, batch, rows, chunk, now.wall)
        keys = None if not queue.shared_by_keys else keys_of(queue.settings, batch, rows, chunk, now.wall)
        if batch.deduplicated and queue.deduplicates:
            self._note_keys(queue, batch, rows, chunk)
        last_keys = self._last_keys(queue, batch, rows, chunk) if queue.replaces else None
        queue.arrive(
            now, chunk, self._outbox, batch=batch, rows=rows, expires_at=expires_at, not_before=not_before,
            barriers=None if marked is None else _within(chunk, marked, batch.first),
            ranks=ranks, keys=keys, last_keys=last_keys,
        )  # fmt: skip

    def _note_keys(self, queue: Queue, batch: Publishes, rows: Sequence[int], chunk: Chunk) -> None:
        """What the queue takes has these keys; the record that says so is written."""
        keys = dedup_keys(queue.settings, batch, rows, self._traits)
        told = [(lsn, key) for lsn, key in zip(chunk, keys, strict=True) if key]
        if told:
            time = self._outbox.time
            body = struct.pack(f"<{2 * len(told) + 1}q", queue.id, *chain.from_iterable(told))
            self._outbox.record(Kind.DEDUP, queue.name, {"time": time}, body)
            queue.take_keys(told, time)

    def _last_keys(self, queue: Queue, batch: Publishes, rows: Sequence[int], chunk: Chunk) -> list[int]:
        """By which key each row replaces an older one; the record that says so is written."""
        expression = queue.settings.reading("last_value_key")
        assert expression is not None
        keys = last_keys_of(expression, batch, rows)
        body = [queue.id]
        for lsn, key in zip(chunk, keys, strict=True):
            if key:
                body += (lsn, key)
        if len(body) > 1:
            self._outbox.record(Kind.KEYED, queue.name, body=struct.pack(f"<{len(body)}q", *body))
        return keys


def _within(chunk: Chunk, marked: Sequence[int], first: int) -> list[int]:
    """The LSNs of marked rows, ascending, that are in the chunk, a stretch of what the queue takes."""
    low, high = bisect_left(marked, chunk[0] - first), bisect_right(marked, chunk[-1] - first)
    return [first + row for row in marked[low:high]]


Give = Callable[[Queue, Chunk, Sequence[int]], None]
"""Lets these messages, which are those rows of the batch, arrive in the queue."""


@dataclass(slots=True)
class Share:
    """What of the batch has still to arrive in one queue."""

    queue: Queue
    chunk: Chunk
    rows: Sequence[int]


def share_out(now: Now, shares: list[Share], sink: Sink, effects: Sequence[Effect], give: Give) -> None:
    """Let a batch arrive as if message by message, each in its queues in order of their ids.

    effects: the list that the sink appends to; what was granted is read from it.
    """
    shares.sort(key=_by_id)
    for share in shares:
        share.queue.catch_up(now, sink)  # what it frees, it frees before the batch
    before = len(effects)
    while shares:
        contested = _contested(shares)
        bound = {share.queue.id for _, mine in contested for share in mine}
        cuts = [first for credit, mine in contested if (first := _first_cut(credit, mine)) is not None]
        left: list[Share] = []
        for share in shares:
            chunk, rows = share.chunk, share.rows
            n = _before(share, min(cuts)) if cuts and share.queue.id in bound else len(chunk)
            if n < len(chunk):
                left.append(Share(share.queue, chunk[n:], rows[n:]))
            if n:
                give(share.queue, chunk[:n], rows[:n])
        shares = left
    _turn(effects[before:])


def _before(share: Share, cut: tuple[int, int]) -> int:
    """How many of a share come before this message arrives in the queue of this id."""
    n = bisect_left(share.chunk, cut[0])
    return n + (share.queue.id < cut[1] and n < len(share.chunk) and share.chunk[n] == cut[0])


def _by_id(share: Share) -> int:
    return share.queue.id


def _contested(shares: list[Share]) -> list[tuple[Credit, list[Share]]]:
    """Credit with room for which consumers of several of these queues may compete, and those queues."""
    wanting: dict[Credit, list[Share]] = {}
    for share in shares:
        queue = share.queue
        if queue.shares_credit and queue.room > 0:
            for credit in dict.fromkeys(consumer.shared for consumer in queue.consumers if _may_take(consumer)):
                if credit is not None and credit.room > 0:
                    wanting.setdefault(credit, []).append(share)
    return [(credit, mine) for credit, mine in wanting.items() if len(mine) > 1]


def _may_take(consumer: Consumer) -> bool:
    return not (consumer.no_ack or consumer.choked) and consumer.limit > consumer.leases.count


def _first_cut(credit: Credit, shares: list[Share]) -> tuple[int, int] | None:
    """The first message, and the id of its queue, that has to see what those before it were given; None: none has."""
    beyond = _first_beyond(shares, credit.room)
    if not (credit.whole and any(_in_proportion(share.queue) for share in shares)):
        return beyond
    begins = sorted((share.chunk[0], share.queue.id) for share in shares)  # what one queue took weighs in the next one
    return begins[1] if beyond is None else min(begins[1], beyond)


def _in_proportion(queue: Queue) -> bool:
    """Whether what its consumers hold of other queues decides whose turn it is in this one."""
    return len(queue.consumers) > 1 and queue.settings.fairness_model == "proportional"


def _first_beyond(shares: list[Share], room: int) -> tuple[int, int] | None:
    """The first message, and the id of its queue, that may find the room used up; None if there is none."""
    if sum(len(share.chunk) for share in shares) <= room:
        return None
    lsns = np.concatenate([view(share.chunk) for share in shares])
    lsn = int(np.partition(lsns, room)[room])
    place = room - int(np.count_nonzero(lsns < lsn))
    takers = [share.queue.id for share in shares if holds(share.chunk, lsn)]
    return lsn, takers[place]


def _turn(effects: Sequence[Effect]) -> None:
    """Who was served last comes last the next time credit is free: by message, not by queue."""
    last: dict[Consumer, tuple[int, int]] = {}
    for effect in effects:
        if isinstance(effect, Deliver) and effect.consumer.shared is not None and not effect.consumer.no_ack:
            last[effect.consumer] = (effect.chunk[-1], effect.queue.id)
    for consumer in sorted(last, key=last.__getitem__):
        if consumer.shared is not None:
            consumer.shared.served(consumer)
