"""How often a message was tried, and when that is enough.

A tally is one shared value for a run of messages, however long the run.  The limits are judged at one moment only: when
a message would go back to its queue.  The smallest of several limits wins.

    max_deliveries n    n deliveries in all, whatever ended them, but for those that nobody saw
    retry.attempts n    n failures in all: failed explicitly, lease ended, or lost with its consumer as its oldest
    delivery_limit n    n + 1 failures in all
    max_cancels n       n cancels in all

A failed message stays away from its consumers for its back-off, in which there is chance (`core.chance`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.chance import chance
from penstock.records.causes import MAX_CANCELS, MAX_DELIVERIES
from penstock.records.queue_settings import QueueSettings, Retry


class Tally(NamedTuple):
    """Counts of one run of messages.  All of them are durable."""

    deliveries: int = 0  # sends, whatever became of them: the number that fences, which never stands for two of them
    failures: int = 0
    cancels: int = 0
    unseen: int = 0  # of the sends: given back before anybody saw the message

    @property
    def attempt(self) -> int:
        """Deliveries that somebody may have seen: the number that users are shown, and that limits count."""
        return self.deliveries - self.unseen


FRESH = Tally()
ONCE = Tally(1)


def delivered(tally: Tally) -> Tally:
    """The tally after one more send."""
    return ONCE if tally is FRESH else tally._replace(deliveries=tally.deliveries + 1)


def spent(tally: Tally, settings: QueueSettings) -> tuple[str, ...]:
    """The reasons why a message with this tally does not go back: `max_cancels`, `max_deliveries`, both or none."""
    out: tuple[str, ...] = ()
    if settings.max_cancels and tally.cancels >= settings.max_cancels:
        out = (MAX_CANCELS,)
    retry = settings.retry
    if (
        (settings.max_deliveries and tally.attempt >= settings.max_deliveries)
        or (retry is not None and retry.attempts and tally.failures >= retry.attempts)
        or (settings.delivery_limit >= 0 and tally.failures > settings.delivery_limit)
    ):
        out += (MAX_DELIVERIES,)
    return out


def binding_limit(settings: QueueSettings) -> tuple[str, int] | None:
    """The setting that ends a message which always fails, and how many deliveries it allows; None without a limit."""
    limits: list[tuple[int, str]] = []
    if settings.max_deliveries:
        limits.append((settings.max_deliveries, "max_deliveries"))
    if settings.retry is not None and settings.retry.attempts:
        limits.append((settings.retry.attempts, "retry.attempts"))
    if settings.delivery_limit >= 0:
        limits.append((settings.delivery_limit + 1, "delivery_limit"))
    if not limits:
        return None
    allowed, name = min(limits)
    return name, allowed


def back_off(retry: Retry, failures: int, queue: int, lsn: int) -> int:
    """Microseconds that a message waits after its n-th failure (n >= 1); what failed together waits together."""
    # past 2**62 the power is the maximum anyway; floats would overflow at 2**1024
    steps = min(max(failures - 1, 0), 1023)
    try:
        delay = min(retry.initial * retry.factor**steps, float(retry.max))
    except OverflowError:
        delay = float(retry.max)
    delay *= 1 + retry.jitter * (2 * chance(queue, lsn, failures) - 1)
    return max(round(delay), 0)
