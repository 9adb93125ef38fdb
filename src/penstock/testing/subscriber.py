"""What a subscriber does with a broker in this process: it subscribes to queues, topics and records, and its connection
breaks.

Of a pattern that matches queues too come the topics that no queue has the name of: such a name is the queue's alone,
from its declare on; a queue of another name and the topic that it shows are two things, and both deliver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.client.arguments import arguments_checked
from penstock.core.commands.subscription import Subscription as Wish
from penstock.core.sow.select import parse_select
from penstock.errors import InvalidArgument, NotFound
from penstock.expr import TopicPattern, compile_filter
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.server.replaying.log_source import Asked, Follower
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import Selection, select_of, selection_of
from penstock.testing.broker_life import VHOST
from penstock.testing.inbox import Message, Subscription, Unleased, written
from penstock.testing.instance import Instance
from penstock.testing.link import check_topic, consumed, read, replaced
from penstock.testing.topic_records import Records
from penstock.units import span
from penstock.wire.flight.bookmarks import Point, format_bookmark, parse_point
from penstock.wire.flight.commands import Consume, Replay, Subscribe

if TYPE_CHECKING:
    from penstock.core.sow.select import SelectList


class TopicSubscription(Unleased[Page]):
    """Made by `Broker.subscribe` for a topic, a pattern of topics, or with a bookmark."""

    def __init__(
        self,
        broker: Subscribing,
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
        replaced(filter, max_backlog, topic)
        self._broker.aside(lambda: self._follows.follow_on(self, filter, topic))

    @property
    def notice(self) -> str:
        """What a subscriber has to know: that its bookmark was not found, and where it reads from instead."""
        return self.follow.source.notice if isinstance(self.follow, Follower) else ""

    def pause(self) -> None:
        """Have nothing come until `resume`; what has come can be taken."""
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
                    topic=written(page.topic_of(row)),
                    body=body if self.select is None else self.select.body(body),
                    properties=page.properties_of(row),
                    lsn=lsn,
                    bookmark=format_bookmark(origin, lsn),
                    time=page.time_of(row) / 1e6 if self._timed else None,
                )
            )

    def _take(self) -> list[Message]:
        taken = super()._take()
        if taken:
            self._follows.seen[self.name, self.queue] = taken[-1].bookmark
        return taken


class TopicsBeside(TopicSubscription):
    """Its messages go to the subscription that it stands beside."""

    def __init__(self, broker: Subscribing, instance: Instance, topic: str, owner: Subscription) -> None:
        """For the broker alone, which sets `follow`."""
        super().__init__(broker, instance, topic, owner.name)
        self._owner = owner

    def receive(self, portion: Page) -> None:
        """Hand on what is no queue's."""
        super().receive(portion)
        kept = {portion.lsns[row] for row in range(len(portion)) if not self._is_queues(portion, row)}
        for message in Subscription._take(self):
            if message.lsn in kept:
                self._owner.put(message)

    def _is_queues(self, page: Page, row: int) -> bool:
        """Whether a queue of the topic's own name was there when the message came."""
        topic = page.topic_of(row)
        queue = None if topic.exchange else self._instance.core.find_queue(VHOST, topic.name)
        return queue is not None and queue.id < page.lsns[row]


