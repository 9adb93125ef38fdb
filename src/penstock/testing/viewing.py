"""What a test reads: views by name, and aggregated queries of queues and topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import LogBroken
from penstock.testing.arguments import check_count, check_text, check_texts
from penstock.testing.instance import Instance
from penstock.testing.records import Record, select_of
from penstock.testing.running import VHOST
from penstock.testing.watching import RecordSubscription, Watching

if TYPE_CHECKING:
    from penstock.core.views.view import View
    from penstock.server.sow.record_events import Wish


class Viewing(Watching):
    """Views."""

    def watch(self, instance: Instance, topic: str, client: str, wish: Wish) -> RecordSubscription | None:
        """Subscribe to rows or records; None when there are none of this name.  On the loop."""

        subscription = RecordSubscription(self, instance, topic, client, wish)
        subscription.live = instance.engine.views.watch(VHOST, topic, wish, subscription.taker())
        return super().watch(instance, topic, client, wish) if subscription.live is None else subscription

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
        from penstock.server.views.querying import adhoc_view, chosen

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
    from penstock.server.views.querying import chosen, gather, gather_bodies, positions

    shown = instance.engine.views.shown(VHOST, topic)
    if shown is not None:
        return gather_bodies(view, chosen(list(shown.rows().values()), filter=filter))
    from penstock.history.history import History

    history = History(instance.log, lambda: False)
    rows = history.rows_at(positions(instance.core, VHOST, topic))
    if filter is not None:
        rows = history.matching(rows, filter, VHOST)
    return gather(view, rows, history.exchange_of)
