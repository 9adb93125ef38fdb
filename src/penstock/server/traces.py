"""The firehose: what is published and delivered in a vhost, as messages of the exchange `amq.rabbitmq.trace`.

As in RabbitMQ: the key is `publish.EXCHANGE` or `deliver.QUEUE`, the body is the message's, the headers say the rest.
It is on for the vhosts that say `tracing`, and nothing is done for those to whose exchange nobody has bound anything.
What is published is read off the journal, whatever door it came by; what nobody stores is not told.  What is delivered
is told as it is handed to its receiver.  A trace is a message like any other, and none is made of a trace, nor of an
event: those tell of all vhosts and of people, and are for administrators, who reads traces need not be one.  Nor is any
made of their dead letters: the traces of those would die as they did, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.publishing.delayed import PREFIX
from penstock.core.topology.topology import EVENTS, TRACE
from penstock.errors import InvalidArgument
from penstock.records import properties as header_codec
from penstock.records.entries import Group, Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.server.gates import receiver_of
from penstock.wire.amqp.frames import Limits
from penstock.wire.amqp.pieces import fitting, properties_most

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.memory.slab import Piece
    from penstock.records.entries import Entry
    from penstock.records.field_tables import FieldValue, Table
    from penstock.server.base.runtime import Runtime


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


class Traces:
    """Belongs to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
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
        runtime, some = self._runtime, self._pending
        self._pending = []
        if not some or runtime.broken is not None or runtime.log.room.full or runtime.core.draining:
            return
        topics, headers, bodies = [one.topic for one in some], [one.header for one in some], [one.body for one in some]
        size = sum(map(len, headers)) + sum(map(len, bodies))
        runtime.core.publish(runtime.now(), Publishes(topics, headers, bodies, size=size))
        runtime.arm()


def _carbon(headers: Mapping[str, FieldValue] | None) -> Iterator[str]:
    """Further keys that a message says."""
    found = None if headers is None else headers.get("CC")
    if isinstance(found, list):
        yield from (str(one) for one in found)
