"""Rows with a key that somebody shows and others follow: those of a view, or of a conflated topic.

What is told in its own time, conflated rows for instance, has an alarm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.core.view_groups import Changed, View, body_of
from penstock.expr.group_rows import key_text
from penstock.records.message_types import JSON, MessageType

if TYPE_CHECKING:
    from penstock.core.view_contributions import Join
    from penstock.core.view_feed import Moved, Noted
    from penstock.core.view_groups import Side
    from penstock.expr.group_rows import GroupKey
    from penstock.expr.view_definition import Definition
    from penstock.server.runtime import Runtime


class RowChange(NamedTuple):
    """What became of a row."""

    key: str
    body: bytes | None  # None: it is gone
    before: bytes | None  # None: it is new
    reason: str = ""  # why it is gone: deleted, expired, match


class Shown(Protocol):
    """Whoever shows rows.  All methods belong to the loop's thread."""

    told: list[Callable[[Sequence[RowChange]], None]]  # who follows

    @property
    def name(self) -> str:
        """As people ask for it."""
        ...

    @property
    def vhost(self) -> str: ...

    @property
    def sources(self) -> Sequence[str]:
        """The names that its rows come from."""
        ...

    def rows(self) -> dict[str, bytes]:
        """Bodies by key, as JSON objects."""
        ...

    def when_current(self, then: Callable[[], None]) -> None:
        """Call back once the rows have all that was decided so far; perhaps before this returns."""
        ...


class Alarm(Protocol):
    """Something with a time of its own, monotonic."""

    def next_due(self) -> int | None:
        """When to `tick` next, monotonic microseconds; None: never."""
        ...

    def tick(self, now: int) -> None: ...


class Alarms:
    """Those that are set.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.clock = runtime.clock
        self.changed = runtime.arm  # an alarm is due at another time: see that it is looked at
        self.all: list[Alarm] = []

    def add(self, alarm: Alarm) -> None:
        self.all.append(alarm)

    def remove(self, alarm: Alarm) -> None:
        """It is set no more.  Twice does no harm."""
        if alarm in self.all:
            self.all.remove(alarm)

    def next_deadline(self) -> int | None:
        """When to `tick` next, monotonic; None is never."""
        return min((due for due in (one.next_due() for one in self.all) if due is not None), default=None)

    def tick(self) -> None:
        now = self.clock.mono()
        for one in list(self.all):
            one.tick(now)


class Live:
    """One view, or one side of a joined view.  Its fields belong to `step_worker` and `Builder`."""

    def __init__(
        self,
        definition: Definition,
        current: Callable[[Live, Callable[[], None]], None],
        side: Side | None = None,
        over: Live | None = None,
    ) -> None:
        """current: calls back once the view has all that was decided.  over: the joined view that this is a side of."""
        self.definition = definition
        self.view = View(definition)
        self.into: View | Side = self.view if side is None else side  # where what happens in the source goes
        self.over = over
        self.join: Join | None = None
        self.sides: list[Live] = []
        self.above: Live | None = None  # the view that it gathers, if it is one
        self.below: list[Live] = []  # views that gather this one
        self.source = 0  # id of the queue or topic that it gathers; 0: none so far
        self.message_type: MessageType = JSON  # of what it gathers
        self.since = 0  # what the log says up to this LSN is in it from the start
        self.building = False  # it goes through what its source held: what happens meanwhile waits
        self.later: deque[Moved | Noted] = deque()
        self.waiting: list[Callable[[], None]] = []  # who waits for it to be built
        self.told: list[Callable[[Sequence[RowChange]], None]] = []  # who follows
        self.ids: dict[GroupKey, int] = {}  # of rows of the view that it gathers
        self.next_id = 1
        self.floor: int | None = None  # the lowest LSN that it may still read
        self.round = 0  # how often it began anew
        self.closed = False
        self._current = current

    @property
    def name(self) -> str:
        """As people ask for it."""
        return self.definition.name

    @property
    def vhost(self) -> str:
        return self.definition.vhost

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.view.rows)

    def facts(self) -> dict[str, object]:
        """For people, as of a topic."""
        definition = self.definition
        return {
            "topic": self.name, "kind": "view", "exchange": "", "vhost": self.vhost,
            "key": list(definition.group_by) or None, "records": self.count,
            "source": definition.source or ", ".join(definition.join), "select": list(definition.select),
        }  # fmt: skip

    @property
    def sources(self) -> Sequence[str]:
        return [side.definition.source for side in self.sides] or [self.definition.source]

    @property
    def rebuilds(self) -> int:
        """How often it began anew, each side of a join by itself."""
        return sum(one.round for one in (self, *self.sides))

    def rows(self) -> dict[str, bytes]:
        """Bodies by key, as JSON objects."""
        return self.held()()

    def held(self) -> Callable[[], dict[str, bytes]]:
        """The rows as they are now, to be written out in any thread."""
        view, rows = self.view, list(self.view.rows.items())
        return lambda: {key_text(key): body_of(view, row) for key, row in rows}

    def when_current(self, then: Callable[[], None]) -> None:
        self._current(self, then)

    def unready(self) -> Live | None:
        """What is not built yet of all that it rests on; None when all is."""
        for one in (self, *self.sides):
            if one.building:
                return one
            found = one.above.unready() if one.above is not None else None
            if found is not None:
                return found
        return None

    def tell(self, changes: Sequence[Changed]) -> None:
        if self.told:
            told = [self._told(change) for change in changes]
            for tell in list(self.told):
                tell(told)

    def _told(self, change: Changed) -> RowChange:
        old, new = change.old, change.new
        return RowChange(
            key_text(change.key),
            None if new is None else body_of(self.view, new),
            None if old is None else body_of(self.view, old),
            "deleted" if new is None else "",
        )
