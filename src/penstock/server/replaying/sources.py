"""What replays read: feeds of what is committed, and the log with its archive as one.

A feed is what one selection of topics and one filter let through of what was just committed.  It looks at each batch
once, however many followers it has, and keeps the pages that some of them have not taken yet, up to a bound; who is
further behind reads the log.  Rows of small batches pass the filter on the loop, those of others in a thread; batches
that wait for that are bounded too.

    begins .................... upto          every wanted row of [begins, upto] is in `pages`, or was taken

Of the whole log archived rows come from the bulk child in windows of a few MiB, of which some are kept: readers come
page by page, and several at about the same place share the work.  Who looks up places reads it as well.  Nothing of it
may run on the loop but `first_lsn`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.log.archive.row_groups import may_have, pieces
from penstock.log.catalog import Span, pieces_of
from penstock.log.record_batches import column
from penstock.records.message_bodies import size_of
from penstock.server.asking.judging import Ask
from penstock.server.base.faults import TOLD
from penstock.server.bulk.process import Bulk, on_log
from penstock.server.replaying.page import Looks, Page, pages_of
from penstock.server.replaying.selection import Selection, Sieve, rows_of

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.name_index import Wanted
    from penstock.log.reader import Vias
    from penstock.memory import Account
    from penstock.records.entries import Publishes
    from penstock.server.base.runtime import Off
    from penstock.server.replaying.walk import Walk
    from penstock.server.upkeep.archive import Archiving


QUIET_BYTES = 8_192
"""A batch of no more bytes is evaluated on the loop."""

_last = attrgetter("last")

KEPT_BYTES = 2 << 20
"""Pages kept for followers that are a little behind."""

WAITING_BYTES = 8 << 20
"""Batches that wait for the filter's thread; with more the followers read the log instead."""


class Reader(Protocol):
    """A source that reads a feed, as the feed knows it."""

    cursor: int

    def hand(self, page: Page) -> None:
        """A page for one that is live."""

    def fall_behind(self) -> None:
        """It is not live any more."""

    def step(self) -> None:
        """There may be something for it."""

    def fail(self, error: PenstockError) -> None:
        """It cannot go on."""


class Committed(Protocol):
    """What feeds have in common."""

    off: Off | None  # runs work off the loop; None: soon, on it
    ask: Ask | None  # the bulk child, if there is one
    level: int  # all that is durable up to here was told to the feeds
    kept: Account
    walk: Walk  # of those who read

    def now(self) -> int:
        """Microseconds on the monotonic clock."""
        ...

    def done(self) -> None:
        """Something happened outside a turn: see that it is written."""

    def run_each(self, works: Iterable[Callable[[], object]]) -> None:
        """Do each, also when one fails."""


class Feed:
    """Made by `Replays`, which tells it what was committed."""

    def __init__(self, replays: Committed, selection: Selection, sieve: Sieve | None, begins: int) -> None:
        self.selection = selection
        self.sieve = sieve  # by which it is known
        self.present = sieve  # the same, by what the bodies are now
        self.begins = begins
        self.live: dict[Reader, None] = {}  # level with the feed: they take each page as it comes
        self.behind: dict[Reader, None] = {}  # all others
        self.kept_bytes = 0
        self.looks = Looks(replays.kept, replays.now)
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

    # -- faults

    kind = "reader"

    def end_by_fault(self) -> None:
        """Whoever reads it would miss something."""
        for follower in [*self.live, *self.behind]:
            follower.fail(PenstockError(TOLD))

    # -- what was committed

    def add(self, batch: Publishes) -> None:
        """A durable batch, in order."""
        if batch.first + len(batch.bodies) <= self.begins:
            return
        rows = rows_of(self.selection, batch.topics)
        if rows is not None and not rows:
            return
        if self.present is None:
            self._spread(batch, rows)
        else:
            self._sift(self.present, batch, rows)

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
        self._replays.walk.add(self.behind)
        self.trim()

    def _spread(self, batch: Publishes, rows: list[int] | None) -> None:
        for page in pages_of(batch, rows):
            if page.last < self.begins:
                continue
            self._replays.run_each(self._hands(page))
            if self.behind:  # it may be behind since this page
                self._pages.append(page)
                self._keep(page.size)
            else:
                self._clear()  # what was kept ends here, or there would be a hole behind it
                self.begins = page.last + 1

    def _hands(self, page: Page) -> Iterator[Callable[[], object]]:
        """A page for those who are live, as far as there is time: the others take it from those that are kept."""
        walk = self._replays.walk
        for follower in [*self.live]:
            yield follower.fall_behind if walk.over else partial(follower.hand, page)

    def _judge(self) -> None:
        """Pass what waits through the filter, off the loop."""
        off, sieve = self._replays.off, self.present
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
        self._replays.walk.begin()
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
        self.looks.clear()
        self._clear()

    def _clear(self) -> None:
        self._pages.clear()
        self._keep(-self.kept_bytes)

    @property
    def spare(self) -> int:
        """Bytes that followers can read from the log as well."""
        return self.kept_bytes + self._waiting_bytes + self.looks.bytes

    def give(self, need: int) -> int:
        """Let go about so many of them, the oldest first; how many.  Who is behind reads the log."""
        before = self.spare
        self.looks.clear()
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
        at = bisect_left(self._pages, lsn, key=_last)
        rest = self._pages[at].from_lsn(lsn) if at < len(self._pages) else None
        return (None, max(self.upto + 1, lsn)) if rest is None else (rest, rest.last + 1)

    def trim(self) -> None:
        """Let go what nobody who is behind wants here, and what is too much."""
        if not self.behind:
            self.looks.clear()
        elif self.looks.bytes:
            self.looks.trim()
        if not self._pages:
            return
        least = min((one.cursor for one in self.behind if one.cursor >= self.begins), default=None)
        while self._pages and (least is None or self._pages[0].last < least or self.kept_bytes > KEPT_BYTES):
            self._drop_first()


