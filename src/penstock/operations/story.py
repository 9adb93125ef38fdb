"""The life of one message, told from the log alone, oldest first.

Records are read in order from the message on, and it is kept in mind which queues have it.  A record counts when one of
its LSN pairs covers the message and its queue has it at that time: pairs mean a queue's own messages only.  Reading
ends where no queue has the message any more.  Never on the loop: a queue that still has it is asked of the whole rest
of the log, at about the speed of the disk, for pairs are compared by numpy and no other row becomes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.queue.order.runs import NEVER
from penstock.core.state.encoding import unwrap
from penstock.core.state.lsns import Ints, blobs, numbers, packed_integers, pick, texts, whole
from penstock.history import spans
from penstock.records.causes import ENDS, ended, told
from penstock.records.chunks import unpack_pairs
from penstock.records.dataclass import dataclass
from penstock.records.kinds import ENDED, MEANINGS, NO_ROUTE, NO_VIA, PUBLISHES, Kind
from penstock.wire.flight.bookmarks import format_bookmark

WORDS: Mapping[Kind, str] = {kind: meaning.word for kind, meaning in MEANINGS.items() if meaning.word}
"""Events that are a queue's record with LSN pairs, in the words of `Event.event`; of EXPIRE `ended` says which."""

ENDINGS = frozenset({"settled", "dropped", "purged", "queue deleted", *ENDS.values()})
"""With these words a queue no longer has the message, and nothing more is told of it there."""

DEFAULT_VIA = "/", ""
"""Vhost and exchange of a message whose record names neither."""

