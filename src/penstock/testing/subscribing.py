"""What a subscriber does with a broker in this process: it subscribes, and its connection breaks."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.commands.subscriptions import Subscription as Wish
from penstock.core.sow.ordering import order_of
from penstock.errors import InvalidArgument
from penstock.expr import TopicPattern, compile_filter
from penstock.server.sow.wish import Wish as RecordWish
from penstock.server.views.watching import interval_of
from penstock.testing.following import Following
from penstock.testing.instance import Instance
from penstock.testing.running import VHOST
from penstock.testing.subscription import Subscription
from penstock.units import to_micros


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
    ) -> Subscription:
        """A new subscription, served at once: to a queue, or to a topic or pattern of topics, which leases nothing.

        queue         a queue; a pattern that matches a queue: every queue that it matches, now or later
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
        Raises NotFound, AccessRefused, or ExpressionError for the filter.
        """
        if max_backlog is not None and max_backlog < 0:
            raise InvalidArgument(f"max_backlog is {max_backlog}, below 0")
        compiled = None if filter is None else compile_filter(filter)
        client = next(self._names) if name is None else name
        records = None
        interval = interval_of(conflation)
        keys = (conflation_key,) if isinstance(conflation_key, str) else tuple(conflation_key or ())
        select = (projection,) if isinstance(projection, str) else tuple(projection or ())
        groups = (grouping,) if isinstance(grouping, str) else None if grouping is None else tuple(grouping)
        gathered = bool(select) or groups is not None
        if sow or delta or oof or top_n is not None or interval is not None or keys or gathered:
            if bookmark is not None:
                raise InvalidArgument("a subscription with a bookmark has no records: leave sow, delta and oof out")
            records = RecordWish(sow, filter, delta, no_empties, oof, order_of(order_by), top_n, skip_n or 0,
                                  interval, keys, select, groups)  # fmt: skip

        def work(instance: Instance) -> Subscription:
            asked = records
            if asked is None and instance.engine.views.shown(VHOST, queue) is not None:
                asked = RecordWish(sow=False, filter=filter)
            watches = None if asked is None else self.watch(instance, queue, client, asked)
            if watches is None and interval is not None:
                raise InvalidArgument(f"'{queue}' is no topic with a key, and no view: nothing is conflated")
            if watches is not None:
                self._subscriptions.append(watches)
                return watches
            if bookmark is not None or not self._are_queues(instance, queue):
                gap = None if rate_max_gap is None else to_micros(rate_max_gap)
                follows = self.follow(instance, queue, client, filter, bookmark or "NOW", rate, gap, bookmark_not_found)
                self._subscriptions.append(follows)
                return follows
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
            self._subscriptions.append(subscription)
            return subscription

        return self.command(work)

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
