"""The life of one message, told from the log alone.

It reads the records in order and keeps in mind which queues have the message.  A record counts when one of its LSN
pairs covers the message and its queue has it at that time: pairs mean a queue's own messages only.  What the log has
gathered and not yet made durable is told too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, cast

import orjson
import pyarrow as pa

from penstock.core.state.plain import unwrap
from penstock.errors import NotFound
from penstock.records.chunks import LSN_LIMIT, unpack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.entries import Control, Group, Publishes
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind
from penstock.records.schema import COLUMNS
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.testing.instance import TellingLog

WORDS: Mapping[Kind, str] = {
    Kind.GRANT: "leased",
    Kind.RETURN: "returned",
    Kind.SETTLE: "settled",
    Kind.EXPIRE: "expired",
    Kind.DROP: "dropped",
    Kind.PURGE: "purged",
    Kind.DUE: "due",
    Kind.BARRIER: "barrier",
}
"""Events that are a queue's record with LSN pairs, in the words of `Event.event`."""

LAST = frozenset({Kind.SETTLE, Kind.EXPIRE, Kind.DROP, Kind.PURGE})
"""After these the queue no longer has the message."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a message.

    published   details: topic, queues, and not_before, expires_at, priority where set; `of` for a dead letter: the
                bookmark of the message that died
    recovered   a queue takes it that was not there, or not asked, when it was published
    barrier     it is one in this queue
    leased      consumer, client, attempt
    returned    cause (lease, lost, closed, cancel, release), failed, cancelled, and not_before when it must wait
    due         a delay is over
    settled     by, or for a barrier that was released `barrier`: to how many subscriptions it went
    expired     reason, and `letters`: bookmarks of its dead letters
    dropped, purged, queue deleted
    planned, plan settled, plan released     stream, batch
    restarted   clean: whether the server had stopped; leases have ended
    """

    event: str
    queue: str  # empty where it is not about one queue
    time: float  # seconds since the epoch
    bookmark: str  # of the record
    details: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(slots=True)
class _Record:
    """A row of the log, from disk or not yet there."""

    lsn: int
    kind: Kind
    name: str
    time: int
    route: int
    header: bytes
    body: bytes
    not_before: int
    expires_at: int
    priority: int
    via: int


class _Teller:
    """Reads records and gathers what concerns one message."""

    def __init__(self, lsn: int, origin: int, exchanges: Mapping[int, tuple[str, str]]) -> None:
        self.lsn = lsn
        self.origin = origin
        self.events = list[Event]()
        self._exchanges = exchanges
        self._names = dict[int, str]()  # of queues, by id
        self._routes = dict[int, "tuple[int, ...]"]()
        self._at = set[int]()  # ids of queues that have the message
        self._seen = False
        self._plans = dict[tuple[str, int], int]()  # (stream, batch) that has it planned -> queue

    def read(self, record: _Record) -> None:
        """The next record."""
        kind = record.kind
        match kind:
            case Kind.QUEUE_DECLARE:
                self._names[record.lsn] = record.name
            case Kind.QUEUE_DELETE:
                number = unpack_pairs(record.body)[0]
                if number in self._at:
                    self._tell(record, "queue deleted", number)
                    self._at.discard(number)
            case Kind.ROUTE:
                first, others = unpack_pairs(record.body)
                self._routes[record.route] = (first, *others)
            case Kind.TOOK:
                number, pairs = unpack_pairs(record.body)
                if _covers(pairs, self.lsn):
                    self._took(number)
            case Kind.RECOVERED:
                number, pairs = unpack_pairs(record.body)
                if _covers(pairs, self.lsn):
                    self._at.add(number)
                    self._tell(record, "recovered", number)
            case Kind.BOOT:
                if self._at:
                    self._tell(record, "restarted", None, clean=bool(_json(record.header)["clean"]))
            case Kind.PLAN | Kind.PLAN_SETTLE | Kind.STREAM_RELEASE:
                self._stream(record)
            case Kind.PUBLISH | Kind.PUBLISH_TRANSIENT:
                if record.lsn == self.lsn:
                    self._published(record)
            case _ if kind in WORDS:
                number, pairs = unpack_pairs(record.body)
                if kind is Kind.EXPIRE:
                    self._died(record)
                if number in self._at and _covers(pairs, self.lsn):
                    self._happened(record, number)
            case _:
                pass  # topology and marks

    def _published(self, record: _Record) -> None:
        self._seen = True
        details: dict[str, object] = {}
        exchange = self._exchanges.get(record.via, ("", ""))[1]
        details["topic"] = f"{exchange}/{record.name}" if exchange else record.name
        self._at.update(self._routes.get(record.route, ()) if record.route != NO_ROUTE else ())
        details["queues"] = [self._names.get(number, str(number)) for number in sorted(self._at)]
        if record.not_before:
            details["not_before"] = record.not_before / 1e6
        if record.expires_at:
            details["expires_at"] = record.expires_at / 1e6
        if record.priority:
            details["priority"] = record.priority
        self._tell(record, "published", None, **details)

    def _took(self, number: int) -> None:
        """Beside the row, in the same group, a queue is named that took it."""
        self._at.add(number)
        for event in self.events:
            if event.event == "published":
                cast("list[str]", event.details["queues"]).append(self._names.get(number, str(number)))

    def _died(self, record: _Record) -> None:
        """Whether the message is the letter of another one's death; such an EXPIRE follows it in the same group."""
        for cause, new in cast("list[tuple[int, int]]", _json(record.header).get("dead", [])):
            if new == self.lsn and self.events:
                cast("dict[str, object]", self.events[0].details)["of"] = format_bookmark(self.origin, cause)

    def _happened(self, record: _Record, number: int) -> None:
        details = _json(record.header)
        dead = cast("list[tuple[int, int]] | None", details.pop("dead", None))
        letters = [format_bookmark(self.origin, new) for cause, new in dead or () if cause == self.lsn]
        if letters:
            details["letters"] = letters
        if "not_before" in details:
            details["not_before"] = cast("int", details["not_before"]) / 1e6
        self._tell(record, WORDS[record.kind], number, **details)
        if record.kind in LAST:
            self._at.discard(number)

    def _stream(self, record: _Record) -> None:
        header = _json(record.header)
        batch = cast("int | None", header.get("batch"))
        if record.kind is Kind.PLAN:
            number, pairs = unpack_pairs(record.body)
            if number in self._at and _covers(pairs, self.lsn) and batch is not None:
                self._plans[record.name, batch] = number
                self._tell(record, "planned", number, stream=record.name, batch=batch)
            return
        for (stream, planned), number in list(self._plans.items()):
            if stream != record.name:
                continue
            if record.kind is Kind.PLAN_SETTLE and batch is not None and planned <= batch:
                self._tell(record, "plan settled", number, stream=stream, batch=planned)  # a SETTLE follows
                del self._plans[stream, planned]
            elif record.kind is Kind.STREAM_RELEASE and (batch is None or planned <= batch):
                self._tell(record, "plan released", number, stream=stream, batch=planned)
                del self._plans[stream, planned]

    def _tell(self, record: _Record, event: str, queue: int | None, **details: object) -> None:
        name = "" if queue is None else self._names.get(queue, str(queue))
        self.events.append(Event(event, name, record.time / 1e6, format_bookmark(self.origin, record.lsn), details))


