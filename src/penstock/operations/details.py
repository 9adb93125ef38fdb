"""The first thousand messages of a queue with who holds them, and its subscriptions.

Positions come from the loop, ages and priorities from the log's own columns.  Looking changes nothing and leases
nothing; no body is read.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from penstock.core.commands.queues import statistics
from penstock.core.queue.dispatching.consumers import UNLIMITED
from penstock.history.history import History
from penstock.operations.operation import Answer, Operation
from penstock.records.dataclass import dataclass
from penstock.records.rights import sees
from penstock.wire.fields import VHOST, count, name
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.queue import Queue
    from penstock.operations.house import Beside
    from penstock.records.chunks import Now
    from penstock.server.access import Who

MESSAGES_MOST = 1000
SUBSCRIPTIONS_MOST = 1000


@dataclass(slots=True)
class Standing:
    """One message where it stands."""

    lsn: int
    state: str
    deliveries: int = 0
    holder: str = ""
    granted: int = 0


def details(house: Beside, who: Who, queue: str, vhost: str, limit: int) -> Answer:
    """The queue, who subscribes, and `messages`: the first of it, by LSN, in whatever state."""
    core, log = house.core, house.log

    def look() -> tuple[dict[str, object], list[Standing], Now]:
        found, now = core.queue(vhost, queue), house.now()
        return described(core, found, now), first_messages(found, limit), now

    facts, standing, now = house.call(look)
    columns = {lsn: (time, priority) for lsn, time, priority in _columns(house, standing)}
    messages = [
        {
            "lsn": one.lsn,
            "bookmark": format_bookmark(log.origin, one.lsn),
            "state": one.state,
            "deliverable": one.state == "ready",
            "age": round(max(now.wall - columns[one.lsn][0], 0) / 1e6, 6) if one.lsn in columns else None,
            "priority": columns[one.lsn][1] if one.lsn in columns else None,
            "deliveries": one.deliveries,
            "leased_to": one.holder or None,
            "leased_age": round(max(now.mono - one.granted, 0) / 1e6, 6) if one.granted else None,
        }
        for one in standing
    ]
    return {**facts, "messages": messages}


def described(core: Core, queue: Queue, now: Now) -> dict[str, object]:
    """The queue itself and who subscribes; on the loop."""
    figures = statistics(queue, now, core.stamps)
    consumers = list(islice(queue.consumers, SUBSCRIPTIONS_MOST))
    return {
        "queue": queue.name,
        "vhost": queue.vhost,
        "depth": figures["queue_depth"],
        "internal_depth": figures["owned"],
        "insert_count": queue.arrived,
        "delete_count": queue.acked + sum((queue.figures.expirations or {}).values() if queue.figures else ()),
        "seconds_behind": figures["seconds_behind"],
        "age_of_oldest_lease": figures["age_of_oldest_lease"],
        "backlog": figures["backlog"],
        "expired_leases": queue.expired_leases,
        "subscriptions": [_subscription(one) for one in consumers],
        "subscriptions_total": len(queue.consumers),
    }


def _subscription(consumer: Consumer) -> dict[str, object]:
    return {
        "client": consumer.client,
        "tag": consumer.tag,
        "state": "paused" if consumer.paused else "full" if consumer.room <= 0 else "open",
        "backlog": consumer.outstanding,
        "max_backlog": None if consumer.limit >= UNLIMITED else consumer.limit,
        "filter": None if consumer.filter is None else consumer.filter.text,
        "priority": consumer.priority,
    }


def first_messages(queue: Queue, most: int) -> list[Standing]:
    """The oldest messages, by LSN, in whatever state; on the loop."""
    found = [
        Standing(lsn, state, run.tally.attempt, "" if holder is None else holder.client or holder.tag, run.granted)
        for state, run, holder in queue.first(most)
        for lsn in run.chunk
    ]
    return sorted(found, key=lambda one: one.lsn)[:most]


def _columns(house: Beside, standing: list[Standing]) -> Iterator[tuple[int, int, int]]:
    """LSN, time and priority of the messages that the log has."""
    history = History(house.log, house.gone)
    for batch in history.rows_at([one.lsn for one in standing]):
        lsns = cast("list[int]", batch.column("lsn").to_pylist())
        times = cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist())
        priorities = cast("list[int | None]", batch.column("priority").to_pylist())
        for lsn, time, priority in zip(lsns, times, priorities, strict=True):
            yield lsn, time, priority or 0


DETAILS = Operation(
    "details", details, "read", "queue, limit: its first messages and its subscriptions", sees("queue", "queue"),
    (name("queue"), VHOST, count("limit", 1, MESSAGES_MOST, MESSAGES_MOST)), sdk="details", cli="queue show",
    missing="over HTTP a queue's consumers stand beside it, and its messages are peeked at",
)  # fmt: skip

ROWS = (DETAILS,)