@arguments_checked
class Subscribing(Records):
    seen: dict[tuple[str, str], str]
    """By client and topic, the last message that a client has taken: what MOST_RECENT is."""

    def subscribe(
        self,
        queue: str,
        filter: str | None = None,
        max_backlog: int | None = 1,
        name: str | None = None,
        bookmark: str | None = None,
        rate: str | None = None,
        rate_max_gap: str | float | None = None,
        bookmark_not_found: str = "now",
        sow: bool = False,
        delta: bool = False,
        no_empties: bool = False,
        oof: bool = False,
        order_by: str | Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        conflation: str | float | None = None,
        conflation_key: str | Sequence[str] | None = None,
        projection: str | Sequence[str] | None = None,
        grouping: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
        live: bool = False,
        fully_durable: bool = False,
        timestamp: bool = False,
    ) -> Subscription:
        """A new subscription, served at once: to a queue, or to a topic or pattern of topics, which leases nothing.

        queue         a queue; a pattern that matches a queue: every queue that it matches, now or later, with one
                      backlog, and every topic that it matches and no queue has the name of, which leases nothing
        bookmark      where to read from (docs/replay.md); of a queue: what it is a view of.  Topics without: from now
        rate          `1000` messages or `500KB` a second, or `2X` the speed they came with, gaps up to `rate_max_gap`
        bookmark_not_found   `epoch`, `now` or `fail`
        max_backlog   outstanding at once; None: no limit of its own; 0: it gets nothing
        name          of the client, as the log and `disconnect` know it; `client-1`, `client-2` ... if not given
        sow           first the records there are (docs/sow.md), of a queue what is available, which leases nothing
        delta, no_empties    changed fields of records only, and none for a publish that changed nothing
        oof           to be told of records that are deleted, expire, or match no more
        order_by, top_n, skip_n    of the records; with `top_n` the subscription is to that page of them
        conflation    of records and rows: of the changes of a key within this time only the last, `auto` for 5 s
        conflation_key    expressions that tell keys apart for that, instead of the record's own key
        projection, grouping    rows as a view with these would have, of a queue, which is not leased, or a topic
        select        which fields of a JSON body are sent, of topics, records and rows: `-/, +/id`, `-/notes`
        live, fully_durable    of topics: all that comes is durable, so the first is refused, the second always so
        timestamp     of topics, records and rows: each message has its `time`
        Raises NotFound, AccessRefused, ExpressionError for the filter, or InvalidArgument for what cannot be used.
        """
        client = next(self._names) if name is None else name
        told = {"select": select, "live": live, "fully_durable": fully_durable, "timestamp": timestamp}
        terms = consumed(queue=queue, name=client, max_backlog=max_backlog, filter=filter)
        check_topic("queue", queue)
        if filter:
            here = Context(client_name=client, instance_name=self._settings.server.name)  # there are no users
            terms = replace(terms, filter=bound(filter, here))
        pages = read(
            "replay", topic=queue, bookmark="NOW" if bookmark is None else bookmark, filter=terms.filter, rate=rate,
            rate_max_gap=duration(rate_max_gap, "rate_max_gap"), bookmark_not_found=bookmark_not_found, **told,
        )  # fmt: skip
        records = read(
            "subscribe", topic=queue, filter=terms.filter, sow=sow, delta=delta, no_empties=no_empties, oof=oof,
            order_by=order_by, top_n=top_n, skip_n=skip_n, conflation=duration(conflation, "conflation"),
            conflation_key=conflation_key, projection=projection, grouping=grouping, **told,
        )  # fmt: skip
        assert isinstance(pages, Replay)
        assert isinstance(records, Subscribe)
        asked = asks_records(records)
        if asked and bookmark is not None:
            raise InvalidArgument("a subscription with a bookmark has no records: leave sow, delta and oof out")

        def work(instance: Instance) -> Subscription:
            found: Subscription | None = None
            if asked or instance.engine.views.shown(VHOST, queue) is not None:
                found = self.watch(instance, client, records, timed=timestamp)
            if found is None and (bookmark is not None or not self._are_queues(instance, queue)):
                found = self.follow(instance, client, pages, timed=timestamp)
            if found is None:
                if not asked:
                    consumed(queue=queue, **told)  # what says how topics are told does not go with work
                    if timestamp:
                        raise InvalidArgument(f"'{queue}' is a queue: select and timestamp go with topics")
                found = self._lease(instance, terms, records)
            self._subscriptions.append(found)
            return found

        return self.command(work)

    def _lease(self, instance: Instance, wanted: Consume, records: Subscribe) -> Subscription:
        """To a queue, or a pattern of queues."""
        subscription = Subscription(self, instance, wanted.queue, wanted.name)
        subscription.wish = Wish(
            VHOST,
            wanted.queue,
            tag=wanted.name,
            holder=subscription,
            client=wanted.name,
            filter=None if wanted.filter is None else compile_filter(wanted.filter),
            max_backlog=wanted.max_backlog,
        )
        if records.sow:
            self.look_first(instance, records, subscription)
        instance.core.open(instance.engine.now(), subscription.wish)
        subscription.follow_beside = partial(self._go_beside, instance, subscription)
        subscription.follow_beside(wanted.filter, wanted.queue)
        return subscription

    def _go_beside(self, instance: Instance, subscription: Subscription, filter: str | None, topic: str | None) -> None:
        """The topics that a subscription's pattern matches; None: of what it had before, with another filter."""
        wish, beside = subscription.wish, subscription.beside
        assert wish is not None
        if isinstance(beside, TopicsBeside) and topic is None:
            self.follow_on(beside, filter, None)
            return
        if beside is not None:
            beside.end(lost=False)
            subscription.beside = None
        if topic is not None and wish.pattern is not None:
            text = filter or (None if wish.filter is None else wish.filter.text)
            fresh = TopicsBeside(self, instance, topic, subscription)
            self.begin(instance, fresh, Asked(Selection.pattern(VHOST, "", topic), filter=text))
            subscription.beside = fresh

    @staticmethod
    def _are_queues(instance: Instance, name: str) -> bool:
        """Whether this is the name of a queue, or a pattern that matches one."""
        names = [queue.name for queue in instance.core.queues() if queue.vhost == VHOST]
        if name in names:
            return True
        pattern = TopicPattern(name)
        return not pattern.literal and any(map(pattern.matches, names))

    def disconnect(self, name: str) -> int:
        """End all subscriptions of a client as a lost connection does; how many there were."""

        def work(instance: Instance) -> int:
            mine = [one for one in self._subscriptions if one.name == name and one.is_open]
            for subscription in mine:
                subscription.end(lost=True)
            return len(mine)

        return self.command(work)

    def follow(self, instance: Instance, client: str, wanted: Replay, *, timed: bool) -> TopicSubscription:
        """Subscribe to a topic, a pattern, or what a queue is a view of; on the loop."""
        topic = cast("str", wanted.topic)
        selection = self._selection(instance, topic)
        select = select_of(instance.core, selection, parse_select(wanted.select))
        subscription = TopicSubscription(self, instance, topic, client, select, timed=timed)

        def recent() -> Point:
            text = self.seen.get((client, topic))
            if text is None:
                raise NotFound(f"MOST_RECENT: client {client!r} has taken nothing from {topic!r}")
            return parse_point(text)

        asked = Asked(
            selection, wanted.bookmark, wanted.filter, wanted.rate, wanted.rate_max_gap, wanted.missing, recent
        )
        self.begin(instance, subscription, asked)
        return subscription

    @staticmethod
    def begin(instance: Instance, subscription: TopicSubscription, asked: Asked) -> None:
        subscription.asked = asked
        subscription.follow = instance.engine.replays.subscribe(asked, subscription.inbox)

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

    def _selection(self, instance: Instance, text: str) -> Selection:
        core = instance.core
        exchange, key = self.link.parted(text)
        try:
            return selection_of(core, VHOST, exchange, key)
        except NotFound:
            if TopicPattern(key).literal:
                raise
            return selection_of(core, VHOST, exchange, None, key)


def duration(value: str | float | None, what: str) -> str | None:
    """As commands have it.  InvalidArgument names what it is for."""
    if value is None or value in ("auto", "none"):
        return value  # as they are
    return f"{span(value, what)}us"


def asks_records(wanted: Subscribe) -> bool:
    """Whether only records or rows can be meant."""
    shaped = wanted.projection or wanted.grouping is not None or wanted.conflation_key or wanted.top_n is not None
    return bool(wanted.sow or wanted.delta or wanted.oof or shaped or wanted.conflation not in (None, "none"))
