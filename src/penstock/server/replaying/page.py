"""Pages of messages in the order of the log, with what readers want to know of them.

One value stands for a column in which all rows agree.  Pages are shared between the readers of one feed: nobody changes
one, but what a door made of it for the first of them is kept with it for the others (`shown`).

For a reader that is not live a page comes from the log (`look`), off the loop, in a thread that others wait beside.
Topics are chosen by Arrow over whole batches; content filters go through the sieve first.  A page ends at its size or
when its time is up, and says how far it has looked.  A crowd that begins a topic anew, or falls behind together, wants
the same pages at about the same time: those at one place look once (`Looks`).  Who asks for a page that another one is
having looked up waits beside him, and pages that were found stay for a moment, up to a bound, for those who come to the
same place a little later.  Readers that began at different places meet at the end of the first page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from penstock.errors import LogDamaged, PenstockError
from penstock.expr.context import LOOP_BODY
from penstock.history.history import Past, joined
from penstock.log.record_batches import cells, chosen, column, lengths, nulls
from penstock.records import message_bodies as bodies_codec
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows, Topic
from penstock.records.kinds import Kind
from penstock.records.one_or_each import bytes_of, one_or_each, rows_at, tight, value_at
from penstock.server.asking.judging import Ask, breathe, spent
from penstock.server.base.faults import TOLD, reports
from penstock.server.replaying.selection import Selection, Sieve

if TYPE_CHECKING:
    from penstock.memory import Account


ROW_COST = 90
"""Bytes of memory that a row takes beside its body and header, about."""

PAGE_ROWS = 4_096
PAGE_BYTES = 256 * 1024
"""A page has no more than so many rows or, unless one row is larger, bytes."""


@dataclass(slots=True, eq=False)
class Page:
    """Rows with ascending LSNs."""

    lsns: Chunk
    topics: Topic | list[Topic]
    properties: bytes | list[bytes]
    bodies: list[bytes]
    times: int | list[int]  # microseconds since the epoch; they never decrease
    size: int = 0  # bytes in memory, about
    shown: tuple[tuple[int, int], pa.RecordBatch] | None = None  # what a door made of rows from an LSN on, so many

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def first(self) -> int:
        return self.lsns[0]

    @property
    def last(self) -> int:
        return self.lsns[-1]

    def topic_of(self, row: int) -> Topic:
        """The topic of one row."""
        return value_at(self.topics, row)

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return value_at(self.properties, row)

    def time_of(self, row: int) -> int:
        """When one row was stored."""
        return value_at(self.times, row)

    def part(self, low: int, high: int) -> Page:
        """Rows low..high-1 as a page of their own."""
        count, total, where = high - low, len(self.bodies), slice(low, high)
        if count == total:
            return self
        return Page(
            self.lsns[where],
            rows_at(self.topics, where),
            rows_at(self.properties, where),
            self.bodies[where],
            rows_at(self.times, where),
            self.size * count // total,
        )

    def from_lsn(self, lsn: int) -> Page | None:
        """The rows from an LSN on; None when there are none."""
        low = bisect_left(self.lsns, lsn)
        return self.part(low, len(self)) if low < len(self) else None

    def below(self, lsn: int) -> Page | None:
        """The rows below an LSN; None when there are none."""
        high = bisect_left(self.lsns, lsn)
        return self.part(0, high) if high else None

    def since(self, time: int) -> Page | None:
        """The rows that are not older than a time; None when there are none."""
        if isinstance(self.times, list):
            low = bisect_left(self.times, time)
        else:
            low = 0 if self.times >= time else len(self)
        return self.part(low, len(self)) if low < len(self) else None


def pages_of(batch: Publishes, rows: Sequence[int] | None) -> Iterator[Page]:
    """Rows of a batch in pages; all of them when `rows` is None."""
    sizes = bodies_codec.lengths(batch.bodies)
    if rows is None:
        rows = range(len(batch.bodies))
    start, n = 0, len(rows)
    while start < n:
        stop, size = start, 0
        while stop < n and stop - start < PAGE_ROWS:
            more = int(sizes[rows[stop]]) + ROW_COST
            if stop > start and size + more > PAGE_BYTES:
                break
            size += more
            stop += 1
        yield _page(batch, rows[start:stop], size)
        start = stop


def _page(batch: Publishes, rows: Sequence[int], size: int) -> Page:
    first, low, where = batch.first, rows[0], tight(rows)
    lsns: Chunk
    if isinstance(where, slice):
        lsns, bodies = range(first + low, first + where.stop), batch.bodies[where]
    else:
        lsns, bodies = as_chunk([first + row for row in rows]), [batch.bodies[row] for row in rows]
    return Page(lsns, rows_at(batch.topics, where), rows_at(batch.properties, where), bodies, batch.time, size)


def page_of(rows: Rows) -> Page:
    """Rows that were read from the log."""
    times, properties = rows.times, one_or_each(rows.properties)
    return Page(
        as_chunk(rows.lsns),
        one_or_each(rows.topics),
        properties,
        rows.bodies,
        times[0] if times[0] == times[-1] else times,
        sum(map(len, rows.bodies)) + bytes_of(properties, 1) + ROW_COST * len(rows.bodies),
    )


LOOK_US = 50_000
"""A reader that has looked for so long hands over what it has."""

_LAST_PUBLISH = int(Kind.PUBLISH_TRANSIENT)


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at the log gave."""

    page: Page | None
    upto: int  # everything below this LSN has been looked at
    error: PenstockError | None = None  # there is nothing more to read


