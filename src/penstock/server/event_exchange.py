"""Events as messages: whoever has bound a queue to `amq.rabbitmq.event` of the default vhost has them, as RabbitMQ's
plugin of that name has it.

The routing key is the event (`queue.created`, `connection.closed` ...), the headers say what it is about and who asked
for it, the body is empty.  Most come from the feed of `server.notices`.  Channels and logins come and go too often for
a ring that others read: they are told here alone, and only while somebody wants them.  What cannot be stored is not
told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import orjson

from penstock.core.state.encoding import as_table
from penstock.core.topology.topology import EVENTS
from penstock.errors import InvalidArgument
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes, Topic
from penstock.server.notices import AMQP, Connected, Happened, clipped, ends

if TYPE_CHECKING:
    from penstock.records.field_tables import Table
    from penstock.server.base.runtime import Runtime
    from penstock.server.notices import Feed


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


class EventExchange:
    """Listens to the feed, and to what it is told itself.  Belongs to the loop's thread."""

    def __init__(self, runtime: Runtime, feed: Feed) -> None:
        self._runtime = runtime
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
        runtime = self._runtime
        if runtime.broken is not None or runtime.log.room.full or runtime.core.draining:
            return False
        return next(iter(runtime.core.topology.bindings_from(VHOST, EVENTS)), None) is not None

    def _publish(self, some: list[Happened]) -> None:
        if not some:
            return
        runtime = self._runtime
        topics = [Topic(VHOST, EVENTS, one.name) for one in some]
        headers = [_as_header(one) for one in some]
        runtime.core.publish(runtime.now(), Publishes(topics, headers, [b""] * len(some), size=sum(map(len, headers))))
        runtime.arm()


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
