"""Subscriptions to topics: messages from a bookmark on, or from now on, with no lease and nothing to settle.

Of a pattern that matches queues too come the topics that no queue has the name of: such a name is the queue's alone,
from its declare on; a queue of another name and the topic that it shows are two things, and both deliver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, NotFound
from penstock.expr import TopicPattern
from penstock.server.replaying.log_source import Asked, Follower
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import Selection, selection_of
from penstock.testing.arguments import check_text, check_topic
from penstock.testing.instance import Instance
from penstock.testing.message import Message
from penstock.testing.record_subscriptions import Watching, parted
from penstock.testing.running import VHOST
from penstock.testing.subscription import Unleased, written
from penstock.wire.flight.bookmarks import Point, format_bookmark, parse_point

if TYPE_CHECKING:
    from penstock.core.sow.select import SelectList
    from penstock.testing.subscription import Subscription


class TopicSubscription(Unleased[Page]):
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
        """For the broker alone, which sets `follow`.  select: the fields that are sent.  timed: the time is, too."""
        super().__init__(broker, instance, topic, name, select)
        self.asked: Asked | None = None  # what it was opened with
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
        return self.follow.source.notice if isinstance(self.follow, Follower) else ""

    def pause(self) -> None:
        """Nothing comes until `resume`."""
        self._broker.aside(lambda: None if self.follow is None else self.follow.pause())

    def resume(self) -> None:
        """Go on where it was paused."""
        self._broker.aside(lambda: None if self.follow is None else self.follow.resume())

    # -- for the follower

    def receive(self, portion: Page) -> None:
        page = portion
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

    def _take(self) -> list[Message]:
        taken = super()._take()
        if taken:
            self._follows.seen[self.name, self.queue] = taken[-1].bookmark
        return taken


class Following(Watching):
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
        subscription.asked = asked
        subscription.follow = instance.engine.replays.subscribe(asked, subscription.inbox)

    @staticmethod
    def pattern(text: str) -> Selection:
        """The topics of the default exchange that a pattern matches."""
        return Selection.pattern(VHOST, "", text)

    def follow_on(self, subscription: TopicSubscription, filter: str | None, topic: str | None) -> None:
        """Replace a subscription; on the loop."""
        follower, asked = subscription.follow, subscription.asked
        if not isinstance(follower, Follower) or asked is None or not subscription.is_open:
            raise InvalidArgument("the subscription is closed: there is nothing to replace")
        instance = self._running()
        if filter is not None:
            asked = replace(asked, filter=filter or None)
        if topic is not None:
            asked = replace(asked, selection=self._selection(instance, topic))
        on = instance.engine.replays.start(asked, subscription.inbox, follower.source.rest)
        follower.close()
        subscription.follow, subscription.asked = on, asked
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


class TopicsBeside(TopicSubscription):
    """Its messages go to the subscription that it stands beside."""

    def __init__(self, broker: Following, instance: Instance, topic: str, owner: Subscription) -> None:
        """For the broker alone, which sets `follow`."""
        super().__init__(broker, instance, topic, owner.name)
        self._owner = owner

    def receive(self, portion: Page) -> None:
        """Hand on what is no queue's."""
        page = portion
        rows = [row for row in range(len(page)) if not self._is_queues(page, row)]
        if rows:
            super().receive(page)
            kept = {page.lsns[row] for row in rows}
            for message in self._taken():
                if message.lsn in kept:
                    self._owner.put(message)

    def _is_queues(self, page: Page, row: int) -> bool:
        """Whether a queue of the topic's own name was there when the message came."""
        topic = page.topic_of(row)
        queue = None if topic.exchange else self._instance.core.find_queue(VHOST, topic.name)
        return queue is not None and queue.id < page.lsns[row]

    def _taken(self) -> list[Message]:
        taken = list(self._inbox)
        self._inbox.clear()
        return taken
