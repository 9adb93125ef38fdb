"""Events of what is decided and of who comes and goes: read off the journal of a turn, told once it is durable.

A change of the topology is a record of the log, so the journal has all of them, whatever door they came by; batches of
messages and what happens to them are passed over at the cost of a look at each batch.  A policy may change thousands of
queues at once: the first of them are told one by one, the others as a number.

The feed is a ring of the last few thousand events.  Everybody who looks on reads it from a place of his own, so a slow
one costs nothing but his place: what he has not read when the ring comes round is lost to him, and he is told.

Who asked for what is decided is known to the door alone, so it marks what is its own: `Notices.by`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

import orjson

from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.queue import queue_of
from penstock.core.state.durable import Binding
from penstock.core.state.encoding import as_table, wrap
from penstock.records.dataclass import dataclass
from penstock.records.entries import Control, Entry, Group
from penstock.records.kinds import Kind
from penstock.records.rights import ADMINISTRATOR, MONITORING, Level
from penstock.server.follow import Reader, Source
from penstock.server.people.access import ACTING
from penstock.server.unheard import Unheard
from penstock.units import parted_address

if TYPE_CHECKING:
    from penstock.server.base.runtime import Runtime
    from penstock.server.sockets.tls import Peer


RING_MOST = 4096
"""Events that are kept."""

TEXT_MOST = 1000
"""Characters of a text in an event; what is longer is cut."""

TABLE_MOST = 8192
"""Bytes of a table in an event, as JSON."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event.  Its scope: who is shown it."""

    number: int  # 1, 2, ... in this run of the server
    name: str  # "queue.created"
    time: int  # microseconds since the epoch
    fields: Mapping[str, object]
    vhost: str | None = None  # None: it is of no vhost
    queue: str | None = None  # who sees this queue of the vhost
    user: str | None = None  # this user, and who sees the connections of others
    level: Level | None = None  # who has this tag
    by: str | None = None  # who asked for it, "" the server itself; None: nobody asks for such a thing


class Feed:
    """The ring.  Belongs to the loop's thread."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], most: int = RING_MOST) -> None:
        self._call_soon = call_soon
        self._ring: deque[Happened] = deque(maxlen=most)
        self.last = 0  # the number of the last event
        self.listeners: set[Callable[[], None]] = set()  # called once after a turn that brought events
        self._ringing = False

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept; the next one's where none is."""
        return self.last - len(self._ring) + 1

    def tell(
        self,
        name: str,
        time: int,
        fields: Mapping[str, object],
        *,
        vhost: str | None = None,
        queue: str | None = None,
        user: str | None = None,
        level: Level | None = None,
        by: str | None = None,
    ) -> None:
        """Something has changed; `fields` are JSON."""
        self.last += 1
        short = {key: clipped(value) for key, value in fields.items()}
        self._ring.append(Happened(self.last, name, time, short, vhost, queue, user, level, by))
        if self.listeners and not self._ringing:
            self._ringing = True
            self._call_soon(self._ring_out)

    def hide(self, vhost: str) -> None:
        """A vhost begins: what happened in an earlier one of its name is for who sees all of them."""
        others = deque[Happened](maxlen=self._ring.maxlen)
        for one in self._ring:
            mine = one.vhost == vhost
            others.append(replace(one, vhost=None, queue=None, user=None, level=MONITORING) if mine else one)
        self._ring = others

    def since(self, number: int, most: int) -> list[Happened]:
        """Up to `most` events after this one, oldest first; those that are kept."""
        skip = max(number + 1 - self.first, 0)
        if skip >= len(self._ring):
            return []
        if len(self._ring) - skip <= most:  # near the end, where readers are: a deque is walked from its nearer side
            tail = list(islice(reversed(self._ring), len(self._ring) - skip))
            tail.reverse()
            return tail
        return list(islice(self._ring, skip, skip + most))

    def _ring_out(self) -> None:
        self._ringing = False
        for listener in list(self.listeners):
            listener()


class Missed(NamedTuple):
    """Events that the ring does not keep any more."""

    after: int  # the number of the last one before them
    lost: int


class RingSource(Source[Sequence[Happened | Missed]]):
    """The events after one of them.  Nobody slows the feed: what a reader has not asked for in time is lost to him."""

    def __init__(self, feed: Feed, at: int) -> None:
        self._feed = feed
        self.at = at
        self._step: Callable[[], None] = lambda: None

    @property
    def behind(self) -> bool:
        return self.at < self._feed.last

    def begin(self, reader: Reader[Sequence[Happened | Missed]]) -> None:
        self._step = reader.step
        self._feed.listeners.add(self._step)

    def next(self, room: int) -> Sequence[Happened | Missed] | None:
        if room <= 0 or not self.behind:
            return None
        after, lost = self.at, self._feed.first - 1 - self.at
        if lost > 0:
            self.at += lost
            return [Missed(after, lost)]
        events = self._feed.since(self.at, room)
        self.at = events[-1].number
        return events

    def close(self) -> None:
        self._feed.listeners.discard(self._step)


