"""Pages of messages in the order of the log, with what readers want to know of them; and feeds of what is committed.

One value stands for a column in which all rows agree.  Pages are shared between readers: nobody changes one.

For a reader that is not live a page comes from the log (`look`), off the loop, in a thread that others wait beside.
Topics are chosen by Arrow over whole batches; content filters go through the sieve first.  A page ends at its size or
when its time is up, and says how far it has looked.

A feed is what one selection of topics and one filter let through of what was just committed.  It looks at each batch
once, however many followers it has, and keeps the pages that some of them have not taken yet, up to a bound; who is
further behind reads the log.  Rows of small batches pass the filter on the loop, those of others in a thread; batches
that wait for that are bounded too.

    begins .................... upto          every wanted row of [begins, upto] is in `pages`, or was taken
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa

from penstock.errors import LogDamaged, PenstockError
from penstock.history.history import joined
from penstock.log.record_batches import cells, chosen, column, lengths, nulls
from penstock.records import message_bodies as bodies_codec
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Rows, Topic
from penstock.records.kinds import Kind
from penstock.records.message_bodies import listed, size_of
from penstock.server.judging import Ask, breathe, spent
from penstock.server.replaying.selection import Selection, Sieve, rows_at, rows_of

if TYPE_CHECKING:
    from penstock.history.history import Past
    from penstock.memory import Account
    from penstock.server.runtime import Off


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
        return self.topics[row] if isinstance(self.topics, list) else self.topics

    def properties_of(self, row: int) -> bytes:
        """The header of one row."""
        return self.properties[row] if isinstance(self.properties, list) else self.properties

    def time_of(self, row: int) -> int:
        """When one row was stored."""
        return self.times[row] if isinstance(self.times, list) else self.times

    def part(self, low: int, high: int) -> Page:
        """Rows low..high-1 as a page of their own."""
        count, total = high - low, len(self.bodies)
        if count == total:
            return self
        return Page(
            self.lsns[low:high],
            self.topics[low:high] if isinstance(self.topics, list) else self.topics,
            self.properties[low:high] if isinstance(self.properties, list) else self.properties,
            self.bodies[low:high],
            self.times[low:high] if isinstance(self.times, list) else self.times,
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
    topics, properties, bodies, first = batch.topics, batch.properties, batch.bodies, batch.first
    low, count = rows[0], len(rows)
    if rows[-1] - low == count - 1:
        high = low + count
        return Page(
            range(first + low, first + high),
            topics[low:high] if isinstance(topics, list) else topics,
            properties[low:high] if isinstance(properties, list) else properties,
            bodies[low:high],
            batch.time,
            size,
        )
    return Page(
        as_chunk([first + row for row in rows]),
        rows_at(topics, rows),
        rows_at(properties, rows),
        [bodies[row] for row in rows],
        batch.time,
        size,
    )


def page_of(rows: Rows) -> Page:
    """Rows that were read from the log."""
    topics, properties, times = rows.topics, rows.properties, rows.times
    one_topic = topics.count(topics[0]) == len(topics)
    one_header = properties[0] == properties[-1] and properties.count(properties[0]) == len(properties)
    size = sum(map(len, rows.bodies)) + (len(properties[0]) if one_header else sum(map(len, properties)))
    return Page(
        as_chunk(rows.lsns),
        topics[0] if one_topic else topics,
        properties[0] if one_header else properties,
        rows.bodies,
        times[0] if times[0] == times[-1] else times,
        size + ROW_COST * len(rows.bodies),
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
        hits = sieve.passed(rows.bodies, rows.properties, rows.topics, rows.lsns, rows.times, ask, here=False)
        return chosen(batch, np.isin(np.arange(len(rows)), hits))
    from penstock.expr.context import LOOP_BODY
    from penstock.expr.scan import Scan

    scanner = Scan([sieve.filter], log.vias.topics, spent, body_most=LOOP_BODY, breathe=breathe)
    [found], large = scanner.run(batch)
    for lsn in large:
        one = Rows([], [], [], [], [], [], [])
        _add(log, chosen(batch, column(batch, "lsn", "<i8") == lsn), one)
        if sieve.passed(one.bodies, one.properties, one.topics, one.lsns, one.times, ask, here=False):
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


QUIET_BYTES = 8_192
"""A batch of no more bytes is evaluated on the loop."""

KEPT_BYTES = 2 << 20
"""Pages kept for followers that are a little behind."""

WAITING_BYTES = 8 << 20
"""Batches that wait for the filter's thread; with more the followers read the log instead."""


