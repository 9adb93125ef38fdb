"""Subscriptions to what changes: the rows of a view, a conflated topic, and subscriptions that are conflated.

A subscriber is a `Taker`, as for records (`server.sow.live`): it gets the rows there are, then what becomes of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from penstock.core.sow.ordering import parse_order
from penstock.core.views.feed import DEFAULT_US, LEAST_US, Conflation
from penstock.errors import InvalidArgument, PenstockError
from penstock.expr import compile_filter, compile_value
from penstock.expr.filter import Filter, Value
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY
from penstock.server.sow.record_events import Event, Kind
from penstock.server.views.querying import places
from penstock.units import format_duration, to_micros

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.ports import Clock
    from penstock.server.sow.record_events import Taker, Wish
    from penstock.server.views.shown import Alarms, Shown, Told


class Watch(Protocol):
    """A running subscription."""

    @property
    def closed(self) -> bool:
        """Whether nothing more is told."""
        ...

    def close(self) -> None:
        """Nothing more is told.  Twice does no harm."""
        ...

    def go_on(self) -> None:
        """The taker has room again."""
        ...


class Sender:
    """Events on their way to a taker, held as long as it has no room."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._held: deque[Event] = deque()

    def send(self, events: Sequence[Event]) -> None:
        """Events, behind those that wait."""
        self._held.extend(events)
        self.go_on()

    def go_on(self) -> None:
        """Hand over what there is room for."""
        while self._held and (room := self._taker.room()) > 0:
            self._taker.take([self._held.popleft() for _ in range(min(room, len(self._held)))])

    def clear(self) -> None:
        """Nobody wants them any more."""
        self._held.clear()


class RowWatch:
    """A subscription to rows."""

    def __init__(
        self,
        clock: Clock,
        source: Shown,
        wish: Wish,
        taker: Taker,
        name: str = "",
        ended: Callable[[], None] | None = None,
    ) -> None:
        """Begins at once, with the rows once they are level.  ExpressionError; InvalidArgument for a page.

        name: of its topic, if not that of the source.  ended: called once, when it is closed.
        """
        name = name or source.name
        if wish.delta:
            raise InvalidArgument(f"'{name}' has whole rows, no deltas")
        if wish.paged:
            raise InvalidArgument(f"a page of '{name}' can be asked for, not followed")
        self.closed = False
        self._source, self._wish, self._taker, self._clock = source, wish, taker, clock
        self._filter: Filter | None = None if wish.filter is None else compile_filter(wish.filter)
        if self._filter is not None and wish.oof:
            self._filter.require_deterministic("a subscription that tells what leaves its focus")
        parse_order(wish.order_by or None)
        self._sender = Sender(taker)
        self._topic = Topic(source.vhost, "", name)
        self._ended = ended
        self._shown = set[str]()  # rows that it was told of, or would have been
        source.when_current(self._begin)

    def close(self) -> None:
        """See `Watch`."""
        if not self.closed:
            self.closed = True
            self._sender.clear()
            if self._changed in self._source.told:
                self._source.told.remove(self._changed)
            if self._ended is not None:
                self._ended()

    def go_on(self) -> None:
        """See `Watch`."""
        if not self.closed:
            self._sender.go_on()

    def _begin(self) -> None:
        if self.closed:
            return
        self._source.told.append(self._changed)
        rows = list(self._source.rows().items())
        there = places([body for _, body in rows], filter=self._wish.filter, order_by=self._wish.order_by or None)
        found = [rows[place] for place in there]
        self._shown = {key for key, _ in found}
        if self._wish.sow:
            self._sender.send([self._event("sow", key, body) for key, body in found])
            self._taker.level()

    def _changed(self, changes: Sequence[Told]) -> None:
        there = [change.body for change in changes if change.body is not None]
        passed = iter([True] * len(there) if self._filter is None else self._filter.matches(there))
        events: list[Event] = []
        for key, body, before, reason in changes:
            if body is not None and next(passed):
                self._shown.add(key)
                events.append(self._event("publish", key, body))
            elif key in self._shown:
                self._shown.remove(key)
                last = before if body is None else body
                if self._wish.oof and last is not None:
                    events.append(self._event("oof", key, last, "match" if body is not None else reason))
        self._sender.send(events)

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


class _Both:
    """A subscription and its conflation."""

    def __init__(self, inner: Watch, conflated: Conflated) -> None:
        self._inner = inner
        self._conflated = conflated

    @property
    def closed(self) -> bool:
        """See `Watch`."""
        return self._inner.closed

    def close(self) -> None:
        """See `Watch`."""
        self._inner.close()
        self._conflated.close()

    def go_on(self) -> None:
        """See `Watch`."""
        self._conflated.go_on()


def watched(alarms: Alarms, wish: Wish, taker: Taker, begin: Callable[[Taker], Watch]) -> Watch:
    """A subscription that `begin` makes, conflated if that is asked for."""
    if wish.conflation is None:
        return begin(taker)
    conflated = Conflated(alarms, taker, wish.conflation, wish.conflation_key)
    try:
        return _Both(begin(conflated), conflated)
    except BaseException:
        conflated.close()
        raise


class Conflated:
    """Between a subscription and its taker: what changes within an interval is told once, at its end.

    The rows there are come at once.  A row that leaves before its change was told is not told of, and one that leaves
    later is told at once.
    """

    def __init__(
        self,
        alarms: Alarms,
        taker: Taker,
        interval: int,
        key: Sequence[str] = (),
    ) -> None:
        """key: expressions that tell what is one key, instead of the record's own."""
        self.closed = False
        self._taker = taker
        self._alarms = alarms
        self._sender = Sender(taker)
        self._keys: list[Value] = [compile_value(text) for text in key]
        self._waiting: Conflation[object, Event] = Conflation(interval)
        self._told = set[object]()
        alarms.add(self)

    def close(self) -> None:
        """See `Watch`."""
        if not self.closed:
            self.closed = True
            self._sender.clear()
            self._alarms.remove(self)

    # -- a taker

    def room(self) -> int:
        """All there is: it holds one change a key."""
        return 1 << 30

    def take(self, events: list[Event]) -> None:
        """See `Taker`."""
        if self.closed:
            return
        now = self._alarms.clock.mono()
        at_once: list[Event] = []
        for event, key in zip(events, self._keys_of(events), strict=True):
            if event.kind == "sow":
                self._told.add(key)
                at_once.append(event)
            elif event.kind == "oof":
                waited = self._waiting.drop(key)
                if key in self._told or not waited:
                    self._told.discard(key)
                    at_once.append(event)
            else:
                first = self._waiting.waiting(key)
                self._waiting.put(key, event if first is None else replace(event, time=first.time), now)
        if at_once:
            self._sender.send(at_once)
        self._alarms.changed()

    def level(self) -> None:
        """See `Taker`."""
        self._taker.level()

    def ended(self, error: PenstockError) -> None:
        """See `Taker`."""
        self.close()
        self._taker.ended(error)

    # -- time

    def next_due(self) -> int | None:
        """When to `tick` next, monotonic microseconds."""
        return self._waiting.next_due()

    def tick(self, now: int) -> None:
        """Tell what is due."""
        events = self._waiting.due(now)
        if events:
            self._told.update(self._keys_of(events))
            self._sender.send(events)

    def go_on(self) -> None:
        """The taker has room again."""
        self._sender.go_on()

    def _keys_of(self, events: Sequence[Event]) -> Sequence[object]:
        if not self._keys:
            return [event.key or event.number for event in events]
        bodies = [event.body for event in events]
        return list(zip(*(value.values(bodies) for value in self._keys), strict=True))
