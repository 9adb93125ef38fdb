"""Subscriptions to topics: messages from a bookmark on, or from now on, with no lease and nothing to settle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.expr import TopicPattern
from penstock.server.replaying.follower import Asked
from penstock.server.replaying.page import Page
from penstock.server.replaying.topics import Selection, selection_of
from penstock.testing.arguments import check_text, check_topic
from penstock.testing.instance import Instance
from penstock.testing.message import Message
from penstock.testing.running import VHOST
from penstock.testing.subscription import Subscription, written
from penstock.testing.watching import Watching, parted
from penstock.wire.flight.bookmarks import Point, format_bookmark, parse_point

if TYPE_CHECKING:
    from penstock.core.sow.select import SelectList
    from penstock.server.replaying.follower import Follower

ENDLESS = 1 << 30


class TopicSubscription(Subscription):
    """Made by `Broker.subscribe` for a topic, a pattern of topics, or with a bookmark."""

    def __init__(
        self,
        broker: Following,
        instance: Instance,
        topic: str,
        name: str,
        select: SelectList | None = None,
        *,
        timed: bool = False,
    ) -> None:
        """For the broker alone, which sets `follower`.  select: the fields that are sent.  timed: the time is, too."""
        super().__init__(broker, instance, topic, name)
        self.follower: Follower | None = None  # None: closed, or not yet open
        self.is_complete = False  # the replay is over: the end of its range, or level with what is published
        self.error: PenstockError | None = None  # why nothing more comes
        self.asked: Asked | None = None  # what it was opened with
        self.select = select
        self._timed = timed
        self._follows = broker

    # -- for tests

    def replace(self, filter: str | None = None, max_backlog: int | None = None, topic: str | None = None) -> None:
        """Another filter (empty text: none) or topic from the place on where it is; what is not named stays.

        There is no backlog to change.  Raises as `Broker.subscribe`; nothing is changed then.
        """
        check_text(filter=filter)
        if topic is not None:
            check_topic("topic", topic)
        self._broker.aside(lambda: self._follows.follow_on(self, filter, topic))

    @property
    def notice(self) -> str:
        """What a subscriber has to know: that its bookmark was not found, and where it reads from instead."""
        return "" if self.follower is None else self.follower.notice

    def pause(self) -> None:
        """Nothing comes until `resume`."""
        self._broker.aside(lambda: None if self.follower is None else self.follower.pause())

    def resume(self) -> None:
        """Go on where it was paused."""
        self._broker.aside(lambda: None if self.follower is None else self.follower.resume())

    # -- for the follower

    def receive(self, page: Page) -> None:
        """Keep messages for `take`."""
        origin = self._instance.log.origin
        for row, body in enumerate(page.bodies):
            lsn = page.lsns[row]
            self._inbox.append(
                Message(
                    self,
                    queue=self.queue,
                    queue_id=0,
                    topic=written(page.topic_of(row)),
                    body=body if self.select is None else self.select.body(body),
                    properties=page.properties_of(row),
                    lsn=lsn,
                    bookmark=format_bookmark(origin, lsn),
                    attempt=1,
                    redelivered=False,
                    lease_until=None,
                    time=page.time_of(row) / 1e6 if self._timed else None,
                )
            )

    # -- for the broker: inside a command

    @property
    def is_open(self) -> bool:
        """Whether it may get more."""
        return self.follower is not None and not self.follower.closed and self._instance is self._broker.instance

    def end(self, *, lost: bool) -> None:
        """Close."""
        follower, self.follower = self.follower, None
        self._inbox.clear()
        if follower is not None:
            follower.close()

    def _take(self) -> list[Message]:
        taken = super()._take()
        if taken:
            self._follows.seen[self.name, self.queue] = taken[-1].bookmark
        return taken

    def _limit(self) -> int | None:
        return None if self.is_open else 0

    def settle(self, message: Message, verb: Verb, delay: int | None = None, reason: str | None = None) -> bool:
        """There is nothing to settle."""
        return False

    def extend(self, message: Message, seconds: float) -> bool:
        """Nothing is leased."""
        return False


class _Receiver:
    """What a follower knows of its subscription, whose `take` is the test's."""

    def __init__(self, subscription: TopicSubscription) -> None:
        self._subscription = subscription

    def room(self) -> int:
        """A test takes what it likes."""
        return ENDLESS

    def take(self, page: Page) -> None:
        """Keep messages."""
        self._subscription.receive(page)

    def completed(self, *, last: bool) -> None:
        """The replay is over."""
        self._subscription.is_complete = True

    def ended(self, error: PenstockError) -> None:
        """Nothing more comes."""
        self._subscription.error = error


class Following(Watching):
    """Subscribing to topics."""

    seen: dict[tuple[str, str], str]
    """By client and topic, the last message that a client has taken: what MOST_RECENT is."""

    def follow(
        self,
        instance: Instance,
        topic: str,
        client: str,
        filter: str | None,
        bookmark: str,
        rate: str | None,
        rate_max_gap: int | None,
        bookmark_not_found: str,
        select: SelectList | None = None,
        *,
        timed: bool = False,
    ) -> TopicSubscription:
        """Subscribe to a topic, a pattern, or what a queue is a view of; on the loop."""
        subscription = TopicSubscription(self, instance, topic, client, select, timed=timed)

        def recent() -> Point:
            text = self.seen.get((client, topic))
            if text is None:
                raise NotFound(f"MOST_RECENT: client {client!r} has taken nothing from {topic!r}")
            return parse_point(text)

        asked = Asked(
            self._selection(instance, topic), bookmark, filter, rate, rate_max_gap, bookmark_not_found, recent
        )
        self.begin(instance, subscription, asked)
        return subscription

    @staticmethod
    def begin(instance: Instance, subscription: TopicSubscription, asked: Asked) -> None:
        """Follow; on the loop."""
        subscription.asked = asked
        subscription.follower = instance.engine.replays.subscribe(asked, _Receiver(subscription))

    @staticmethod
    def pattern(text: str) -> Selection:
        """The topics of the default exchange that a pattern matches."""
        return Selection.pattern(VHOST, "", text)

    def follow_on(self, subscription: TopicSubscription, filter: str | None, topic: str | None) -> None:
        """Replace a subscription; on the loop."""
        follower, asked = subscription.follower, subscription.asked
        if follower is None or asked is None or not subscription.is_open:
            raise InvalidArgument("the subscription is closed: there is nothing to replace")
        instance = self._running()
        if filter is not None:
            asked = replace(asked, filter=filter or None)
        if topic is not None:
            asked = replace(asked, selection=self._selection(instance, topic))
        on = instance.engine.replays.start(asked, _Receiver(subscription), follower.rest)
        follower.close()
        subscription.follower, subscription.asked = on, asked
        if topic is not None:
            subscription.queue = topic

    @staticmethod
    def _selection(instance: Instance, text: str) -> Selection:
        core = instance.core
        exchange, key = parted(instance, text)
        try:
            return selection_of(core, VHOST, exchange, key)
        except NotFound:
            if TopicPattern(key).literal:
                raise
            return selection_of(core, VHOST, exchange, None, key)
