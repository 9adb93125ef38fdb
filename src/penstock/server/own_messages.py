"""Messages that the server makes of what happens, as RabbitMQ's plugins do: events, and traces of other messages.

Both are for who has bound a queue to their exchange, and are made for nobody else.  What cannot be stored is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import orjson

from penstock.core.publishing.delayed import PREFIX
from penstock.core.state.encoding import as_table
from penstock.core.topology.topology import EVENTS, TRACE
from penstock.errors import InvalidArgument
from penstock.records import properties as header_codec
from penstock.records.entries import Entry, Group, Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.server.gates import receiver_of
from penstock.server.notices import AMQP, Connected, Feed, Happened, clipped, ends
from penstock.wire.amqp.frames import Limits
from penstock.wire.amqp.pieces import fitting, properties_most

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.memory.slab import Piece
    from penstock.records.field_tables import FieldValue, Table
    from penstock.server.base.runtime import Runtime


class _Telling:
    """What both do: publish what they are made of, where anything may be published."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def _may(self) -> bool:
        runtime = self._runtime
        return runtime.broken is None and not runtime.log.room.full and not runtime.core.draining

    def _store(self, topics: list[Topic], headers: list[bytes], bodies: list[bytes]) -> None:
        size = sum(map(len, headers)) + sum(map(len, bodies))
        self._runtime.core.publish(self._runtime.now(), Publishes(topics, headers, bodies, size=size))
        self._runtime.arm()


# -- events


VHOST = "/"

PORTION = 256
"""Events of one batch."""

AT_RABBITMQ = frozenset(
    f"{noun}.{verb}"
    for noun, verbs in {
        "queue": "created deleted", "exchange": "created deleted", "binding": "created deleted",
        "consumer": "created deleted", "connection": "created closed", "policy": "set cleared", "alarm": "set cleared",
        "user": "created deleted", "user.password": "changed cleared", "user.tags": "set", "user.limits": "set cleared",
        "vhost": "created updated deleted", "vhost.limits": "set cleared", "permission": "created deleted",
        "topic.permission": "created deleted", "parameter": "set cleared",
    }.items()
    for verb in verbs.split()
)  # fmt: skip
"""Those that RabbitMQ has, by its names; others of the feed may come of a message, and would go round."""


NAMES: Mapping[str, Mapping[str, str]] = {
    "queue": {"queue": "name"},
    "exchange": {"exchange": "name"},
    "policy": {"policy": "name", "apply_to": "apply-to"},
    "binding": {
        "source": "source_name", "destination": "destination_name", "destination_type": "destination_kind",
        "key": "routing_key",
    },
}  # fmt: skip
"""What RabbitMQ calls fields of ours, by the first word of the event; both are told."""


BY_ITSELF = "rmq-internal"
"""Who did what nobody asked for, as RabbitMQ calls itself there."""

PROTOCOLS = {"amqp": AMQP}
"""What RabbitMQ calls doors; others have their own names."""


