"""A subscription to the records of a SOW topic: those of one moment first, then what becomes of them, without a gap.

    command at LSN x:  a fork of the index, a watcher for removals, a follower of the topic from x + 1
      |- snapshot      once x is durable: rows that match, portion after portion, off the loop
      |- pages         of the follower, in the order of the log, parted where a removal lies between two rows
      '- removals      told when every row before them was

One page is in work at a time: read off the loop, decided here against what this subscriber knows, then taken.  Who asks
for neither deltas, nor OOF, nor a page of the records, needs no index of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.core.sow.index import Index
from penstock.core.sow.ordering import parse_order
from penstock.core.sow.paging import Window
from penstock.errors import NotFound, PenstockError
from penstock.expr import compile_filter
from penstock.records.chunks import as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Rows
from penstock.server.replaying.page import Page
from penstock.server.replaying.topics import Selection
from penstock.server.sow.record_events import Event, Read, Taker, Wish, bare, differences, published, read_page

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.server.replaying.follower import Follower
    from penstock.server.replaying.replays import Replays
    from penstock.server.runtime import Runtime


T = TypeVar("T")

PORTION = 1000
"""Records of a snapshot, or rows of a page, that are worked on together: a few milliseconds of the loop."""


@dataclass(slots=True)
class _Drop:
    lsn: int
    numbers: Sequence[int]
    lsns: Sequence[int]
    reason: str


class RecordWatch:
    """One subscription.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, replays: Replays, sow: Sow, wish: Wish, taker: Taker) -> None:
        """Begins at once.  Raises ExpressionError, InvalidArgument."""
        self.closed = False
        self._runtime, self._replays, self._sow, self._wish, self._taker = runtime, replays, sow, wish, taker
        self._filter = None if wish.filter is None else compile_filter(wish.filter)
        if self._filter is not None and (wish.oof or wish.top_n is not None):
            self._filter.require_deterministic("a subscription that tells what leaves its focus")
        self._terms = parse_order(wish.order_by or None)
        self._index = sow.index.fork() if wish.knowing else Index()
        self._focus = Index()  # keys that the subscriber has been told of and that match
        self._window: Window | None = None
        if wish.top_n is not None:
            self._window = Window(self._terms, wish.top_n, wish.skip_n)
        self._drops = deque[_Drop]()
        self._items = deque["Page | _Drop"]()
        self._busy = True  # with the snapshot
        self._held: list[Event] = []  # for want of room
        self._portions: Iterator[list[Event]] | None = None
        self._floor: int | None = None  # of the snapshot
        place = runtime.core.last_lsn
        if wish.oof or wish.delta or wish.paged:
            sow.watchers.append(self)
        sow.ending.append(self._ends)
        runtime.readers.append(self._lowest)
        selection = Selection.topic(sow.vhost, sow.exchange, sow.name)
        early = None if wish.knowing else self._filter
        self._follower: Follower = replays.follow(selection, _Receiver(self), start=place + 1, filter=early)
        if wish.sow or wish.oof:
            taken = sow.index.snapshot()
            self._floor = sow.index.oldest()
            runtime.when_durable(place, lambda: self._run(partial(self._begin, taken), self._portion))
        else:
            self._busy = False

    def close(self) -> None:
        """Nothing more is told.  Twice does no harm."""
        if self.closed:
            return
        self.closed = True
        self._follower.close()
        self._items.clear()
        self._drops.clear()
        if self in self._sow.watchers:
            self._sow.watchers.remove(self)
        self._runtime.readers.remove(self._lowest)
        if self._ends in self._sow.ending:
            self._sow.ending.remove(self._ends)

    def go_on(self) -> None:
        """The taker has room again."""
        if self.closed or self._taker.room() <= 0:
            return
        if self._held:
            held, self._held = self._held, []
            self._deliver(held)
        elif not self._busy:
            self._next()

    # -- the snapshot

    def _lowest(self) -> int | None:
        return self._floor

    def _begin(self, taken: object) -> list[Event] | None:
        """The first portion.  Off the loop."""
        from penstock.server.sow.query import portions

        sow, wish = self._sow, self._wish
        self._portions = portions(
            taken, sow, wish.filter, self._terms, self._window, self._runtime.log, lambda: self.closed, PORTION
        )  # fmt: skip
        return next(self._portions, None)

    def _portion(self, events: list[Event] | PenstockError | None) -> None:
        if self.closed:
            return
        if isinstance(events, PenstockError):
            self._fail(events)
            return
        if events is None:
            self._portions = None
            self._floor = None
            if self._wish.sow:
                self._taker.level()
            self._done()
            return
        if self._wish.oof:
            for event in events:
                self._focus.put(event.number, event.lsn)
        if self._wish.sow:
            self._deliver(events)
        else:
            self._more()

    def _more(self) -> None:
        portions = self._portions
        assert portions is not None
        self._run(lambda: next(portions, None), self._portion)

    # -- what comes

    def room(self) -> int:
        """For the follower: some rows at a time.  It asks wherever it has moved, so removals may be next."""
        if self._drops and not self._busy and self._drops[0].lsn < self._follower.position:
            self._soon()
        return 0 if self._busy or self._items or self._held else max(0, min(PORTION, self._taker.room()))

    def take(self, page: Page) -> None:
        """For the follower: rows in the order of the log."""
        rest: Page | None = page
        while rest is not None and self._drops and self._drops[0].lsn <= rest.last:
            drop = self._drops.popleft()
            part = rest.below(drop.lsn)
            if part is not None:
                self._items.append(part)
            self._items.append(drop)
            rest = rest.from_lsn(drop.lsn)
        if rest is not None:
            self._items.append(rest)
        if not self._busy:
            self._next()

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        """For the core: these keys have no record any more."""
        self._drops.append(_Drop(lsn, numbers, lsns, reason))
        self._runtime.when_durable(lsn, self._soon)

    def refused(self, error: PenstockError) -> None:
        """For the follower: it has ended."""
        self._fail(error)

    def _ends(self) -> None:
        """For the core: the topic is deleted, or has another key."""
        sow = self._sow
        why = NotFound(f"topic '{sow.name}' in vhost '{sow.vhost}' was deleted, or has another key now")
        self._runtime.call_soon(lambda: self._fail(why))

    def _soon(self) -> None:
        self._runtime.call_soon(self._look)  # by then the follower has what was committed with it

    def _look(self) -> None:
        """Removals may be next."""
        if not self.closed and not self._busy and not self._held:
            self._next()
            self._runtime.flush()
            self._runtime.arm()

    def _next(self) -> None:
        if self.closed:
            return
        self._gather()
        if not self._items:
            self._follower.step()
            if self._busy:
                return
            self._gather()  # it may have moved without a row to hand over
        if not self._items:
            return
        self._busy = True
        item = self._items.popleft()
        if isinstance(item, _Drop):
            self._removed(item)
        else:
            filter = self._filter if self._wish.knowing else None
            work = partial(read_page, item, self._sow.rule, filter, self._terms, self._replays.ask)
            self._run(work, partial(self._read, item))

    def _gather(self) -> None:
        """Removals before which every row was handed over."""
        while self._drops and self._drops[0].lsn < self._follower.position:
            self._items.append(self._drops.popleft())

    def _read(self, page: Page, found: Read | PenstockError) -> None:
        """A page was read: what is told of each row."""
        if self.closed:
            return
        if isinstance(found, PenstockError):
            self._fail(found)
            return
        wish, told = self._wish, list[tuple[Event, int]]()
        own: dict[int, bytes] = {}  # bodies of this page, for deltas against them
        for row, number in enumerate(found.numbers):
            if number < 0:
                continue
            event = published(page, row, number, found.keys[row])
            if not wish.knowing:
                told.append((event, 0))
                continue
            before = self._index.get(number)
            self._index.put(number, event.lsn)
            own[event.lsn] = event.body
            if self._window is not None:
                self._turned(self._window, event, found.values[row] if found.matches[row] else None, before, told)
            else:
                self._matched(event, before, told, matches=found.matches[row])
        self._finish(told, own)

    def _matched(self, event: Event, before: int, told: list[tuple[Event, int]], *, matches: bool) -> None:
        """A record was published: told whole, as a change, or as out of focus."""
        wish, known = self._wish, bool(self._focus.get(event.number))
        if matches:
            if wish.oof:
                self._focus.put(event.number, event.lsn)
            whole = not wish.delta or (wish.oof and not known)
            told.append((event, 0 if whole else before))
        elif wish.oof and known:
            self._focus.drop(event.number)
            told.append((replace(event, kind="oof", reason="match"), 0))

    def _turned(
        self, window: Window, event: Event, values: Sequence[object] | None, before: int, told: list[tuple[Event, int]]
    ) -> None:
        """A record of a page changed: others may have left it or come to it."""
        wish, known = self._wish, window.has(event.number)
        left, came = window.change(event.number, event.lsn, values)  # type: ignore[arg-type]  # values of expressions
        if values is not None and window.has(event.number):
            told.append((event, before if wish.delta and known else 0))
        elif known and wish.oof:
            told.append((replace(event, kind="oof", reason="match"), 0))
        self._others(left, came, told)

    def _others(self, left: Sequence[int], came: Sequence[int], told: list[tuple[Event, int]]) -> None:
        window = self._window
        assert window is not None
        sow = self._sow
        for number in left if self._wish.oof else ():
            told.append((bare("oof", number, window.lsn(number), sow, "match"), 0))
        told += ((bare("publish", 0, lsn, sow, ""), 0) for lsn in came)

    def _removed(self, drop: _Drop) -> None:
        told: list[tuple[Event, int]] = []
        for number, lsn in zip(drop.numbers, drop.lsns, strict=True):
            self._index.drop(number)
            window = self._window
            if window is not None:
                known = window.has(number)
                left, came = window.change(number, lsn, None)
                if known and self._wish.oof:
                    told.append((bare("oof", number, lsn, self._sow, drop.reason), 0))
                self._others(left, came, told)
            elif self._focus.drop(number) and self._wish.oof:
                told.append((bare("oof", number, lsn, self._sow, drop.reason), 0))
        self._finish(told, {})

    # -- bodies, and out

    def _finish(self, told: list[tuple[Event, int]], own: dict[int, bytes]) -> None:
        """Fetch what is missing: earlier bodies for deltas, and records that are not in the page."""
        missing = {event.lsn for event, _ in told if not event.time}
        wanted = sorted(missing | ({before for _, before in told if before} - own.keys()))
        if wanted:
            self._runtime.read_rows(as_chunk(wanted), partial(self._fetched, told, own))
        else:
            self._fetched(told, own, None)

    def _fetched(self, told: list[tuple[Event, int]], own: dict[int, bytes], rows: Rows | None) -> None:
        if self.closed:
            return
        bodies = dict(own)
        if rows is not None:
            bodies.update(zip(rows.lsns, rows.bodies, strict=True))
            places = {lsn: row for row, lsn in enumerate(rows.lsns)}
            for event, _ in told:
                place = places.get(event.lsn)
                if not event.time and place is not None:
                    self._complete(event, rows, place)
        if not self._wish.delta or not any(before for _, before in told):
            self._deliver([event for event, _ in told])
            return
        wish, rule = self._wish, self._sow.rule
        work = partial(differences, told, bodies, rule, empties=not wish.no_empties, select=wish.select)
        self._run(work, self._compared)

    def _complete(self, event: Event, rows: Rows, row: int) -> None:
        """An event about a record that was read by its LSN."""
        from penstock.server.sow.record_events import given_key

        event.body, event.properties, event.time = rows.bodies[row], rows.properties[row], rows.times[row]
        rule = self._sow.rule
        if rule.given:
            event.key = given_key(event.properties) or ""
        elif not event.number:
            number = rule.of_body(event.body)
            event.number = 0 if isinstance(number, str) else number
            event.key = str(number)

    def _compared(self, events: list[Event] | PenstockError) -> None:
        if isinstance(events, PenstockError):
            self._fail(events)
        elif not self.closed:
            self._deliver(events)

    def _deliver(self, events: list[Event]) -> None:
        """Hand over as many as there is room for."""
        count = min(len(events), max(0, self._taker.room()))
        if count:
            self._taker.take(events[:count])
        if count < len(events):
            self._held = events[count:] + self._held
        elif self._portions is not None:
            self._more()
        else:
            self._done()

    def _done(self) -> None:
        """What was in work is told."""
        self._busy = False
        if self._items and isinstance(self._items[0], _Drop):
            self._soon()  # one record names thousands of keys, and many records may come at once
        else:
            self._next()

    def _fail(self, error: PenstockError) -> None:
        if not self.closed:
            self.close()
            self._taker.ended(error)

    def _run(self, work: Callable[[], T], done: Callable[[T | PenstockError], None]) -> None:
        """Work off the loop where that is possible; errors of ours are told."""

        def told() -> T | PenstockError:
            try:
                return work()
            except PenstockError as error:
                return error

        def back(value: T | PenstockError) -> None:
            done(value)
            self._runtime.flush()
            self._runtime.arm()

        off = self._replays.off
        if off is not None:
            off(told, back)
        else:
            self._runtime.call_soon(lambda: back(told()))


class _Receiver:
    """What the follower knows of a subscription."""

    def __init__(self, live: RecordWatch) -> None:
        self.room = live.room
        self.take = live.take
        self.ended = live.refused

    def completed(self, *, last: bool) -> None:
        """It is level with the log: there is nothing to tell."""
