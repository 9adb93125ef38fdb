"""Subscriptions to topics: replay from a bookmark, then live; without a bookmark from now on.  Nothing is leased.

    Replays (one an engine)
      |- Feed       what one selection of topics and one filter let through of what was just committed; matched once
      |    |- LogSource ... LogSource    each with a cursor, an end, a rate; followed by somebody (`server.follow`)
      |    |- Looks      pages of the log for those who are not live yet, or not any more: off the loop, once for
      |                 all at one place
      |- Walk       of those who are not live each goes on, and of a crowd that is live as many as a turn has time for

A source's cursor is the LSN that it looks at next; everything below has been handed over or did not match.  It is
*live* when the cursor is where its feed is: then pages of the feed go straight to its reader.  Otherwise it reads the
log from its cursor on until it meets the feed, so nothing is left out and nothing comes twice, however often it falls
behind.  Rows are handed over when they are durable, never before.

Whoever in this process wants the messages of topics, as batches, from an LSN on:

    selection = Selection.topic(vhost, exchange, name)        # or .pattern(vhost, exchange, regex)
    follower = Follower(engine.replays.source(selection, start=lsn), taker)     # None: what is published from now on
    follower.close()

`taker` is a `follow.Taker`: it is handed `page.Page`s in the order of the log on the loop's thread, says how much room
it has, and hears when it is level with the log.  This decides nothing and may be called inside a turn.
The doors use `Replays.subscribe`, which understands bookmarks, filters as text and rates.

`Replays` tells feeds what was committed, and reads the log for who is behind.  It owns the moments: a turn has ended
(`gather`), something is durable (`committed`), a time has come (`tick`).  It costs nothing while nobody follows.  What
it holds back from retention: everything from the cursor of each follower that moves, and of one that stands still for
ten minutes after its last step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import LogBroken, PenstockError
from penstock.expr import Filter
from penstock.history.spans import Stretch, check_missing, reads, resolve
from penstock.log.writer import last_of
from penstock.records.entries import Control, Entry, Group, Publishes
from penstock.records.kinds import Kind
from penstock.server.replaying.log_source import Asked, Follower, LogSource, Place, Rate, parse_rate
from penstock.server.replaying.page import Found, Page, look
from penstock.server.replaying.selection import Selection, Sieve, read_on, refuse_mixed, sieve_of
from penstock.server.replaying.sources import Feed
from penstock.server.replaying.walk import Walk
from penstock.server.upkeep.retention import HOLD_US
from penstock.wire.flight.bookmarks import parse_span

if TYPE_CHECKING:
    from penstock.server.asking.judging import Ask
    from penstock.server.base.runtime import Off, Runtime
    from penstock.server.follow import Taker

T = TypeVar("T")

_TYPES = frozenset((Kind.TOPIC_DECLARE, Kind.QUEUE_ALTER))
"""Records with which bodies may become of another type."""


class Replays:
    """The followers of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.off: Off | None = None  # runs work off the loop; None: soon, on it
        self.ask: Ask | None = None  # the bulk child, if there is one
        self.active = False  # somebody follows: the engine tells what each turn has decided
        self.level = 0  # all that is durable up to here was told to the feeds
        self.sent = 0  # messages, of clients' subscriptions to topics
        self._runtime = runtime
        self._feeds: dict[tuple[Selection, Sieve | None], Feed] = {}
        self._by_topic: dict[tuple[str, str, str], dict[Feed, None]] = {}  # those of one topic
        self._wide: dict[Feed, None] = {}  # all others
        self._sources: dict[LogSource, None] = {}
        self._gathered: deque[tuple[int, Sequence[Publishes]]] = deque()  # by last LSN: not durable yet
        self._known = 0  # everything appended from this LSN on was gathered
        self._alarms: list[tuple[int, int]] = []  # mono microseconds at which somebody's rate lets it go on
        self._serial = 0
        self.walk = Walk(runtime.turns, runtime.faults.run, self._walked)
        runtime.readers.append(self.floor)
        runtime.on_broken.append(self._broken)
        runtime.on_left_out.append(self._left_out)
        self.kept = runtime.bodies.budget.account("replays")
        runtime.bodies.spare.append(self.give)

    # -- for those who want messages

    def source(
        self,
        selection: Selection,
        *,
        start: int | None = None,
        filter: Filter | None = None,
        rate: Rate | None = None,
    ) -> LogSource:
        """Messages of topics from an LSN on, in order, each once, when they are durable.  No bookmark is looked up.

        start: None for what is published from now on.
        """
        place = Stretch(self._runtime.core.next_lsn if start is None else start)
        sieve = None if filter is None else Sieve(filter, None, filter.text, None, filter.message_type)
        return LogSource(self, selection, sieve, place, rate)

    def subscribe(self, asked: Asked, taker: Taker[Page]) -> Follower:
        """A subscription with a bookmark.

        Errors: InvalidArgument, NotFound, ExpressionError, at once; what can only be known later ends the taker.
        """
        return Follower(self.source_of(asked), taker)

    def start(self, asked: Asked, taker: Taker[Page], stretch: Stretch) -> Follower:
        """The same for somebody who has looked up the place; `asked.bookmark` is not looked at."""
        return Follower(self._source_at(asked, stretch), taker)

    def source_of(self, asked: Asked) -> LogSource:
        """What a subscriber asks for.  Errors as `subscribe`."""
        span = parse_span(asked.bookmark, asked.recent)
        missing = check_missing(asked.missing)
        runtime = self._runtime
        find = partial(resolve, runtime.past, span, missing, wall=runtime.now().wall, last=runtime.core.last_lsn)
        source = self._source_at(asked, find)
        if not reads(span):
            source.place = find()
        return source

    def _source_at(self, asked: Asked, place: Place) -> LogSource:
        refuse_mixed(self._runtime.core, asked.selection, asked.filter, asked.rights)
        sieve = sieve_of(asked.selection, asked.filter, asked.rights)
        rate = None if asked.rate is None else parse_rate(asked.rate, asked.rate_max_gap)
        return LogSource(self, asked.selection, sieve, place, rate, asked)

    # -- for sources and feeds

    def admit(self, source: LogSource) -> None:
        if not self.active:
            self.active = True
            log = self._runtime.log
            self.level = log.durable
            self._known = log.appended + 1
        source.moved_at = self.now()
        self._sources[source] = None
        place = source.place
        if isinstance(place, Stretch):
            self._settle(source, place)
            return
        source.cursor = self._runtime.past.first_lsn  # held until its place is known

        def found(answer: Stretch | PenstockError) -> None:
            if source.closed:
                return
            if isinstance(answer, PenstockError):
                source.fail(answer)
            else:
                self._settle(source, answer)

        self.run(partial(caught, place), found)

    def _settle(self, source: LogSource, stretch: Stretch) -> None:
        source.settle(self._feed(source.selection, source.sieve), stretch)
        until = source.until
        if until is not None:
            self.wake_at(self.now() + max(0, until - self._runtime.clock.wall()))

    def _feed(self, selection: Selection, sieve: Sieve | None) -> Feed:
        key = (selection, sieve)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(self, selection, sieve, max(self.level + 1, self._known))
            self._read_on(feed)
            one = selection.alone
            if one is None:
                self._wide[feed] = None
            else:
                self._by_topic.setdefault(one, {})[feed] = None
        return feed

    def _drop(self, feed: Feed) -> None:
        feed.drop()
        del self._feeds[feed.selection, feed.sieve]
        one = feed.selection.alone
        if one is None:
            del self._wide[feed]
            return
        del self._by_topic[one][feed]
        if not self._by_topic[one]:
            del self._by_topic[one]

    def _interested(self, batch: Publishes) -> Iterable[Feed]:
        """The feeds that may want something of a batch."""
        out = dict[Feed, None]()
        for topic in batch.distinct_topics:
            out.update(self._by_topic.get((topic.vhost, topic.exchange, topic.name), {}))
        return [*out, *self._wide]

    def forget(self, source: LogSource, feed: Feed | None) -> None:
        self._sources.pop(source, None)
        if feed is not None:
            feed.live.pop(source, None)
            feed.behind.pop(source, None)
            if not feed.used:
                self._drop(feed)
        if not self._sources:
            self.active = False
            self._gathered.clear()

    def _broken(self, reason: str) -> None:
        """Nothing more will be durable: whoever waits for it is told."""
        for source in list(self._sources):
            source.fail(LogBroken(f"the log is broken: {reason}; nothing more is shown until a restart"))

    def _left_out(self, first: int, last: int) -> None:
        """Rows with such LSNs are gone: whoever stood still for so long that he did not hold them is told later."""
        for source in self._sources:
            source.miss(first, last)

    @property
    def sources(self) -> Collection[LogSource]:
        """All that are read; those of records and views, which nobody `asked` for, among them."""
        return self._sources.keys()

    def lag(self, source: LogSource) -> int:
        """Durable records of the log that one has not looked at."""
        return self._runtime.log.records_between(max(source.position, self.first_lsn), self.durable + 1)

    # -- moments

    def gather(self, journal: Sequence[Entry]) -> None:
        """What a turn has decided, as it goes to the log."""
        for entry in journal:
            if isinstance(entry, Publishes):
                self._gathered.append((entry.first + len(entry.bodies) - 1, (entry,)))
            elif isinstance(entry, Group):
                batches = [part for part in entry.entries if isinstance(part, Publishes)]
                if batches:
                    self._gathered.append((last_of(entry), batches))
        if any(isinstance(part, Control) and part.kind in _TYPES for entry in journal for part in _parts(entry)):
            for feed in self._feeds.values():
                self._read_on(feed)

    def _read_on(self, feed: Feed) -> None:
        """Its bodies may have schemas now that they had not when its filter was asked for."""
        if feed.present is not None:
            feed.present = read_on(self._runtime.core, feed.selection, feed.present)
            feed.looks.clear()

    def committed(self, lsn: int) -> None:
        """Everything up to this LSN is durable."""
        self.walk.begin()
        gathered = self._gathered
        while gathered and gathered[0][0] <= lsn:
            for batch in gathered.popleft()[1]:
                self.run_each([partial(feed.add, batch) for feed in self._interested(batch)])
        self.level = lsn
        self.run_each([feed.moved for feed in self._feeds.values() if feed.behind or feed.spare])

    def _walked(self) -> None:
        """Readers went on in a turn of their own."""
        if self.walk.empty:
            for feed in self._feeds.values():
                feed.trim()
        self.done()

    def tick(self) -> None:
        """Go on where a time has come."""
        now = self.now()
        if not self._alarms or self._alarms[0][0] > now:
            return
        while self._alarms and self._alarms[0][0] <= now:
            heappop(self._alarms)
        wall = self._runtime.clock.wall()
        over = [one for one in self._sources if one.until is not None and one.until <= wall]
        due = [one for one in self._sources if one.due is not None and one.due <= now and one not in over]
        self.run_each([partial(one.end_here, self._runtime.core.next_lsn) for one in over])
        self.walk.begin()
        self.walk.add(due)

    def next_deadline(self) -> int | None:
        """Mono microseconds at which `tick` has something to do; None: nothing ahead."""
        return self._alarms[0][0] if self._alarms else None

    def wake_at(self, mono: int) -> None:
        self._serial += 1
        heappush(self._alarms, (mono, self._serial))
        self._runtime.arm()

    # -- the log and the time

    def now(self) -> int:
        """Microseconds on the monotonic clock."""
        return self._runtime.clock.mono()

    @property
    def durable(self) -> int:
        return self._runtime.log.durable

    @property
    def first_lsn(self) -> int:
        """The first LSN that the log or its archive keeps."""
        return self._runtime.past.first_lsn

    def look(self, feed: Feed, start: int, end: int, rows: int, done: Callable[[Found], None]) -> None:
        """The next page of the log, off the loop."""
        runtime = self._runtime
        work = partial(look, runtime.past, feed.selection, feed.present, start, end, runtime.clock.mono, rows, self.ask)

        def found(answer: Found) -> None:
            self.walk.begin()
            done(answer)

        self.run(work, found)

    def done(self) -> None:
        """Something happened outside a turn: see that it is written."""
        self._runtime.flush()
        self._runtime.arm()

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Work off the loop, where that is possible; then `done`, and what follows from it is written."""

        def back(answer: T) -> None:
            done(answer)
            self.done()

        if self.off is not None:
            self.off(work, back)
        else:
            self._runtime.call_soon(lambda: back(work()))

    def run_each(self, works: Iterable[Callable[[], object]]) -> None:
        """Do each, also when one fails, which ends its reader."""
        self._runtime.faults.run_each(works)

    # -- what it holds

    def give(self, need: int) -> int:
        """Let go about so many bytes that followers can read from the log, of the feed that keeps most first.

        Then of those whom their rate holds back.
        """
        given = 0
        for feed in sorted(self._feeds.values(), key=lambda one: one.spare, reverse=True):
            if given >= need or not feed.spare:
                break
            given += feed.give(need - given)
        for source in self._sources:
            if given >= need:
                break
            given += source.let_go()
        return given

    def floor(self) -> int | None:
        """No follower that moves may still need what is below this LSN."""
        since = self.now() - HOLD_US
        places = [one.position for one in self._sources if one.live or one.moved_at >= since]
        return min(places, default=None)


def _parts(entry: Entry) -> Sequence[object]:
    return entry.entries if isinstance(entry, Group) else (entry,)


def caught(work: Callable[[], T]) -> T | PenstockError:
    """What work gives, or the error of ours that it raises."""
    try:
        return work()
    except PenstockError as error:
        return error