class EventExchange(_Telling):
    """Events: listens to the feed, and to what it is told itself.  Belongs to the loop's thread.

    The exchange is `amq.rabbitmq.event` of the default vhost.  The routing key is the event (`queue.created`,
    `connection.closed` ...), the headers say what it is about and who asked for it, the body is empty.  Most come from
    the feed of `server.notices`.  Channels and logins come and go too often for a ring that others read: they are told
    here alone, and only while somebody wants them.
    """

    def __init__(self, runtime: Runtime, feed: Feed) -> None:
        super().__init__(runtime)
        self._feed = feed
        self._at = feed.last
        self._own: list[Happened] = []  # not in the feed, and not told yet
        feed.listeners.add(self._heard)

    def _heard(self) -> None:
        while self._takes() and (some := self._feed.since(self._at, PORTION)):
            self._at = some[-1].number
            self._publish([one for one in some if one.name in AT_RABBITMQ])
        self._at = self._feed.last

    # -- what the feed does not have

    def channel(self, session: Connected, number: int, *, opened: bool) -> None:
        """A channel of a connection is open, or is no more."""
        if self._takes():
            name = session.name
            fields = {
                "name": f"{name} ({number})", "connection": name, "number": number, "vhost": session.vhost,
                "user": session.user,
            }  # fmt: skip
            self._tell("channel.created" if opened else "channel.closed", fields, session.user)

    def logged_in(self, session: Connected) -> None:
        """Somebody has logged in over AMQP."""
        if self._takes():
            fields = {
                **ends(session), "name": session.user, "connection_name": session.name,
                "connection_type": "network", "ssl": session.tls is not None, "protocol": AMQP,
                "auth_mechanism": session.machine.mechanism,
            }  # fmt: skip
            self._tell("user.authentication.success", fields)

    def refused(self, door: str, user: str, host: str, why: str) -> None:
        """Somebody was not let in, at any door."""
        if self._takes():
            fields = {"name": user, "peer_host": host, "protocol": PROTOCOLS.get(door, door), "error": why}
            self._tell("user.authentication.failure", fields)

    def _tell(self, name: str, fields: Mapping[str, object], by: str | None = None) -> None:
        if not self._own:
            self._runtime.call_soon(self._say_own)
        short = {key: clipped(value) for key, value in fields.items()}
        self._own.append(Happened(0, name, self._runtime.clock.wall(), short, by=by))

    def _say_own(self) -> None:
        own, self._own = self._own, []
        if self._takes():
            for first in range(0, len(own), PORTION):
                self._publish(own[first : first + PORTION])

    def _takes(self) -> bool:
        """Whether what happened may be published, and somebody wants it; else it is passed over."""
        return self._may() and any(True for _ in self._runtime.core.topology.bindings_from(VHOST, EVENTS))

    def _publish(self, some: list[Happened]) -> None:
        if some:
            topics = [Topic(VHOST, EVENTS, one.name) for one in some]
            self._store(topics, list(map(_as_header, some)), [b""] * len(some))


