"""Messages of topics from a place in the log on: the log, page after page, then what is committed.

    looking up --> behind <--> live --> over (its end was reached, it was closed, or it was refused)
                     |  reads pages of the log, or of its feed; waits for room, and for its rate

The cursor is the LSN that it looks at next.  A page counts as done when it was given.  Belongs to the loop.

`Pace` is the rate of a replay: messages or bytes a second, or a speed beside that at which the messages came.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Protocol, TypeAlias

from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.history.spans import Stretch
from penstock.memory import Account
from penstock.records.dataclass import dataclass
from penstock.server.follow import Follow, Reader, Sign, Source, Taker
from penstock.server.people.entitlements import Rights
from penstock.server.replaying.page import PAGE_ROWS, Found, Page
from penstock.server.replaying.selection import Selection, Sieve
from penstock.server.replaying.sources import Feed
from penstock.server.replaying.walk import Walk
from penstock.units import SIZE_UNITS
from penstock.wire.flight.bookmarks import Recent

SLACK_US = 100_000

AHEAD_S, AHEAD_LEAST = 10, 64
"""For so many seconds, and so many rows at least, who has a rate reads ahead."""

_FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


@dataclass(frozen=True, slots=True)
class Rate:
    """One of the three is set; `max_gap` belongs to `speed`."""

    messages: float = 0.0  # a second
    size: float = 0.0  # bytes a second
    speed: float = 0.0  # 2.0: twice as fast as they came
    max_gap: int | None = None  # microseconds that two messages are apart at most


def parse_rate(text: str, max_gap: int | None = None) -> Rate:
    """`1000` or `1000/s` messages, `500KB`, `2X`.  InvalidArgument."""
    match = _FORM.match(text.removesuffix("/s"))
    if match is None or not float(match[1]):
        raise InvalidArgument(f"rate {text[:40]!r} is none: write 1000 (messages a second), 500KB (a second) or 2X")
    number, unit = float(match[1]), match[2]
    if unit.upper() == "X":
        return Rate(speed=number, max_gap=max_gap)
    if max_gap is not None:
        raise InvalidArgument(f"rate_max_gap is for a rate like 2X, not for {text[:40]!r}")
    if not unit:
        return Rate(messages=number)
    size = {known.upper(): value for known, value in SIZE_UNITS.items()}.get(unit.upper())
    if size is None:
        raise InvalidArgument(
            f"rate {text[:40]!r} has the unknown unit {unit!r}: there is {' '.join(SIZE_UNITS)} and X"
        )
    return Rate(size=number * size)


class Pace:
    """One subscription's rate at work.  Times in microseconds on the monotonic clock."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._due: float | None = None  # when the next message may go; None: at once
        self._before: int | None = None  # wall time of the last message, for `speed`
        self._row: int | None = None  # LSN of the message that `_due` was worked out for

    def admit(self, page: Page, now: int) -> int:
        """How many rows of the page may go now; they count as gone."""
        if self.rate.speed:
            return self._as_they_came(page, now)
        due = now if self._due is None else max(self._due, now - SLACK_US)
        count = 0
        while count < len(page) and due <= now:
            due += 1e6 / self.rate.messages if self.rate.messages else 1e6 * len(page.bodies[count]) / self.rate.size
            count += 1
        self._due = due
        return count

    def _as_they_came(self, page: Page, now: int) -> int:
        count = 0
        while count < len(page):
            if page.lsns[count] != self._row:
                time = page.time_of(count)
                if self._before is None or self._due is None:
                    self._due = now
                else:
                    gap = (time - self._before) / self.rate.speed
                    gap = gap if self.rate.max_gap is None else min(gap, self.rate.max_gap)
                    self._due = max(self._due + gap, now - SLACK_US)
                self._before, self._row = time, page.lsns[count]
            if self._due is not None and self._due > now:
                break
            count += 1
        return count

    @property
    def rows_ahead(self) -> int:
        """So many rows are read at once: a look at the log takes as long as hundreds of them."""
        ahead = self.rate.messages * AHEAD_S
        return min(PAGE_ROWS, max(AHEAD_LEAST, int(ahead))) if ahead else PAGE_ROWS

    def due(self) -> int:
        """When the next message may go, as far as is known."""
        return ceil(self._due or 0)


Place: TypeAlias = "Stretch | Callable[[], Stretch]"
"""Where a source begins, or how that is found out, off the loop."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a subscriber wants, as it comes through a door."""

    selection: Selection
    bookmark: str = "NOW"
    filter: str | None = None
    rate: str | None = None
    rate_max_gap: int | None = None  # microseconds
    missing: str = "now"  # `bookmark_not_found`
    recent: Recent | None = None  # what MOST_RECENT is
    rights: Rights | None = None  # of the user; None: nothing is limited
    name: str = ""  # the queue or topic as the subscriber named it; empty: a pattern, or several
    client: str = ""  # for those who look on
    user: str = ""
    tag: str = ""


