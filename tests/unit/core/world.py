"""A core with the smallest engine around it: journal to Arrow tables, bodies by LSN, deliveries by consumer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.core.broker import Core
from penstock.core.commands.deliveries import Delivery
from penstock.core.effects import (
    Cancelled,
    Deliver,
    DeliverEach,
    Fetch,
    Fetched,
    Key,
    Rate,
    Scan,
    Scanned,
    Swept,
    delivered,
)
from penstock.core.publishing.published import Published
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.records.chunks import Now
from penstock.records.entries import Control, Entry, Publishes, Rows, Topic, singly
from penstock.records.event_actions import Action
from penstock.records.field_tables import FieldValue
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings
from penstock.records.schema import COLUMNS
from penstock.server.asking.scanning import answer_to, matching

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
DURABLE = encode(Properties(delivery_mode=2))

TYPES = [field.type for field in COLUMNS]


def header(**values: object) -> bytes:
    """An encoded header; persistent unless it says otherwise."""
    values.setdefault("delivery_mode", 2)
    return encode(Properties(**values))  # type: ignore[arg-type]


def to_table(entries: Sequence[Entry]) -> pa.Table:
    """Journal entries as rows of the log."""
    rows: list[tuple[object, ...]] = []
    for entry in singly(entries):
        if isinstance(entry, Control):
            rows.append((
                entry.lsn, int(entry.kind), entry.name, None if entry.via == NO_VIA else entry.via,
                None if entry.route == NO_ROUTE else entry.route, entry.time, None, None, None,
                entry.header, entry.body,
            ))  # fmt: skip
            continue
        for i, body in enumerate(entry.bodies):
            topic = entry.topic_of(i)
            route = entry.routes if isinstance(entry.routes, int) else entry.routes[i]
            transient = entry.transient if isinstance(entry.transient, bool) else entry.transient[i]
            rows.append((
                entry.first + i, int(Kind.PUBLISH_TRANSIENT if transient else Kind.PUBLISH), topic.name,
                None if topic.via == NO_VIA else topic.via, None if route == NO_ROUTE else route, entry.time,
                (entry.expires_at[i] or None) if entry.expires_at else None,
                (entry.not_before[i] or None) if entry.not_before else None,
                entry.priority[i] if entry.priority else None, entry.properties_of(i), body,
            ))  # fmt: skip
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in COLUMNS]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, TYPES, strict=True)]
    return pa.table(arrays, schema=COLUMNS)


class World:
    """A core, its log, and what its consumers got."""

    def __init__(self, *, actions: Sequence[Action] = (), origin: int = 7, next_lsn: int = 1) -> None:
        self.origin, self.actions = origin, tuple(actions)
        self.wall, self.mono = START, 0
        self._tables: list[pa.Table] = []
        self._unread: list[Sequence[Entry]] = []
        self._fold, self._fed = Fold(), 0  # of the first so many tables
        self.entries: list[Publishes | Control] = []
        self.rows: dict[int, tuple[Publishes, int]] = {}
        self.inbox: dict[Consumer, list[int]] = {}
        self.deliveries: list[Delivery] = []
        self.cancelled: list[Consumer] = []
        self.core = Core(origin, next_lsn, actions=self.actions)
        self.core.boot(self.now, clean=True, next_lsn=next_lsn)
        self.turn()

    @property
    def now(self) -> Now:
        return Now(self.wall, self.mono)

    @property
    def tables(self) -> list[pa.Table]:
        """The log, a table for each journal.  Those that nobody has looked at yet are made at once: many are short."""
        unread, self._unread = self._unread, []
        if len(unread) == 1:
            self._tables.append(to_table(unread[0]))
        elif unread:
            whole, at = to_table([entry for journal in unread for entry in journal]), 0
            for journal in unread:
                count = sum(1 if isinstance(entry, Control) else len(entry) for entry in singly(journal))
                self._tables.append(whole.slice(at, count))
                at += count
        return self._tables

    @tables.setter
    def tables(self, tables: list[pa.Table]) -> None:
        self._tables, self._unread = tables, []
        self._fold, self._fed = Fold(), 0

    def turn(self) -> None:
        """Log what was decided and perform the effects, until there are none."""
        while True:
            entries = self.core.take_journal()
            effects = self.core.take_effects()
            if not entries and not effects:
                return
            if entries:
                self._unread.append(entries)
                for entry in singly(entries):
                    self.entries.append(entry)
                    if isinstance(entry, Publishes):
                        self.rows.update({entry.first + i: (entry, i) for i in range(len(entry))})
            for effect in effects:
                match effect:
                    case Deliver() | DeliverEach():
                        for one in delivered([effect]):
                            self.deliveries.append(one)
                            self.inbox.setdefault(one.consumer, []).extend(one.chunk)
                    case Fetch():
                        self.fetch(effect)
                    case Scan():
                        found = matching(effect.filters, self.read(effect.chunk))
                        self.core.answered(self.now, Scanned(effect.token, found, effect.chunk[-1]))
                    case Rate() | Key():
                        self.core.answered(self.now, answer_to(effect, effect.chunk, self.read(effect.chunk), None))
                    case Swept():
                        effect.answer(effect.affected)
                    case Cancelled():
                        self.cancelled.append(effect.consumer)

    def fetch(self, effect: Fetch) -> None:
        """Bring bodies that the core asks for: here at once."""
        self.core.answered(self.now, Fetched(effect.token, self.read(effect.chunk), effect.chunk[-1]))

    def read(self, lsns: Sequence[int]) -> Rows:
        found = [self.rows[lsn] for lsn in lsns]
        return Rows(
            list(lsns),
            [batch.topic_of(i) for batch, i in found],
            [batch.properties_of(i) for batch, i in found],
            [batch.bodies[i] for batch, i in found],
            [batch.time for batch, _ in found],
            [batch.expires_at[i] if batch.expires_at else 0 for batch, i in found],
            [batch.priority[i] if batch.priority else 0 for batch, i in found],
        )

    def advance(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.mono += round(seconds * SECOND)
        for _ in range(10_000):
            wall, mono = self.core.next_deadline()
            if not ((wall is not None and wall <= self.wall) or (mono is not None and mono <= self.mono)):
                return
            self.core.tick(self.now)
            self.turn()
        raise AssertionError("ticking does not end")

    def declare(
        self, name: str, vhost: str = "/", arguments: dict[str, object] | None = None, **settings: object
    ) -> Queue:
        flags = {key: settings.pop(key) for key in ("durable", "auto_delete", "exclusive_to") if key in settings}
        queue = self.core.declare_queue(
            self.now,
            vhost,
            name,
            QueueSettings(**settings),
            arguments=arguments or {},
            **flags,  # type: ignore[arg-type]
        )
        self.turn()
        return queue

    def publish(
        self, key: str, *bodies: bytes, exchange: str = "", vhost: str = "/", properties: bytes = DURABLE
    ) -> Published:
        """Messages of one topic and one header."""
        topic = self.core.topic(vhost, exchange, key)
        published = self.core.publish(self.now, Publishes(topic, properties, list(bodies) or [b"body"]))
        self.turn()
        return published

    def publish_all(self, *messages: tuple[Topic, bytes, bytes]) -> Published:
        """Messages (topic, header, body) as one batch."""
        topics, headers, bodies = (list(column) for column in zip(*messages, strict=True))
        published = self.core.publish(self.now, Publishes(topics, headers, bodies))  # type: ignore[arg-type]
        self.turn()
        return published

    def subscribe(self, queue: Queue, tag: str = "c", **options: object) -> Consumer:
        consumer = self.core.subscribe(self.now, queue, tag=tag, holder=self, **options)  # type: ignore[arg-type]
        self.inbox.setdefault(consumer, [])
        self.turn()
        return consumer

    def contents(self, queue: Queue) -> list[bytes]:
        """Bodies of everything that waits, in LSN order."""
        lsns = sorted(lsn for chunk in queue.snapshot()[0] for lsn in chunk)
        return [self.rows[lsn][0].bodies[self.rows[lsn][1]] for lsn in lsns]

    def headers(self, lsn: int) -> dict[str, FieldValue]:
        from penstock.records.properties import decode

        batch, row = self.rows[lsn]
        return dict(decode(batch.properties_of(row)).headers or {})

    def folded(self, tables: int = 1) -> DurableState:
        """The fold of the whole log, `tables` journals at a time; one at a time, the last fold is fed what is new."""
        if tables == 1:
            for table in self.tables[self._fed :]:
                self._fold.feed(table)
                self._fed += 1
            return self._fold.finish()
        fold = Fold()
        for i in range(0, len(self.tables), tables):
            fold.feed(pa.concat_tables(self.tables[i : i + tables]))
        return fold.finish()

    def restart(self, *, clean: bool) -> None:
        """A new process: the state folded from the log, booted."""
        self.turn()
        state = DurableState.decode(self.folded(3).encode())
        next_lsn = state.last_lsn + (1 if clean else 1 + 2**32)
        self.mono = 0
        self.core = Core.restore(state, origin=self.origin, actions=self.actions, now=self.now)
        self.core.boot(self.now, clean=clean, next_lsn=next_lsn)
        self.inbox, self.deliveries = {}, []
        self.turn()
