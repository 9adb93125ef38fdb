"""What the journal of a turn means for the views of queues and topics.

The log's records say all that happens to a queue's messages and a topic's records, so views need no hook there: whoever
is given, gets back or loses a message is written down.  It turns entries into steps, in order; it evaluates nothing and
holds nothing but who is to be heard of, and of topics where the present record of each key stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np

from penstock.core.queue.order.runs import NEVER
from penstock.core.sow.holding import drop_many
from penstock.core.sow.index import Index, unpack_put
from penstock.core.state.encoding import load
from penstock.records.chunks import Chunk, unpack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.entries import Control, Entry, Group, Moves, Publishes
from penstock.records.kinds import MEANINGS, MOVES, NO_ROUTE, PUBLISHES, Kind, State

Verb: TypeAlias = Literal["leave", "back", "activate", "gone", "end", "anew", "look"]
"""`anew`: gather all again; `look`: there may be a source that was not there, or none now, or one of other bodies."""

_MOVED: Mapping[State | None, Verb] = {"ready": "back", "leased": "leave", "delayed": "leave", "gone": "gone"}

_VERBS: Mapping[Kind, Verb] = {
    **{kind: _MOVED[MEANINGS[kind].to] for kind in MOVES},
    Kind.QUEUE_DELETE: "end",
    Kind.RECOVERED: "anew",
}
_SHAPES = frozenset((Kind.QUEUE_DECLARE, Kind.QUEUE_ALTER, Kind.TOPIC_DECLARE, Kind.TOPIC_DELETE))
_RECORDS = frozenset((Kind.SOW_PUT, Kind.SOW_DROP))

READS = PUBLISHES | _VERBS.keys() | _SHAPES | _RECORDS | {Kind.TOOK}
"""Kinds that a feed does something with."""


@dataclass(slots=True, eq=False)
class Arrived:
    """Rows of a batch that a queue took, or that are records of a topic."""

    queue: int  # id of either
    batch: Publishes
    rows: Sequence[int]
    upto: int  # rows from this LSN on are inactive
    delayed: bool = True  # rows of a queue may have to wait for their time

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True, eq=False)
class Moved:
    """Messages in these spans changed their state, by a record with this LSN."""

    queue: int
    verb: Verb
    pairs: Sequence[int]
    lsn: int

    def __len__(self) -> int:
        return 1


@dataclass(slots=True, eq=False)
class Noted:
    """Messages that arrived, without their bodies: they are read when it is their turn."""

    queue: int
    lsns: Chunk
    states: bytes

    def __len__(self) -> int:
        return len(self.lsns)


Step: TypeAlias = Arrived | Moved | Noted


class Feed:
    """Steps for the queues and topics that are `watched`, by id: from which LSN on."""

    def __init__(self, queues_of: Callable[[int], tuple[int, ...]]) -> None:
        """queues_of: the queues that a route names."""
        self.watched: dict[int, int] = {}
        self._edges: dict[int, int] = {}  # of queues with a target depth: the first inactive LSN
        self._topics: dict[int, Index] = {}  # of those watched
        self._queues_of = queues_of

    def watch(self, queue: int, since: int, edge: int = NEVER) -> None:
        """Tell of a queue what is written after the LSN `since`.  edge: its first inactive message."""
        self.watched[queue] = since
        self._edges[queue] = edge

    def watch_topic(self, topic: int, since: int, index: Index) -> None:
        """Tell of a topic what is written after the LSN `since`; index: its own, where its records stood then."""
        self.watched[topic] = since
        self._topics[topic] = index

    def forget(self, number: int) -> None:
        """Tell of it no more."""
        self.watched.pop(number, None)
        self._edges.pop(number, None)
        self._topics.pop(number, None)

    def moved(self, queue: int, edge: int, lsn: int) -> Iterator[Step]:
        """The first inactive message of a queue is now this one: before what else the turn did is told."""
        before = self._edges[queue]
        if before != edge:
            self._edges[queue] = edge
            if before < edge:
                yield Moved(queue, "activate", (before, edge), lsn)

    def read(self, entries: Iterable[Entry]) -> Iterator[Step]:
        """The steps of a journal."""
        for entry in entries:
            if isinstance(entry, Group):
                for part in entry.entries:
                    yield from self._one(part, entry)
            elif isinstance(entry, Moves):
                for part in entry.singly():
                    yield from self._one(part, None)
            else:
                yield from self._one(entry, None)

    def _one(self, entry: Publishes | Control, group: Group | None) -> Iterator[Step]:
        if isinstance(entry, Publishes):
            yield from self._arrivals(entry)
            return
        kind = entry.kind
        if kind is Kind.TOOK:
            yield from self._took(entry, group)
            return
        if kind in _SHAPES:
            yield Moved(0, "look", (), entry.lsn)
            return
        if kind in _RECORDS:
            yield from self._keyed(entry, group)
            return
        verb = _VERBS.get(kind)
        if verb is None:
            return
        queue, pairs = unpack_pairs(entry.body)
        if self.watched.get(queue, NEVER) >= entry.lsn:
            return
        if kind is Kind.RETURN and load(entry.header).get("not_before"):
            verb = "leave"
        yield Moved(queue, verb, pairs, entry.lsn)

    def _keyed(self, entry: Control, group: Group | None) -> Iterator[Step]:
        """Records of a topic: those that they replace go first."""
        values = np.frombuffer(entry.body, dtype="<i8")
        topic = int(values[0])
        index = self._topics.get(topic)
        if index is None or self.watched.get(topic, NEVER) >= entry.lsn:
            return
        if entry.kind is Kind.SOW_DROP:
            yield from _gone(topic, drop_many(index, values[1:].view(np.uint64)), entry.lsn)
            return
        put = unpack_put(values)
        last = dict(zip(put.numbers.tolist(), put.lsns.tolist(), strict=True))
        yield from _gone(topic, [index.get(number) for number in last], entry.lsn)
        index.put_many(put.numbers, put.lsns)
        lsns = sorted(last.values())
        for batch in () if group is None else group.entries:
            if isinstance(batch, Publishes):
                rows = [lsn - batch.first for lsn in lsns if batch.first <= lsn < batch.first + len(batch.bodies)]
                if rows:
                    yield Arrived(topic, batch, rows, NEVER, delayed=False)

    def _arrivals(self, batch: Publishes) -> Iterator[Step]:
        routes = batch.routes
        if isinstance(routes, int):
            if routes == NO_ROUTE:
                return
            for queue in self._queues_of(routes):
                yield from self._arrived(queue, batch, range(len(batch.bodies)))
            return
        by_queue: dict[int, list[int]] = {}
        wanted = {route: [q for q in self._queues_of(route) if q in self.watched] for route in set(routes)}
        for row, route in enumerate(routes):
            for queue in wanted[route]:
                by_queue.setdefault(queue, []).append(row)
        for queue, rows in by_queue.items():
            yield from self._arrived(queue, batch, rows)

    def _arrived(self, queue: int, batch: Publishes, rows: Sequence[int]) -> Iterator[Step]:
        since = self.watched.get(queue)
        if since is not None and batch.first + rows[0] > since:
            yield Arrived(queue, batch, rows, self._edges[queue])

    def _took(self, entry: Control, group: Group | None) -> Iterator[Step]:
        """Rows of the same group, named beside them."""
        queue, pairs = unpack_pairs(entry.body)
        if queue not in self.watched or group is None:
            return
        for batch in group.entries:
            if isinstance(batch, Publishes):
                last = batch.first + len(batch.bodies)
                rows = [
                    lsn - batch.first
                    for low, high in zip(pairs[::2], pairs[1::2], strict=True)
                    for lsn in range(max(low, batch.first), min(high, last))
                ]
                if rows:
                    yield from self._arrived(queue, batch, rows)


def _gone(topic: int, lsns: list[int], lsn: int) -> Iterator[Step]:
    pairs = [end for one in sorted(lsns) if one for end in (one, one + 1)]
    if pairs:
        yield Moved(topic, "gone", pairs, lsn)


K = TypeVar("K")
V = TypeVar("V")

LEAST_US = 100_000
DEFAULT_US = 5_000_000
"""The interval of a conflated topic that names none."""


class Conflation(Generic[K, V]):
    """Changes that wait.  All have one interval, so they come due in the order of their first."""

    __slots__ = ("_due", "_interval", "_waiting")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._waiting: dict[K, tuple[int, V]] = {}  # when it comes due, and the last change
        self._due: deque[tuple[int, K]] = deque()  # those that were dropped among them

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Those that wait, and those that were dropped and have not come due."""
        return len(self._due)

    def put(self, key: K, value: V, now: int) -> None:
        """Let a change wait for the end of its key's interval, in the place of an earlier one."""
        held = self._waiting.get(key)
        if held is None:
            due = now + self._interval
            self._waiting[key] = (due, value)
            self._due.append((due, key))
        else:
            self._waiting[key] = (held[0], value)

    def waiting(self, key: K) -> V | None:
        """The change of a key that waits."""
        held = self._waiting.get(key)
        return None if held is None else held[1]

    def drop(self, key: K) -> bool:
        """The key leaves: whether a change of it waited, which is not told now."""
        return self._waiting.pop(key, None) is not None

    def due(self, now: int, most: int) -> list[V]:
        """The first of what is to be told by now, in the order of the first changes."""
        out: list[V] = []
        while self._due and self._due[0][0] <= now and len(out) < most:
            due, key = self._due.popleft()
            held = self._waiting.get(key)
            if held is not None and held[0] == due:
                del self._waiting[key]
                out.append(held[1])
        return out

    def next_due(self) -> int | None:
        """When something may be due next; None: nothing waits."""
        while self._due:
            due, key = self._due[0]
            held = self._waiting.get(key)
            if held is not None and held[0] == due:
                return due
            self._due.popleft()
        return None