class Reads(Protocol):
    """What sources have in common: the log, the time, and who is told of them."""

    sent: int  # messages, of clients' subscriptions to topics
    walk: Walk  # of those who read
    kept: Account  # what of the log is kept for them

    @property
    def durable(self) -> int: ...

    @property
    def first_lsn(self) -> int:
        """The first LSN that the log or its archive keeps."""
        ...

    def now(self) -> int:
        """Microseconds on the monotonic clock."""
        ...

    def admit(self, source: LogSource) -> None:
        """A source begins: it is told its feed and its place, at once or later."""

    def look(self, feed: Feed, start: int, end: int, rows: int, done: Callable[[Found], None]) -> None:
        """The next page of the log, off the loop."""

    def wake_at(self, mono: int) -> None:
        """Have a source go on then, if its rate lets it."""

    def forget(self, source: LogSource, feed: Feed | None) -> None: ...


class LogSource(Source[Page]):
    _reader: Reader[Page]

    def __init__(
        self,
        replays: Reads,
        selection: Selection,
        sieve: Sieve | None,
        place: Place,
        rate: Rate | None,
        asked: Asked | None = None,
    ) -> None:
        self.selection = selection
        self.sieve = sieve
        self.place = place
        self.asked = asked  # what a client wants; None: it works for something inside the server
        self.cursor: int = 0  # while it is live the feed knows
        self.closed = False
        self.notice = ""  # what the subscriber has to know: a bookmark was not found
        self.moved_at = 0  # mono microseconds of its last step forward
        self.due: int | None = None  # mono microseconds when its rate lets it go on
        self.until: int | None = None  # wall time at which its end is known
        self._replays = replays
        self._pace = None if rate is None else Pace(rate)
        self._feed: Feed | None = None  # None: its place is being looked up
        self._end: int | None = None
        self._since = 0
        self._leveled = False
        self._reading = False
        self._held: tuple[Page, int] | None = None  # read from the log, and how far; waiting for the rate
        self._missed = 0  # one past the last LSN of what lost rows that it had not read

    # -- for who looks on

    @property
    def position(self) -> int:
        """Everything below this LSN was given or did not match."""
        feed = self._feed
        return max(self.cursor, feed.upto + 1) if feed is not None and self in feed.live else self.cursor

    @property
    def rest(self) -> Stretch:
        """What it has not given yet."""
        return Stretch(self.position, self._end, self._since, self.until)

    @property
    def live(self) -> bool:
        """Whether it gives what is committed as it comes."""
        return self._feed is not None and self in self._feed.live

    @property
    def paused(self) -> bool:
        return self._reader.paused

    def change_rate(self, rate: Rate | None) -> None:
        """From now on so fast."""
        self._pace = None if rate is None else Pace(rate)
        self.due = None
        if rate is not None:
            self.fall_behind()
        self.step()

    # -- for `Replays` and the feed

    def settle(self, feed: Feed, stretch: Stretch) -> None:
        self._feed = feed
        self.cursor, self._end = stretch.start, stretch.end
        self._since, self.until = stretch.since, stretch.until
        self.notice = stretch.notice
        feed.behind[self] = None
        self.step()

    def step(self) -> None:
        if not self.closed:
            self._reader.step()

    def fail(self, error: PenstockError) -> None:
        self._reader.fail(error)

    def hand(self, page: Page) -> None:
        """A page for one that is live; without room for all of it it is behind from here on."""
        if self._reader.room() >= len(page):
            self.cursor = page.last + 1
            self._count(page)
            self._reader.give(page)
        else:
            self.fall_behind()

    def fall_behind(self) -> None:
        """It is not live any more."""
        feed = self._feed
        if feed is not None and self in feed.live:
            self.cursor = self.position
            del feed.live[self]
            feed.behind[self] = None
            self.moved_at = self._replays.now()

    def miss(self, first: int, last: int) -> None:
        """Rows with LSNs from `first` to `last` were left out, which it did not hold."""
        if self.position <= last and (self._end is None or first < self._end):
            self._missed = max(self._missed, last + 1)

    def end_here(self, end: int) -> None:
        """The time of its end has come: what has an LSN from `end` on is too late."""
        self.until = None
        self._end = end if self._end is None else min(end, self._end)
        self.step()

    # -- a source

    def begin(self, reader: Reader[Page]) -> None:
        self._reader = reader
        self._replays.admit(self)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._hold(None)
            self._replays.forget(self, self._feed)

    def next(self, room: int) -> Page | Sign | None:
        feed = self._feed
        if self.closed or self._reading or feed is None or self in feed.live:
            return None
        while True:
            if self._end is not None and self.cursor >= self._end:
                return Sign.OVER
            if self._resting():
                return None
            if room <= 0:
                self._hold(None)  # it is read again: a slow reader holds no memory
                return None
            found: Page | None
            if self._held is not None:
                found, upto = self._held
            elif self.cursor < feed.begins:
                if not self._has_read(feed):
                    return self._read(feed)
                continue
            else:
                found, upto = feed.page_from(self.cursor)
                if found is None:
                    return self._level(feed, upto)
            page = self._admitted(found, upto, room)
            if page is not None or self.due is not None:
                return page

    def _hold(self, page: Page | None, upto: int = 0) -> None:
        """Keep a page of the log, which ends before `upto`, until it may go; None: none any more."""
        kept = self._replays.kept
        if self._held is not None:
            kept.add(-self._held[0].size)
        self._held = None if page is None else (page, upto)
        if page is not None:
            kept.add(page.size)

    def let_go(self) -> int:
        """Keep nothing while the rate is in the way, as it can be read again; how many bytes."""
        if self._held is None or self.due is None:
            return 0
        size = self._held[0].size
        self._hold(None)
        return size

    def _resting(self) -> bool:
        """Whether its rate holds it back."""
        if self.due is not None and self.due <= self._replays.now():
            self.due = None
        return self.due is not None

    def _level(self, feed: Feed, upto: int) -> Sign | None:
        """Nothing durable is left: from here on pages are given as they come, unless it looks at each message."""
        self._move(upto)
        if self._bounded:
            return None
        if not self._leveled:
            self._leveled = True
            return Sign.LEVEL
        if self.cursor == feed.upto + 1 and self in feed.behind and self._pace is None:
            del feed.behind[self]
            feed.live[self] = None
        return None

    @property
    def _bounded(self) -> bool:
        """Whether it has to look at each message before it may give it."""
        return self._end is not None or self.until is not None or self._since > 0

    def _admitted(self, page: Page, upto: int, room: int) -> Page | None:
        """What may go now of a page after which `upto` comes.

        What is left of one that comes from the log is held as long as only the rate is in the way.
        """
        part = self._cut(page)
        read = self._held is not None
        self._hold(None)
        if part is None:
            self._move(upto)
            return None
        count = min(room, len(part))
        if self._pace is not None:
            count = self._pace.admit(part.part(0, count), self._replays.now())
        whole = count == len(part)
        self._move(upto if whole else part.lsns[count])
        if not whole and read:
            self._hold(part.part(count, len(part)), upto)
        if not whole and self._pace is not None:
            self.due = self._pace.due()
            self._replays.wake_at(self.due)
        if not count:
            return None
        out = part.part(0, count)
        self._count(out)
        return out

    def _cut(self, page: Page) -> Page | None:
        """What of a page lies within its times and before its end."""
        part: Page | None = page
        if self.until is not None and page.time_of(len(page) - 1) >= self.until:
            late = page.since(self.until)
            self._end, self.until = page.last + 1 if late is None else late.first, None
        if self._end is not None:
            part = page.below(self._end)
        return part.since(self._since) if self._since and part is not None else part

    def _count(self, page: Page) -> None:
        if self.asked is not None:
            self._replays.sent += len(page)

    def _move(self, upto: int) -> None:
        if upto > self.cursor:
            self.cursor = upto
            self.moved_at = self._replays.now()

    def _read(self, feed: Feed) -> Sign | None:
        """Read on in the log, if anything there is not looked at.  NotFound where something of that has gone."""
        replays = self._replays
        end = min(replays.durable + 1, feed.begins if self._end is None else min(self._end, feed.begins))
        if self.cursor >= end:
            return self._level(feed, self.cursor)
        if self.cursor < replays.first_lsn:
            raise NotFound(
                f"the log begins at LSN {replays.first_lsn} now: retention has passed this reader at {self.cursor}"
            )
        if self.cursor < self._missed:
            raise NotFound(
                f"this reader stood still at LSN {self.cursor}, and rows below LSN {self._missed} were left out by "
                "compaction meanwhile"
            )
        self.moved_at = replays.now()  # what is read now is held
        self._reading = True
        rows = PAGE_ROWS if self._pace is None else self._pace.rows_ahead
        shared = len(feed.behind) > 1
        if shared:
            end = min(replays.durable + 1, feed.begins)  # what is behind its own end is cut off
        look = partial(replays.look, feed, self.cursor, end, rows)
        if shared:
            feed.looks.ask(self.cursor, look, self._was_read)
        else:
            look(self._was_read)
        return None

    def _has_read(self, feed: Feed) -> bool:
        """Whether another one has just read what comes next."""
        found = feed.looks.known(self.cursor) if self.cursor >= max(self._replays.first_lsn, self._missed) else None
        if found is None:
            return False
        if found.page is None:
            self._move(found.upto)
        else:
            self._hold(found.page, found.upto)
        return True

    def _was_read(self, found: Found) -> None:
        self._reading = False
        if self.closed:
            return
        if found.error is not None:
            self.fail(found.error)
            return
        if found.page is None:
            self._move(found.upto)
        elif not self.paused:
            self._hold(found.page, found.upto)
        self._replays.walk.add((self,))


class Follower(Follow[Page]):
    """A subscription to topics: `source` knows its place."""

    def __init__(self, source: LogSource, taker: Taker[Page]) -> None:
        self.source = source
        super().__init__(source, taker)

    def pause(self) -> None:
        super().pause()
        self.source.fall_behind()
