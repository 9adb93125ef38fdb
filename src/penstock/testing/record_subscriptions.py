"""Records of a topic and rows of a view: those there are, and subscriptions to what becomes of them; none is leased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, LogBroken, NotFound
from penstock.server.follow import Follow
from penstock.server.sow.record_events import Event
from penstock.server.sow.record_events import Wish as RecordWish
from penstock.testing.arguments import check_count, check_text, check_texts
from penstock.testing.instance import Instance
from penstock.testing.message import Message
from penstock.testing.records import Record, Records, records_of, select_of
from penstock.testing.running import VHOST
from penstock.testing.settling import Settling
from penstock.testing.subscription import Subscription, Unleased, written
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.core.views.view import View


class RecordMessage(Message):
    """A record, or what became of one.  There is nothing to settle."""

    def __init__(
        self, holder: Subscription, event: Event | Record, origin: int, queue: str, *, timed: bool = False
    ) -> None:
        super().__init__(
            holder,
            queue=queue,
            queue_id=0,
            topic=written(event.topic) if isinstance(event, Event) else event.topic,
            body=event.body,
            properties=event.properties,
            lsn=event.lsn,
            bookmark=format_bookmark(origin, event.lsn),
            attempt=1,
            redelivered=False,
            lease_until=None,
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

    def __init__(
        self, broker: Watching, instance: Instance, topic: str, name: str, wish: RecordWish | None = None
    ) -> None:
        """For the broker alone, which sets `follow`.  wish: says which fields are sent, and whether the time is."""
        super().__init__(broker, instance, topic, name, None if wish is None else wish.select)
        self._timed = wish is not None and wish.timestamp

    def receive(self, portion: list[Event]) -> None:
        events, select = portion, self.select
        if select is not None:
            events = [replace(event, body=select.body(event.body)) for event in events]
        origin = self._instance.log.origin
        self._inbox += (RecordMessage(self, event, origin, self.queue, timed=self._timed) for event in events)


def parted(instance: Instance, text: str) -> tuple[str, str]:
    """Exchange and key of a topic as people write it."""
    exchange, slash, key = text.partition("/")
    there = slash and exchange and instance.core.topology.exchange(VHOST, exchange) is not None
    return (exchange, key) if there else ("", text)


class Watching(Records, Settling):
    def watch(self, instance: Instance, topic: str, client: str, wish: RecordWish) -> RecordSubscription | None:
        """Subscribe to the records of a topic; None when it has none.  On the loop."""
        views, core = instance.engine.views, instance.core
        rows = views.shown(VHOST, topic) is not None or bool(wish.projection) or wish.grouping is not None
        found = None if rows else self.find_sow(instance, topic)
        exchange, key = ("", topic) if rows else parted(instance, topic)
        if found is not None:
            exchange, key = found.exchange, found.name
        elif not rows:
            if wish.paged:
                raise InvalidArgument(f"topic '{topic}' in vhost '{VHOST}' has no key, so there are no pages of it")
            if wish.conflation is None or core.find_queue(VHOST, topic) is not None:
                return None
        subscription = RecordSubscription(self, instance, topic, client, wish)
        if found is not None and wish.delta and wish.select is not None:
            subscription.select = wish.select.with_paths(found.rule.paths)
        subscription.follow = Follow(views.events(VHOST, exchange, key, wish), subscription.inbox)
        return subscription

    def look_first(self, instance: Instance, queue: str, wish: RecordWish, subscription: Subscription) -> None:
        """What is available in a queue, before it is leased: read only."""
        if not wish.sow:
            return
        for record in records_of(instance, queue, filter=wish.filter, select=wish.select):
            holder = RecordSubscription(self, instance, queue, subscription.name)
            subscription.put(RecordMessage(holder, record, instance.log.origin, queue))

    @staticmethod
    def find_sow(instance: Instance, text: str) -> Sow | None:
        """The SOW topic of this name, if it is one."""
        exchange, slash, key = text.partition("/")
        for name in ((exchange, key), ("", text)) if slash and exchange else (("", text),):
            try:
                return instance.core.sow(VHOST, *name)
            except (NotFound, InvalidArgument):
                continue
        return None


class Viewing(Watching):
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
        from penstock.server.views.row_queries import adhoc_view, chosen

        check_text(filter=filter)
        check_texts(order_by=order_by, projection=projection, grouping=grouping, select=select)
        check_count(top_n=top_n, skip_n=skip_n)
        view = adhoc_view(topic, projection, grouping, VHOST)
        fields = select_of(select, gathered=view is not None)

        def work(instance: Instance) -> list[bytes] | None:
            shown = instance.engine.views.shown(VHOST, topic)
            if shown is None and view is None:
                return None
            if instance.engine.broken is not None:
                raise LogBroken(instance.engine.broken)
            instance.make_durable()
            if view is not None:
                return _gathered(instance, topic, filter, view)
            return list(shown.rows().values()) if shown is not None else None

        found = self.command(work)
        if found is None:
            return super().sow(topic, filter, order_by, top_n, skip_n, select=select)
        rows = chosen(found, filter=filter if view is None else None, order_by=order_by, top_n=top_n, skip_n=skip_n)
        return [Record(None, topic, body if fields is None else fields.body(body), 0, "") for body in rows]


def _gathered(instance: Instance, topic: str, filter: str | None, view: View) -> list[bytes]:
    from penstock.server.views.row_queries import chosen, gather, gather_bodies, positions

    shown = instance.engine.views.shown(VHOST, topic)
    if shown is not None:
        return gather_bodies(view, chosen(list(shown.rows().values()), filter=filter))
    from penstock.history.history import History

    history = History(instance.log, lambda: False)
    rows = history.rows_at(positions(instance.core, VHOST, topic))
    if filter is not None:
        rows = history.matching(rows, filter, VHOST)
    return gather(view, rows, history.exchange_of)