def tell(log: TellingLog, lsn: int) -> list[Event]:
    """The events of the message at `lsn`, oldest first.  Raises NotFound when the log has no message there."""
    teller = _Teller(lsn, log.origin, log.vias.known)
    for record in _stored(log):
        teller.read(record)
    for record in _gathered(log):
        teller.read(record)
    if not teller.events:
        raise NotFound(f"the log has no message {format_bookmark(log.origin, lsn)!r}")
    return teller.events


def _plain_schema() -> pa.Schema:
    schema = COLUMNS
    for name in ("time", "expires_at", "not_before"):
        place = schema.get_field_index(name)
        schema = schema.set(place, pa.field(name, pa.int64()))  # pyright: ignore[reportUnknownMemberType] - its stubs
    return schema


_PLAIN = _plain_schema()
"""The log's columns, with times as integers."""


def _stored(log: TellingLog) -> Iterator[_Record]:
    """Durable rows of the whole log."""
    for batch in log.batches(log.first_lsn, LSN_LIMIT):
        for row in batch.cast(_PLAIN).to_pylist():
            yield _Record(
                row["lsn"],
                Kind(row["kind"]),
                row["name"] or "",
                row["time"],
                NO_ROUTE if row["route"] is None else row["route"],
                row["properties"] or b"",
                row["body"] or b"",
                row["not_before"] or 0,
                row["expires_at"] or 0,
                row["priority"] or 0,
                NO_VIA if row["via"] is None else row["via"],
            )


def _gathered(log: TellingLog) -> Iterator[_Record]:
    """Rows that are not durable yet.  Messages never wait without an answer, so these are decisions."""
    for entry in log.gathered():
        for part in entry.entries if isinstance(entry, Group) else (entry,):
            if isinstance(part, Control):
                yield _control(part)
            else:
                yield from _messages(part)


def _control(part: Control) -> _Record:
    return _Record(part.lsn, part.kind, part.name, part.time, part.route, part.header, part.body, 0, 0, 0, part.via)


def _messages(batch: Publishes) -> Iterator[_Record]:
    for row in range(len(batch)):
        topic = batch.topic_of(row)
        yield _Record(
            batch.first + row,
            Kind.PUBLISH,
            topic.name,
            batch.time,
            batch.routes[row] if isinstance(batch.routes, list) else batch.routes,
            b"",
            b"",
            batch.not_before[row] if batch.not_before is not None else 0,
            batch.expires_at[row] if batch.expires_at is not None else 0,
            batch.priority[row] if batch.priority is not None else 0,
            topic.via,
        )


def _covers(pairs: object, lsn: int) -> bool:
    flat = cast("list[int]", pairs)
    return any(flat[i] <= lsn < flat[i + 1] for i in range(0, len(flat), 2))


def _json(header: bytes) -> dict[str, object]:
    return cast("dict[str, object]", unwrap(orjson.loads(header))) if header else {}
