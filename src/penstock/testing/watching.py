"""Subscriptions to records: those of a SOW topic as they are, then what becomes of them; nothing is leased."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.server.sow.live import Live
from penstock.server.sow.page_work import Event
from penstock.server.sow.wish import Wish as RecordWish
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

ENDLESS = 1 << 30


class RecordMessage(Message):
    """A record, or what became of one.  There is nothing to settle."""

    def __init__(self, holder: Subscription, event: Event | Record, origin: int, queue: str) -> None:
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
        )
        self.kind = event.kind if isinstance(event, Event) else "sow"  # sow: of the snapshot; publish; oof
        self.key = event.key
        self.reason = event.reason if isinstance(event, Event) else ""  # of an oof: deleted, expired, match

    def __repr__(self) -> str:
        return f"RecordMessage({self.kind} {self.reason or self.topic!r}, {self.body[:40]!r}, {self.bookmark!r})"


class RecordSubscription(Subscription):
    """Made by `Broker.subscribe` with `sow`, `delta` or `oof`."""

    def __init__(self, broker: Watching, instance: Instance, topic: str, name: str) -> None:
        """For the broker alone, which sets `live`."""
        super().__init__(broker, instance, topic, name)
        self.live: Watch | None = None
        self.is_complete = False  # the records that there were have come
        self.error: PenstockError | None = None  # why nothing more comes

    # -- for `Live`: a taker

    def room(self) -> int:
        """A test takes what it likes."""
        return ENDLESS

    def take_events(self, events: list[Event]) -> None:
        """Keep them for `take`."""
        self._inbox += (RecordMessage(self, event, self._instance.log.origin, self.queue) for event in events)

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

    def settle(self, message: Message, verb: Verb) -> bool:
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


class Watching(Records, Settling):
    """Subscribing to records."""

    def watch(self, instance: Instance, topic: str, client: str, wish: RecordWish) -> RecordSubscription | None:
        """Subscribe to the records of a topic; None when it has none.  On the loop."""
        found = self.find_sow(instance, topic)
        if found is None:
            if wish.paged:
                raise InvalidArgument(f"topic '{topic}' in vhost '{VHOST}' has no key, so there are no pages of it")
            return None
        subscription = RecordSubscription(self, instance, topic, client)
        engine = instance.engine
        subscription.live = watched(engine.views, wish, subscription.taker(), partial(Live, engine, found, wish))
        return subscription

    def look_first(self, instance: Instance, queue: str, wish: RecordWish, subscription: Subscription) -> None:
        """What is available in a queue, before it is leased: read only."""
        if not wish.sow:
            return
        for record in records_of(instance, queue, filter=wish.filter):
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
