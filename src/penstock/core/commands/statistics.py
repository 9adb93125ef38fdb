"""The figures of a queue, as the documents name them; those that one instance alone cannot have are constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.places import oldest

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.core.stamps import Stamps
    from penstock.records.chunks import Now

RUNS_MOST = 1000
"""Runs of each place that are looked at for its oldest message; of a more disordered queue the age is a guess."""


def statistics(queue: Queue, now: Now, stamps: Stamps) -> dict[str, object]:
    """Snapshots, counts since the start, and settings."""
    figures = queue.figures
    depth = depth_of(queue)
    settings = queue.settings
    return {
        "queue_depth": depth,
        "inactive_message_count": queue.inactive,
        "backlog": queue.outstanding,
        "age_of_oldest_lease": age_of_oldest_lease(queue, now),
        "seconds_behind": seconds_behind(queue, now, stamps),
        "owned": depth + queue.inactive,
        "transferred_in": 0,
        "transferred_out": 0,
        "proxied_transfer": False,
        "max_backlog": settings.max_backlog,
        "target_queue_depth": settings.target_queue_depth,
        "message_type": "json",
        "topic": settings.underlying_topic or queue.name,
        "redelivered": 0 if figures is None else figures.redelivered,
        "expirations": {} if figures is None else dict(figures.expirations or {}),
        "ack_rate": 0.0 if figures is None else round(figures.rate(now.mono), 3),
        "lease_to_ack": {} if figures is None else told(figures.quantiles()),
    }


def given_way(queue: Queue) -> dict[str, object]:
    """What its limits did since the start: dropped at the head, replaced in a ring, refused;
    and how often a target refused one of its dead letters."""
    figures = queue.figures
    if figures is None:
        return {"dropped": 0, "replaced": 0, "refused": 0, "dead_letter_refused": 0}
    return {
        "dropped": figures.dropped,
        "replaced": figures.replaced,
        "refused": figures.refused,
        "dead_letter_refused": figures.letters_refused,
    }


def head_published(queue: Queue, now: Now, stamps: Stamps) -> int | None:
    """When the message that goes next was published, in seconds since the epoch; None without one."""
    head = queue.head()
    return None if head is None else stamps.of(head[1], now.wall) // 1_000_000


def told(quantiles: Mapping[float, float]) -> dict[str, float]:
    """By `p50`, `p99`, `p99.9` and so on, in seconds."""
    return {f"p{100 * share:g}": seconds for share, seconds in quantiles.items()}


def depth_of(queue: Queue) -> int:
    """Active messages that are not settled."""
    return queue.ready + queue.held + queue.leased + queue.delayed + queue.dying


def age_of_oldest_lease(queue: Queue, now: Now) -> float:
    """Seconds since the oldest delivery that nobody has settled; 0 without any."""
    granted = NEVER
    for consumer in queue.holders():
        first = next(consumer.leases.held(), None)
        if first is not None and first.granted:
            granted = min(granted, first.granted)
    return 0.0 if granted == NEVER else max(now.mono - granted, 0) / 1e6


def seconds_behind(queue: Queue, now: Now, stamps: Stamps) -> float:
    """Seconds since the oldest message that is not settled was published, or since the start; 0 for an empty queue."""
    lowest = oldest(queue, RUNS_MOST)
    return 0.0 if lowest == NEVER else max(now.wall - stamps.of(lowest, now.wall), 0) / 1e6
