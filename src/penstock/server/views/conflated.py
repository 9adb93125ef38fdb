"""Conflated topics: records of a topic or rows of a view as they were told last, each at most once an interval.

A conflated topic subscribes to its source as anybody does, and shows what it was told at the time.  One whose source
a fault has ended begins anew in a while (`setbacks`): its rows stay meanwhile as they were told, and what differs is
told when it is level again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.view_feed import DEFAULT_US
from penstock.errors import PenstockError
from penstock.expr import compile_filter
from penstock.records.dataclass import dataclass
from penstock.server.base.faults import asker_behind
from penstock.server.follow import ENDLESS, Follow
from penstock.server.views.record_query import Wish
from penstock.server.views.row_source import Conflated
from penstock.server.views.shown import RowChange, Snapshot

if TYPE_CHECKING:
    from penstock.server.follow import Source
    from penstock.server.views.record_query import Event
    from penstock.server.views.setbacks import Alarms, Setback
    from penstock.server.views.shown import Refuse


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
