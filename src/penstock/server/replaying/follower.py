"""A follower: one subscription's way through the log, from its first message to what is live.

    looking up --> behind <--> live --> over (its end was reached, it was closed, or it was refused)
                     |  reads pages of the log, or of its feed; waits for room, for its rate, for `resume`

The cursor is the LSN that it looks at next.  A page counts as done when the receiver has it.  Belongs to the loop.

A rate is one of messages or bytes a second, or of a speed beside that at which the messages came.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Protocol

from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.history.places import Stretch
from penstock.records.dataclass import dataclass
from penstock.server.replaying.page import PAGE_ROWS, Page
from penstock.units import SIZE_UNITS

if TYPE_CHECKING:
    from penstock.server.entitlements import Rights
    from penstock.server.replaying.feed import Feed
    from penstock.server.replaying.page import Found
    from penstock.server.replaying.topics import Selection
    from penstock.wire.flight.bookmarks import Recent


SLACK_US = 100_000

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

    def due(self) -> int:
        """When the next message may go, as far as is known."""
        return ceil(self._due or 0)


class Receiver(Protocol):
    """Who takes pages.  All is called on the loop's thread, and nothing may raise."""

    def room(self) -> int:
        """How many messages it takes now.  Who says fewer than there are calls `Follower.step` when it has room."""
        ...

    def take(self, page: Page) -> None:
        """Messages, in the order of the log; no more of them than it has room for."""
        ...

    def completed(self, *, last: bool) -> None:
        """The replay is over.  Told once.

        last: it was the end of a range, and nothing comes after it; else it is level with the log, and goes on live.
        """
        ...

    def ended(self, error: PenstockError) -> None:
        """Nothing more comes, for a reason."""
        ...


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
    """What followers have in common: the log, the time, and who is told of them."""

    sent: int  # messages, of clients' subscriptions to topics

    @property
    def durable(self) -> int:
        """The last durable LSN."""
        ...

    @property
    def first_lsn(self) -> int:
        """The first LSN that the log or its archive keeps."""
        ...

    def now(self) -> int:
        """Mono microseconds."""
        ...

    def look(self, feed: Feed, start: int, end: int, rows: int, done: Callable[[Found], None]) -> None:
        """The next page of the log, off the loop."""
        ...

    def wake_at(self, mono: int) -> None:
        """Have a follower step then, if its rate lets it."""
        ...

    def forget(self, follower: Follower, feed: Feed | None) -> None:
        """A follower is closed."""
        ...


