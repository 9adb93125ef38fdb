"""Where bookmarks are in a log: from a span, as people write it, to LSNs.

A bookmark of another log is refused.  One that this log does not know, because it is older than what is kept or was
never given out, is `bookmark_not_found`'s business: read from the beginning, from now on, or refuse; what was done is
said in `notice`.  So is one behind which rows were left out by compaction: that is refused, or what is left is read.
Who asks for the beginning, or for a time, asks for what there is.  Times are looked up by bisection, which reads the
log: `reads` tells.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, cast

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgument, NotFound
from penstock.records.chunks import LSN_LIMIT
from penstock.records.dataclass import dataclass
from penstock.wire.flight.bookmarks import Point, Span, format_bookmark

Missing = Literal["epoch", "now", "fail"]

MISSING: tuple[Missing, ...] = ("epoch", "now", "fail")


class Kept(Protocol):
    """A log to look in."""

    @property
    def origin(self) -> int: ...
    @property
    def durable(self) -> int: ...
    @property
    def first_lsn(self) -> int: ...
    def batches(self, a: int, b: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Durable rows with LSNs in [a, b)."""
        ...


class Whole(Kept, Protocol):
    """One that knows whether all of it is there."""

    def has_every(self, a: int, b: int) -> bool:
        """Whether every row that was written with an LSN in [a, b) can be read."""
        ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a span is in a log: LSNs [start, end), and times that lie ahead."""

    start: int
    end: int | None = None  # None: no end
    since: int = 0  # microseconds since the epoch: what is older is left out; 0: nothing is
    until: int | None = None  # microseconds since the epoch: the end, where no LSN is known for it yet
    notice: str = ""  # what the reader has to know: a bookmark was not found


def check_missing(text: str) -> Missing:
    """`bookmark_not_found` as given.  InvalidArgument."""
    for known in MISSING:
        if text == known:
            return known
    raise InvalidArgument(f"bookmark_not_found is {text[:40]!r}: there is 'epoch', 'now' and 'fail'")


def reads(span: Span) -> bool:
    """Whether finding the places reads the log."""
    ends = (span.start, span.end) if span.end is not None else (span.start,)
    return any(point.kind == "time" for end in ends for point in end.parts())


def resolve(
    log: Whole, span: Span, missing: Missing | None = "now", *, wall: int | None = None, last: int | None = None
) -> Stretch:
    """The LSNs of a span.

    missing  what to do about a bookmark that is not known; None: take its LSN as it is
    wall     microseconds since the epoch: times after that lie ahead.  None: a time after all records is where they end
    last     the last LSN that was given out; None: the last durable one
    Errors: InvalidArgument for a bookmark of another log, NotFound for an unknown one when `missing` is "fail", and for
    one behind which rows of the span were left out.
    """
    places = _Places(log, missing, wall, log.durable if last is None else last)
    alone = span.end is None  # a time by itself names no message that one could start after
    start = min(places.first(p, span.with_start or (alone and p.kind == "time")) for p in span.start.parts())
    since = 0 if _here(span.start, wall) else min(point.time for point in span.start.parts())
    if span.end is None:
        return Stretch(start, None, since, None, places.told(LSN_LIMIT))
    here = _here(span.end, wall)
    if not here:
        until = min(point.time for point in span.end.parts()) + span.with_end
        return Stretch(start, None, since, until, places.told(LSN_LIMIT))
    end = min(places.first(point, not span.with_end, is_end=True) for point in here)
    return Stretch(start, max(start, end), since, None, places.told(end))


def _here(end: Point, wall: int | None) -> list[Point]:
    """Those points of an end of a span that are no times that lie ahead of `wall`."""
    return [point for point in end.parts() if point.kind != "time" or wall is None or point.time <= wall]


class _Places:
    def __init__(self, log: Whole, missing: Missing | None, wall: int | None, last: int) -> None:
        self._log = log
        self._missing = missing
        self._wall = wall
        self._last = last
        self._notice = ""
        self._found = LSN_LIMIT  # of the bookmarks that are known the lowest place

    def first(self, point: Point, inclusive: bool, *, is_end: bool = False) -> int:
        """The first LSN at (inclusive) or after a point.  is_end: wherever that is, a range may end there."""
        log = self._log
        match point.kind:
            case "epoch":
                return log.first_lsn
            case "now":
                return self._last + 1
            case "time":
                if self._wall is not None and point.time > self._wall:
                    return self._last + 1
                return lsn_at(log, point.time if inclusive else point.time + 1)
            case _:
                return self._message(point, inclusive, is_end)

    def _message(self, point: Point, inclusive: bool, is_end: bool) -> int:
        log = self._log
        if point.origin != log.origin:
            raise InvalidArgument(
                f"bookmark {point.origin}|{point.lsn}| comes from another log; here they begin with {log.origin}|"
            )
        first = point.lsn if inclusive else point.lsn + 1
        if self._missing is None or is_end:
            return first
        if log.first_lsn <= first <= self._last + 1:
            self._found = min(self._found, first)
            return first
        text = format_bookmark(point.origin, point.lsn)
        why = (
            f"bookmark {text} was not found: the log begins at {format_bookmark(log.origin, log.first_lsn)}"
            if first < log.first_lsn
            else f"bookmark {text} was not found: the last one is {format_bookmark(log.origin, self._last)}"
        )
        if self._missing == "fail":
            raise NotFound(why)
        self._notice = f"{why}; reading from {'the beginning of the log' if self._missing == 'epoch' else 'now'} on"
        return log.first_lsn if self._missing == "epoch" else self._last + 1

    def told(self, end: int) -> str:
        """What the reader of the bookmarks up to `end` has to know.  NotFound where that is why there is nothing."""
        if self._missing is None or self._missing == "epoch" or self._log.has_every(self._found, end):
            return self._notice
        mark = format_bookmark(self._log.origin, self._found)
        why = f"bookmark {mark} and what follows it: rows that no queue needed any more were left out by compaction"
        if self._missing == "fail":
            raise NotFound(f"{why}; with bookmark_not_found = epoch what is left is read")
        return self._notice or f"{why}; reading what is left"


def lsn_at(log: Kept, time: int) -> int:
    """The first LSN whose record is not older than `time`; one past the end when all are older.

    Record times never decrease, so this is a bisection over the LSNs, gaps included.
    """
    low, high = log.first_lsn, log.durable + 1
    while low < high:
        middle = (low + high) // 2
        batch = next(log.batches(middle, high, None), None)
        if batch is None:
            high = middle
            continue
        times = batch.column("time").cast(pa.int64()).to_numpy()
        lsns = cast("np.ndarray[tuple[int], np.dtype[np.int64]]", batch.column("lsn").to_numpy())
        if times[-1] < time:
            low = int(lsns[-1]) + 1
        elif times[0] >= time:
            high = middle
        else:
            return int(lsns[int(np.searchsorted(times, time))])
    return low