def clipped(value: object) -> object:
    """A value that is not too long for an event; of a table that is there is the beginning, as JSON."""
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        told = orjson.dumps(table, default=str)
        if len(told) <= TABLE_MOST:
            return table
        value = told[: 4 * TEXT_MOST].decode(errors="ignore")
    return value[:TEXT_MOST] + "…" if isinstance(value, str) and len(value) > TEXT_MOST else value


QUEUE_ID = struct.Struct("<q")

AMQP = "AMQP 0-9-1"
"""What RabbitMQ calls the protocol."""

Header = Mapping[str, object]

_Attended: TypeAlias = tuple[str, Header, str]
"""An event of a consumer, its fields, and whose it is."""


class _Known(NamedTuple):
    """What is told of a record."""

    kind: Kind
    time: int
    header: Header
    about: tuple[str, str] | None  # vhost and name; None: it is gone, and its end is told
    by: str


class Machine(Protocol):
    """What a client has said of itself, and what was agreed with it."""

    mechanism: str
    channel_max: int
    frame_max: int
    heartbeat: int  # seconds

    @property
    def client_properties(self) -> Mapping[str, object]:
        """What it calls itself, and can do."""
        ...


class Connected(Protocol):
    """A connection that opened a vhost."""

    peer: str  # addresses with ports
    local: str
    user: str
    vhost: str
    opened_at: int  # mono microseconds
    tls: Peer | None

    @property
    def name(self) -> str:
        """Both of its ends."""
        ...

    @property
    def machine(self) -> Machine:
        """Its protocol."""
        ...


def end_of(address: str, what: str = "") -> dict[str, object]:
    """Host and port of one end, by RabbitMQ's names: what + "host", what + "port"."""
    host, port = parted_address(address)
    return {f"{what}host": host, f"{what}port": int(port) if port.isdecimal() else 0}


def ends(session: Connected) -> dict[str, object]:
    """Where its client is, and where it came to."""
    return {**end_of(session.peer, "peer_"), **end_of(session.local)}


def said_of(session: Connected) -> dict[str, object]:
    """What its client has said of itself and what was agreed with it, by RabbitMQ's names."""
    machine = session.machine
    properties = machine.client_properties
    called = properties.get("connection_name")
    return {
        "protocol": AMQP, "auth_mechanism": machine.mechanism, "ssl": session.tls is not None,
        **({} if session.tls is None else session.tls.plain()), "channel_max": machine.channel_max,
        "frame_max": machine.frame_max, "timeout": machine.heartbeat, "client_properties": properties,
        **({"user_provided_name": called} if isinstance(called, str) else {}),
    }  # fmt: skip


