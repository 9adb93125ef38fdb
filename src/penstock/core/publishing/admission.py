"""What of a batch is let in before it is written: by its publisher's numbers, and by queues that reject.

A publisher numbers its messages; what has a number at or below the highest that is stored under its name in the vhost
is a duplicate: confirmed again, once the original is durable, and not stored again.  Gaps are fine.  The highest
numbers are durable (`Kind.PUBLISHERS`) and lie in one group with the rows they count.  They are kept for ever, or for
as long as `publisher_expiration` says after the last message, or the last start if that is later.  Here for batches
whose headers name publisher and sequence row by row; where a door names them for a whole batch, `Core.publish` counts.

A row that some queue refuses is refused to its publisher, once, whoever else takes it: the others keep their copy.  The
batch is cut where a refusal depends on what is dispatched meanwhile; a queue that is full or has room for all, and a
queue whose dispatch can be reckoned, cuts nothing.  It is also cut behind a refused row whose dead letter may come to a
queue of this batch.  It knows neither a route nor a record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.published import Banned, Published, Refusal, Traits, banned_in, joined, part_of
from penstock.core.publishing.routed import barred
from penstock.core.queue import refusing
from penstock.core.queue.queue import Queue
from penstock.core.topology.register import DEFAULT_VHOST
from penstock.errors import QueueFull
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind

Store: TypeAlias = "Callable[[Publishes, int, Banned], Published]"
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
        banned: Banned | None,
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
            parts.append(_stored(batch, range(start, stop), refused, banned, store))
            dying = [(queue, batch, some) for queue, some in refused if queue.overflow.buries]
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
    dying = [(queue, rows[0]) for queue, rows in refused if queue.overflow.buries]
    if not dying or not funeral.comes_back([queue for queue, _ in dying]):
        return stop, refused
    stop = min(row for _, row in dying) + 1
    some = [(queue, rows[: bisect_left(rows, stop)]) for queue, rows in refused]
    return stop, [(queue, rows) for queue, rows in some if len(rows)]


def _stored(
    batch: Publishes, rows: range, refused: Sequence[tuple[Queue, Sequence[int]]], banned: Banned | None, store: Store
) -> Published:
    """What becomes of these rows of a batch, of which queues refuse some, in rows of the whole."""
    bans = banned_in(rows, banned, ((row, barred(queue)) for queue, some in refused for row in some))
    reasons, silent = _refused(refused)
    return _with(store(part_of(batch, rows), 0, bans), rows, reasons, silent)


def _refused(refused: Iterable[tuple[Queue, Sequence[int]]]) -> tuple[dict[int, Refusal], set[int]]:
    """Rows of which their publisher hears why, and those that go without a word; the queues count them."""
    reasons: dict[int, Refusal] = {}
    silent: set[int] = set()
    for queue, rows in refused:
        if queue.overflow.drops_newest:
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
    lost = told.lost()
    return replace(
        told,
        unroutable=[row for row in told.unroutable if row not in silent and row not in reasons],
        refused=sorted({**reasons, **dict(told.refused)}.items(), key=itemgetter(0)),
        kept=sorted({*told.kept, *(row for row in reasons if row not in lost)}),
        dropped=sorted([*dropped, *told.dropped]),
    )


HOLES_MOST = 65_536
"""Refused messages of one publisher that are remembered."""

GONE_AT_ONCE = 1_000
"""Publishers that one record forgets."""


def is_of(kept: str, vhost: str) -> bool:
    """Whether what a publisher is kept under is of a vhost other than the default one."""
    return kept.endswith(f"\0{vhost}")


def kept_as(vhost: str, publisher: str) -> str:
    """What the numbers of a publisher are kept under: a name stands for one in each vhost, and has no zero byte."""
    return publisher if vhost == DEFAULT_VHOST else f"{publisher}\0{vhost}"


class Publishers:
    """The highest sequence of each publisher, by what it is kept under."""

    def __init__(self, outbox: Outbox[Effect]) -> None:
        self.highest: dict[str, int] = {}
        self._outbox = outbox
        self._held: dict[str, int] = {}  # of those with holes, what was logged
        self._holes: dict[str, set[int]] = {}  # sequences below the highest that a full queue refused
        self.numbering: Callable[[str, Sequence[tuple[int, int, int]]], None] | None = None  # told of what is stored
        self._expiration: int | None = None  # microseconds; None: they are kept for ever
        self.heard: dict[str, int] = {}  # wall time of each one's last message, or of the start; oldest first

    def publish(self, batch: Publishes, traits: Sequence[Traits], store: Callable[[Publishes], Published]) -> Published:
        """Store what of a batch is no duplicate.

        store: publishes rows that were judged here.
        """
        seen: dict[str, int] = {}
        fresh: list[int] = []
        filled = dict[tuple[str, int], None]()
        numbers = [_number_of(batch, row, one) for row, one in enumerate(traits)]
        for row, number in enumerate(numbers):
            if number is not None:
                publisher, sequence = number
                highest = seen.get(publisher, self.highest.get(publisher, 0))
                if sequence <= highest:
                    if number in filled or not self._is_missing(*number):
                        continue
                    filled[number] = None
                seen[publisher] = max(sequence, highest)
            fresh.append(row)
        if not fresh:
            return Published(0, self._outbox.last_lsn, repeats=range(len(traits)))
        published = store(batch if len(fresh) == len(traits) else batch.select(fresh))
        for number in filled:
            self._fill(*number)
        for row, why in published.refused:
            if (number := numbers[fresh[row]]) is not None:
                self._refused(*number, why)
        if seen:
            self.note(seen)
            if self.numbering is not None:
                self._number(published, [numbers[row] for row in fresh])
        if len(fresh) == len(traits):
            return published
        return _beside(published.among(fresh), fresh, len(traits))

    def follow(
        self, publisher: str, sequence: int, batch: Publishes, store: Callable[[Publishes, int], Published]
    ) -> Published:
        """Store what of a batch is no duplicate, whose rows have this sequence and those that follow it.

        store: publishes rows from one on.  The caller's group holds the record beside them.
        """
        size = len(batch)
        highest = self.highest.get(publisher, sequence - 1)
        skip = min(max(highest - sequence + 1, 0), size)
        missing = [row for row in range(skip) if self._is_missing(publisher, sequence + row)]
        if skip == size and not missing:
            return Published(0, self._outbox.last_lsn, repeats=range(size))
        new: Sequence[int] = [*missing, *range(skip, size)] if missing else range(skip, size)
        if missing:
            published = _beside(store(batch.select(new), 0).among(new), new, size)
        else:
            published = store(batch, skip)
        for row in missing:
            self._fill(publisher, sequence + row)
        for row, why in published.refused:
            self._refused(publisher, sequence + row, why)
        self.note({publisher: max(sequence + size - 1, highest)})
        if self.numbering is not None and published.stored:
            self.numbering(publisher, _numbers(published, sequence, size))
        return published

    def _number(self, published: Published, numbers: Sequence[tuple[str, int] | None]) -> None:
        """Tell whoever wants to know of each row with a sequence where it stands."""
        by_publisher = dict[str, list[tuple[int, int, int]]]()
        for row, lsn in zip(published.stored_rows(len(numbers)), published.positions, strict=True):
            if (number := numbers[row]) is not None:
                by_publisher.setdefault(number[0], []).append((number[1], lsn, 1))
        for publisher, runs in by_publisher.items():
            if self.numbering is not None:
                self.numbering(publisher, runs)

    def _is_missing(self, publisher: str, sequence: int) -> bool:
        """Whether a message with this number was refused when it came first."""
        return sequence in self._holes.get(publisher, ())

    def _fill(self, publisher: str, sequence: int) -> None:
        """It has come again, and was decided."""
        holes = self._holes[publisher]
        holes.discard(sequence)
        if not holes:
            del self._holes[publisher]

    def _refused(self, publisher: str, sequence: int, why: Refusal) -> None:
        """A queue had no room for it: who sends it again is heard.  Other refusals are for good."""
        if isinstance(why, QueueFull):
            holes = self._holes.setdefault(publisher, set())
            holes.add(sequence)
            if len(holes) > HOLES_MOST:
                holes.discard(min(holes))

    def settled(self) -> dict[str, int]:
        """Up to where all messages of each publisher are stored, or refused for good: what outlives a start.

        Behind a message that was refused for now nothing counts: after a crash it must be let in.
        """
        if not self._holes:
            return dict(self.highest)
        return {name: self._upto(name, highest) for name, highest in self.highest.items()}

    def settled_of(self, publisher: str) -> int:
        """The same of one; 0 for one that nobody knows."""
        return self._upto(publisher, self.highest.get(publisher, 0))

    def _upto(self, publisher: str, highest: int) -> int:
        holes = self._holes.get(publisher)
        return highest if holes is None else min(highest, min(holes) - 1)

    def note(self, highest: Mapping[str, int]) -> None:
        """Log these as the highest of their publishers."""
        told = highest if not (self._holes or self._held) else self._risen(highest)
        if told:
            self._outbox.record(Kind.PUBLISHERS, "", told)
        self.highest.update(highest)
        if self._expiration is not None:
            for publisher in highest:
                self.heard.pop(publisher, None)
                self.heard[publisher] = self._outbox.time

    def _risen(self, highest: Mapping[str, int]) -> dict[str, int]:
        """Of these what is more than was logged, where something was refused for now."""
        out: dict[str, int] = {}
        for name, last in highest.items():
            upto, before = self._upto(name, last), self._held.get(name, self.highest.get(name, -1))
            if upto > before:
                out[name] = upto
            self._held.pop(name, None)
            if name in self._holes:
                self._held[name] = max(upto, before)
        return out

    # -- publishers that are not heard of any more

    def expire_after(self, now: Now, expiration: int | None) -> None:
        """Forget whoever is not heard of for so many microseconds, from now on at the earliest."""
        self._expiration = expiration
        self.heard = {} if expiration is None else dict.fromkeys(self.highest, now.wall)

    def due(self) -> int | None:
        """Wall time at which the next one is to be forgotten; None: none ever."""
        if self._expiration is None or not self.heard:
            return None
        return next(iter(self.heard.values())) + self._expiration

    def tick(self, now: Now) -> None:
        """Forget those of whom nothing came for as long as `expire_after` says; a record names them first."""
        if self._expiration is None:
            return
        since = now.wall - self._expiration
        self._forget([name for name, heard in islice(self.heard.items(), GONE_AT_ONCE) if heard <= since])

    def forget(self, vhost: str) -> int:
        """Those of a vhost that is gone, `GONE_AT_ONCE` at most; how many."""
        gone = list(islice((name for name in self.highest if is_of(name, vhost)), GONE_AT_ONCE))
        if gone:
            self._forget(gone)
        return len(gone)

    def _forget(self, gone: Sequence[str]) -> None:
        self._outbox.record(Kind.PUBLISHERS_GONE, "", {"publishers": gone})
        for publisher in gone:
            for known in (self.heard, self.highest, self._holes, self._held):
                known.pop(publisher, None)


def _number_of(batch: Publishes, row: int, traits: Traits) -> tuple[str, int] | None:
    """What the publisher of a row is kept under, and its sequence; None: nobody numbers it."""
    if traits.publisher is None or traits.sequence is None:
        return None
    return kept_as(batch.topic_of(row).vhost, traits.publisher), traits.sequence


def _beside(published: Published, rows: Sequence[int], size: int) -> Published:
    """What became of a batch of which these rows alone were new."""
    new = set(rows)
    return replace(published, repeats=[*published.repeats, *(row for row in range(size) if row not in new)])


def _numbers(published: Published, sequence: int, size: int) -> list[tuple[int, int, int]]:
    """What of a batch is stored: a sequence, its LSN, and for how many rows both rise by one from there.

    sequence: of row 0.
    """
    rows = published.stored_rows(size)
    if published.lsns is None and len(rows) == rows[-1] - rows[0] + 1:
        return [(sequence + rows[0], published.first, published.stored)]
    return [(sequence + row, lsn, 1) for row, lsn in zip(rows, published.positions, strict=True)]
