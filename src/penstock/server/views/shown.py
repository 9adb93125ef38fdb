"""Rows with a key that somebody shows and others follow: those of a view, or of a conflated topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.core.view_groups import Changed, Side, View, body_of
from penstock.errors import PenstockError, Unavailable
from penstock.expr.group_rows import GroupKey, key_text
from penstock.records.message_types import JSON, MessageType

if TYPE_CHECKING:
    from penstock.core.view_contributions import Join
    from penstock.core.view_feed import Moved, Noted
    from penstock.expr.view_definition import Definition
    from penstock.server.people.access import Charge
    from penstock.server.views.setbacks import Setback

Refuse = Callable[["PenstockError"], object]
"""Tells somebody that he will not get what he waits for."""


def _nobody(error: PenstockError) -> None: ...


class RowChange(NamedTuple):
    """What became of a row."""

    key: str
    body: bytes | None  # None: it is gone
    before: bytes | None  # None: it is new
    reason: str = ""  # why it is gone: deleted, expired, match


class Snapshot:
    """Rows of one moment, each written out when it is asked for: whoever has them shares them with who shows them."""

    __slots__ = ("_body", "_items", "_key")

    def __init__(self, items: list[tuple[Any, Any]], key: Callable[[Any], str], body: Callable[[Any], bytes]) -> None:
        """key, body: how the parts of an item are written."""
        self._items, self._key, self._body = items, key, body

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> list[str]:
        return [self._key(key) for key, _ in self._items]

    def bodies(self) -> list[bytes]:
        return [self._body(row) for _, row in self._items]

    def part(self, start: int, stop: int) -> list[tuple[str, bytes]]:
        """Keys and bodies of some."""
        return [(self._key(key), self._body(row)) for key, row in self._items[start:stop]]

    def chosen(self, places: Sequence[int]) -> Snapshot:
        """Those at these places, in their order."""
        return Snapshot([self._items[place] for place in places], self._key, self._body)


def snapshot_of(view: View) -> Snapshot:
    """The rows of a view as they are now."""
    return Snapshot(list(view.rows.items()), key_text, partial(body_of, view))


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

    def snapshot(self) -> Snapshot:
        """The rows as they are now: texts of keys, and JSON objects."""
        ...

    def when_current(self, then: Callable[[], None], refuse: Refuse | None = None) -> None:
        """Call back once the rows have all that was decided so far; perhaps before this returns.

        refuse: told instead where they are gathered anew after a fault; None: it is waited for.
        """


class Live:
    """One view, or one side of a joined view.  Its fields belong to `step_worker` and `Builder`."""

    def __init__(
        self,
        definition: Definition,
        current: Callable[[Live, Callable[[], None], Refuse | None], None],
        side: Side | None = None,
        over: Live | None = None,
        charge: Charge | None = None,
    ) -> None:
        """current: calls back once the view has all that was decided.  over: the joined view that this is a side of.

        charge: of who asked for it; None: it is there for everybody.
        """
        self.definition = definition
        self.charge = charge
        self.view = View(definition, weighed=charge is not None)
        self.into: View | Side = self.view if side is None else side  # where what happens in the source goes
        self.over = over
        self.join: Join | None = None
        self.sides: list[Live] = []
        self.above: Live | None = None  # the view that it gathers, if it is one
        self.below: list[Live] = []  # views that gather this one
        self.give_up: Callable[[PenstockError], None] = _nobody  # told where its charge is more than there may be
        self.only: tuple[str, ...] | None = None  # what it may gather; None: whatever has the name
        self.source = 0  # id of the queue or topic that it gathers; 0: none so far
        self.message_type: MessageType = JSON  # of what it gathers
        self.since = 0  # what the log says up to this LSN is in it from the start
        self.building = False  # it goes through what its source held: what happens meanwhile waits
        self.later: deque[Moved | Noted] = deque()
        self.waiting: list[tuple[Callable[[], None], Refuse | None]] = []  # who waits for it to be built
        self.told: list[Callable[[Sequence[RowChange]], None]] = []  # who follows
        self.ids: dict[GroupKey, int] = {}  # of rows of the view that it gathers
        self.next_id = 1
        self.floor: int | None = None  # the lowest LSN that it may still read
        self.round = 0  # how often it began anew
        self.closed = False
        self.failed_at = 0  # what was durable when it failed last
        self.setback: Setback  # of a view, not of its sides
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

    @property
    def error(self) -> str | None:
        """Why it is not level with its source and will be later; None: all is well."""
        return self.setback.error

    @property
    def whole(self) -> Live:
        """The view that it is, or is a side of."""
        return self.over or self

    @property
    def parts(self) -> Sequence[Live]:
        """Itself and its sides."""
        return self, *self.sides

    @property
    def stopped(self) -> bool:
        """Whether it failed and has not begun anew: nothing is brought to it."""
        return self.whole.setback.stopped

    def facts(self) -> dict[str, object]:
        """For people, as of a topic."""
        definition = self.definition
        return {
            "topic": self.name, "kind": "view", "exchange": "", "vhost": self.vhost,
            "key": list(definition.group_by) or None, "records": self.count,
            "source": definition.source or ", ".join(definition.join), "select": list(definition.select),
            **({} if self.error is None else {"error": self.error}),
        }  # fmt: skip

    @property
    def sources(self) -> Sequence[str]:
        return [side.definition.source for side in self.sides] or [self.definition.source]

    @property
    def rebuilds(self) -> int:
        """How often it began anew, each side of a join by itself."""
        return sum(one.round for one in self.parts)

    def rows(self) -> dict[str, bytes]:
        """Bodies by key, as JSON objects."""
        return dict(self.snapshot().part(0, self.count))

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.view)

    def when_current(self, then: Callable[[], None], refuse: Refuse | None = None) -> None:
        self._current(self, then, refuse)

    def unready(self) -> Live | None:
        """What is not built yet of all that it rests on; None when all is."""
        for one in self.parts:
            if one.building:
                return one
            found = one.above.unready() if one.above is not None else None
            if found is not None:
                return found
        return None

    def weigh(self) -> None:
        """Count what it takes for who asked for it; where he may not have so much he is told, and it ends."""
        if self.charge is not None:
            try:
                self.charge.to(self.view.size)
            except Unavailable as error:
                self.give_up(error)

    def words(self, changes: Sequence[Changed]) -> list[RowChange]:
        """What who follows is told of them."""
        return [self._told(change) for change in changes] if self.told else []

    def _told(self, change: Changed) -> RowChange:
        old, new = change.old, change.new
        return RowChange(
            key_text(change.key),
            None if new is None else body_of(self.view, new),
            None if old is None else body_of(self.view, old),
            "deleted" if new is None else "",
        )
