"""Records of a topic and rows of a view: those there are, subscriptions to what becomes of them, and their removal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from penstock.core.sow.select import SelectList, parse_select
from penstock.errors import InvalidArgument, LogBroken, NotFound
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue
from penstock.records.message_types import typed
from penstock.server.follow import Follow
from penstock.server.views.record_query import Event
from penstock.server.views.record_query import Wish as RecordWish
from penstock.testing.broker_life import VHOST, Running, check_count, check_text, check_texts
from penstock.testing.inbox import Message, Subscription, Unleased, written
from penstock.testing.instance import Instance
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.queue.order.ranks import Ints
    from penstock.core.queue.queue import Queue
    from penstock.core.sow.holding import Sow
    from penstock.core.view_groups import View
    from penstock.history.history import History


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an answer.  `key` is None in an answer about a queue."""

    key: str | None
    topic: str
    body: bytes
    lsn: int
    bookmark: str
    properties: bytes = b""

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        """The publisher's headers; empty without any."""
        return header_codec.decode(self.properties).headers or {}

    def json(self) -> Any:
        """The body parsed as JSON.  Raises ValueError when it is none."""
        return orjson.loads(self.body)


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
        from penstock.server.views.row_source import adhoc_view, chosen

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
            return self.command(
                lambda instance: list(records_of(instance, topic, filter, order_by, top_n, skip_n, fields))
            )
        rows = chosen(found, filter=filter if view is None else None, order_by=order_by, top_n=top_n, skip_n=skip_n)
        return [Record(None, topic, body if fields is None else fields.body(body), 0, "") for body in rows]

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
        from penstock.core.sow.keyed import Removal, numbers_of, steps
        from penstock.server.views.record_query import Counts, Query, plain, run

        check_text(filter=filter, by=by)
        body = data.encode() if isinstance(data, str) else data
        removal = Removal(filter, None if keys is None else tuple(keys), body)

        def work(instance: Instance) -> int:
            core, sow = instance.core, _sow(instance, topic)
            if removal.filter is None:
                count = core.sow_delete(instance.engine.now(), sow, numbers_of(sow, removal), by=by)
            else:
                instance.make_durable()
                numbers, lsns = sow.index.snapshot().arrays()
                query = Query(removal.filter).reading(sow.rule.message_type)
                rows = run(query, numbers, lsns, _history(instance), VHOST, Counts(),
                           keyed=sow.rule.given)  # fmt: skip
                matched = [lsn for batch in rows for lsn, *_ in plain(batch)]
                by_lsn = dict(zip(lsns.tolist(), numbers.tolist(), strict=True))
                count = sum(
                    core.sow_delete(instance.engine.now(), sow, some, lsns=theirs, by=by)
                    for some, theirs in steps([by_lsn[lsn] for lsn in matched], matched)
                )
            instance.make_durable()
            return count

        return self.command(work)

    def watch(self, instance: Instance, topic: str, client: str, wish: RecordWish) -> RecordSubscription | None:
        """Subscribe to the records of a topic; None when it has none.  On the loop."""
        views, core = instance.engine.views, instance.core
        rows = views.shown(VHOST, topic) is not None or bool(wish.projection) or wish.grouping is not None
        found = None if rows else _find_sow(instance, topic)
        exchange, key = ("", topic) if rows else parted(instance, topic)
        if found is not None:
            exchange, key = found.exchange, found.name
        elif not rows:
            if wish.paged:
                raise InvalidArgument(f"topic '{topic}' in vhost '{VHOST}' has no key, so there are no pages of it")
            if wish.conflation is None or core.find_queue(VHOST, topic) is not None:
                return None
        subscription = RecordSubscription(self, instance, topic, client, wish)
        if found is not None and wish.select is not None:
            select = wish.select.reading(found.rule.message_type)
            subscription.select = select.with_paths(found.rule.paths) if wish.delta else select
        subscription.follow = Follow(views.events(VHOST, exchange, key, wish), subscription.inbox)
        return subscription

    def look_first(self, instance: Instance, queue: str, wish: RecordWish, subscription: Subscription) -> None:
        """What is available in a queue, before it is leased: read only."""
        if not wish.sow:
            return
        for record in records_of(instance, queue, filter=wish.filter, select=wish.select):
            holder = RecordSubscription(self, instance, queue, subscription.name)
            subscription.put(RecordMessage(holder, record, instance.log.origin, queue))


