"""Rows of views and conflated topics: what a query shows of them, and what a subscriber is told.

To a subscriber they come as events, as records do: the rows there are, then what becomes of them.

For rows in memory, as views have them; order and filter mean what they mean for records.

A query by name is about what a queue or topic shows now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from penstock.core.queue.order.runs import view
from penstock.core.queue.places import AVAILABLE
from penstock.core.sow.holding import Sow
from penstock.core.sow.select import Ordered, parse_order
from penstock.core.view_feed import Conflation
from penstock.errors import InvalidArgument, PenstockError
from penstock.expr import compile_filter, compile_value
from penstock.expr.filter import Filter, Value
from penstock.records.entries import Topic
from penstock.records.message_types import JSON, MessageType, goes_on, typed
from penstock.records.properties import EMPTY
from penstock.server.follow import ENDLESS, Asking, Reader, Sign, Source
from penstock.server.views.record_query import Event, Kind, Wish

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.core.state.lsns import Ints
    from penstock.ports import Clock
    from penstock.server.base.rounds import Turns
    from penstock.server.people.access import Charge
    from penstock.server.views.setbacks import Alarms
    from penstock.server.views.shown import RowChange, Shown, Snapshot


class Asked(TypedDict, total=False):
    """What a query may say."""

    filter: str | None
    order_by: str | Sequence[str] | None
    top_n: int | None
    skip_n: int | None


def chosen(bodies: Sequence[bytes], **asked: Unpack[Asked]) -> list[bytes]:
    """Rows that match, ordered, at most `top_n` behind the first `skip_n`.  Errors as `places`."""
    return [bodies[place] for place in places(bodies, **asked)]


def places(
    bodies: Sequence[bytes],
    *,
    filter: str | None = None,
    order_by: str | Sequence[str] | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
) -> list[int]:
    """The same as places in `bodies`.

    Errors: ExpressionError; InvalidArgument for numbers below 0, and for `skip_n` without `top_n`.
    """
    for name, value in (("top_n", top_n), ("skip_n", skip_n)):
        if value is not None and value < 0:
            raise InvalidArgument(f"{name} is {value}, below 0")
    if skip_n and top_n is None:
        raise InvalidArgument("skip_n needs top_n: it says how many of the first so many are passed over")
    terms = parse_order(order_by)
    there: Sequence[int] = range(len(bodies))
    if filter is not None:
        passed = compile_filter(filter).matches(bodies)
        there = [place for place in there if passed[place]]
    skip = skip_n or 0
    most = None if top_n is None else top_n + skip
    if terms:
        some = [bodies[place] for place in there]
        ordered = Ordered(terms, most)
        ordered.add(there, there, [term.value.values(some) for term in terms])
        there = ordered.lsns()
    return list(there[skip:most])


def read_by(core: Core, vhost: str, exchange: str, name: str, *, gathers: bool = True) -> Sow | Queue | None:
    """What a name means to a read, and so to the right that it takes: a topic with a key, else a queue.

    gathers: then `E/K` may be the topic K of exchange E, before anything that has the whole text for a name.
    """
    found = topic_of(core, vhost, name) if gathers and not exchange else core.sows.by_name.get((vhost, exchange, name))
    return found or (None if exchange else core.find_queue(vhost, name))


def name_of(found: Sow | Queue) -> tuple[str, ...]:
    """What tells it apart from what else may have its name."""
    return found.key if isinstance(found, Sow) else (found.vhost, found.name)


def type_of(found: Sow | Queue) -> MessageType:
    """What its bodies are, at present."""
    return (found.rule if isinstance(found, Sow) else found.settings).message_type


def positions(core: Core, vhost: str, exchange: str, name: str) -> tuple[Callable[[], Ints], MessageType]:
    """What gives the LSNs, ascending, of what is available in a queue now, or of the records of a topic with a key.

    To be called in any thread.  And their type.
    Errors: NotFound, InvalidArgument for a topic without a key.
    """
    found = read_by(core, vhost, exchange, name)
    if found is None:
        found = core.sow(vhost, exchange, name)  # says what is wrong with the name
    if isinstance(found, Sow):
        snapshot = found.index.snapshot()
        return lambda: np.sort(snapshot.arrays()[1]), type_of(found)
    chunks = [view(chunk) for chunk in core.queue(vhost, name).chunks(*AVAILABLE)]
    there: Ints = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
    return lambda: np.sort(there), type_of(found)


def topic_of(core: Core, vhost: str, name: str) -> Sow | None:
    """The topic with a key: `K`, or `E/K`."""
    exchange, slash, key = name.partition("/")
    by_name = core.sows.by_name
    sow = by_name.get((vhost, exchange, key)) if slash and exchange else None
    return sow or by_name.get((vhost, "", name))


PORTION = 1000
"""Events that are given at once."""

EVENT, SPOT = 400, 100
"""Bytes of an event without what it brings, and of a key with its place in a line, about."""

WAITING_MOST = 10_000
"""Changes that wait for a slow reader, each for itself; of more only the last of each row."""


class _InTurns(Source[list[Event]]):
    """Gives some in each turn of the server: others have theirs."""

    _reader: Reader[list[Event]]
    _waits = False  # for the next turn in which there is time

    def _late(self, turns: Turns) -> bool:
        """Whether others come first: then it goes on in another turn."""
        self._waits = self._waits or turns.late(self._go_on)
        return self._waits

    def _go_on(self) -> None:
        self._waits = False
        self._reader.step()


class RowSource(_InTurns):
    """The rows of a view or a conflated topic."""

    def __init__(
        self,
        clock: Clock,
        shown: Shown,
        wish: Wish,
        name: str = "",
        closed: Callable[[], None] | None = None,
        *,
        changed: bool = False,
        turns: Turns | None = None,
    ) -> None:
        """The rows come once they are level.  ExpressionError; InvalidArgument for deltas and for a page.

        name: of their topic, if not that of what shows them.  closed: called once.  changed: a row that is told of
        again as it was does not come.  turns: by which rows come; None: at once.
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
        self._changed, self._turns = changed, turns
        self._ended: PenstockError | None = None
        self._first: Snapshot | None = None  # rows that there were, from `_at` on to be given
        self._at = 0
        self._focus = set[str]()  # where it hears what leaves: rows that it was told of, or would have been
        self.waiting: deque[Event] = deque()  # what has changed, and is to be given then
        self._most = WAITING_MOST

    def begin(self, reader: Reader[list[Event]]) -> None:
        self._reader = reader
        if self._ended is None:
            self._rows.when_current(self._begin)
        else:
            reader.step()

    def next(self, room: int) -> list[Event] | Sign | None:
        if self._ended is not None:
            raise self._ended
        if self._first is not None and self._at == len(self._first):
            self._first = None
            return Sign.LEVEL
        if self._turns is not None and (self._first is not None or self.waiting) and self._late(self._turns):
            return None
        if self._first is None:
            return first_of(self.waiting, room)
        some = self._first.part(self._at, self._at + min(room, PORTION))
        self._at += len(some)
        return [self._event("sow", key, body) for key, body in some] or None

    def end(self, error: PenstockError) -> None:
        """What shows the rows cannot go on."""
        self._ended = error
        if hasattr(self, "_reader"):  # else it is told when it begins
            self._reader.step()

    def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            self.waiting.clear()
            self._first = None
            if self._tell in self._rows.told:
                self._rows.told.remove(self._tell)
            closed()

    def _begin(self) -> None:
        if self._closed is None:
            return
        if self._turns is not None and self._turns.late(partial(self._rows.when_current, self._begin)):
            return
        self._rows.told.append(self._tell)
        found, wish = self._rows.snapshot(), self._wish
        if wish.filter is not None or wish.order_by:
            found = found.chosen(places(found.bodies(), filter=wish.filter, order_by=wish.order_by or None))
        if wish.oof:
            self._focus.update(found.keys())
        if wish.sow:
            self._first = found
        self._reader.step()

    def _tell(self, changes: Sequence[RowChange]) -> None:
        there = [change.body for change in changes if change.body is not None]
        passed = iter([True] * len(there) if self._filter is None else self._filter.matches(there))
        for key, body, before, reason in changes:
            if body is not None and next(passed):
                if self._wish.oof:
                    self._focus.add(key)
                if body != before or not self._changed:
                    self.waiting.append(self._event("publish", key, body))
            elif key in self._focus:
                self._focus.remove(key)
                last, why = (before, reason) if body is None else (self._shown(body, before), "match")
                if last is not None:
                    self.waiting.append(self._event("oof", key, last, why))
        self._reader.step()
        if len(self.waiting) > self._most:
            self._thin()

    def _shown(self, body: bytes, before: bytes | None) -> bytes | None:
        """A row that matches no more: as it is, or as the subscriber had it where he might not read what it is."""
        return before if self._wish.within else body

    def _thin(self) -> None:
        """Too many wait: of changes the last of each row is left, in the order of these last ones."""
        last = dict[str, Event]()
        for event in self.waiting:
            last.pop(event.key, None)
            last[event.key] = event
        self.waiting = deque(last.values())
        self._most = max(WAITING_MOST, 2 * len(self.waiting))

    def _event(self, kind: Kind, key: str, body: bytes, reason: str = "") -> Event:
        return Event(kind, 0, key, self._topic, 0, self._clock.wall(), EMPTY, body, reason)


