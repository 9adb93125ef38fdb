"""Subscriptions to records: those of a SOW topic as they are, then what becomes of them; nothing is leased."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.server.sow.record_events import Event
from penstock.server.sow.record_events import Wish as RecordWish
from penstock.server.sow.record_watch import RecordWatch
from penstock.server.sow.unkeyed import Unkeyed
from penstock.server.views.watching import Watch, watched
from penstock.testing.instance import Instance
from penstock.testing.message import Message
from penstock.testing.records import Record, Records, records_of
from penstock.testing.running import VHOST
from penstock.testing.settling import Settling
from penstock.testing.subscription import Subscription, written
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.core.sow.select import SelectList

ENDLESS = 1 << 30


class RecordMessage(Message):
    """A record, or what became of one.  There is nothing to settle."""

    def __init__(
        self, holder: Subscription, event: Event | Record, origin: int, queue: str, *, timed: bool = False
    ) -> None:
        """For subscriptions alone."""
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


class RecordSubscription(Subscription):
    """Made by `Broker.subscribe` with `sow`, `delta` or `oof`."""

    def __init__(
        self, broker: Watching, instance: Instance, topic: str, name: str, wish: RecordWish | None = None
    ) -> None:
        """For the broker alone, which sets `live`.  wish: says which fields are sent, and whether the time is."""
        super().__init__(broker, instance, topic, name)
        self.select: SelectList | None = None if wish is None else wish.select
        self._timed = wish is not None and wish.timestamp
        self.live: Watch | None = None
        self.is_complete = False  # the records that there were have come
        self.error: PenstockError | None = None  # why nothing more comes

    # -- for `Live`: a taker

    def room(self) -> int:
        """A test takes what it likes."""
        return ENDLESS

    def take_events(self, events: list[Event]) -> None:
        """Keep them for `take`."""
        if self.select is not None:
            events = [replace(event, body=self.select.body(event.body)) for event in events]
        origin = self._instance.log.origin
        self._inbox += (RecordMessage(self, event, origin, self.queue, timed=self._timed) for event in events)

    def level(self) -> None:
        """The snapshot is over."""
        self.is_complete = True

    def ended(self, error: PenstockError) -> None:
        """Nothing more comes."""
        self.error = error

    def taker(self) -> _Taker:
        """Itself, as `Live` knows it."""
        return _Taker(self)

    # -- for the broker: inside a command

    @property
    def is_open(self) -> bool:
        """Whether it may get more."""
        return self.live is not None and not self.live.closed and self._instance is self._broker.instance

    def end(self, *, lost: bool) -> None:
        """Close."""
        live, self.live = self.live, None
        self._inbox.clear()
        if live is not None:
            live.close()

    def _limit(self) -> int | None:
        return None if self.is_open else 0

    def settle(self, message: Message, verb: Verb, delay: int | None = None, reason: str | None = None) -> bool:
        """There is nothing to settle."""
        return False

    def extend(self, message: Message, seconds: float) -> bool:
        """Nothing is leased."""
        return False


class _Taker:
    """What `Live` knows of its subscription: there `take` is the test's."""

    def __init__(self, subscription: RecordSubscription) -> None:
        self.room = subscription.room
        self.take = subscription.take_events
        self.level = subscription.level
        self.ended = subscription.ended


def parted(instance: Instance, text: str) -> tuple[str, str]:
    """Exchange and key of a topic as people write it."""
    exchange, slash, key = text.partition("/")
    there = slash and exchange and instance.core.topology.exchange(VHOST, exchange) is not None
    return (exchange, key) if there else ("", text)


class Watching(Records, Settling):
    """Subscribing to records."""

    def watch(self, instance: Instance, topic: str, client: str, wish: RecordWish) -> RecordSubscription | None:
        """Subscribe to the records of a topic; None when it has none.  On the loop."""
        found = self.find_sow(instance, topic)
        if found is None:
            if wish.paged:
                raise InvalidArgument(f"topic '{topic}' in vhost '{VHOST}' has no key, so there are no pages of it")
            if wish.conflation is None or instance.core.find_queue(VHOST, topic) is not None:
                return None
        subscription = RecordSubscription(self, instance, topic, client, wish)
        engine = instance.engine
        if found is None:
            begin = partial(Unkeyed, engine.core, engine.replays, VHOST, *parted(instance, topic), wish)
            subscription.live = watched(engine.views.alarms, wish, subscription.taker(), begin)
            return subscription
        if wish.delta and wish.select is not None:
            subscription.select = wish.select.with_paths(found.rule.paths)
        subscription.live = watched(
            engine.views.alarms, wish, subscription.taker(), partial(RecordWatch, engine, engine.replays, found, wish)
        )
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