def look(
    log: Past,
    selection: Selection,
    sieve: Sieve | None,
    start: int,
    end: int,
    mono: Callable[[], int],
    rows: int = PAGE_ROWS,
    ask: Ask | None = None,
) -> Found:
    """Messages with LSNs in [start, end): the next page of them, at most `rows`.  Any thread; raises nothing."""
    try:
        stop = mono() + LOOK_US
        out = Rows([], [], [], [], [], [], [])
        left_rows, left_bytes = rows, PAGE_BYTES
        upto = start
        for batch in joined(log.batches(start, end, None, selection.names()), PAGE_ROWS, 4 * PAGE_BYTES):
            last = int(column(batch, "lsn", "<i8")[-1])
            found = _wanted(log, selection, sieve, batch, ask)
            if found.num_rows:
                costs = np.cumsum(lengths(found, "body") + lengths(found, "properties") + ROW_COST)
                fit = min(int(np.searchsorted(costs, left_bytes, "right")), left_rows)
                if not out.lsns:
                    fit = max(fit, 1)
                if fit:
                    _add(log, found.slice(0, fit), out)
                    left_rows -= fit
                    left_bytes -= int(costs[fit - 1])
                if fit < found.num_rows:
                    upto = out.lsns[-1] + 1 if fit else upto
                    break
            upto = last + 1
            if left_rows <= 0 or left_bytes <= 0 or mono() > stop:
                break
            breathe()
        else:
            upto = end
        return Found(page_of(out) if out.lsns else None, upto)
    except PenstockError as error:
        return Found(None, start, error)
    except OSError as error:
        failure = LogDamaged(f"the log cannot be read: {error}")
        failure.__cause__ = error
        return Found(None, start, failure)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the border of one who reads; nothing is changed here
        reports.tell(error, "reader")
        return Found(None, start, PenstockError(TOLD))


