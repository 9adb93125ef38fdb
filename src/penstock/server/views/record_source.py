"""The records of a SOW topic: those of one moment first, then what becomes of them, without a gap.

    command at LSN x:  a fork of the index, a watcher for removals, the messages of the topic from x + 1
      |- snapshot      once x is durable: rows that match, portion after portion, off the loop
      |- pages         in the order of the log, parted where a removal lies between two rows
      '- removals      told when every row before them was

One piece is in work at a time: read off the loop, decided here against what this subscriber knows, then given.  Who
asks for neither deltas, nor OOF, nor a page of the records, needs no index of its own.

A topic without a key has no records: subscribing to it begins with what is published (`unkeyed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.sow.index import Index
from penstock.core.sow.select import Window, parse_order
from penstock.errors import InvalidArgument, NotFound, PenstockError, Unavailable
from penstock.expr import compile_filter
from penstock.records.chunks import as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Rows
from penstock.records.message_types import goes_on
from penstock.server.follow import Asking, Mapped, Reader, Sign, Source
from penstock.server.replaying import Replays, caught
from penstock.server.replaying.log_source import Asked
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import Selection, selection_of
from penstock.server.views.record_query import (
    Event,
    Read,
    Wish,
    bare,
    differences,
    given_key,
    portions,
    published,
    read_page,
)

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.sow.holding import Sow
    from penstock.server.base.runtime import Runtime


PORTION = 1000
"""Records of a snapshot, or rows of a page, that are worked on together: a few milliseconds of the loop."""

REMOVED_MOST = 1_000_000
"""Removed keys that wait for a slow reader: about 16 MB.  Unlike messages they are not read again from the log."""


@dataclass(slots=True)
class _Drop:
    lsn: int
    numbers: Sequence[int]
    lsns: Sequence[int]
    reason: str


class RecordSource(Source[list[Event]]):
    _reader: Reader[list[Event]]

    def __init__(self, runtime: Runtime, replays: Replays, sow: Sow, wish: Wish) -> None:
        """Raises ExpressionError for its filter or order, InvalidArgument for what it cannot follow."""
        self.closed = False
        self._runtime, self._replays, self._sow, self._wish = runtime, replays, sow, wish
        self._filter = None if wish.filter is None else compile_filter(wish.filter)
        if self._filter is not None and (wish.oof or wish.top_n is not None):
            self._filter.require_deterministic("a subscription that tells what leaves its focus")
        self._terms = parse_order(wish.order_by or None)
        self._window = None if wish.top_n is None else Window(self._terms, wish.top_n, wish.skip_n)
        self._reads: str = sow.rule.message_type  # what is asked of bodies is asked of this type
        self._index = sow.index.fork() if wish.knowing else Index()
        self._focus = Index()  # keys that the subscriber has been told of and that match
        self._drops = deque[_Drop]()
        self._removed_keys = 0  # of those
        self._items = deque["Page | _Drop"]()  # what comes next, after the portions
        self._told: list[Event] = []  # to be given
        self._busy = False
        self._level = False  # the records that there were have come, which is to be said
        self._portions: Iterator[list[Event]] | None = None
        self._floor: int | None = None  # of the snapshot
        selection = Selection.topic(sow.vhost, sow.exchange, sow.name)
        self._pages = replays.source(selection, filter=None if wish.knowing else self._filter)

    # -- a source

    def begin(self, reader: Reader[list[Event]]) -> None:
        self._reader = reader
        runtime, sow, wish = self._runtime, self._sow, self._wish
        if wish.knowing:
            sow.watchers.append(self)
        sow.ending.append(self._ends)
        runtime.readers.append(self._lowest)
        if wish.sow or wish.focused:
            self._busy = True
            self._floor = sow.index.oldest()
            work = partial(self._first, sow.index.snapshot())
            runtime.when_durable(runtime.core.last_lsn, lambda: self._replays.run(partial(caught, work), self._portion))
        self._pages.begin(Asking[Page].within(reader))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._pages.close()
        self._items.clear()
        self._drops.clear()
        self._told.clear()
        if self in self._sow.watchers:
            self._sow.watchers.remove(self)
        self._runtime.readers.remove(self._lowest)
        if self._ends in self._sow.ending:
            self._sow.ending.remove(self._ends)

    def next(self, room: int) -> list[Event] | Sign | None:
        if not self._told and not self._busy and not self._level and room > 0:
            self._work(min(PORTION, room))
        if self._told:
            some = self._told[:room]
            del self._told[:room]
            return some or None
        if self._level:
            self._level = False
            return Sign.LEVEL
        return None

    def _work(self, room: int) -> None:
        """Begin with what comes next; it may be done at once."""
        if self._portions is not None:
            self._busy = True
            self._replays.run(partial(caught, partial(next, self._portions, None)), self._portion)
            return
        self._gather()
        if not self._items:
            while (page := self._pages.next(room)) is Sign.LEVEL:
                pass
            if isinstance(page, Page):
                self._part(page)
            self._gather()  # it may have moved without a row
        if not self._items:
            return
        self._busy = True
        item = self._items.popleft()
        if isinstance(item, _Drop):
            self._removed(item)
        else:
            self._read_on()
            filter = self._filter if self._wish.knowing else None
            work = partial(read_page, item, self._sow.rule, filter, self._terms, self._replays.ask)
            self._replays.run(partial(caught, work), partial(self._read, item))

    def _read_on(self) -> None:
        """What it asks of bodies is asked of what they are now: they may have schemas that they had not."""
        kind = self._sow.rule.message_type
        if kind != self._reads and goes_on(kind, self._reads):
            self._reads, self._wish = kind, self._wish.reading(kind)
            self._filter = None if self._wish.filter is None else compile_filter(self._wish.filter)
            self._terms = parse_order(self._wish.order_by or None)

    def _part(self, page: Page) -> None:
        """Rows in the order of the log, and between them the removals."""
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

    def _gather(self) -> None:
        """Removals before which every row was given."""
        while self._drops and self._drops[0].lsn < self._pages.position:
            self._items.append(self._drops.popleft())

    # -- the snapshot

    def _lowest(self) -> int | None:
        return self._floor

    def _first(self, taken: object) -> list[Event] | None:
        """The first portion.  Off the loop."""
        sow, wish = self._sow, self._wish
        self._portions = portions(
            taken, sow, wish.filter, self._terms, self._window, self._runtime.log, lambda: self.closed, PORTION
        )  # fmt: skip
        return next(self._portions, None)

    def _portion(self, events: list[Event] | PenstockError | None) -> None:
        if self.closed:
            return
        if isinstance(events, PenstockError):
            self._reader.fail(events)
            return
        self._busy = False
        if events is None:
            self._portions = None
            self._floor = None
            self._level = self._wish.sow
        else:
            if self._wish.focused:
                for event in events:
                    self._focus.put(event.number, event.lsn)
            if self._wish.sow:
                self._told = events
        self._reader.step()

    # -- what comes

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        """For the core: these keys have no record any more."""
        self._removed_keys += len(numbers)
        if self._removed_keys > REMOVED_MOST:
            name = self._sow.name
            why = Unavailable(
                f"more than {REMOVED_MOST} records of '{name}' were removed while nobody read: begin anew"
            )
            self._runtime.call_soon(lambda: self._reader.fail(why))
            return
        self._drops.append(_Drop(lsn, numbers, lsns, reason))
        self._runtime.when_durable(lsn, self._soon)

    def _soon(self) -> None:
        self._runtime.call_soon(self._look)

    def _look(self) -> None:
        """Removals may be next: by now the pages have what was committed with them."""
        if not self.closed:
            self._reader.step()
            self._replays.done()

    def _ends(self) -> None:
        """For the core: the topic is deleted, or has another key or type of bodies."""
        sow, now = self._sow, "was deleted, or has another key or type of bodies now"
        why = NotFound(f"topic '{sow.name}' in vhost '{sow.vhost}' {now}")
        self._runtime.call_soon(lambda: self._reader.fail(why))

    def _read(self, page: Page, found: Read | PenstockError) -> None:
        """A page was read: what is told of each row."""
        if self.closed:
            return
        if isinstance(found, PenstockError):
            self._reader.fail(found)
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
            if wish.focused:
                self._focus.put(event.number, event.lsn)
            whole = not wish.delta or (wish.focused and not known)
            told.append((event, 0 if whole else before))
        elif wish.focused and known:
            self._focus.drop(event.number)
            if wish.oof:
                told.append((self._left(event, before), 0))

    def _left(self, event: Event, before: int) -> Event:
        """A record that matches no more: as it is, or as the subscriber had it where he might not read what it is."""
        if self._wish.within:
            return bare("oof", event.number, before, self._sow, "match")
        return replace(event, kind="oof", reason="match")

    def _turned(
        self, window: Window, event: Event, values: Sequence[object] | None, before: int, told: list[tuple[Event, int]]
    ) -> None:
        """A record of a page changed: others may have left it or come to it."""
        wish, known = self._wish, window.has(event.number)
        left, came = window.change(event.number, event.lsn, values)  # type: ignore[arg-type]  # values of expressions
        if values is not None and window.has(event.number):
            told.append((event, before if wish.delta and known else 0))
        elif known and wish.oof:
            told.append((self._left(event, before), 0))
        self._others(left, came, told)

    def _others(self, left: Sequence[int], came: Sequence[int], told: list[tuple[Event, int]]) -> None:
        window = self._window
        assert window is not None
        sow = self._sow
        for number in left if self._wish.oof else ():
            told.append((bare("oof", number, window.lsn(number), sow, "match"), 0))
        told += ((bare("publish", 0, lsn, sow, ""), 0) for lsn in came)

    def _removed(self, drop: _Drop) -> None:
        self._removed_keys -= len(drop.numbers)
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
            self._tell([event for event, _ in told])
            return
        wish, rule = self._wish, self._sow.rule
        work = partial(differences, told, bodies, rule, empties=not wish.no_empties, select=wish.select)
        self._replays.run(partial(caught, work), self._compared)

    def _complete(self, event: Event, rows: Rows, row: int) -> None:
        """An event about a record that was read by its LSN."""
        event.body, event.properties, event.time = rows.bodies[row], rows.properties[row], rows.times[row]
        rule = self._sow.rule
        if rule.given:
            event.key = given_key(event.properties) or ""
        elif not event.number:
            number = rule.of_body(event.body, event.properties)
            event.number = 0 if isinstance(number, str) else number
            event.key = str(number)

    def _compared(self, events: list[Event] | PenstockError) -> None:
        if self.closed:
            return
        if isinstance(events, PenstockError):
            self._reader.fail(events)
        else:
            self._tell(events)

    def _tell(self, events: list[Event]) -> None:
        """This is to be given; then comes what is next."""
        self._told = events
        if self._items and isinstance(self._items[0], _Drop):
            # one record names thousands of keys, and many records may come at once
            self._runtime.call_soon(self._go_on)
        else:
            self._busy = False
        self._reader.step()

    def _go_on(self) -> None:
        self._busy = False
        self._look()


def unkeyed(
    core: Core, replays: Replays, topic: tuple[str, str, str], wish: Wish, shown: Callable[[str, str], object]
) -> Source[list[Event]]:
    """What is published to a topic without a key: deltas are whole messages, and nothing goes out of focus.

    topic: its vhost, exchange and name.  shown: whether a view has a name.
    Errors: NotFound for a topic that nobody keeps; InvalidArgument for a queue, for a page, and for conflation that
    names no key.
    """
    vhost, exchange, name = topic
    where = f"'{name}' in vhost '{vhost}'"
    if not exchange and (vhost, "", name) not in core.topology.topics and core.find_queue(vhost, name) is not None:
        raise InvalidArgument(f"{where} is a queue: look at it with sow, and consume its messages")
    if wish.paged:
        raise InvalidArgument(f"topic {where} has no key, so there are no pages of it")
    if wish.conflation is not None and not wish.conflation_key:
        raise InvalidArgument(f"topic {where} has no key: name a conflation_key that tells its messages apart")
    if not core.keeps(vhost, exchange, name):
        why = f"no SOW topic {where}, and no queue and no declared topic keeps its messages"
        raise core.missing_topic(vhost, exchange, name, why, shown)
    asked = Asked(selection_of(core, vhost, exchange, name), "NOW", wish.filter, name=name)
    return Mapped(replays.source_of(asked), _as_events, most=PORTION, levels=wish.sow)


def _as_events(page: Page) -> list[Event]:
    """Messages, which have the number 0 without a key."""
    return [published(page, row, 0, "") for row in range(len(page))]
