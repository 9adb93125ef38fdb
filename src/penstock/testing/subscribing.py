"""What a subscriber does with a broker in this process: it subscribes, and its connection breaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.core.commands.subscription import Subscription as Wish
from penstock.core.sow.ordering import order_of
from penstock.errors import InvalidArgument
from penstock.expr import TopicPattern, compile_filter
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.server.replaying.follower import Asked
from penstock.server.sow.record_events import Wish as RecordWish
from penstock.server.views.watching import interval_of
from penstock.testing.arguments import check_count, check_text, check_texts, check_topic, micros_of
from penstock.testing.beside import TopicsBeside
from penstock.testing.following import Following
from penstock.testing.instance import Instance
from penstock.testing.records import select_of
from penstock.testing.running import VHOST
from penstock.testing.subscription import Subscription


class Subscribing(Following):
    """Subscriptions."""

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
        check_topic("queue", queue)
        check_count(max_backlog=max_backlog, top_n=top_n, skip_n=skip_n)
        check_text(filter=filter, name=name, bookmark=bookmark, rate=rate, bookmark_not_found=bookmark_not_found)
        check_texts(order_by=order_by, conflation_key=conflation_key, projection=projection, grouping=grouping,
                    select=select)  # fmt: skip
        gap = None if rate_max_gap is None else micros_of("rate_max_gap", rate_max_gap)
        client = next(self._names) if name is None else name
        filter = self.asked(filter, client)
        compiled = None if filter is None else compile_filter(filter)
        records = None
        interval = interval_of(conflation)
        keys = (conflation_key,) if isinstance(conflation_key, str) else tuple(conflation_key or ())
        projected = (projection,) if isinstance(projection, str) else tuple(projection or ())
        groups = (grouping,) if isinstance(grouping, str) else None if grouping is None else tuple(grouping)
        gathered = bool(projected) or groups is not None
        fields = select_of(select, gathered=gathered)
        if live:
            raise InvalidArgument(
                "live is not done: of a topic only what is durable is told; "
                'a queue with deliver = "early" sends ahead of the sync'
            )
        if sow or delta or oof or top_n is not None or interval is not None or keys or gathered:
            if bookmark is not None:
                raise InvalidArgument("a subscription with a bookmark has no records: leave sow, delta and oof out")
            records = RecordWish(sow, filter, delta, no_empties, oof, order_of(order_by), top_n, skip_n or 0,
                                  interval, keys, projected, groups, fields, timestamp)  # fmt: skip

        def work(instance: Instance) -> Subscription:
            asked = records
            if asked is None and instance.engine.views.shown(VHOST, queue) is not None:
                asked = RecordWish(sow=False, filter=filter, select=fields, timestamp=timestamp)
            watches = None if asked is None else self.watch(instance, queue, client, asked)
            if watches is None and interval is not None:
                raise InvalidArgument(f"'{queue}' is no topic with a key, and no view: nothing is conflated")
            if watches is not None:
                self._subscriptions.append(watches)
                return watches
            if bookmark is not None or not self._are_queues(instance, queue):
                follows = self.follow(instance, queue, client, filter, bookmark or "NOW", rate, gap,
                                      bookmark_not_found, fields, timed=timestamp)  # fmt: skip
                self._subscriptions.append(follows)
                return follows
            if fully_durable:
                raise InvalidArgument('fully_durable is no option of a queue: its setting deliver = "durable" is that')
            if records is None and (fields is not None or timestamp):
                raise InvalidArgument(
                    f"'{queue}' is a queue, whose work comes whole: select and timestamp go with topics"
                )
            subscription = Subscription(self, instance, queue, client)
            subscription.wish = Wish(
                VHOST,
                queue,
                tag=client,
                holder=subscription,
                client=client,
                filter=compiled,
                max_backlog=max_backlog,
            )
            if records is not None:
                self.look_first(instance, queue, records, subscription)
            instance.core.open(instance.engine.now(), subscription.wish)
            subscription.follow_beside = partial(self._go_beside, instance, subscription)
            subscription.follow_beside(filter, queue)
            self._subscriptions.append(subscription)
            return subscription

        return self.command(work)

    def asked(self, text: str | None, client: str) -> str | None:
        """A filter for one client; there are no users here."""
        return bound(text, Context(client_name=client, instance_name=self._settings.server.name)) if text else text

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
            self.begin(instance, fresh, Asked(self.pattern(topic), filter=text))
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