def _passed(sieve: Sieve, batch: Publishes, rows: list[int] | None, ask: Ask | None, *, here: bool) -> list[int]:
    """The rows that pass.  here: on the loop, at once."""
    if rows is None:
        return sieve.passed(batch.messages, ask, here=here)
    return [rows[hit] for hit in sieve.passed(batch.messages.some(rows), ask, here=here)]


WINDOW = 2 << 20
"""Bytes of rows that are asked for at once."""

WINDOWS = 4
"""So many are kept."""

_NOWHERE = 1 << 62


class _Window(NamedTuple):
    batches: list[pa.RecordBatch]
    upto: int  # all below it is there


class Whole:
    """Reads as the log does, and further back.  Any thread."""

    def __init__(self, log: Log, archive: Archiving, bulk: Bulk) -> None:
        self._log, self._archive, self._bulk = log, archive, bulk
        self._kept = OrderedDict[tuple[int, int, tuple[str, ...] | None], _Window]()
        self._lock = threading.Lock()

    @property
    def origin(self) -> int:
        return self._log.origin

    @property
    def durable(self) -> int:
        return self._log.durable

    @property
    def vias(self) -> Vias:
        """What each `via` id stands for."""
        return self._log.vias

    @property
    def first_lsn(self) -> int:
        """No row with a lower LSN is kept anywhere."""
        first = self._log.first_lsn
        return min(first, self._archive.first_lsn or first)

    def has_every(self, a: int, b: int) -> bool:
        """Whether log and archive have every row that was written with an LSN in [a, b).

        While the archive cannot be used nobody knows: whoever reads what may be in it is refused.
        """
        return self._log.has_every(a, b) or self._archive.broken or self._archive.keeps(a, b)

    def batches(
        self, a: int, b: int, columns: Sequence[str] | None = None, names: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Durable rows of all kinds with LSNs in [a, b); batches without a message of such a name may be left out.

        LogDamaged, Unavailable.
        """
        log = self._log
        if a >= log.whole_from:
            yield from log.batches(a, b, columns, names)
            return
        shown = self._archive.shown()  # first: what leaves the log later is archived already
        seam = shown.seam if shown is not None else 0
        for piece in pieces(a, min(b, log.durable + 1), seam, self._archive.manifest.spans):
            if not piece.archived:
                yield from log.batches(piece.start, piece.end, columns, names)
                continue
            at, topics = piece.start, self._topics(names)
            while at < piece.end:
                window = self._window(at, piece.end, topics)
                for batch in window.batches:
                    low = int(np.searchsorted(column(batch, "lsn", "<i8"), at))
                    if low < batch.num_rows:
                        rest = batch.slice(low) if low else batch
                        yield rest if columns is None else rest.select(list(columns))
                at = window.upto

    def outlines(self, a: int, b: int, names: Wanted | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `batches`, with the lengths of the bodies in the place of them where that saves reading."""
        if a >= self._log.whole_from:
            return self._log.outlines(a, b, names)
        return self.batches(a, b, None, names)

    def spans(self, a: int, b: int, names: Wanted | None = None) -> Iterator[Span]:
        """Where `batches` would find rows, and about how many, by their first LSN."""
        log = self._log
        if a >= log.whole_from:
            yield from log.spans(a, b, names)
            return
        shown = self._archive.shown()
        seam, manifest = shown.seam if shown is not None else 0, self._archive.manifest
        for piece in pieces(a, min(b, log.durable + 1), seam, manifest.spans):
            if not piece.archived:
                yield from log.spans(piece.start, piece.end, names)
                continue
            found = list[Span]()
            for part in manifest.files:
                low, high = max(part.first, piece.start), min(part.last + 1, piece.end)
                if low < high and may_have(part, names):
                    found += pieces_of(low, high, part.rows * (high - low) // (part.last + 1 - part.first))
            yield from sorted(found)

    def _topics(self, names: Wanted | None) -> tuple[str, ...] | None:
        """The wanted ones of the topics that have files of their own; None: all rows."""
        if names is None:
            return None
        if isinstance(names, str):
            return (names,)
        known = {part.topic for part in self._archive.manifest.files if part.topic is not None}
        return tuple(sorted(name for name in known if names(name)))

    def _window(self, start: int, end: int, topics: tuple[str, ...] | None) -> _Window:
        with self._lock:
            for key, kept in self._kept.items():
                if key[1:] == (end, topics) and key[0] <= start < kept.upto:
                    self._kept.move_to_end(key)
                    return kept
        window = self._ask(start, end, topics)
        with self._lock:
            self._kept[start, end, topics] = window
            while len(self._kept) > WINDOWS:
                self._kept.popitem(last=False)
        return window

    def _ask(self, start: int, end: int, topics: tuple[str, ...] | None) -> _Window:
        notes: dict[str, int] = {}
        values: dict[str, object] = {
            "start": start, "end": end, "topics": None if topics is None else list(topics), "most": WINDOW,
        }  # fmt: skip

        def ask(listed: dict[str, object]) -> list[pa.RecordBatch]:
            return list(self._bulk.read("archived", {**values, "log": listed}, told=notes.update)[1])

        batches = on_log(self._log, ask, _NOWHERE, _NOWHERE, self._archive.shown)
        return _Window(batches, notes["upto"])
