"""`amq.rabbitmq.event`: what changes, as messages, for whoever has bound a queue to that exchange of the default vhost.

As RabbitMQ's plugin of that name has it: the routing key is the event (`queue.created`, `connection.closed` ...), the
headers say what it is about, the body is empty.  The events are those of the feed; they are told when they are durable.
While nothing is bound nothing is done, and what cannot be stored is not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.core.topology.topology import EVENTS
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes, Topic

if TYPE_CHECKING:
    from penstock.records.field_tables import Table
    from penstock.server.notices import Feed, Happened
    from penstock.server.runtime import Runtime

VHOST = "/"

PORTION = 256
"""Events of one batch."""

TOLD = frozenset(
    f"{noun}.{verb}"
    for noun, verbs in {
        "queue": "created deleted", "exchange": "created deleted", "binding": "created deleted",
        "consumer": "created deleted", "connection": "created closed", "policy": "set cleared", "alarm": "set cleared",
    }.items()
    for verb in verbs.split()
)  # fmt: skip
"""Those that RabbitMQ has, by its names; others of the feed may come of a message, and would go round."""


class EventExchange:
    """Listens to the feed.  Belongs to the loop's thread."""

    def __init__(self, runtime: Runtime, feed: Feed) -> None:
        self._runtime = runtime
        self._feed = feed
        self._at = feed.last
        feed.listeners.add(self._heard)

    def _heard(self) -> None:
        while some := self._feed.since(self._at, PORTION):
            self._at = some[-1].number
            self._publish([one for one in some if one.name in TOLD])

    def _publish(self, some: list[Happened]) -> None:
        runtime = self._runtime
        core = runtime.core
        bound = any(True for _ in core.topology.bindings_from(VHOST, EVENTS))
        if not some or not bound or runtime.broken is not None or runtime.log.full or core.draining:
            return
        topics = [Topic(VHOST, EVENTS, one.name) for one in some]
        headers = [_header(one) for one in some]
        core.publish(runtime.now(), Publishes(topics, headers, [b""] * len(some), size=sum(map(len, headers))))
        runtime.arm()


def _header(one: Happened) -> bytes:
    fields = {**one.fields, "timestamp_in_ms": one.time // 1000}
    return header_codec.encode(
        header_codec.Properties(
            headers=cast("Table", fields), delivery_mode=header_codec.PERSISTENT, timestamp=one.time // 1_000_000
        )
    )
