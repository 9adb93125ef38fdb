"""What is asked about messages that wait: why, since when, and that they go elsewhere.  All of it is server actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, cast

from penstock.client.durations import Duration, moment
from penstock.client.link import Acting
from penstock.errors import InvalidArgument

STEP = 1000
"""Messages of one call that moves."""


class WaitingCalls(Acting):
    """Queues that are halted, messages that are withdrawn, moved or explained."""

    def pause(self, queue: str, until: datetime | Duration | None = None) -> dict[str, Any]:
        """Deliver nothing from a queue, to nobody, until then: a time, or a duration from now; None: until `resume`.

        Publishes and acks go on, and time does too: what expires meanwhile expires.  It outlives a restart.
        """
        at, wait = moment(until, "until")
        return self.action("pause", queue=queue, until=at, wait=wait)

    def resume(self, queue: str) -> bool:
        """Deliver again; whether the queue was paused."""
        return cast("bool", self.action("resume", queue=queue)["was_paused"])

    def cancel(self, bookmark: str | int, *, queue: str | None = None) -> dict[str, Any]:
        """Withdraw a message wherever it waits, or in one queue; `queues` are those it was taken from.

        bookmark    or its LSN
        No dead letter comes of it.  Errors: NotFound without such a message; PreconditionFailed when it waits nowhere,
        with a sentence for each queue that had it.
        """
        return self.action("cancel", bookmark=str(bookmark), queue=queue)

    def reschedule(self, bookmark: str | int, when: datetime | Duration, *, queue: str | None = None) -> dict[str, Any]:
        """Let a message wait until then, a time or a duration from now, whatever it waits for: errors as of `cancel`.

        A message that is ready goes away until then; one that was delayed longer comes earlier.
        """
        at, wait = moment(when, "when")
        return self.action("reschedule", bookmark=str(bookmark), queue=queue, when=at, wait=wait)

    def explain(self, queue: str | None = None, *, bookmark: str | int | None = None) -> dict[str, Any]:
        """Why a queue delivers nothing, or nothing more, now: `reasons`, each with a `code` and a sentence, `text`.

        bookmark    or an LSN: why that message is not delivered; `queues` has the reasons of each that has or had it
        No reasons: the next message goes out at once.
        """
        return self.action("explain", queue=queue, bookmark=None if bookmark is None else str(bookmark))

    def story(self, bookmark: str | int) -> dict[str, Any]:
        """What happened to one message, oldest first, in `events`, and how far the log reaches.  Errors: NotFound."""
        return self.action("story", bookmark=str(bookmark))

    def redrive(
        self,
        queue: str,
        *,
        filter: str | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]:
        """Dead letters of a queue back to where they died first, oldest first; each is in one place at any moment.

        filter     only those that match
        count      so many at most
        rate       messages a second at most
        dry_run    count alone: nothing is moved
        progress   is told how many were moved so far
        They begin anew there: at the end, without history and attempts.  `targets` counts them by queue, `strays` those
        that stay, by the reason why.
        """
        return self._move("redrive", queue, None, filter, count, rate, dry_run, progress)

    def move(
        self,
        queue: str,
        to: str,
        *,
        filter: str | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]:
        """What waits in a queue to the end of another; as `redrive`."""
        return self._move("move", queue, to, filter, count, rate, dry_run, progress)

    def _move(
        self, what: str, queue: str, to: str | None, filter: str | None, count: int | None, rate: float | None,
        dry: bool, progress: Callable[[int], object] | None,
    ) -> dict[str, Any]:  # fmt: skip
        if count is not None and count < 1:
            raise InvalidArgument(f"count is {count}; at least one message is moved")
        if rate is not None and not rate > 0:
            raise InvalidArgument(f"rate is {rate}, not a number of messages a second")
        total: dict[str, Any] = {"moved": 0, "matched": 0, "targets": {}, "strays": {}}
        for portion in _portions(count, None if dry else rate):
            after = total.pop("next", None)
            told = self.action(what, queue=queue, to=to, filter=filter, count=portion(total), after=after, dry=dry)
            for name in ("moved", "matched"):
                total[name] += cast("int", told[name])
            for name in ("targets", "strays"):
                for key, number in cast("dict[str, int]", told[name]).items():
                    total[name][key] = total[name].get(key, 0) + number
            total["next"] = told["next"]
            if progress is not None:
                progress(total["moved"])
            if told["next"] is None or (count is not None and total["matched"] >= count):
                break
        total.pop("next", None)
        return total


def _portions(count: int | None, rate: float | None) -> Iterator[Callable[[dict[str, Any]], int]]:
    """How many the next call takes, as long as somebody asks; with a rate it waits in between."""
    started = time.monotonic()

    def portion(total: dict[str, Any]) -> int:
        most = STEP if count is None else min(STEP, count - cast("int", total["matched"]))
        if rate is not None:
            most = min(most, max(1, round(rate / 10)))
            wait = started + cast("int", total["moved"]) / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
        return max(most, 1)

    while True:
        yield portion
