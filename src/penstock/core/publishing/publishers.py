"""Publishers by name: which messages of a batch were stored before.

A publisher numbers its messages; what has a number at or below the highest that is stored under its name is a
duplicate: confirmed again, once the original is durable, and not stored again.  Gaps are fine.  The highest numbers are
durable (`Kind.PUBLISHERS`) and lie in one group with the rows they count.  They are kept for ever, or for as long as
`publisher_expiration` says after the last message, or the last start if that is later.

Here for batches whose headers name publisher and sequence row by row; where a door names them for a whole batch,
`Core.publish` counts.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.core.outbox import Outbox
from penstock.core.publishing.published import Published
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.effects import Effect
    from penstock.core.publishing.traits import Traits

GONE_AT_ONCE = 1_000
"""Publishers that one record forgets."""


class Publishers:
    """The highest sequence of each publisher."""

    def __init__(self, outbox: Outbox[Effect]) -> None:
        self.highest: dict[str, int] = {}
        self._outbox = outbox
        self._expiration: int | None = None  # microseconds; None: they are kept for ever
        self._heard: dict[str, int] = {}  # wall time of each one's last message, or of the start; oldest first

    def publish(
        self,
        batch: Publishes,
        traits: Sequence[Traits],
        store: Callable[[Publishes], Published],
    ) -> Published:
        """Store what of a batch is no duplicate.

        store: publishes rows that were judged here.
        """
        seen = dict[str, int]()
        fresh = list[int]()
        for row, one in enumerate(traits):
            if one.publisher is not None and one.sequence is not None:
                if one.sequence <= seen.get(one.publisher, self.highest.get(one.publisher, 0)):
                    continue
                seen[one.publisher] = one.sequence
            fresh.append(row)
        if seen:
            self.note(seen)
        if len(fresh) == len(traits):
            return store(batch)
        if not fresh:
            return Published(0, self._outbox.last_lsn, duplicates=len(traits))
        published = store(batch.select(fresh))
        return replace(
            published,
            unroutable=[fresh[row] for row in published.unroutable],
            refused=[(fresh[row], why) for row, why in published.refused],
            kept=[fresh[row] for row in published.kept],
            duplicates=len(traits) - len(fresh),
        )

    def note(self, highest: Mapping[str, int]) -> None:
        """Log these as the highest of their publishers."""
        self._outbox.record(Kind.PUBLISHERS, "", highest)
        self.highest.update(highest)
        if self._expiration is not None:
            for publisher in highest:
                self._heard.pop(publisher, None)
                self._heard[publisher] = self._outbox.time

    # -- publishers that are not heard of any more

    def expire_after(self, now: Now, expiration: int | None) -> None:
        """Forget whoever is not heard of for so many microseconds, from now on at the earliest."""
        self._expiration = expiration
        self._heard = {} if expiration is None else dict.fromkeys(self.highest, now.wall)

    def due(self) -> int | None:
        """Wall time at which the next one is to be forgotten; None: none ever."""
        if self._expiration is None or not self._heard:
            return None
        return next(iter(self._heard.values())) + self._expiration

    def tick(self, now: Now) -> None:
        """Forget who is due."""
        gone = list[str]()
        while (due := self.due()) is not None and due <= now.wall and len(gone) < GONE_AT_ONCE:
            publisher = next(iter(self._heard))
            del self._heard[publisher]
            self.highest.pop(publisher, None)
            gone.append(publisher)
        if gone:
            self._outbox.record(Kind.PUBLISHERS_GONE, "", {"publishers": gone})