_SHAPES = np.array([int(Kind.ROUTE), int(Kind.QUEUE_DECLARE)])


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a message.

    published   details: topic, queues, and not_before, expires_at, priority where set; `of` for a dead letter: the
                bookmark of the message that died; `moved_from` for one that the server moved or sent on; with either,
                and for what a full queue refused, `from_queue`, `reason`, `cause` as they ended there
    recovered   a queue takes it that was not there, or not asked, when it was published
    barrier     it is one in this queue
    leased      consumer, client, attempt: which delivery it is of those that somebody may have seen
    returned    cause (lease, lost, closed, cancel, release, unseen), failed, cancelled, `unseen` for a delivery that
                does not count, `why` as its consumer told, and not_before when it must wait
    due         a delay is over
    rescheduled not_before, by
    settled     by, or for a barrier that was released `barrier`: to how many subscriptions it went
    rejected, expired, delivery_limit, maxlen, replaced, poison     it left the queue without success: reason (one or
                several of `records.causes`; in the words of who refused it where there are any, and then `cause`), by,
                and `letters`: bookmarks of its dead letters
    moved       the server published it elsewhere: reason (moved, redriven, due), by, and `moved_to`
    dropped     reason, by: `maxlen` and `replaced` where no dead letter is asked for, `cancelled` for one that was
                withdrawn, `recovery_point` for one from before it
    owned       site, serial, why (first, transfer, yielded, proxied): which site may lease it from then on
    paused, resumed     its queue was; until, by
    proxied, no longer proxied     from then on this site acts, or does not, for owners in its queue that are away; by
    purged, queue deleted
    planned, plan settled, plan released, left its batch     stream, batch; the last one: it was narrowed to others
    restarted   clean: whether the server had stopped; leases have ended, and a transient message
    """

    event: str
    queue: str  # empty where it is not about one queue
    time: float  # seconds since the epoch
    bookmark: str  # of the record
    details: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(slots=True)
class Record:
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


@dataclass(slots=True)
class Story:
    """What the log tells of one message."""

    events: list[Event]
    first_lsn: int  # the log begins here
    read_to: int  # and was read up to here
    whole: bool  # nothing more can come: no queue has it


@dataclass(eq=False)
class Teller:
    """Reads records and gathers what concerns one message."""

    lsn: int
    origin: int
    _exchanges: Mapping[int, tuple[str, str]]
    _names: dict[int, str]  # of queues, by id
    _older_routes: Callable[[int], Sequence[int]]  # the queues of a route that was told before what is read
    events: list[Event] = field(default_factory=list[Event], init=False)
    at: set[int] = field(default_factory=set[int], init=False)  # ids of queues that have the message
    past: bool = field(default=False, init=False)  # its group is over
    _routes: dict[int, tuple[int, ...]] = field(default_factory=dict[int, "tuple[int, ...]"], init=False)
    _seen: bool = field(default=False, init=False)
    _transient: bool = field(default=False, init=False)
    _plans: dict[tuple[str, int], int] = field(default_factory=dict["tuple[str, int]", int], init=False)
    """(stream, batch) that has it planned -> queue."""

    def vhost_of(self, record: Record) -> str:
        """Where a message was published."""
        return self._exchanges.get(record.via, DEFAULT_VIA)[0]

    def read(self, record: Record) -> None:
        tell = self.TELLS.get(record.kind)
        if tell is not None:
            tell(self, record)

    def _declared(self, record: Record) -> None:
        self._names[record.lsn] = record.name

    def _deleted(self, record: Record) -> None:
        number = unpack_pairs(record.body)[0]
        if number in self.at:
            self._tell(record, "queue deleted", number)
            self._gone(number)

    def _routed(self, record: Record) -> None:
        first, others = unpack_pairs(record.body)
        self._routes[record.route] = (first, *others)

    def _took(self, record: Record) -> None:
        """Beside the row, in the same group, a queue is named that took it."""
        number, pairs = unpack_pairs(record.body)
        if not _covers(pairs, self.lsn):
            return
        self.at.add(number)
        for event in self.events:
            if event.event == "published":
                cast("list[str]", event.details["queues"]).append(self._names.get(number, str(number)))

    def _recovered(self, record: Record) -> None:
        number, pairs = unpack_pairs(record.body)
        if _covers(pairs, self.lsn):
            self.at.add(number)
            self._tell(record, "recovered", number)

    def _restarted(self, record: Record) -> None:
        if self.at:
            self._tell(record, "restarted", None, clean=bool(_json(record.header)["clean"]))
            if self._transient:
                self.at.clear()

    def _published(self, record: Record) -> None:
        if record.lsn != self.lsn:
            return
        self._seen = True
        self._transient = record.kind is Kind.PUBLISH_TRANSIENT
        details: dict[str, object] = {}
        exchange = self._exchanges.get(record.via, DEFAULT_VIA)[1]
        details["topic"] = f"{exchange}/{record.name}" if exchange else record.name
        if record.route != NO_ROUTE:
            self.at.update(self._routes.get(record.route) or self._older_routes(record.route))
        details["queues"] = [self._names.get(number, str(number)) for number in sorted(self.at)]
        if record.not_before:
            details["not_before"] = record.not_before / 1e6
        if record.expires_at:
            details["expires_at"] = record.expires_at / 1e6
        if record.priority:
            details["priority"] = record.priority
        self._tell(record, "published", None, **details)

    def _died(self, record: Record) -> None:
        """Perhaps the message came of another one's end; such an EXPIRE follows it in the same group."""
        number = unpack_pairs(record.body)[0]
        header = _json(record.header)
        if not self.events:
            return
        details = cast("dict[str, object]", self.events[0].details)
        came = self.lsn in cast("list[int]", header.get("refused") or ())
        for key, word in (("dead", "of"), ("sent", "moved_from")):
            for cause, new in cast("list[tuple[int, int]]", header.get(key) or ()):
                if new == self.lsn:
                    details[word] = format_bookmark(self.origin, cause)
                    came = True
        if came:
            details["from_queue"] = self._names.get(number, str(number))
            details.update(_why(header))
        self._happened(record)

    def _happened(self, record: Record) -> None:
        number, covered = unpack_pairs(record.body)
        if number not in self.at or not _covers(covered, self.lsn):
            return
        details = self._particulars(record, covered)
        event = WORDS[record.kind]
        if record.kind is Kind.EXPIRE:
            event = ended(told(details)[0])
            ending = _why(details)
            details.pop("why", None)
            details.update(ending)
        self._tell(record, event, number, **details)
        if record.kind in ENDED:
            self._gone(number)

    def _particulars(self, record: Record, covered: Sequence[int]) -> dict[str, object]:
        """What a record says of this message alone, for people."""
        details = _json(record.header)
        for key, word in (("dead", "letters"), ("sent", "moved_to")):
            pairs = cast("list[tuple[int, int]] | None", details.pop(key, None))
            if found := [format_bookmark(self.origin, new) for cause, new in pairs or () if cause == self.lsn]:
                details[word] = found
        if record.kind is Kind.GRANT:
            details["attempt"] = cast("int", details["attempt"]) - cast("int", details.pop("unseen", 0))
        if "not_before" in details:
            details["not_before"] = cast("int", details["not_before"]) / 1e6
        if (to := cast("list[tuple[str, str, int]] | None", details.pop("to", None))) is not None:
            details = {**_whom(to, covered, self.lsn), **details}
        if record.kind is Kind.SETTLE and isinstance(details.get("by"), list):
            by = cast("list[tuple[str, int]]", details["by"])
            details["by"] = by[_whose([count for _, count in by], covered, self.lsn)][0]
        if record.kind is Kind.OWN:
            del details["owner"]  # a number; its name is told
        if record.kind is Kind.EXPIRE:
            details.pop("left", None)  # what actions still had to do
        return details

    def _gone(self, number: int) -> None:
        """A queue has the message no longer, nor has a stream of it."""
        self.at.discard(number)
        self._plans = {plan: queue for plan, queue in self._plans.items() if queue != number}

    def _paused(self, record: Record) -> None:
        number = unpack_pairs(record.body)[0]
        if number not in self.at:
            return
        details = _json(record.header)
        until = cast("int", details.pop("until"))
        if 0 < until < NEVER:
            details["until"] = until / 1e6
        self._tell(record, "paused" if until else "resumed", number, **details)

    def _proxied(self, record: Record) -> None:
        number, details = unpack_pairs(record.body)[0], _json(record.header)
        if number in self.at:
            on = details.pop("on")
            self._tell(record, "proxied" if on else "no longer proxied", number, **details)

    def _stream(self, record: Record) -> None:
        header = _json(record.header)
        batch = cast("int | None", header.get("batch"))
        if record.kind is Kind.PLAN:
            number, pairs = unpack_pairs(record.body)
            if number in self.at and _covers(pairs, self.lsn) and batch is not None:
                self._plans[record.name, batch] = number
                self._tell(record, "planned", number, stream=record.name, batch=batch)
            return
        for (stream, planned), number in list(self._plans.items()):
            word = self._end_of_plan(record, planned, batch) if stream == record.name else None
            if word is not None:
                self._tell(record, word, number, stream=stream, batch=planned)
                del self._plans[stream, planned]

    def _end_of_plan(self, record: Record, planned: int, batch: int | None) -> str | None:
        """What ends a planned batch of the record's stream; None: it goes on."""
        match record.kind:
            case Kind.PLAN_SETTLE if batch is not None and planned <= batch:
                return "plan settled"  # a SETTLE follows
            case Kind.STREAM_NARROW if planned == batch and not _covers(unpack_pairs(record.body)[1], self.lsn):
                return "left its batch"
            case Kind.STREAM_RELEASE if batch is None or planned <= batch:
                return "plan released"
            case _:
                return None

    def _tell(self, record: Record, event: str, queue: int | None, **details: object) -> None:
        name = "" if queue is None else self._names.get(queue, str(queue))
        self.events.append(Event(event, name, record.time / 1e6, format_bookmark(self.origin, record.lsn), details))

    TELLS: ClassVar[Mapping[Kind, Callable[[Any, Record], None]]] = {
        **dict.fromkeys(WORDS, _happened), Kind.EXPIRE: _died,
        **dict.fromkeys((Kind.PLAN, Kind.PLAN_SETTLE, Kind.STREAM_RELEASE, Kind.STREAM_NARROW), _stream),
        **dict.fromkeys(PUBLISHES, _published),
        Kind.QUEUE_DECLARE: _declared, Kind.QUEUE_DELETE: _deleted, Kind.ROUTE: _routed, Kind.TOOK: _took,
        Kind.RECOVERED: _recovered, Kind.BOOT: _restarted, Kind.PAUSE: _paused,
        Kind.PROXY: _proxied,
    }  # fmt: skip


