"""Which DoGet runs in the bulk child, and its answer relayed: Arrow messages as bytes, no row of them touched.

A read that may go through many bytes of the log goes to the child; a small one stays in its Flight thread, where it
costs no process.  How far a read may go is known before it starts: from the segments' sizes and the LSNs it spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from penstock.history.history import Batches, History, Limits, Measured, Past
from penstock.history.spans import check_missing
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.server.bulk.process import Bulk, on_log
from penstock.server.flight.queue_rows import Part, pack
from penstock.server.flight.record_rows import Held
from penstock.server.views.record_query import Counts
from penstock.wire.flight.bookmarks import parse_span
from penstock.wire.flight.commands import LogRange, Plan, QueueContent, Replay, Sow

if TYPE_CHECKING:
    from penstock.log.catalog import SegmentInfo
    from penstock.log.log import Log
    from penstock.server.upkeep.archive import Archiving

T = TypeVar("T")

Answered: TypeAlias = "tuple[pa.Schema, Batches]"

LARGE = 8 << 20
"""Bytes of the log from which on a read is the child's."""

LARGE_FILTERED = 1 << 20
"""The same for a read with a content filter: that is Python for each row, and Python in a thread stops the loop."""

LONE = 64 << 10
"""What finding one row of the log may cost at most: the batch it was written in."""


