"""What others ask of a queue beside its commands, in words that name none of its parts.

Publishing asks whether it refuses a message, has publishers wait or lets others give way, and which keys it knows;
doors ask who is at work.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from penstock.core.queue import lasting
from penstock.core.queue.contents import Contents
from penstock.core.queue.dedup import Window, told_of
from penstock.core.queue.dispatching.attendance import unused
from penstock.core.queue.dispatching.browsing import newest
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.limits import Limits
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.stages import PLAIN
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings

_UNBOUNDED = Limits(QueueSettings())


class Surface(Contents):
    """The side of a queue that faces whoever publishes, and the doors."""

    __slots__ = ()

    # -- limits

    @property
    def _bounds(self) -> Limits:
        foreign = self.foreign
        if self.limits is None or (foreign is not None and (foreign.open or foreign.coming is not None)):
            return _UNBOUNDED  # it is let in, or is not this site's
        return self.limits

    @property
    def limited(self) -> bool:
        """Whether a limit or a last-value key can refuse or remove messages."""
        return self.limits is not None or self.last_values is not None

    @property
    def rejects(self) -> bool:
        """Whether it refuses messages beyond its limits."""
        return self._bounds.mode.rejects

    @property
    def refuses(self) -> bool:
        """Whether it tells the publisher so."""
        return self._bounds.mode.rejects and not self._bounds.mode.drops_newest

    @property
    def drops_newest(self) -> bool:
        """Whether it drops what it refuses, and tells nobody."""
        return self._bounds.mode.drops_newest

    @property
    def blocks(self) -> bool:
        """Whether publishers wait while it is full."""
        return self._bounds.mode.blocks

    @property
    def buries(self) -> bool:
        """Whether refused messages become dead letters."""
        return self._bounds.mode.buries

    def holds_up(self, size: int) -> bool:
        """Whether a message of `size` bytes has to wait for room, and can ever have it."""
        bounds = self._bounds
        return bounds.mode.blocks and bounds.ever_fit(size) and not bounds.fit(self, size)

    def ever_holds(self, count: int) -> bool:
        """Whether `count` messages can be in it at once, though not all fit now."""
        bounds = self._bounds
        return count <= bounds.length and (self.ready > 0 or bounds.size == NEVER)

    def gives_way(self, count: int, size: int) -> bool:
        """Whether `count` newcomers of `size` bytes together can displace others, or have owners to be told."""
        told = self.last_values is not None or (self.foreign is not None and self.foreign.coming is not None)
        return told or (self.limits is not None and self.limits.yields(self, count, size))

    @property
    def newest(self) -> int:
        """The LSN of the newest message that is ready; 0 when there is none."""
        return newest(self)

    @property
    def limits_told(self) -> str:
        """Its limits in words, for people."""
        bounds = self._bounds
        sizes = (("max_length", bounds.length), ("max_length_bytes", bounds.size))
        return ", ".join(f"{name} is {value}" for name, value in sizes if value < NEVER)

    @property
    def keeps_what_it_has(self) -> bool:
        """Whether nothing leaves it while messages without an end of their own come in."""
        settings = self.settings
        return (
            not self.roster.all and not self.limited and self.onward is None and not settings.purge_on_no_consumers
            and settings.expiration is None and settings.message_ttl is None
        )  # fmt: skip

    @property
    def paused(self) -> bool:
        """Whether it is paused.  (While the server drains it is `halted` without being paused.)"""
        return self.paused_until > 0

    @property
    def awaited(self) -> tuple[str, ...]:
        """Sites that have to tell what happened before anything is delivered."""
        return self.behind

    # -- what it wants to know of a message

    @property
    def is_plain(self) -> bool:
        """Whether it has no stage that needs more of a message than its times."""
        return self.plan is PLAIN

    @property
    def ranked_by(self) -> str | None:
        """The expression that gives each newcomer its priority."""
        return None if self.ranks is None else self.settings.rank_text

    @property
    def shared_by_keys(self) -> bool:
        """Whether messages are dispatched by group or fairness keys."""
        return self.shares is not None

    @property
    def replaces(self) -> bool:
        """Whether a newcomer may replace a message of its key."""
        return self.last_values is not None

    @property
    def deduplicates(self) -> bool:
        """Whether keys keep messages out of it."""
        return self.dedup is not None

    @property
    def duplicates(self) -> int:
        """Duplicates that were kept out since the start."""
        return 0 if self.dedup is None else self.dedup.duplicates

    def knows_any(self, keys: Sequence[int]) -> bool:
        """Whether any of these keys is remembered, even one that no longer keeps messages out."""
        return self.dedup is not None and self.dedup.knows(keys)

    def has_key(self, key: int) -> bool:
        """Whether keys are unique, and a message with this key is in the queue in any state."""
        return self.dedup is not None and self.dedup.has(self, key)

    def had_key(self, key: int, time: int) -> bool:
        """Whether it took a message with this key within the deduplication window."""
        return self.dedup is not None and self.dedup.in_window(key, time, self.settings)

    def take_keys(self, told: Sequence[tuple[int, int]], time: int) -> None:
        """Remember the keys of messages that it takes: (LSN, key) of each."""
        if self.dedup is not None:
            self.dedup.take(self, told, time)

    def spared(self, count: int) -> None:
        """Count duplicates that were kept out."""
        if self.dedup is not None:
            self.dedup.duplicates += count

    @property
    def keys_told(self) -> Mapping[str, int]:
        """What its statistics say of keys that keep messages out."""
        return told_of(self.dedup)

    @property
    def window(self) -> Window | None:
        """Keys within the deduplication window; None without a window."""
        return None if self.dedup is None else self.dedup.window

    def remember(self, pairs: array[int]) -> None:
        """What the window had before the process started, as it was dumped."""
        if self.dedup is not None and self.dedup.window is not None:
            self.dedup.window = Window.loaded(pairs)

    # -- messages that a pass over the log finds

    expect_older = lasting.expect_older
    take_older = lasting.take_older
    put_in_order = lasting.put_in_order

    # -- who is at work

    @property
    def shares_credit(self) -> bool:
        """Whether a consumer shares its credit with consumers of other queues."""
        return self.sharing > 0

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Open consumers that are pushed to, in order of subscription."""
        return self.roster.all

    @property
    def filters_look(self) -> bool:
        """Whether a filter is asked about messages at the moment."""
        return bool(self.targets.asked)

    @property
    def waits_for_filters(self) -> bool:
        """Whether consumers wait until their filters have looked at the messages that were there first."""
        return self.attendance.looking

    def spare(self, wall: int) -> int:
        """Microseconds since the start in which consumers could have taken more."""
        return self.attendance.spare + (max(wall + self.used_at, 0) if self.used_at < 0 else 0)

    def is_unused(self, now: Now) -> bool:
        """Whether it expires for want of use; if not yet, the next time to look is set."""
        return self.attendance.expires <= now.mono and unused(self, now)