_NAMING = {*WORDS, Kind.TOOK, Kind.RECOVERED, Kind.PLAN}
_PAIRED = np.array([int(kind) for kind in _NAMING])
"""Kinds that name the message in their pairs, or have nothing to say of it.  EXPIRE may name it beside them, too."""
_ALWAYS = np.array([int(kind) for kind in Teller.TELLS.keys() - _NAMING - PUBLISHES])


class Kept(spans.Kept, Protocol):
    """The log, as far as it is read here."""

    @property
    def vias(self) -> Any: ...


def _read_on(log: Kept, teller: Teller, gone: Callable[[], bool], anew: bool) -> int:
    """Read from the message on, until nothing more can follow; the LSN that was read last."""
    read_to = teller.lsn - 1
    for batch in log.batches(teller.lsn, log.durable + 1):
        if gone():
            break
        read_to = int(numbers(whole(batch), "lsn")[-1])
        for record in relevant(batch, teller.lsn):
            teller.read(record)
        if teller.events and not teller.at and not anew:
            break  # nothing follows outside of its group
    return read_to


def tell(
    log: Kept,
    lsn: int,
    names: Mapping[int, str],
    routes: Callable[[int], Sequence[int]],
    gone: Callable[[], bool] = lambda: False,
    more: Iterable[Record] = (),
    anew: bool = False,
    vhost: str | None = None,
) -> Story:
    """The story of the message at `lsn`: no events when the log has none there.  Any thread but the loop's.

    names, routes    of the queues that there are, and of the routes that are in use
    gone             whether nobody waits for it any more
    more             records that are not on the disk yet
    anew             a queue may take it that was not there, or not asked, when it was published
    vhost            a message of another one is none
    """
    teller = Teller(lsn, log.origin, log.vias.known, dict(names), routes)
    read_to = lsn - 1
    first = next(log.batches(lsn, lsn + 1), None)
    if first is not None:
        (row,) = _records(whole(first)) if first.num_rows == 1 else (None,)
        if row is None or row.kind not in PUBLISHES or vhost not in {None, teller.vhost_of(row)}:
            return Story([], log.first_lsn, lsn, True)
        if row.route != NO_ROUTE and not routes(row.route) and not _learn_names(log, lsn, teller, gone):
            return Story([], log.first_lsn, lsn, False)
        read_to = _read_on(log, teller, gone, anew)
    for record in more:
        teller.read(record)
    return Story(teller.events, log.first_lsn, read_to, bool(teller.events) and not teller.at)