@dataclass(eq=False)
class Relay:
    """Reads of one server that are not small."""

    bulk: Bulk
    _log: Log
    past: Past | None = None  # the log and its archive, where places are looked up
    _archive: Archiving | None = None  # who speaks for it
    large: int = LARGE
    large_filtered: int = LARGE_FILTERED
    relayed: int = field(default=0, init=False)  # reads that went to the child

    def __post_init__(self) -> None:
        self._past = self.past or self._log

    def records(self, command: LogRange, gone: Callable[[], bool]) -> Answered | None:
        """A range of the log; None when it is small."""
        start, end = command.from_lsn, min(command.to_lsn, self._log.durable + 1)
        if not self._is_large(start, end):
            return None
        return self._read("records", {"command": asdict(command)}, start, end, gone)

    def replay(self, command: Replay, gone: Callable[[], bool]) -> Answered | None:
        """Messages of topics; None when there is little to look through."""
        missing = check_missing(command.missing)
        start, end = History(self._past, gone).resolve(parse_span(command.bookmark), missing)
        return self.replay_between(command, start, end, gone)

    def replay_between(self, command: Replay, start: int, end: int, gone: Callable[[], bool]) -> Answered | None:
        """The same with LSNs in [start, end)."""
        if not self._is_large(start, end, filtered=command.filter is not None):
            return None
        values: dict[str, object] = {"command": asdict(command), "start": start, "end": end}
        return self._read("replay", values, start, end, gone)

    def measured(
        self, command: Replay, start: int, end: int, limits: Limits, gone: Callable[[], bool]
    ) -> Measured | None:
        """How far so many messages of a replay reach; None when there is little to look through."""
        most = min(limits.rows * 1024, limits.bytes * 2) if command.filter is None else 1 << 62
        if not self._is_large(start, end, most=most, filtered=command.filter is not None):
            return None
        values = {
            "command": asdict(command), "start": start, "end": end, "rows": limits.rows, "bytes": limits.bytes,
            "parts": limits.parts,
        }  # fmt: skip

        def ask(listed: dict[str, object]) -> dict[str, Any]:
            return self.bulk.call("measured", {**values, "log": listed}, wanted=lambda: not gone())

        told = self._relayed(ask, start, end)
        return Measured(told["end"], told["rows"], told["bytes"], tuple(told["cuts"]), told["time"])

    def content(self, command: QueueContent, parts: Sequence[Part], gone: Callable[[], bool]) -> Answered | None:
        """What waits in a queue; None when that is little."""
        return self._positions("content", command, parts, gone, filtered=command.filter is not None)

    def sow(self, command: Sow, held: Held, gone: Callable[[], bool], counts: Counts) -> Answered | None:
        """Records of a SOW topic; None when there are few.  counts: what they came to, once they are read."""
        if not len(held.lsns):
            return None
        start, end = int(held.lsns.min()), int(held.lsns.max()) + 1
        filtered = command.filter is not None or bool(command.order_by)
        if not self._is_large(start, end, most=len(held.lsns) * LONE, filtered=filtered):
            return None
        values: dict[str, object] = {
            "command": asdict(command), "keyed": held.keyed, "given": held.given,
            "numbers": held.numbers.tobytes(), "lsns": held.lsns.tobytes(),
        }  # fmt: skip
        return self._read("sow", values, start, end, gone, counts.take)

    def planned(self, command: Plan, chunks: Sequence[Chunk], gone: Callable[[], bool]) -> Answered | None:
        """A planned batch of a stream; None when it is small."""
        parts, keyed = [Part("", chunk, 0) for chunk in chunks], command.key is not None
        return self._positions("plan", command, parts, gone, filtered=keyed)

    def _positions(
        self,
        name: str,
        command: QueueContent | Plan,
        parts: Sequence[Part],
        gone: Callable[[], bool],
        *,
        filtered: bool = False,
    ) -> Answered | None:
        parts = [part for part in parts if len(part.chunk)]
        count = sum(len(part.chunk) for part in parts)
        if not count:
            return None
        start = min(part.chunk[0] for part in parts)
        end = max(part.chunk[-1] for part in parts) + 1
        if isinstance(command, Plan) and command.key is None:
            count = count // command.parts + 1
        if not self._is_large(start, end, most=count * LONE, filtered=filtered):
            return None
        return self._read(name, {"command": asdict(command), **pack(parts)}, start, end, gone)

    def _is_large(self, start: int, end: int, *, most: int = 1 << 62, filtered: bool = False) -> bool:
        if self.archived(start, end):
            return True  # Parquet is read by the child alone
        limit = self.large_filtered if filtered else self.large
        return min(most, self.bytes_between(start, end)) >= limit

    def archived(self, start: int, end: int) -> bool:
        """Whether some of the LSNs [start, end) are read from the archive."""
        shown = self._archive.shown() if self._archive is not None and start < self._log.whole_from else None
        if self._archive is None or shown is None:
            return False
        return any(a < min(end, shown.seam) and start < b for a, b in self._archive.manifest.spans)

    def bytes_between(self, start: int, end: int) -> int:
        """About how many bytes of the log and its archive have LSNs in [start, end)."""
        total = 0.0
        if self.archived(start, end) and self._archive is not None:
            for part in self._archive.manifest.files:
                low, high = max(start, part.first), min(end, part.last + 1, self._log.whole_from)
                if low < high:
                    total += part.bytes * (high - low) / (part.last + 1 - part.first)
        return int(total) + bytes_between(self._log.segments(), start, end)

    def _read(
        self,
        name: str,
        values: dict[str, object],
        start: int,
        end: int,
        gone: Callable[[], bool],
        told: Callable[[Mapping[str, int]], None] | None = None,
    ) -> Answered:
        """Ask the child; schema and batches when its first answer is there.  Raises what the child tells.

        told: takes what it says of them at their end.
        """

        def ask(listed: dict[str, object]) -> Answered:
            return self.bulk.read(name, {**values, "log": listed}, lambda: not gone(), told)

        return self._relayed(ask, start, end)

    def _relayed(self, ask: Callable[[dict[str, object]], T], start: int, end: int) -> T:
        """What `ask` gives for a listing of what has these LSNs."""
        self.relayed += 1
        archive = self._archive.shown if self._archive is not None and self.archived(start, end) else None
        return on_log(self._log, ask, start, end, archive)


def bytes_between(segments: Sequence[SegmentInfo], start: int, end: int) -> int:
    """About how many bytes of these segments have LSNs in [start, end)."""
    total = 0.0
    for one in segments:
        low, high = max(start, one.first), min(end, one.last + 1)
        if low < high:
            total += one.bytes * (high - low) / (one.last + 1 - one.first)
    return int(total)