def select_of(parts: str | Sequence[str] | None, *, gathered: bool = False) -> SelectList | None:
    """A select list as it is written; InvalidArgument beside a projection."""
    found = parse_select([parts] if isinstance(parts, str) else parts or ())
    if found is not None and gathered:
        raise InvalidArgument("select does not go with projection and grouping: those say which fields there are")
    return found


def _sow(instance: Instance, text: str) -> Sow:
    exchange, slash, key = text.partition("/")
    if slash and exchange:
        try:
            return instance.core.sow(VHOST, exchange, key)
        except (NotFound, InvalidArgument):
            pass  # a key of the default exchange may hold a slash
    return instance.core.sow(VHOST, "", text)


def _find_sow(instance: Instance, text: str) -> Sow | None:
    try:
        return _sow(instance, text)
    except (NotFound, InvalidArgument):
        return None


def _history(instance: Instance) -> History:
    from penstock.history.history import History

    return History(instance.log, lambda: False)


def _available(queue: Queue) -> Ints:
    """LSNs of what a query finds in a queue."""
    import numpy as np

    from penstock.core.queue.order.runs import view
    from penstock.core.queue.whole import AVAILABLE

    chunks = [view(chunk) for chunk in queue.chunks(*AVAILABLE)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)


def records_of(
    instance: Instance,
    name: str,
    filter: str | None = None,
    order_by: str | Sequence[str] | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
    select: SelectList | None = None,
) -> Iterator[Record]:
    """What a query finds; on the loop."""
    import numpy as np

    from penstock.core.sow.select import order_of
    from penstock.server.views.record_query import Counts, Query, keys_of, plain, run

    query = Query(filter, order_of(order_by), top_n, skip_n or 0)
    if instance.engine.broken is not None:
        raise LogBroken(instance.engine.broken)
    sow: Sow | None = None
    if (VHOST, "", name) in instance.core.sows.by_name or instance.core.find_queue(VHOST, name) is None:
        sow = _sow(instance, name)
        numbers, lsns = sow.index.snapshot().arrays()
        kind = sow.rule.message_type
    else:
        queue = instance.core.queue(VHOST, name)
        lsns, kind = _available(queue), queue.settings.message_type
        numbers = lsns.astype(np.uint64)
    instance.make_durable()
    history = _history(instance)
    keyed = None if sow is None else sow.rule.given
    query, select = query.reading(kind), None if select is None else select.reading(kind)
    for batch in run(query, numbers, lsns, history, VHOST, Counts(), keyed=keyed):
        keys = [None] * len(batch) if sow is None else keys_of(batch, numbers, lsns, given=sow.rule.given)
        for key, (lsn, topic, via, properties, body) in zip(keys, plain(batch), strict=True):
            exchange = "" if via is None else history.exchange_of(via)
            where = f"{exchange}/{topic}" if exchange else topic
            sent = body if select is None else select.body(body)
            yield Record(key, where, sent, lsn, format_bookmark(instance.log.origin, lsn), properties)


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

    def __init__(
        self, broker: Records, instance: Instance, topic: str, name: str, wish: RecordWish | None = None
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


def _gathered(instance: Instance, topic: str, filter: str | None, view: View) -> list[bytes]:
    from penstock.server.views.row_source import chosen, gather, gather_bodies, positions, type_at

    shown = instance.engine.views.shown(VHOST, topic)
    if shown is not None:
        return gather_bodies(view, chosen(list(shown.rows().values()), filter=filter))
    history = _history(instance)
    rows = history.rows_at(positions(instance.core, VHOST, topic))
    kind = type_at(instance.core, VHOST, topic)
    if filter is not None:
        rows = history.matching(rows, typed(filter, kind), VHOST)
    return gather(view, rows, history.exchange_of, kind)