def _learn_names(log: Kept, lsn: int, teller: Teller, gone: Callable[[], bool]) -> bool:
    """Of a message whose queues are gone: what they were called is before it.  False: nobody waits any more."""
    for batch in log.batches(log.first_lsn, lsn):
        if gone():
            return False
        table = whole(batch)
        for record in _records(pick(table, np.isin(numbers(table, "kind"), _SHAPES))):
            teller.read(record)
    return True


def relevant(batch: pa.RecordBatch, lsn: int) -> Iterator[Record]:
    """Those rows of a batch that may say something of the message."""
    table = whole(batch)
    lsns, kinds = numbers(table, "lsn"), numbers(table, "kind")
    chosen = (lsns == lsn) | np.isin(kinds, _ALWAYS)
    paired = np.isin(kinds, _PAIRED)
    if paired.any():
        values, offsets = packed_integers(pick(table, paired, ["body"]))
        chosen[paired] |= _covering(values, offsets // 8, lsn)
    expired = kinds == int(Kind.EXPIRE)
    if expired.any() and lsn >= int(lsns[0]):  # it may be what came of the message that ended, in the same batch
        chosen |= expired
    if chosen.any():
        yield from _records(pick(table, chosen))


def _covering(values: Ints, starts: Ints, lsn: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these rows, each a queue's id and pairs, have a pair around the message."""
    counts = np.diff(starts)
    out = np.zeros(len(counts), dtype=np.bool_)
    sound = counts % 2 == 1
    if not len(values) or not sound.any():
        return out
    is_pair = np.ones(len(values), dtype=np.bool_)
    is_pair[starts[:-1][counts > 0]] = False
    if not sound.all():
        is_pair &= np.repeat(sound, counts)
    pairs = values[is_pair].reshape(-1, 2)
    which = np.repeat(np.arange(len(counts)), np.where(sound, (counts - 1) // 2, 0))
    out[which[(pairs[:, 0] <= lsn) & (lsn < pairs[:, 1])]] = True
    return out


def _records(table: pa.Table) -> Iterator[Record]:
    if not table.num_rows:
        return
    columns = [
        numbers(table, name, null).tolist()
        for name, null in (
            ("lsn", 0), ("kind", 0), ("time", 0), ("route", NO_ROUTE), ("not_before", 0), ("expires_at", 0),
            ("priority", 0), ("via", NO_VIA),
        )
    ]  # fmt: skip
    kinds = columns[1]
    headers, names = blobs(table, "properties"), texts(table, "name")
    bodies = [b"" if Kind(kind) in PUBLISHES else body for kind, body in zip(kinds, blobs(table, "body"), strict=True)]
    rows = zip(*columns, headers, names, bodies, strict=True)
    for lsn, kind, time, route, not_before, expires_at, priority, via, header, name, body in rows:
        yield Record(lsn, Kind(kind), name, time, route, header, body, not_before, expires_at, priority, via)


def _covers(pairs: object, lsn: int) -> bool:
    flat = cast("list[int]", pairs)
    return any(flat[i] <= lsn < flat[i + 1] for i in range(0, len(flat), 2))


def _whom(to: Sequence[tuple[str, str, int]], pairs: object, lsn: int) -> dict[str, object]:
    """Of several that one record granted something, who got this message."""
    consumer, client, _ = to[_whose([count for _, _, count in to], pairs, lsn)]
    return {"consumer": consumer, "client": client}


def _whose(counts: Sequence[int], pairs: object, lsn: int) -> int:
    """Of several that have so many pairs each, the place of who has this message, which is in one of the pairs."""
    flat, start = cast("list[int]", pairs), 0
    for place, count in enumerate(counts):
        if _covers(flat[2 * start : 2 * (start + count)], lsn):
            return place
        start += count
    raise AssertionError("no pair has it")


def _why(header: Mapping[str, object]) -> dict[str, str]:
    """Causes and words of an EXPIRE record."""
    causes, why = told(header)
    return {"reason": why, "cause": causes} if why else {"reason": causes}


def _json(header: bytes) -> dict[str, object]:
    return cast("dict[str, object]", unwrap(orjson.loads(header))) if header else {}
