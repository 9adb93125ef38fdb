"""Rows that change, as a subscriber is told of them: those of a view or a conflated topic, and what is conflated.

They come as events, as records do: the rows there are, then what becomes of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.core.sow.select import parse_order
from penstock.core.views.feed import DEFAULT_US, LEAST_US, Conflation
from penstock.errors import InvalidArgument
from penstock.expr import compile_filter, compile_value
from penstock.expr.filter import Filter, Value
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY
from penstock.server.follow import ENDLESS, Asking, Sign, Source
from penstock.server.sow.record_events import Event, Kind
from penstock.server.views.row_queries import places
from penstock.units import format_duration, to_micros

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.ports import Clock
    from penstock.server.follow import Reader
    from penstock.server.sow.record_events import Wish
    from penstock.server.views.shown import Alarms, Shown, Told

PORTION = 1000
"""Events that are given at once."""

WAITING_MOST = 10_000
"""Changes that wait for a slow reader, each for itself; of more only the last of each row."""


class RowSource(Source[list[Event]]):
    """The rows of a view or a conflated topic."""

    _reader: Reader[list[Event]]

    def __init__(
        self,
        clock: Clock,
        shown: Shown,
        wish: Wish,
        name: str = "",
        closed: Callable[[], None] | None = None,
        *,
        changed: bool = False,
    ) -> None:
        """The rows come once they are level.  ExpressionError; InvalidArgument for deltas and for a page.

        name: of their topic, if not that of what shows them.  closed: called once.  changed: a row that is told of
        again as it was does not come.
        """
        name = name or shown.name
        if wish.delta:
            raise InvalidArgument(f"'{name}' has whole rows, no deltas")
        if wish.paged:
            raise InvalidArgument(f"a page of '{name}' can be asked for, not followed")
        self._rows, self._wish, self._clock = shown, wish, clock
        self._filter: Filter | None = None if wish.filter is None else compile_filter(wish.filter)
        if self._filter is not None and wish.oof:
            self._filter.require_deterministic("a subscription that tells what leaves its focus")
        parse_order(wish.order_by or None)
        self._topic = Topic(shown.vhost, "", name)
        self._closed: Callable[[], None] | None = closed or (lambda: None)
        self._changed = changed
        self._focus = set[str]()  # rows that it was told of, or would have been
        self.waiting: deque[Event | Sign] = deque()
        self._most = WAITING_MOST

    def begin(self, reader: Reader[list[Event]]) -> None:
        self._reader = reader
        self._rows.when_current(self._begin)

    def next(self, room: int) -> list[Event] | Sign | None:
        return first_of(self.waiting, room)

    def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            self.waiting.clear()
            if self._tell in self._rows.told:
                self._rows.told.remove(self._tell)
            closed()

    def _begin(self) -> None:
        if self._closed is None:
            return
        self._rows.told.append(self._tell)
        rows = list(self._rows.rows().items())
        there = places([body for _, body in rows], filter=self._wish.filter, order_by=self._wish.order_by or None)
        found = [rows[place] for place in there]
        self._focus = {key for key, _ in found}
        if self._wish.sow:
            self.waiting += [self._event("sow", key, body) for key, body in found]
            self.waiting.append(Sign.LEVEL)
        self._reader.step()

    def _tell(self, changes: Sequence[Told]) -> None:
        there = [change.body for change in changes if change.body is not None]
        passed = iter([True] * len(there) if self._filter is None else self._filter.matches(there))
        for key, body, before, reason in changes:
            if body is not None and next(passed):
                self._focus.add(key)
                if body != before or not self._changed:
                    self.waiting.append(self._event("publish", key, body))
            elif key in self._focus:
                self._focus.remove(key)
                last = before if body is None else body
                if self._wish.oof and last is not None:
                    self.waiting.append(self._event("oof", key, last, "match" if body is not None else reason))
        self._reader.step()
        if len(self.waiting) > self._most:
            self._thin()

    def _thin(self) -> None:
        """Too many wait: of changes the last of each row is left, in the order of these last ones."""
        first: list[Event | Sign] = []
        last = dict[str, Event]()
        for event in self.waiting:
            if isinstance(event, Sign) or event.kind == "sow":
                first.append(event)
            else:
                last.pop(event.key, None)
                last[event.key] = event
        self.waiting = deque([*first, *last.values()])
        self._most = max(WAITING_MOST, 2 * len(self.waiting))

    def _event(self, kind: Kind, key: str, body: bytes, reason: str = "") -> Event:
        return Event(kind, 0, key, self._topic, 0, self._clock.wall(), EMPTY, body, reason)


def interval_of(value: str | float | timedelta | None) -> int | None:
    """The interval of a conflated subscription, microseconds; None: `none`.  InvalidArgument below 100 ms."""
    if value is None or value == "none":
        return None
    try:
        micros = DEFAULT_US if value == "auto" else to_micros(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"conflation: {error}") from None
    if micros < LEAST_US:
        raise InvalidArgument(f"conflation is {format_duration(micros)}, the least is {format_duration(LEAST_US)}")
    return micros


class Conflated(Source[list[Event]]):
    """Another source's events: what changes within an interval is told once, at its end.

    The rows there are come at once.  A row that leaves before its change was told is not told of, and one that leaves
    later is told at once.
    """

    _reader: Reader[list[Event]]

    def __init__(self, alarms: Alarms, inner: Source[list[Event]], interval: int, key: Sequence[str] = ()) -> None:
        """key: expressions that tell what is one key, instead of the record's own.  ExpressionError."""
        self._alarms = alarms
        self._inner = inner
        self._keys: list[Value] = [compile_value(text) for text in key]
        self._waiting: Conflation[object, Event] = Conflation(interval)
        self._ready: deque[Event | Sign] = deque()  # to be given
        self._told = set[object]()

    def begin(self, reader: Reader[list[Event]]) -> None:
        self._reader = reader
        self._alarms.add(self)
        self._inner.begin(Asking[list[Event]].within(reader))

    def next(self, room: int) -> list[Event] | Sign | None:
        """See `Source`.  All that has come is taken: one change a key is held."""
        while (found := self._inner.next(ENDLESS)) is not None:
            if isinstance(found, Sign):
                self._ready.append(found)
            else:
                self._put(found)
        if not self._ready:
            due = self._waiting.due(self._alarms.clock.mono())
            self._told.update(self._keys_of(due))
            self._ready += due
        return first_of(self._ready, room)

    def close(self) -> None:
        self._alarms.remove(self)
        self._ready.clear()
        self._inner.close()

    def _put(self, events: list[Event]) -> None:
        now = self._alarms.clock.mono()
        for event, key in zip(events, self._keys_of(events), strict=True):
            if event.kind == "sow":
                self._told.add(key)
                self._ready.append(event)
            elif event.kind == "oof":
                waited = self._waiting.drop(key)
                if key in self._told or not waited:
                    self._told.discard(key)
                    self._ready.append(event)
            else:
                first = self._waiting.waiting(key)
                self._waiting.put(key, event if first is None else replace(event, time=first.time), now)
        self._alarms.changed()

    # -- an alarm

    def next_due(self) -> int | None:
        """When to `tick` next, monotonic microseconds; what is due waits for the reader while something is ready."""
        return None if self._ready else self._waiting.next_due()

    def tick(self, now: int) -> None:
        self._reader.step()

    def _keys_of(self, events: Sequence[Event]) -> Sequence[object]:
        if not self._keys:
            return [event.key or event.number for event in events]
        bodies = [event.body for event in events]
        return list(zip(*(value.values(bodies) for value in self._keys), strict=True))


def first_of(waiting: deque[Event | Sign], room: int) -> list[Event] | Sign | None:
    """The events that wait first, as many as there is room for; or the sign that does."""
    if waiting and isinstance(waiting[0], Sign):
        sign = waiting.popleft()
        return sign if isinstance(sign, Sign) else None
    out = list[Event]()
    while waiting and len(out) < min(room, PORTION):
        event = waiting[0]
        if isinstance(event, Sign):
            break
        out.append(event)
        waiting.popleft()
    return out or None


def conflated(alarms: Alarms, wish: Wish, source: Source[list[Event]]) -> Source[list[Event]]:
    """A source, conflated if that is asked for.  ExpressionError."""
    return source if wish.conflation is None else Conflated(alarms, source, wish.conflation, wish.conflation_key)