def _wanted(
    log: Past, selection: Selection, sieve: Sieve | None, batch: pa.RecordBatch, ask: Ask | None
) -> pa.RecordBatch:
    """The messages of a batch that are meant."""
    mask = compute.and_(compute.less_equal(batch.column("kind"), _LAST_PUBLISH), selection.mask(batch, log.vias.known))
    count = compute.sum(mask).as_py() or 0
    if count < batch.num_rows:
        batch = cast("Any", batch).filter(mask) if count else batch.slice(0, 0)
    if sieve is None or not count:
        return batch
    if not sieve.plain or sieve.filter is None:
        rows = Rows([], [], [], [], [], [], [])
        _add(log, batch, rows)
        hits = sieve.passed(rows.messages, ask, here=False)
        return chosen(batch, np.isin(np.arange(len(rows)), hits))
    from penstock.expr.scan import Scan

    scanner = Scan([sieve.filter], log.vias.topics, spent, body_most=LOOP_BODY, breathe=breathe)
    [found], large = scanner.run(batch)
    for lsn in large:
        one = Rows([], [], [], [], [], [], [])
        _add(log, chosen(batch, column(batch, "lsn", "<i8") == lsn), one)
        if sieve.passed(one.messages, ask, here=False):
            found.append(lsn)
    return chosen(batch, np.isin(column(batch, "lsn", "<i8"), found))


def _add(log: Past, batch: pa.RecordBatch, out: Rows) -> None:
    names: list[str] = cells(batch, "name")
    vias = None if nulls(batch, "via") == len(names) else cells(batch, "via")
    out.topics += log.vias.topics(vias, names)
    out.lsns += column(batch, "lsn", "<i8").tolist()
    out.properties += cells(batch, "properties")
    out.bodies += cells(batch, "body")
    out.times += column(batch, "time", "<i8").tolist()


Done: TypeAlias = Callable[[Found], None]
"""Takes what was found."""

LOOKED_BYTES = 2 << 20
"""Pages kept of what was looked up."""

KEEP_US = 5_000_000
"""How long: a filter may ask for the time."""


class Looks:
    """What the readers of one feed have looked up, and are having looked up.  Belongs to the loop's thread."""

    def __init__(self, account: Account, mono: Callable[[], int]) -> None:
        """account: what the pages take."""
        self._account, self._mono = account, mono
        self._under_way: dict[int, list[Done]] = {}  # by where it begins: who waits for it
        self._found = deque[tuple[int, int, Found]]()  # when it was found, where it begins
        self.bytes = 0  # of pages that were found
        self._round = 0  # what is found after all was let go belongs to the round before

    def known(self, start: int) -> Found | None:
        """What was looked up from this LSN on, or some of it."""
        for _, first, found in self._found:
            if first <= start < found.upto:
                if first == start or found.page is None:
                    return found
                return Found(found.page.from_lsn(start), found.upto)
        return None

    def ask(self, start: int, begin: Callable[[Done], None], done: Done) -> None:
        """A page from this LSN on: begin to look, unless somebody does that already."""
        waiting = self._under_way.get(start)
        if waiting is not None:
            waiting.append(done)
            return
        self._under_way[start] = waiting = [done]
        round_ = self._round

        def answered(found: Found) -> None:
            if self._under_way.get(start) is waiting:
                del self._under_way[start]
            if found.error is None and round_ == self._round:
                self._keep(start, found)
            for one in waiting:
                one(found)

        begin(answered)

    def _keep(self, start: int, found: Found) -> None:
        self._found.append((self._mono(), start, found))
        self._count(found, 1)
        self.trim()

    def _count(self, found: Found, sign: int) -> None:
        size = sign * (0 if found.page is None else found.page.size)
        self.bytes += size
        self._account.add(size)

    def trim(self) -> None:
        """Let go what is old, or too much."""
        oldest = self._mono() - KEEP_US
        while self._found and (self._found[0][0] < oldest or self.bytes > LOOKED_BYTES):
            self._count(self._found.popleft()[2], -1)

    def clear(self) -> None:
        """Let go all of it: who asks from now on looks anew."""
        self._round += 1
        self._under_way.clear()
        for _, _, found in self._found:
            self._count(found, -1)
        self._found.clear()