def _as_header(one: Happened) -> bytes:
    theirs = NAMES.get(one.name.partition(".")[0], {})
    renamed = {theirs[key]: value for key, value in one.fields.items() if key in theirs}
    if "source_name" in renamed:
        renamed["source_kind"] = "exchange"
    asked = {} if one.by is None else {"user_who_performed_action": one.by or BY_ITSELF}
    plain = {**one.fields, **renamed, **asked, "timestamp_in_ms": one.time // 1000}
    tables = {key: as_table(cast("Table", value)) for key, value in plain.items() if isinstance(value, Mapping)}
    properties = header_codec.Properties(
        headers=cast("Table", {**plain, **tables}),
        delivery_mode=header_codec.PERSISTENT,
        timestamp=one.time // 1_000_000,
    )
    try:
        return header_codec.encode(properties)
    except InvalidArgument:  # a definition may say what AMQP has no form for: a name of 256 bytes
        told = {key: value if isinstance(value, str) else orjson.dumps(value).decode() for key, value in plain.items()}
        properties.headers = cast("Table", told)
        return header_codec.encode(properties)


# -- traces


PENDING_MOST = 100_000
"""Traces that wait for the end of a turn; what comes beyond is not told."""

HEADER_MOST = properties_most(Limits().frame_max)
"""Bytes of a trace's header beyond which the message's own headers are left out: a frame that every client takes."""

FIRST_DEATH = b"x-first-death-exchange"
"""The header of a dead letter that says to which exchange its message was published at first."""

_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip


class _Trace(NamedTuple):
    topic: Topic
    header: bytes
    body: bytes


class Traces(_Telling):
    """The firehose: what is published and delivered in a vhost.  Belongs to the loop's thread.

    As in RabbitMQ: the exchange is `amq.rabbitmq.trace`, the key is `publish.EXCHANGE` or `deliver.QUEUE`, the body is
    the message's, the headers say the rest.  It is on for the vhosts that say `tracing`.  What is published is read off
    the journal, whatever door it came by; what nobody stores is not told.  What is delivered is told as it is handed to
    its receiver.  A trace is a message like any other, and none is made of a trace, nor of an event: those tell of all
    vhosts and of people, and are for administrators, who reads traces need not be one.  Nor is any made of their dead
    letters: the traces of those would die as they did, for ever.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._pending: list[_Trace] = []
        self.dropped = 0  # since the start, for want of room

    # -- what is told

    def gather(self, journal: Sequence[Entry]) -> None:
        """Of a turn: tell what it has stored."""
        for entry in journal:
            if isinstance(entry, Publishes):
                self._published(entry)
            elif isinstance(entry, Group):
                for part in entry.entries:
                    if isinstance(part, Publishes):
                        self._published(part)

    def _published(self, batch: Publishes) -> None:
        core = self._runtime.core
        heard = {one for one in batch.distinct_topics if self._hears(one) and not one.exchange.startswith(PREFIX)}
        if not heard:
            return
        for row, body in enumerate(listed(batch.bodies)):
            topic = batch.topic_of(row)
            if topic not in heard or self._was_told(batch.first + row, batch.properties_of(row)):
                continue
            route = batch.routes if isinstance(batch.routes, int) else batch.routes[row]
            queues = [core.queue_by_id(number) for number in core.queues_of_route(route)]
            names: FieldValue = [one.name for one in queues if one is not None and one.exchange is None]
            connection, channel, user = batch.sender or ("", 0, "")
            more: Table = {"connection": connection, "channel": channel, "user": user, "routed_queues": names}
            self._tell(f"publish.{topic.exchange}", topic, batch.properties_of(row), bytes(body), more)

    def delivered(self, effect: Delivery, piece: Piece) -> None:
        """Rows of a piece, which are in memory, are handed to who takes them."""
        consumer = effect.consumer
        receiver, (_, _, channel) = receiver_of(consumer), consumer.client.rpartition("/")
        for row, body in enumerate(piece.bodies or ()):
            topic, properties = piece.topic_of(row), piece.properties_of(row)
            if not self._hears(topic) or self._was_told(piece.chunk[row], properties):
                continue
            more: Table = {
                "redelivered": int(effect.redelivered),
                "connection": receiver.connection or consumer.client,
                "channel": int(channel) if receiver.connection and channel.isdecimal() else 0,
                "user": receiver.user,
            }
            self._tell(f"deliver.{effect.queue.name}", topic, properties, bytes(body), more)

    def _hears(self, topic: Topic) -> bool:
        """Whether somebody is told of messages of this topic."""
        core = self._runtime.core
        if topic.vhost not in core.traced or topic.exchange in {TRACE, EVENTS}:
            return False
        return any(True for _ in core.topology.bindings_from(topic.vhost, TRACE))

    def _was_told(self, lsn: int, properties: bytes) -> bool:
        """Whether a message is a dead letter of a trace or an event; others may say that they are, and are none."""
        if FIRST_DEATH not in properties or not self._runtime.core.is_letter(lsn):
            return False
        return (header_codec.decode(properties).headers or {}).get(FIRST_DEATH.decode()) in {TRACE, EVENTS}

    # -- how it is told

    def _tell(self, key: str, topic: Topic, properties: bytes, body: bytes, more: Table) -> None:
        if len(self._pending) >= PENDING_MOST:
            self.dropped += 1
            return
        if not self._pending:
            self._runtime.call_soon(self._publish)
        message = header_codec.decode(properties)
        said = {name: value for name in _NAMES if (value := getattr(message, name)) is not None}
        if said.get("timestamp", 0) >= 2**63:  # no number of a table, and a time that clients fail at
            said["timestamp"] = str(said["timestamp"])
        table: Table = {
            "exchange_name": topic.exchange,
            "routing_keys": [topic.name, *_carbon(message.headers)],
            "properties": said,
            "node": self._runtime.core.instance,
            "vhost": topic.vhost,
            **more,
        }
        try:
            header = header_codec.encode(header_codec.Properties(headers=table))
        except InvalidArgument:  # its headers nest as deep as any may, and two tables deeper there is no place for them
            header = b""
        if not 0 < len(header) <= HEADER_MOST:
            said.pop("headers", None)
            table["routing_keys"] = [topic.name]  # CC is one of its headers
            header = header_codec.encode(header_codec.Properties(headers=table))
        self._pending.append(_Trace(Topic(topic.vhost, TRACE, fitting(key)), header, body))

    def _publish(self) -> None:
        some, self._pending = self._pending, []
        if some and self._may():
            self._store([one.topic for one in some], [one.header for one in some], [one.body for one in some])


def _carbon(headers: Mapping[str, FieldValue] | None) -> Iterator[str]:
    """Further keys that a message says."""
    found = None if headers is None else headers.get("CC")
    if isinstance(found, list):
        yield from (str(one) for one in found)