class Follower:
    """Made by `Replays`."""

    def __init__(self, replays: Reads, receiver: Receiver, rate: Rate | None, asked: Asked | None = None) -> None:
        self.receiver = receiver
        self.asked = asked  # what a client wants; None: it works for something inside the server
        self.cursor = 0  # while it is live the feed knows
        self.paused = False
        self.closed = False
        self.over = False  # `completed` was told
        self.notice = ""  # what the subscriber has to know: a bookmark was not found
        self.moved_at = 0  # mono microseconds of its last step forward
        self.due: int | None = None  # mono microseconds when its rate lets it go on
        self._replays = replays
        self._pace = None if rate is None else Pace(rate)
        self._feed: Feed | None = None  # None: its place is being looked up
        self._end: int | None = None
        self._since = 0
        self._until: int | None = None
        self._reading = False
        self._held: Page | None = None  # read from the log, waiting for the rate
        self._stepping = False

    # -- for its owner

    @property
    def position(self) -> int:
        """Everything below this LSN was handed over or did not match."""
        feed = self._feed
        return max(self.cursor, feed.upto + 1) if feed is not None and self in feed.live else self.cursor

    @property
    def rest(self) -> Stretch:
        """What it has not handed over yet."""
        return Stretch(self.position, self._end, self._since, self._until)

    @property
    def live(self) -> bool:
        """Whether it takes what is committed as it comes."""
        return self._feed is not None and self in self._feed.live

    def pause(self) -> None:
        """Hand over nothing until `resume`."""
        self.paused = True
        self.fall_behind()

    def resume(self) -> None:
        """Go on."""
        if self.paused:
            self.paused = False
            self.step()

    def change_rate(self, rate: Rate | None) -> None:
        """From now on so fast."""
        self._pace = None if rate is None else Pace(rate)
        self.due = None
        if rate is not None:
            self.fall_behind()
        self.step()

    def close(self) -> None:
        """Nothing more is handed over.  Twice does no harm."""
        if not self.closed:
            self.closed = True
            self._held = None
            self._replays.forget(self, self._feed)

    # -- for `Replays` and the feed

    def begin(self, feed: Feed, stretch: Stretch) -> None:
        """Its place is known."""
        self._feed = feed
        self.cursor, self._end = stretch.start, stretch.end
        self._since, self._until = stretch.since, stretch.until
        self.notice = stretch.notice
        feed.behind[self] = None
        self.step()

    def refuse(self, error: PenstockError) -> None:
        """It cannot go on."""
        if not self.closed:
            self.close()
            self.receiver.ended(error)

    def hand(self, page: Page) -> None:
        """A page for one that is live; without room for all of it it is behind from here on."""
        if self.receiver.room() >= len(page):
            self.cursor = page.last + 1
            self._give(page)
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

    def until(self) -> int | None:
        """Wall time at which its end is known."""
        return self._until

    def end_here(self, end: int) -> None:
        """The time of its end has come: what has an LSN from `end` on is too late."""
        self._until = None
        self._end = end if self._end is None else min(end, self._end)
        self.step()

    # -- steps

    def step(self) -> None:
        """Do all that can be done now."""
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._step():
                pass
        finally:
            self._stepping = False

    def _step(self) -> bool:
        """One step; whether another may follow."""
        feed = self._feed
        if self.closed or self._reading or self.paused or feed is None or self in feed.live:
            return False
        if self._end is not None and self.cursor >= self._end:
            self._finish()
            return False
        now = self._replays.now()
        if self.due is not None:
            if self.due > now:
                return False
            self.due = None
        if self.receiver.room() <= 0:
            self._held = None  # it is read again: a slow reader holds no memory
            return False
        if self._held is not None:
            return self._offer(self._held, self._held.last + 1, now, read=True)
        if self.cursor < feed.begins:
            return self._read()
        page, upto = feed.page_from(self.cursor)
        if page is not None:
            return self._offer(page, upto, now, read=False)
        self._move(upto)
        self._level()
        if self.cursor == feed.upto + 1 and self in feed.behind and not (self._bounded or self._pace):
            del feed.behind[self]
            feed.live[self] = None
        return False

    @property
    def _bounded(self) -> bool:
        """Whether it has to look at each message before it may hand it over."""
        return self._end is not None or self._until is not None or self._since > 0

    def _offer(self, page: Page, upto: int, now: int, *, read: bool) -> bool:
        """Hand over what may go now of a page after which `upto` comes; whether another step may follow.

        read: it comes from the log, and what is left of it is held as long as only the rate is in the way.
        """
        part = self._cut(page)
        self._held = None
        if part is None:
            self._move(upto)
            return True
        count = min(self.receiver.room(), len(part))
        if self._pace is not None:
            count = self._pace.admit(part.part(0, count), now)
        whole = count == len(part)
        self._move(upto if whole else part.lsns[count])
        if not whole and read:
            self._held = part.part(count, len(part))
        if count:
            self._give(part.part(0, count))
        if not whole and self._pace is not None:
            self.due = self._pace.due()
            self._replays.wake_at(self.due)
            return False
        return not self.closed

    def _cut(self, page: Page) -> Page | None:
        """What of a page lies within its times and before its end."""
        part: Page | None = page
        if self._until is not None and page.time_of(len(page) - 1) >= self._until:
            late = page.since(self._until)
            self._end, self._until = page.last + 1 if late is None else late.first, None
        if self._end is not None:
            part = page.below(self._end)
        return part.since(self._since) if self._since and part is not None else part

    def _give(self, page: Page) -> None:
        if self.asked is not None:
            self._replays.sent += len(page)
        self.receiver.take(page)

    def _move(self, upto: int) -> None:
        if upto > self.cursor:
            self.cursor = upto
            self.moved_at = self._replays.now()

    def _read(self) -> bool:
        """Read on in the log, if anything there is not looked at."""
        replays, feed = self._replays, self._feed
        assert feed is not None
        end = min(replays.durable + 1, feed.begins if self._end is None else min(self._end, feed.begins))
        if self.cursor >= end:
            self._level()
            return False
        if self.cursor < replays.first_lsn:
            first = replays.first_lsn
            self.refuse(
                NotFound(f"the log begins at LSN {first} now: retention has passed this reader at {self.cursor}")
            )
            return False
        self._reading = True
        rows = PAGE_ROWS if self._pace is None else max(1, min(PAGE_ROWS, int(self._pace.rate.messages) or PAGE_ROWS))
        replays.look(feed, self.cursor, end, rows, self._read_done)
        return False

    def _read_done(self, found: Found) -> None:
        self._reading = False
        if self.closed:
            return
        if found.error is not None:
            self.refuse(found.error)
            return
        if found.page is None:
            self._move(found.upto)
        else:
            now = self._replays.now()
            if self.paused or self.receiver.room() <= 0:
                return  # it is read again when there is room
            self._stepping = True  # `take` may ask for a step
            self._offer(found.page, found.upto, now, read=True)
            self._stepping = False
        self.step()

    def _level(self) -> None:
        """Nothing durable is left."""
        if not self.over and not self._bounded:
            self.over = True
            self.receiver.completed(last=False)

    def _finish(self) -> None:
        self.close()
        if not self.over:
            self.over = True
            self.receiver.completed(last=True)
