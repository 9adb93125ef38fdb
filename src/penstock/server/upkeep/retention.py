"""Which segments are past retention, which of them may go, and the base that must be durable before they do.

A segment is past retention when it is closed and older than `retention.age`, or the log is larger than
`retention.bytes`, or than `retention.share` of the room there is for it: of what it takes and what its disk has free.
So a log that has the disk for itself may take that share of it, and where others fill the disk the log makes room; in
any case as much as it takes for the disk not to be full.  With an archive it must be archived too.

It may go when moreover every message in it has left every queue of its route, and no stream, reader or delivery may ask
for it again. Segments go from the front, so that what remains is one piece; where something in them is still needed,
`server.upkeep.compaction` leaves the rest out of them. The state as of the first kept LSN is folded from the old base
and the segments that go, in a thread, and written as a base; nothing is deleted before that base is durable, and
that every message has left its queues: a start without that would look for what is gone.

A batch read plans first and reads later, perhaps part by part, so it holds the log from an LSN on by name, and asks
again with each part (`Holds`); holds die with the process.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.log.catalog import SegmentInfo
from penstock.records.compute import gathered
from penstock.units import format_duration, format_size

if TYPE_CHECKING:
    from penstock.config.settings import Retention
    from penstock.ports import Clock
    from penstock.server.base.runtime import Runtime
    from penstock.server.people.access import Share, Who


SHARE = 0.5
"""The default since `DEFAULTS` 1: the log leaves at least as much free as it takes.  Before, everything was kept."""

ROLL_LEAST = 1 << 20
ROLL_PART = 8
"""A segment that is written to is closed, so that it can be past retention, when it has so many bytes and is this part
of the log: on a small disk it may be most of it."""

ACKS_PART = 8
"""A base leaves this part of the reserve, or as much elsewhere, to the acks: one in so many."""

logger = logging.getLogger("penstock.server")

FOLD_ROWS = 20_000
"""Rows that are folded in one go beside the loop: few steps of Python a row, and none that takes long."""

REST_S = 0.001


def unsaid(settings: Retention) -> bool:
    """Whether nobody has set a retention."""
    return (settings.age, settings.bytes, settings.share) == (None, None, None)


def ruling(settings: Retention, defaults: int) -> Retention:
    """What rules in a data folder with these defaults, see `core.state.durable.DEFAULTS`."""
    return settings.model_copy(update={"share": SHARE if defaults else 1}) if unsaid(settings) else settings


def in_words(settings: Retention) -> str:
    """What rules, as a person reads it."""
    rules = list[str]()
    if settings.age is not None:
        rules.append(f"when it is older than {format_duration(settings.age)}")
    if settings.bytes is not None:
        rules.append(f"when the log has more than {format_size(settings.bytes)}")
    if settings.share is not None and settings.share < 1:
        rules.append(f"when the log takes more than {settings.share:.0%} of the room on its disk")
    if not rules:
        return "everything is kept, for ever"
    return f"what nobody needs any more goes {' or '.join(rules)}"


class Retirement:
    def __init__(self, runtime: Runtime, settings: Retention) -> None:
        """settings: those that rule, see `ruling`."""
        self._runtime = runtime
        self._settings = settings
        self._ages: dict[int, int] = {}  # by last LSN of a segment: time of its last record
        self.past_upto = 0  # last LSN of what was past retention when somebody last looked
        self._rest = threading.Event()  # never set: waiting for it lets the loop have the interpreter
        self._floor, self._state = runtime.log.base_state() or (0, b"")

    @property
    def yields(self) -> bool:
        """Whether the log makes room where the disk gets short."""
        return self._settings.share is not None and self._settings.share < 1

    def most(self) -> int | None:
        """Bytes that the log may have before what nobody needs goes; None: any number.  Any thread; asks the disk."""
        log, most = self._runtime.log, self._settings.bytes
        if self._settings.share is None or not self.yields:
            return most
        size = log.size
        shared = int(self._settings.share * (size + log.disk.free()))
        if lacking := log.room.lacking():
            shared = max(0, min(shared, size - lacking))
        return shared if most is None else min(most, shared)

    def wants_a_new_segment(self) -> bool:
        """Whether the segment that is written to is so much of a log past its share that it has to be closed.

        So it is where the disk is full, if an archive takes what is closed, whatever else rules.
        """
        log = self._runtime.log
        last = log.segments()[-1]
        if not last.rows or last.bytes < max(ROLL_LEAST, log.size // ROLL_PART):
            return False
        if log.room.full and self._runtime.archived is not None:
            return True
        if not self.yields:
            return False
        most = self.most()
        return most is not None and log.size > most

    def _may_go(self, segment: SegmentInfo) -> bool:
        """Whether it is in the archive, and followers have it, where there are any: until then it stays."""
        archived, copied = self._runtime.archived, self._runtime.copied
        if copied is not None and not self._runtime.log.room.full and not copied(segment):
            return False
        return archived is None or archived(segment)

    def past(self) -> list[SegmentInfo]:
        """Closed segments past retention, oldest first.  Reads the log: not on the loop."""
        age, size = self._settings.age, self.most()
        segments = self._runtime.log.segments()
        found = list[SegmentInfo]()
        if age is None and size is None:
            return found
        present = {segment.last for segment in segments}
        self._ages = {last: time for last, time in self._ages.items() if last in present}
        total = sum(segment.bytes for segment in segments)
        now = self._runtime.clock.wall()
        for segment in segments[:-1]:
            too_large = size is not None and total > size
            if not too_large and (age is None or self._last_time(segment) >= now - age):
                break
            if not self._may_go(segment):
                break
            found.append(segment)
            total -= segment.bytes
        self.past_upto = found[-1].last if found else 0
        return found

    def due(self, floor: int) -> int | None:
        """The first LSN to keep, when at least one segment may go; else None.  Reads the log: not on the loop.

        `floor`: no message below it is in any queue or may be asked for by a stream.
        """
        keep: int | None = None
        for segment in self.past():
            if segment.last >= floor:
                break
            keep = segment.last + 1
        return keep

    def state_below(self, floor: int) -> bytes:
        """The durable state of all records below `floor`, encoded.  Reads the log: not on the loop."""
        fold = Fold(DurableState.decode(self._state)) if self._state else Fold()
        for part, table in enumerate(gathered(self._runtime.log.batches(self._floor, floor), FOLD_ROWS)):
            if part:
                self._rest.wait(REST_S)
            fold.feed(table)
        return fold.finish().encode()

    def room_for(self, state: bytes) -> bool:
        """Whether a base of this state would leave the log room for what comes after it, acks above all."""
        log = self._runtime.log
        if not log.room.full or log.room.left() >= len(state) + log.settings.reserve // ACKS_PART:
            return True
        logger.warning(
            "nothing can be removed: that takes %d bytes, and the full disk has %d for the log and its acks",
            len(state), log.room.left(),
        )  # fmt: skip
        return False

    def write_base(self, floor: int, state: bytes) -> int:
        """Log the base, on the loop; the LSN that must be durable before anything is deleted."""
        runtime = self._runtime
        lsn = runtime.core.write_base(
            runtime.now(),
            runtime.log.base_parts(state),
            lambda first, time: runtime.log.base_group(first, time, floor, state),
        )
        self._floor, self._state = floor, state
        runtime.finish_turn()
        return lsn

    def _last_time(self, segment: SegmentInfo) -> int:
        """Time of the last record of a closed segment, microseconds; in a segment without rows, 0."""
        known = self._ages.get(segment.last)
        if known is None:
            known = 0
            for batch in self._runtime.log.batches(segment.last, segment.last + 1, ["time"]):
                known = batch.column(0).cast(pa.int64())[-1].as_py()
            self._ages[segment.last] = known
        return known


HOLD_US = 600_000_000

_Name = tuple[str, str]
"""The user, and what he calls the read."""


class Holds:
    """All holds of one server.  Belongs to the loop's thread."""

    def __init__(self, clock: Clock, share: Share) -> None:
        """share: how many a user may have."""
        self._clock = clock
        self._share = share
        self._by_name = dict[_Name, tuple[int, int]]()  # (LSN, mono microseconds when it ends)

    def put(self, who: Who, read: str, lsn: int) -> bool:
        """Hold everything from `lsn` on; of several LSNs under one user's name for it the lowest counts.

        Whether there was a hold of this name, that is, nothing has gone since.  Unavailable: there are too many.
        """
        name = who.user, read
        before = self._living().get(name)
        if before is None:
            self._share.take(who)
        self._by_name[name] = (lsn if before is None else min(lsn, before[0]), self._clock.mono() + HOLD_US)
        return before is not None and before[0] <= lsn

    def drop(self, user: str, read: str) -> None:
        if self._by_name.pop((user, read), None) is not None:
            self._share.give(user)

    def floor(self) -> int | None:
        """The lowest LSN held; None: no hold."""
        return min((lsn for lsn, _ in self._living().values()), default=None)

    def _living(self) -> dict[_Name, tuple[int, int]]:
        now = self._clock.mono()
        for name in [name for name, (_, until) in self._by_name.items() if until <= now]:
            self.drop(*name)
        return self._by_name