class Reader(Protocol):
    """A source that reads a feed, as the feed knows it."""

    cursor: int

    def hand(self, page: Page) -> None:
        """A page for one that is live."""
        ...

    def fall_behind(self) -> None:
        """It is not live any more."""
        ...

    def step(self) -> None:
        """There may be something for it."""
        ...


class Committed(Protocol):
    """What feeds have in common."""

    off: Off | None  # runs work off the loop; None: soon, on it
    ask: Ask | None  # the bulk child, if there is one
    level: int  # all that is durable up to here was told to the feeds
    kept: Account

    def done(self) -> None:
        """Something happened outside a turn: see that it is written."""
        ...


class Feed:
    """Made by `Replays`, which tells it what was committed."""

    def __init__(self, replays: Committed, selection: Selection, sieve: Sieve | None, begins: int) -> None:
        self.selection = selection
        self.sieve = sieve
        self.begins = begins
        self.live: dict[Reader, None] = {}  # level with the feed: they take each page as it comes
        self.behind: dict[Reader, None] = {}  # all others
        self.kept_bytes = 0
        self._replays = replays
        self._pages: deque[Page] = deque()
        self._waiting: deque[tuple[Publishes, list[int] | None, int]] = deque()  # for the filter: rows, and their bytes
        self._waiting_bytes = 0
        self._judging = False
        self._judged = begins - 1  # while rows wait for the filter: all up to here are judged

    @property
    def upto(self) -> int:
        """All up to this LSN is looked at, and handed to those who are live."""
        if self._waiting or self._judging:
            return max(self._judged, self.begins - 1)
        return max(self._replays.level, self.begins - 1)

    @property
    def used(self) -> bool:
        """Whether it has any followers."""
        return bool(self.live or self.behind)

    # -- what was committed

    def add(self, batch: Publishes) -> None:
        """A durable batch, in order."""
        if batch.first + len(batch.bodies) <= self.begins:
            return
        rows = rows_of(self.selection, batch.topics)
        if rows is not None and not rows:
            return
        if self.sieve is None:
            self._spread(batch, rows)
        else:
            self._sift(self.sieve, batch, rows)

    def _sift(self, sieve: Sieve, batch: Publishes, rows: list[int] | None) -> None:
        """Pass rows through the filter: small ones at once, others behind those that wait for its thread."""
        size = batch.size or size_of(batch.bodies)
        if rows is not None:
            size = size * len(rows) // len(batch.bodies)
        quiet = size <= QUIET_BYTES or self._replays.off is None
        if quiet and not self._waiting and not self._judging:
            passed = _passed(sieve, batch, rows, None, here=True)
            if passed:
                self._spread(batch, passed)
            return
        if not self._waiting and not self._judging:
            self._judged = batch.first - 1
        self._waiting.append((batch, rows, size))
        self._waiting_bytes += size
        self._replays.kept.add(size)
        if self._waiting_bytes > WAITING_BYTES:
            self._give_up(batch.first + len(batch.bodies))
        elif not self._judging:
            self._judge()

    def moved(self) -> None:
        """All that is durable was added: let those go on that were behind."""
        for follower in list(self.behind):
            follower.step()
        self._trim()

    def _spread(self, batch: Publishes, rows: list[int] | None) -> None:
        for page in pages_of(batch, rows):
            if page.last < self.begins:
                continue
            for follower in list(self.live):
                follower.hand(page)
            if self.behind:  # it may be behind since this page
                self._pages.append(page)
                self._keep(page.size)
            else:
                self._clear()  # what was kept ends here, or there would be a hole behind it
                self.begins = page.last + 1

    def _judge(self) -> None:
        """Pass what waits through the filter, off the loop."""
        off, sieve = self._replays.off, self.sieve
        assert off is not None
        assert sieve is not None
        self._judging = True
        asked, self._waiting = self._waiting, deque()
        size, self._waiting_bytes = self._waiting_bytes, 0
        ask = self._replays.ask

        def work() -> list[list[int]]:
            return [_passed(sieve, batch, rows, ask, here=False) for batch, rows, _ in asked]

        off(work, partial(self._answered, asked, size))

    def _answered(
        self, asked: deque[tuple[Publishes, list[int] | None, int]], size: int, passed: list[list[int]]
    ) -> None:
        self._replays.kept.add(-size)
        for (batch, _, _), rows in zip(asked, passed, strict=True):
            if rows:
                self._spread(batch, rows)
            self._judged = batch.first + len(batch.bodies) - 1
        self._judging = False
        if self._waiting:
            self._judge()
        self.moved()
        self._replays.done()

    def _give_up(self, begins: int) -> None:
        """More comes than the filter's thread can do: whoever reads goes to the log, at its own pace."""
        for follower in list(self.live):
            follower.fall_behind()
        self.drop()
        self.begins = begins

    def drop(self) -> None:
        self._waiting.clear()
        self._replays.kept.add(-self._waiting_bytes)
        self._waiting_bytes = 0
        self._clear()

    def _clear(self) -> None:
        self._pages.clear()
        self._keep(-self.kept_bytes)

    @property
    def spare(self) -> int:
        """Bytes that followers can read from the log as well."""
        return self.kept_bytes + self._waiting_bytes

    def give(self, need: int) -> int:
        """Let go about so many of them, the oldest first; how many.  Who is behind reads the log."""
        before = self.spare
        while self._pages and before - self.spare < need:
            self._drop_first()
        if self._waiting and before - self.spare < need:
            batch = self._waiting[-1][0]
            self._give_up(batch.first + len(batch.bodies))
        return before - self.spare

    def _drop_first(self) -> None:
        page = self._pages.popleft()
        self._keep(-page.size)
        self.begins = page.last + 1

    def _keep(self, size: int) -> None:
        self.kept_bytes += size
        self._replays.kept.add(size)

    # -- those who are behind

    def page_from(self, lsn: int) -> tuple[Page | None, int]:
        """The next page from an LSN on, at or above `begins`, and where to look after it."""
        for page in self._pages:
            if page.last >= lsn:
                rest = page.from_lsn(lsn)
                if rest is not None:
                    return rest, rest.last + 1
        return None, max(self.upto + 1, lsn)

    def _trim(self) -> None:
        """Let go what nobody who is behind wants here, and what is too much."""
        if not self._pages:
            return
        least = min((one.cursor for one in self.behind if one.cursor >= self.begins), default=None)
        while self._pages and (least is None or self._pages[0].last < least or self.kept_bytes > KEPT_BYTES):
            self._drop_first()


def _passed(sieve: Sieve, batch: Publishes, rows: list[int] | None, ask: Ask | None, *, here: bool) -> list[int]:
    """The rows that pass.  here: on the loop, at once."""
    bodies, properties, topics = listed(batch.bodies), batch.properties, batch.topics
    places = range(len(bodies)) if rows is None else rows
    if rows is not None:
        bodies, properties, topics = [bodies[row] for row in rows], rows_at(properties, rows), rows_at(topics, rows)
    lsns, times = [batch.first + row for row in places], [batch.time] * len(places)
    return [places[hit] for hit in sieve.passed(bodies, properties, topics, lsns, times, ask, here=here)]
