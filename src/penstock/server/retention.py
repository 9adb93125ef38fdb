"""Which segments may go, and the base that must be durable before they do.

A segment may go when all hold: it is closed; every message in it has left every queue of its route; no stream may ask
for it again; it is older than `retention.age`, or the log is larger than `retention.bytes`.  Segments go from the
front, so that what remains is one piece.  The state as of the first kept LSN is folded from the old base and the
segments that go, in a thread, and written as a base; `log.retire` deletes nothing before that base is durable.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold

if TYPE_CHECKING:
    from penstock.config.settings import Retention
    from penstock.log import SegmentInfo
    from penstock.server.engine import Engine


class Retirement:
    """Retention of one log."""

    def __init__(self, engine: Engine, settings: Retention) -> None:
        self._engine = engine
        self._settings = settings
        self._ages: dict[str, int] = {}  # by segment: time of its last record
        self._floor, self._state = engine.log.base_state() or (0, b"")

    def due(self, floor: int) -> int | None:
        """The first LSN to keep, when at least one segment may go; else None.  Reads the log: not on the loop.

        `floor`: no message below it is in any queue or may be asked for by a stream.
        """
        age, size = self._settings.age, self._settings.bytes
        if age is None and size is None:
            return None
        segments = self._engine.log.segments()
        total = sum(segment.bytes for segment in segments)
        now = self._engine.clock.wall()
        keep: int | None = None
        for segment, following in pairwise(segments):
            too_large = size is not None and total > size
            too_old = age is not None and self._last_time(segment) < now - age
            if segment.last >= floor or not (too_large or too_old):
                break
            keep = following.first
            total -= segment.bytes
        return keep

    def state_below(self, floor: int) -> bytes:
        """The durable state of all records below `floor`, encoded.  Reads the log: not on the loop."""
        fold = Fold(DurableState.decode(self._state)) if self._state else Fold()
        for batch in self._engine.log.batches(self._floor, floor):
            fold.feed(batch)
        return fold.finish().encode()

    def write_base(self, floor: int, state: bytes) -> int:
        """Log the base, on the loop; the LSN that must be durable before anything is deleted."""
        engine = self._engine
        lsn = engine.core.write_base(
            engine.now(),
            engine.log.base_parts(state),
            lambda first, time: engine.log.base_group(first, time, floor, state),
        )
        self._floor, self._state = floor, state
        engine.finish_turn()
        return lsn

    def _last_time(self, segment: SegmentInfo) -> int:
        """Time of the last record of a closed segment, microseconds; in a segment without rows, 0."""
        known = self._ages.get(segment.name)
        if known is None:
            known = 0
            for batch in self._engine.log.batches(segment.last, segment.last + 1, ["time"]):
                known = batch.column(0).cast(pa.int64())[-1].as_py()
            self._ages[segment.name] = known
        return known
