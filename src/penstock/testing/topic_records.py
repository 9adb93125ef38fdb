"""Records of a topic and rows of a view: those there are, subscriptions to what becomes of them, and their removal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock.client.arguments import arguments_checked
from penstock.client.bodies import parsed
from penstock.errors import InvalidArgument
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue
from penstock.server.follow import Follow
from penstock.server.views.record_query import Event
from penstock.testing.broker_life import VHOST, Running
from penstock.testing.inbox import Message, Subscription, Unleased, written
from penstock.testing.instance import Instance
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.wire.flight.commands import Subscribe


COLUMNS = ["sow_key", "topic", "exchange", "body", "lsn", "bookmark", "properties"]
"""Of an answer: what a record is made of."""

_columns = itemgetter(*COLUMNS)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an answer.  `key` is None in an answer about a queue."""

    key: str | None
    topic: str
    body: bytes
    lsn: int
    bookmark: str
    properties: bytes = b""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Record:
        """A row of an answer, with these columns."""
        key, topic, exchange, body, lsn, bookmark, properties = _columns(row)
        where = f"{exchange}/{topic}" if exchange else topic
        return cls(key, where, body, lsn or 0, bookmark or "", properties or b"")

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        """The publisher's headers; empty without any."""
        return header_codec.decode(self.properties).headers or {}

    def json(self) -> Any:
        """The body parsed as JSON.  Raises InvalidBody, a ValueError too, when it is none."""
        return parsed(self.body, lambda: f" of {self.bookmark!r} in topic {self.topic!r}")


@arguments_checked
class Records(Running):
    def sow(
        self,
        topic: str,
        filter: str | None = None,
        order_by: str | Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        projection: str | Sequence[str] | None = None,
        grouping: str | Sequence[str] | None = None,
        *,
        select: str | Sequence[str] | None = None,
    ) -> list[Record]:
        """The rows of a view, the records of a SOW topic, or what is available in a queue.  It leases nothing.

        order_by      `/total DESC, /id`, or a list of such parts; without it their order says nothing
        top_n         the first so many after `skip_n`
        projection, grouping    `SUM(/total) AS /total`, `/region`: rows as a view with these would have; the filter is
            about messages then, order_by about rows
        select        which fields of a JSON body are sent: `-/, +/id` the id alone, `-/notes` all but the notes
        Raises NotFound, InvalidArgument for a topic without a key, ExpressionError.
        """
        asked = {
            "filter": filter, "order_by": order_by, "top_n": top_n, "skip_n": skip_n, "projection": projection,
            "grouping": grouping, "select": select,
        }  # fmt: skip
        return self.command(lambda _: list(self.asked_for(topic, asked)))

    def asked_for(self, name: str, asked: Mapping[str, object], client: str = "") -> Iterator[Record]:
        """What a query finds; on the loop."""
        exchange, topic = self.link.parted(name)
        rows = self.link.rows(client, "sow", topic=topic, exchange=exchange, columns=COLUMNS, **asked)
        return (Record.of(row) for row in rows)

    def sow_delete(
        self,
        topic: str,
        filter: str | None = None,
        keys: Sequence[str] | None = None,
        data: bytes | str | None = None,
        by: str = "",
    ) -> int:
        """Remove records, durably: those a filter matches (`1=1`: all), those of some keys, or that of a message.

        How many there were.  What waits in queues stays.
        """
        text = data.decode() if isinstance(data, bytes) else data

        def work(instance: Instance) -> int:
            exchange, key = self.link.parted(topic)
            return self.link.remove(by, topic=key, exchange=exchange, filter=filter, keys=keys, data=text)

        return self.command(work)

    def watch(self, instance: Instance, client: str, wanted: Subscribe, *, timed: bool) -> RecordSubscription | None:
        """Subscribe to the records of a topic; None when it has none.  On the loop."""
        from penstock.server.flight.doget import fields_sent, wish_of

        engine, topic, wish = instance.engine, wanted.topic, wish_of(wanted)
        rows = engine.views.shown(VHOST, topic) is not None or bool(wish.projection) or wish.grouping is not None
        exchange, key = ("", topic) if rows else self.link.parted(topic)
        if not rows and (VHOST, exchange, key) not in engine.core.sows.by_name:
            if wish.paged:
                raise InvalidArgument(f"topic '{topic}' in vhost '{VHOST}' has no key, so there are no pages of it")
            if wish.conflation is None:
                return None
            if engine.core.find_queue(VHOST, topic) is not None:
                raise InvalidArgument(f"'{topic}' is no topic with a key, and no view: nothing is conflated")
        subscription = RecordSubscription(self, instance, topic, client, timed=timed)
        name = VHOST, exchange, key
        subscription.select = fields_sent(engine.core, name, wish)
        subscription.follow = Follow(engine.views.events(*name, wish), subscription.inbox)
        return subscription

    def look_first(self, instance: Instance, wanted: Subscribe, subscription: Subscription) -> None:
        """What is available in a queue, before it is leased: read only."""
        queue = wanted.topic
        for record in self.asked_for(queue, {"filter": wanted.filter, "select": wanted.select}, subscription.name):
            holder = RecordSubscription(self, instance, queue, subscription.name)
            subscription.put(RecordMessage(holder, record, instance.log.origin, queue))


class RecordMessage(Message):
    """A record, or what became of one.  There is nothing to settle."""

    def __init__(
        self, holder: Subscription, event: Event | Record, origin: int, queue: str, *, timed: bool = False
    ) -> None:
        super().__init__(
            holder,
            queue=queue,
            topic=written(event.topic) if isinstance(event, Event) else event.topic,
            body=event.body,
            properties=event.properties,
            lsn=event.lsn,
            bookmark=format_bookmark(origin, event.lsn),
            time=event.time / 1e6 if timed and isinstance(event, Event) else None,
        )
        self.kind = event.kind if isinstance(event, Event) else "sow"  # sow: of the snapshot; publish; oof
        self.key = event.key
        self._why = event.reason if isinstance(event, Event) else ""

    @property
    def reason(self) -> str:
        """Of an oof: deleted, expired, match; else empty."""
        return self._why

    def __repr__(self) -> str:
        return f"RecordMessage({self.kind} {self.reason or self.topic!r}, {self.body[:40]!r}, {self.bookmark!r})"


class RecordSubscription(Unleased[list[Event]]):
    """Made by `Broker.subscribe` with `sow`, `delta` or `oof`."""

    def __init__(self, broker: Records, instance: Instance, topic: str, name: str, *, timed: bool = False) -> None:
        """For the broker alone, which sets `follow`.  timed: the time is sent, too."""
        super().__init__(broker, instance, topic, name)
        self._timed = timed

    def receive(self, portion: list[Event]) -> None:
        events, select = portion, self.select
        if select is not None:
            events = [replace(event, body=select.body(event.body)) for event in events]
        origin = self._instance.log.origin
        self._inbox += (RecordMessage(self, event, origin, self.queue, timed=self._timed) for event in events)