class Conflated(_InTurns):
    """Another source's events: what changes within an interval is told once, at its end.

    The rows there are come at once.  A row that leaves before its change was told is not told of, and one that leaves
    later is told at once.

    What waits is the subscriber's to have: where it is more than he may take the source ends.
    """

    def __init__(
        self,
        alarms: Alarms,
        inner: Source[list[Event]],
        interval: int,
        key: Sequence[str] = (),
        *,
        leaves: bool = True,
        charge: Charge | None = None,
        kind: Callable[[], MessageType] | None = None,
    ) -> None:
        """key: expressions that tell what is one key, instead of the record's own.  ExpressionError.

        leaves: whether rows leave.  charge: of who subscribes.  kind: what the bodies are now, where that may change.
        """
        self._alarms, self._leaves, self._charge = alarms, leaves, charge
        self._bytes = 0  # of the events that wait
        self._inner = inner
        self._keys: list[Value] = [compile_value(text) for text in key]
        self._kind, self._reads = kind, JSON if kind is None else kind()
        self._waiting: Conflation[object, Event] = Conflation(interval)
        self._ready: deque[Event | Sign] = deque()  # to be given
        self._told = set[object]()

    def begin(self, reader: Reader[list[Event]]) -> None:
        self._reader = reader
        self._alarms.add(self)
        self._inner.begin(Asking[list[Event]].within(reader))

    def next(self, room: int) -> list[Event] | Sign | None:
        """See `Source`.  Of what has come one change a key is held; of the rows there are no more than a portion."""
        while len(self._ready) < PORTION and (found := self._inner.next(ENDLESS)) is not None:
            if isinstance(found, Sign):
                self._ready.append(found)
            else:
                self._put(found)
        if not self._ready and (due := self._due()):
            self._bytes -= sum(map(_cost, due))
            self._tell(self._keys_of(due))
            self._ready += due
        return first_of(self._ready, room)

    def _due(self) -> list[Event]:
        """A portion of what is due, if there is time for it in this turn; else it comes in another."""
        now, next_due = self._alarms.clock.mono(), self.next_due()
        if next_due is None or next_due > now:
            return []
        return [] if self._late(self._alarms.turns) else self._waiting.due(now, PORTION)

    def close(self) -> None:
        self._alarms.remove(self)
        self._ready.clear()
        self._inner.close()
        if self._charge is not None:
            self._charge.close()

    def _tell(self, keys: Iterable[object]) -> None:
        """Who has been told of a key is told that it leaves."""
        if self._leaves:
            self._told.update(keys)

    def _put(self, events: list[Event]) -> None:
        now = self._alarms.clock.mono()
        for event, key in zip(events, self._keys_of(events), strict=True):
            if event.kind == "sow":
                self._tell([key])
                self._ready.append(event)
            elif event.kind == "oof":
                self._bytes -= _cost(self._waiting.waiting(key))
                waited = self._waiting.drop(key)
                if key in self._told or not waited:
                    self._told.discard(key)
                    self._ready.append(event)
            else:
                first = self._waiting.waiting(key)
                self._bytes += _cost(event) - _cost(first)
                self._waiting.put(key, event if first is None else replace(event, time=first.time), now)
        self._alarms.changed()
        if self._charge is not None:
            self._charge.to(self._bytes + SPOT * (self._waiting.held + len(self._told)))

    # -- an alarm

    def next_due(self) -> int | None:
        """When to `tick` next, monotonic microseconds; what is due waits for the reader while something is ready."""
        return None if self._ready or self._waits else self._waiting.next_due()

    def tick(self, now: int) -> None:
        self._reader.step()

    def _keys_of(self, events: Sequence[Event]) -> Sequence[object]:
        if not self._keys:
            return [event.key or event.number for event in events]
        self._read_on()
        bodies, heads = [event.body for event in events], [event.properties for event in events]
        topics, lsns, times = [e.topic for e in events], [e.lsn for e in events], [e.time for e in events]
        found = (value.values(bodies, heads, topics, lsns=lsns, times=times) for value in self._keys)
        return list(zip(*found, strict=True))

    def _read_on(self) -> None:
        """Bodies may have schemas that they had not."""
        kind = self._reads if self._kind is None else self._kind()
        if kind != self._reads and goes_on(kind, self._reads):
            self._keys = [compile_value(typed(key.text, kind)) for key in self._keys]
            self._reads = kind


def _cost(event: Event | None) -> int:
    """Bytes that an event takes, about."""
    return 0 if event is None else EVENT + len(event.body) + len(event.properties)


def first_of(waiting: deque[Event | Sign] | deque[Event], room: int) -> list[Event] | Sign | None:
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


def conflated(
    alarms: Alarms,
    wish: Wish,
    source: Source[list[Event]],
    charge: Charge | None = None,
    kind: Callable[[], MessageType] | None = None,
) -> Source[list[Event]]:
    """A source, conflated if that is asked for; `kind` as `Conflated`.  ExpressionError."""
    if wish.conflation is None:
        return source
    return Conflated(alarms, source, wish.conflation, wish.conflation_key, leaves=wish.oof, charge=charge, kind=kind)