class Notices:
    """What an engine's turns, and its doors, tell the feed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.feed = Feed(runtime.call_soon)
        self.attendance: list[tuple[bool, Consumer]] = []  # who came and went since the last turn
        runtime.core.attendance = self.attendance
        # what is not durable yet: consumers that went, what was decided, consumers that came
        self._untold = deque[tuple[list[_Attended], list[_Known], list[_Attended]]]()
        self.asked: list[tuple[int, int, str]] = []  # from, to: entries of this turn's journal, and who asked for them
        self._went = runtime.core.topology.went = dict[int, list[Binding]]()
        self.unheard = Unheard(runtime.clock.mono)

    @contextmanager
    def by(self, user: str) -> Generator[None]:
        """What is decided within is told as done by this user; empty: by the server itself."""
        core = self._runtime.core
        begun = len(core.journal)
        try:
            yield
        finally:
            if user and (end := len(core.journal)) > begun:
                self.asked.append((begun, end, user))

    def gather(self, journal: Sequence[Entry]) -> None:
        """At the end of a turn: have what it decided told once it is durable.

        Nobody asks after a turn of nothing but messages and their leases, where nobody came or went.
        """
        known, lsn, some = list[_Known](), 0, [_attended(*one) for one in self.attendance]
        for one, by in self._told(journal):
            self._add_known(one, by, known)  # a later turn may delete its queue
            lsn = one.lsn
        joined = any(came for came, _ in self.attendance)
        self.attendance.clear()
        self.asked.clear()
        self._went.clear()
        if self._runtime.broken is not None:
            self._attend(some)
        elif known:
            gone, came = ([], some) if joined else (some, [])  # behind the beginning of their queue, before its end
            self._untold.append((gone, known, came))
            self._runtime.when_durable(lsn, self._tell)
        elif self._untold:
            self._untold[-1][2].extend(some)
        else:
            self._attend(some)  # nothing waits for the disk because of them

    def _told(self, journal: Sequence[Entry]) -> Iterator[tuple[Control, str]]:
        """The records of a turn that are told, and who asked for each."""
        asked = deque(self.asked)
        for at, entry in enumerate(journal):
            for one in entry.entries if isinstance(entry, Group) else (entry,):
                if isinstance(one, Control) and one.kind in TOLD:
                    while asked and at >= asked[0][1]:
                        asked.popleft()
                    yield one, asked[0][2] if asked and at >= asked[0][0] else ""

    def _add_known(self, control: Control, by: str, known: list[_Known]) -> None:
        """A record, with the bindings that went with what it ends, as RabbitMQ tells them.

        All come before the end of what was bound, but those from an exchange after its own.
        """
        header: Header = orjson.loads(control.header) if control.header else {}
        about: tuple[str, str] | None = (str(header.get("vhost", "/")), control.name)
        if TOLD[control.kind].noun == "queue" and "vhost" not in header:
            queue = self._runtime.core.queue_by_id(QUEUE_ID.unpack_from(control.body)[0])
            about = None if queue is None else (queue.vhost, queue.name)
        end, behind = ("exchange", control.name), list[_Known]()
        for one in self._went.get(control.lsn, ()):
            after = control.kind is Kind.EXCHANGE_DELETE and (one.destination_type, one.destination) != end
            (behind if after else known).append(_unbound(control, one, by))
        known.append(_Known(control.kind, control.time, header, about, by))
        known += behind

    def _tell(self) -> None:
        """What was decided longest ago of all that waited."""
        gone, known, came = self._untold.popleft()
        self._attend(gone)
        counts = dict.fromkeys(MANY, 0)
        for kind, time, header, about, by in known:
            if kind in counts:
                counts[kind] += 1
                if counts[kind] > MANY[kind][0]:
                    continue
            if about is not None:
                if kind in (Kind.QUEUE_DECLARE, Kind.EXCHANGE_DECLARE):
                    made = self.unheard.queue if kind is Kind.QUEUE_DECLARE else self.unheard.exchange
                    made(*about, cast("Mapping[str, object]", header.get("arguments") or {}))
                TOLD[kind].tell(self.feed, time, header, *about, by)
        for kind, count in counts.items():
            most, event = MANY[kind]
            if count > most:
                self.feed.tell(event, known[-1].time, {"count": count - most})
        self._attend(came)

    # -- who comes and goes

    def _attend(self, some: Sequence[_Attended]) -> None:
        for name, fields, by in some:
            vhost, queue = str(fields["vhost"]), str(fields["queue"])
            self.feed.tell(name, self._runtime.clock.wall(), fields, vhost=vhost, queue=queue, by=by)

    def connection(self, session: Connected, *, opened: bool) -> None:
        """An AMQP connection opened its vhost, or is gone."""
        fields: dict[str, object] = {
            "name": session.name,
            "user": session.user,
            "vhost": session.vhost,
            **ends(session),
            **said_of(session),
        }
        fields["client_properties"] = wrap(fields["client_properties"])
        if not opened:
            fields["seconds"] = round((self._runtime.clock.mono() - session.opened_at) / 1e6, 3)
        name = "connection.created" if opened else "connection.closed"
        self.feed.tell(
            name, self._runtime.clock.wall(), fields, vhost=session.vhost, user=session.user, by=session.user
        )

    def accounts(self, events: Iterable[tuple[str, Mapping[str, object]]]) -> None:
        """Users, vhosts and what they may do have changed, as whoever acts now asked for."""
        by = ACTING.get()
        for name, fields in events:
            if name == "vhost.created":
                self.feed.hide(str(fields["name"]))
            self.feed.tell(name, self._runtime.clock.wall(), fields, level=ADMINISTRATOR, by=by)


def _attended(came: bool, consumer: Consumer) -> _Attended:
    queue, asked = queue_of(consumer), {"arguments": wrap(consumer.arguments or {})} if came else {}
    return "consumer.created" if came else "consumer.deleted", {
        "vhost": queue.vhost, "queue": queue.name, "consumer_tag": consumer.tag, "client": consumer.client,
        "ack_required": not consumer.no_ack, "exclusive": consumer.exclusive, **asked,
        "prefetch_count": 0 if consumer.limit >= UNLIMITED else consumer.limit,
    }, str(getattr(consumer.holder, "user", ""))  # fmt: skip


# -- records as events


def _unbound(control: Control, one: Binding, by: str) -> _Known:
    ends: Header = {
        "source": one.source, "destination": one.destination, "destination_type": one.destination_type, "key": one.key,
        "arguments": orjson.loads(one.arguments or "{}"),
    }  # fmt: skip
    return _Known(Kind.UNBIND, control.time, ends, (one.vhost, one.destination), by)


def _every(*keys: str) -> Callable[[Header], Header]:
    return lambda header: {key: header.get(key) for key in keys}


def _some(*keys: str) -> Callable[[Header], Header]:
    """Those of these fields that a header has."""
    return lambda header: {key: header[key] for key in keys if key in header}


class Notice(NamedTuple):
    """The event that a kind of record becomes."""

    event: str | Callable[[Header], str]
    noun: str = ""  # what the record's name is of; empty: it is told without it
    fields: Callable[[Header], Header] = _some()  # of its header; beside vhost and name

    def tell(self, feed: Feed, time: int, header: Header, vhost: str, name: str, by: str) -> None:
        event = self.event if isinstance(self.event, str) else self.event(header)
        fields = {**({self.noun: name} if self.noun else {}), **self.fields(header)}
        if self.noun == "stream":  # of no vhost
            feed.tell(event, time, fields, level=MONITORING, by=by)
        else:
            shown = name if self.noun == "queue" else None
            feed.tell(event, time, {"vhost": vhost, **fields}, vhost=vhost, queue=shown, by=by)


def _changed(header: Header) -> Header:
    changed = header.get("changed") or header.get("settings")
    return {"changed": sorted(cast("dict[str, object]", changed)) if isinstance(changed, dict) else []}


def _pause(header: Header) -> Header:
    until = cast("int", header.get("until", 0))
    return {"by": header.get("by", ""), **({"until": None if until >= NEVER else until / 1e6} if until else {})}


def _paused(header: Header) -> str:
    return "queue.paused" if header.get("until") else "queue.resumed"


def _address(header: Header) -> str:
    return "address_setting.set" if "values" in header else "address_setting.cleared"


def _released(header: Header) -> Header:
    return {"how": next((key for key in ("dropped", "abandoned") if header.get(key)), "released")}


def _policy(event: str) -> Notice:
    def name(header: Header) -> str:
        return f"{'operator_policy' if header.get('operator') else 'policy'}.{event}"

    told = _some("pattern", "priority", "apply_to")

    def fields(header: Header) -> Header:
        definition = header.get("definition")
        return {**told(header), "definition": as_table(definition)} if definition is not None else told(header)

    return Notice(name, "policy", fields)


_NAMED = _some("type", "exchange", "operator")
_ENDS = _every("source", "destination", "destination_type", "key", "arguments")

TOLD: Mapping[Kind, Notice] = {
    Kind.EXCHANGE_DECLARE: Notice(
        "exchange.created", "exchange", _some("type", "durable", "auto_delete", "internal", "arguments")
    ),
    Kind.EXCHANGE_DELETE: Notice("exchange.deleted", "exchange", _NAMED),
    Kind.QUEUE_DECLARE: Notice("queue.created", "queue", _every("durable", "exclusive", "auto_delete", "arguments")),
    Kind.QUEUE_ALTER: Notice("queue.altered", "queue", _changed),
    Kind.QUEUE_DELETE: Notice("queue.deleted", "queue"),
    Kind.PURGE: Notice("queue.purged", "queue"),
    Kind.PAUSE: Notice(_paused, "queue", _pause),
    Kind.BIND: Notice("binding.created", "", _ENDS),
    Kind.UNBIND: Notice("binding.deleted", "", _ENDS),
    Kind.TOPIC_DECLARE: Notice("topic.created", "topic", _NAMED),
    Kind.TOPIC_DELETE: Notice("topic.deleted", "topic", _NAMED),
    Kind.POLICY: _policy("set"),
    Kind.POLICY_DELETE: _policy("cleared"),
    Kind.ADDRESS_SETTING: Notice(_address, "pattern"),
    Kind.STREAM: Notice("stream.opened", "stream", _every("mode", "epoch")),
    Kind.STREAM_RELEASE: Notice("stream.released", "stream", _released),
}


MANY: Mapping[Kind, tuple[int, str]] = {
    Kind.QUEUE_ALTER: (100, "queues.altered"), Kind.UNBIND: (1000, "bindings.deleted"),
}  # fmt: skip
"""Of these so many are told one by one of one turn, and the others as a number by that event."""
