"""What follows rows of views and topics in the server: conflated topics, which show each as it was told last, at most
once an interval, and rows as messages, published to the topic of their name where a queue shows that topic.

A conflated topic subscribes to its source as anybody does, and shows what it was told at the time.  One whose source
a fault has ended begins anew in a while (`setbacks`): its rows stay meanwhile as they were told, and what differs is
told when it is level again.

Of rows what changes is published, as it is known from the durable log; a row that goes is not, as nothing out of focus
enters a queue.  Rows that are there when the server starts are not published again, so what changed in the moment
before a crash may be missing, and none comes twice.  While the log is full rows wait, the newest of them.  It owns who
is followed and what waits to be published, and refuses to know how rows come about.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.core.view_feed import DEFAULT_US, LEAST_US
from penstock.errors import InvalidArgument, PenstockError, told_as
from penstock.expr import compile_filter
from penstock.expr.text_patterns import TopicPattern
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.server.base.faults import TOLD, asker_behind
from penstock.server.follow import ENDLESS, Follow, Source
from penstock.server.views.record_query import Event, Wish
from penstock.server.views.row_source import Conflated, RowSource
from penstock.server.views.setbacks import Alarms, Setback
from penstock.server.views.shown import Refuse, RowChange, Shown, Snapshot
from penstock.units import format_duration, to_micros

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.server.asking.judging import Judges
    from penstock.server.base.runtime import Runtime


def interval_of(value: str | float | timedelta | None) -> int | None:
    """The interval of a conflated subscription, microseconds; None: `none`.  InvalidArgument below 100 ms."""
    if value is None or value == "none":
        return None
    with told_as(InvalidArgument, "conflation: ", instead=(TypeError, ValueError)):
        micros = DEFAULT_US if value == "auto" else to_micros(value)
    if micros < LEAST_US:
        raise InvalidArgument(f"conflation is {format_duration(micros)}, the least is {format_duration(LEAST_US)}")
    return micros


@dataclass(frozen=True, slots=True)
class ConflatedDefinition:
    """A conflated topic as it is written down."""

    name: str
    source: str  # a topic with a key, a view, or another conflated topic
    interval: int = DEFAULT_US  # microseconds
    filter: str | None = None
    vhost: str = "/"


class ConflatedTopic:
    """One conflated topic.  All methods belong to the loop's thread."""

    def __init__(self, alarms: Alarms, definition: ConflatedDefinition) -> None:
        """Raises ExpressionError for a filter that cannot be read."""
        if definition.filter is not None:
            compile_filter(definition.filter).require_deterministic("a conflated topic")
        self.definition = definition
        self.told: list[Callable[[Sequence[RowChange]], None]] = []
        self.source = 0  # id of the topic that it follows; 0: it follows rows, or nothing
        self.ending: PenstockError | None = None  # why nothing more comes
        self.rebuilds = 0
        self.setback: Setback
        self._alarms = alarms
        self._rows: dict[str, bytes] = {}
        self._follow: Follow[list[Event]] | None = None
        self._level = False  # it has the rows that there were
        self._stale = dict[str, bytes]()  # rows as they were told before it began anew, of which it has not heard since
        self._waiting: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def vhost(self) -> str:
        return self.definition.vhost

    @property
    def error(self) -> PenstockError | str | None:
        """Why nothing more comes, or not before it has begun anew."""
        return self.setback.error or self.ending

    def facts(self) -> dict[str, object]:
        """For people, as of a topic."""
        return {
            "topic": self.name, "kind": "conflated topic", "exchange": "", "vhost": self.vhost, "key": None,
            "records": self.count, "source": self.definition.source,
            **({} if self.error is None else {"error": str(self.error)}),
        }  # fmt: skip

    @property
    def sources(self) -> Sequence[str]:
        return [self.definition.source]

    def rows(self) -> dict[str, bytes]:
        return dict(self._rows)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def snapshot(self) -> Snapshot:
        return Snapshot(list(self._rows.items()), str, bytes)

    def when_current(self, then: Callable[[], None], refuse: Refuse | None = None) -> None:
        if self._level or self._follow is None:
            then()
        else:
            self._waiting.append(then)

    @property
    def follows(self) -> bool:
        """Whether it has a source."""
        return self._follow is not None

    @property
    def wish(self) -> Wish:
        """What it asks of its source."""
        return Wish(sow=True, filter=self.definition.filter, oof=True)

    def follow(self, source: Source[list[Event]], topic: int = 0) -> None:
        """Begin; topic: the id of the topic whose records they are."""
        self.source, self._level, self.ending = topic, False, None
        self._follow = Follow(Conflated(self._alarms, source, self.definition.interval), self)

    def let_go(self) -> None:
        """The source is gone, and its rows with it."""
        if self._follow is not None:
            self._follow.close()
            self._follow = None
            self.rebuilds += 1
        self.source, self._level = 0, False
        self._stale = {}
        self._change([RowChange(key, None, body, "deleted") for key, body in self._rows.items()])

    def begin_anew(self) -> None:
        """What it is told next is all there is."""
        self._follow, self._stale, self.ending = None, dict(self._rows), None
        self.rebuilds += 1

    # -- a taker

    def room(self) -> int:
        """All there is: it holds one row a key."""
        return ENDLESS

    def take(self, portion: list[Event], /) -> None:
        told: list[RowChange] = []
        now = dict[str, bytes | None]()  # of rows that these change
        for event in portion:
            before = now.get(event.key) if event.key in now else self._rows.get(event.key)
            if self._stale.pop(event.key, None) == event.body and event.kind != "oof":
                continue
            if event.kind != "oof":
                told.append(RowChange(event.key, event.body, before))
                now[event.key] = event.body
            elif before is not None:
                told.append(RowChange(event.key, None, before, event.reason))
                now[event.key] = None
        self._change(told)

    def level(self) -> None:
        """The rows there were have come."""
        self._level = True
        gone, self._stale = self._stale, {}
        self._change([RowChange(key, None, body, "deleted") for key, body in gone.items()])
        self.setback.over()
        self._let_wait()

    def _let_wait(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._run_each(waiting)

    def ended(self, error: PenstockError | None) -> None:
        self.ending = error
        if type(error) is PenstockError:  # which has no word for it: a fault
            self.setback.end_by_fault()
        self._let_wait()

    def stop(self) -> None:
        """Nothing more comes before it begins anew."""
        if self._follow is not None:
            self._follow.close()

    def _change(self, told: list[RowChange]) -> None:
        """Have these rows from now on, and tell who follows: one that fails is ended, and the others hear all the same.

        What is had is what was told: a fault before this has changed nothing, or it would never be told.
        """
        for change in told:
            if change.body is None:
                del self._rows[change.key]
            else:
                self._rows[change.key] = change.body
        if told:
            self._run_each([partial(tell, told) for tell in self.told])

    def _run_each(self, works: Iterable[Callable[[], None]]) -> None:
        """What fails ends who is behind it; where that is nobody, this topic begins anew."""
        for work in works:
            self._alarms.faults.run(work, asker_behind(work) or self.setback)


logger = logging.getLogger("penstock.views")

HEADER = header_codec.encode(header_codec.Properties(content_type="application/json", delivery_mode=2))
ROWS_MOST = 500
"""Rows that are published as one batch."""

BYTES_MOST = 2**20
"""Bytes of rows of one batch, unless a single row is larger."""

HELD_MOST = 16 * 2**20
"""Bytes of rows that wait for room in the log; of more the oldest are dropped."""

AGAIN_US = 1_000_000
"""How often it is looked for room; the log looks no more often."""


class Names(Protocol):
    """Which views and conflated topics there are."""

    def shown(self, vhost: str, name: str) -> Shown | None: ...

    def all_shown(self) -> Sequence[Shown]:
        """All that have a name, in the order in which they came."""
        ...


class RowFeed:
    """All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime, judges: Judges, alarms: Alarms, names: Names) -> None:
        self._runtime, self._names = runtime, names
        self._begin = partial(_Feed, runtime, judges, alarms)
        self._feeds: dict[tuple[str, str], _Feed] = {}
        self._again = Setback(runtime, alarms, self.look)

    def look(self) -> None:
        """Queues may have come or gone: follow whatever some queue shows, and nothing else."""
        self._again.over()
        for shown in self._names.all_shown():
            self._runtime.faults.run(partial(self._look_at, shown), self._again)

    def _look_at(self, shown: Shown) -> None:
        key = (shown.vhost, shown.name)
        feed = self._feeds.get(key)
        wanted = self._runtime.core.keeps(shown.vhost, "", shown.name) and not self._feeds_itself(shown)
        if feed is not None and (feed.shown is not shown or not wanted):
            feed.end()
            del self._feeds[key]
            feed = None
        if feed is None and wanted:
            self._feeds[key] = self._begin(shown)

    def _feeds_itself(self, shown: Shown) -> bool:
        """Whether what is published would change the view anew, for ever."""
        vhost, seen, waiting = shown.vhost, set[str](), list(shown.sources)
        while waiting:
            source = waiting.pop()
            if source == shown.name:
                logger.warning("rows of %r are not published: a queue over them is among its sources", source)
                return True
            if source in seen:
                continue
            seen.add(source)
            above = self._names.shown(vhost, source)
            if above is not None:
                waiting += above.sources
                continue
            try:
                settings = self._runtime.core.queue(vhost, source).settings
            except PenstockError:
                continue  # a topic, or another connection's own queue
            pattern = TopicPattern(settings.underlying_topic or source)
            waiting += [one.name for one in self._names.all_shown() if one.vhost == vhost and pattern.matches(one.name)]
        return False


class _Feed:
    def __init__(self, runtime: Runtime, judges: Judges, alarms: Alarms, shown: Shown) -> None:
        self.shown = shown
        self._runtime, self._judges, self._alarms = runtime, judges, alarms
        self._rows: deque[bytes] = deque()
        self._batch: Publishes | None = None  # what goes next: what was judged of it is on it
        self._size = 0  # bytes of those
        self._armed = False
        self._due: int | None = None  # the log had no room: when to look again, monotonic
        self._full = False  # it had none when it was looked at last
        self._lost = 0  # rows dropped since then
        self.asker = Setback(runtime, alarms, self._go_on)
        self._follow = self._followed()

    def _followed(self) -> Follow[list[Event]]:
        return Follow(RowSource(self._runtime.clock, self.shown, Wish(sow=False), changed=True), self)

    def end(self) -> None:
        self.asker.end()
        self._follow.close()
        self._rows.clear()
        self._batch = None
        self._wait_no_more()

    # -- a taker

    def room(self) -> int:
        """All there is: which of the rows wait for a full log is decided here."""
        return ENDLESS

    def take(self, portion: list[Event], /) -> None:
        for row in portion:
            self._rows.append(row.body)
            self._size += len(row.body)
        if self._full or self.asker.lasts:
            self._drop_oldest()
        self._arm()

    def level(self) -> None:
        """Rows that are there already are not asked for."""

    def ended(self, error: PenstockError | None) -> None:
        """A fault kept rows from being taken over: those that come later are."""
        logger.warning("rows of %r that have just changed may be missing in queues: %s", self.shown.name, error)
        self.asker.end_by_fault()

    def _go_on(self) -> None:
        """After a fault: the rows that wait are published first."""
        self.asker.over()
        self._armed = False
        if self._follow.closed:
            self._follow = self._followed()
        self._arm()

    def _arm(self) -> None:
        waits = self._due is not None or self.asker.lasts
        if (self._rows or self._batch is not None) and not self._armed and not waits:
            self._armed = True
            self._runtime.call_soon(self._publish)

    # -- a full log

    def _wait(self) -> None:
        if not self._full:
            self._full = True
            logger.warning("rows of %r wait: %s", self.shown.name, self._runtime.log.room.why_full())
        self._drop_oldest()
        self._due = self._runtime.clock.mono() + AGAIN_US
        self._alarms.add(self)
        self._alarms.changed()

    def _drop_oldest(self) -> None:
        while self._size > HELD_MOST and len(self._rows) > 1:
            self._size -= len(self._rows.popleft())
            self._lost += 1

    def _wait_no_more(self) -> None:
        if self._due is not None:
            self._due = None
            self._alarms.remove(self)

    def next_due(self) -> int | None:
        """When to look for room again, monotonic."""
        return self._due

    def tick(self, now: int) -> None:
        """Look, if it is time."""
        if self._due is not None and self._due <= now:
            self._wait_no_more()
            self._arm()

    # -- publishing

    def _publish(self) -> None:
        self._armed = False
        runtime = self._runtime
        batch = self._batch or self._next()
        if batch is None or runtime.broken is not None:
            return
        self._batch = batch
        if runtime.log.room.full:
            self._wait()
            return
        if self._lost:
            why = "the log had no room" if self._full else TOLD
            logger.warning("%d rows of %r are lost: %s", self._lost, self.shown.name, why)
        self._full, self._lost = False, 0
        if not self._judges.ready([batch], self._arm):
            return
        refused = runtime.core.publish(runtime.now(), batch).refused
        self._batch = None
        if refused:
            logger.warning("%d rows of %r are refused: %s", len(refused), self.shown.name, refused[0][1])
        runtime.arm()
        self._arm()

    def _next(self) -> Publishes | None:
        """The oldest rows that wait, as one batch; they wait no more."""
        bodies, size = list[bytes](), 0
        while self._rows and len(bodies) < ROWS_MOST and (not bodies or size + len(self._rows[0]) <= BYTES_MOST):
            bodies.append(self._rows.popleft())
            size += len(bodies[-1])
        if not bodies:
            return None
        self._size -= size
        topic = self._runtime.core.topic(self.shown.vhost, "", self.shown.name)
        return Publishes(topic, HEADER, bodies, size=len(HEADER) * len(bodies) + size)
