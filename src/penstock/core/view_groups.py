"""A view: groups of what is available in its source, kept up by what came, went and returned.

    read    messages with their bodies are read once; enter: what each gives to its group is kept
    move    they are leased or delayed: what they gave is taken away; or available again: it is added again, no body
            needed; or out of the queue for good
    flush   the rows that changed since the last time

A change costs what it touches, and the logarithm of its group; never what waits.  Pure, and told in order; it knows no
queue, no log and no reader.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Any, TypeAlias, cast

from penstock.core.view_contributions import AVAILABLE, GONE, INACTIVE, Block, Contributions, Join, Values
from penstock.expr.aggregates import STORES, Bag, Distinct, Store
from penstock.expr.batches import Table
from penstock.expr.group_rows import PLAIN, GroupKey, Rank, Row, body, given_by, key_of, row_of, shown
from penstock.expr.group_rows import Elements as Elements
from penstock.expr.group_rows import Given as Given
from penstock.expr.values import Value
from penstock.expr.view_definition import Definition, Plan, plan
from penstock.records.chunks import LSN_LIMIT
from penstock.records.dataclass import dataclass

MESSAGE, VALUE, GROUP, HELD = 100, 350, 1000, 3
"""Bytes that a message, each value that is kept of it to find the lowest or to tell values apart, and a group take,
about, beside their texts; and how often a text is held: as it came, in what is gathered of it, and in the row."""

Place: TypeAlias = "int | tuple[Rank, int]"
"""Where the newest or the oldest is looked for: the position, or the rank before it; negated, to find the newest."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A row that is other than before: None where it was not, or is no more."""

    key: GroupKey
    old: Row | None
    new: Row | None


class _Group:
    """What the available messages of one key add up to."""

    __slots__ = ("available", "key", "living", "newest", "number", "oldest", "row", "stores")

    def __init__(self, number: int, key: GroupKey, stores: list[Store], oldest: int) -> None:
        self.number = number
        self.key = key
        self.oldest: list[list[Place]] = [[] for _ in range(oldest)]  # heaps, for ANY
        self.row: Row | None = None  # as it was told
        self.empty(stores)

    def empty(self, stores: list[Store]) -> None:
        """No message has given anything."""
        self.stores = stores
        self.available = 0
        self.living = 0
        self.newest: list[Place] = []  # heap, negated; what is not available any more is dropped when it comes up
        for heap in self.oldest:
            heap.clear()


class View:
    """One view: its groups, their rows, and which of them changed since the last `flush`."""

    def __init__(self, definition: Definition, *, weighed: bool = False) -> None:
        """ExpressionError for a definition that cannot be computed.  weighed: `size` is kept."""
        self.definition = definition
        self.size = 0  # bytes that it takes, about
        self._weighed = weighed
        self.plan: Plan = plan(definition)
        kept = sorted({place for _, place in (*self.plan.stores, *self.plan.last, *self.plan.any)})
        self._column = {place: at for at, place in enumerate(kept)}
        self._kept = kept
        self._makers = [STORES[name][0] for name, _ in self.plan.stores]
        self._message = MESSAGE + VALUE * sum(maker in (Bag, Distinct) for maker in self._makers)
        self._store_columns = [self._column[place] for _, place in self.plan.stores]
        self._any_columns = [self._column[place] for _, place in self.plan.any]
        self._ranked = bool(definition.join) and bool(self.plan.last or self.plan.any)
        self._width = len(kept) + self._ranked  # the ranks come last
        self._numbers: dict[GroupKey, int] = {}
        self._groups: list[_Group | None] = []
        self._free: list[int] = []
        self._messages = Contributions(self._width)
        self._dirty: dict[int, None] = {}
        self.rows: dict[GroupKey, Row] = {}
        self.changes = 0  # rows told so far

    def __repr__(self) -> str:
        return f"View({self.definition.name!r}, {len(self.rows)} rows of {self._messages.count} messages)"

    @property
    def messages(self) -> int:
        """How many messages have given something, away ones among them."""
        return self._messages.count

    @property
    def held(self) -> int:
        """Bytes that it takes, about, without texts: `size` where nobody weighs them."""
        return GROUP * len(self._numbers) + self._message * self.messages

    # -- what happens in the source

    def read(self, elements: Elements) -> Given:
        """What messages give.  Any thread: nothing is changed."""
        return given_by(self.plan, elements)

    def enter(self, given: Given) -> None:
        """Messages newer than all before."""
        lsns, values = given.lsns, given.values
        if len(lsns):
            keys = self._keys(values[: self.plan.groups], len(lsns))
            states = given.states or bytes((AVAILABLE,)) * len(lsns)
            columns: list[Values] = [values[place] for place in self._kept]
            if self._ranked:
                columns.append(cast("Values", given.ranks))
            if self._weighed:
                self.size += _texts(columns, range(len(lsns))) + self._message * len(lsns)
            self._messages.add(lsns, keys, columns, states, self._change)

    def move(self, pairs: Iterable[int], state: int) -> None:
        """Messages in these spans are AVAILABLE, AWAY, where nobody else can have them now, or GONE from the source.

        INACTIVE: those of them that were that are available.
        """
        self._messages.move(pairs, state, self._change, self._forget)

    def measure(self, low: int, high: int, most: int) -> tuple[int, int]:
        """How far from `low` at most so many messages go, and how many: for who does a long span in portions."""
        return self._messages.measure(low, high, most)

    def clear(self) -> None:
        """All messages are gone, at once, however many they are, and whatever a step had done half.

        A row stays as it was told: of one that is the same when the messages have come anew nothing is told.
        """
        self._messages = Contributions(self._width)
        self.size = sum(map(_weight_of, self._numbers)) if self._weighed else 0
        for group in self._groups:
            if group is not None:
                group.empty([make() for make in self._makers])
                self._dirty[group.number] = None

    def changed(self) -> list[Changed]:
        """The rows that are other than they were told, in no order.  Nothing is so before `accept`."""
        out: list[Changed] = []
        for number in self._dirty:
            group = self._groups[number]
            if group is not None:
                new = self._row(group) if group.available else None
                if not _same(group.row, new):
                    out.append(Changed(group.key, group.row, new))
        return out

    def accept(self, changes: Sequence[Changed]) -> None:
        """These, all that `changed` has found, are told."""
        groups = self._groups
        for change in changes:
            cast("_Group", groups[self._numbers[change.key]]).row = change.new
            if change.new is None:
                self.rows.pop(change.key, None)
            else:
                self.rows[change.key] = change.new
        for number in self._dirty:
            group = groups[number]
            if group is not None and not group.living:
                groups[number] = None
                self._free.append(number)
                del self._numbers[group.key]
                self.size -= _weight_of(group.key) if self._weighed else 0
        self._dirty.clear()
        self.changes += len(changes)

    def flush(self) -> list[Changed]:
        """The rows that are other than at the last call, in no order."""
        changes = self.changed()
        self.accept(changes)
        return changes

    # -- inside

    def _keys(self, columns: Sequence[Values], count: int) -> list[int]:
        """The group of each message, made where it is new."""
        keys: Iterable[GroupKey] = zip(*columns, strict=True) if columns else repeat((), count)
        numbers = self._numbers
        out: list[int] = []
        for key in keys:
            found = numbers.get(key) if PLAIN.issuperset(map(type, key)) else None
            if found is None:
                key = tuple(map(key_of, key))
                found = numbers.get(key)
                if found is None:
                    found = self._new(key)
            group = cast("_Group", self._groups[found])
            group.living += 1
            out.append(found)
        return out

    def _new(self, key: GroupKey) -> int:
        number = self._free.pop() if self._free else len(self._groups)
        group = _Group(number, key, [make() for make in self._makers], len(self._any_columns))
        if number == len(self._groups):
            self._groups.append(group)
        else:
            self._groups[number] = group
        self._numbers[key] = number
        self.size += _weight_of(key) if self._weighed else 0
        return number

    def _change(self, block: Block, rows: Sequence[int], sign: int) -> None:
        for number, mine in _by_group(block, rows):
            group = cast("_Group", self._groups[number])
            group.available += sign * len(mine)
            self._dirty[number] = None
            for store, column in zip(group.stores, self._store_columns, strict=True):
                values = block.columns[column]
                store.change([values[row] for row in mine], sign)
            if sign > 0:
                self._rank(group, block, mine)

    def _rank(self, group: _Group, block: Block, rows: Sequence[int]) -> None:
        """Put messages where the newest and the oldest are looked for."""
        if self.plan.last:
            heap = group.newest
            for row in rows:
                heappush(heap, self._place(block, row, -1))
            if len(heap) > 2 * group.available + 64:
                heap[:] = {place for place in heap if self._find(place) is not None}
                heapify(heap)
        for heap, column in zip(group.oldest, self._any_columns, strict=True):
            values = block.columns[column]
            for row in rows:
                if values[row] is not None:
                    heappush(heap, self._place(block, row, 1))
            if len(heap) > 2 * group.available + 64:
                heap[:] = {place for place in heap if self._find(place) is not None}
                heapify(heap)

    def _place(self, block: Block, row: int, sign: int) -> Any:
        """A `Place`; those of one view compare."""
        if not self._ranked:
            return sign * block.lsns[row]
        rank = cast("Rank", block.columns[-1][row])
        return tuple(sign * part for part in rank), block.lsns[row]

    def _find(self, place: Place) -> tuple[Block, int] | None:
        return self._messages.find(abs(place) if isinstance(place, int) else place[1])

    def _forget(self, block: Block, rows: Sequence[int]) -> None:
        self.size -= _texts(block.columns, rows) + self._message * len(rows) if self._weighed else 0
        for number, mine in _by_group(block, rows):
            group = cast("_Group", self._groups[number])
            group.living -= len(mine)
            self._dirty[number] = None

    def _row(self, group: _Group) -> Row:
        gathered: Table = {f"g{place}": shown(value) for place, value in enumerate(group.key)}
        for read in self.plan.reads:
            gathered[read.name] = STORES[read.aggregate][1](group.stores[read.store], read.extra)
        if self.plan.last:
            heap = group.newest
            while (found := self._find(heap[0])) is None:
                heappop(heap)
            block, row = found
            for name, place in self.plan.last:
                gathered[name] = block.columns[self._column[place]][row]
        for (name, _), heap, column in zip(self.plan.any, group.oldest, self._any_columns, strict=True):
            oldest = None
            while heap and (oldest := self._find(heap[0])) is None:
                heappop(heap)
            gathered[name] = None if oldest is None else oldest[0].columns[column][oldest[1]]
        return row_of(self.plan, gathered)


def _texts(columns: Sequence[Values], rows: Sequence[int]) -> int:
    """Bytes that the texts of messages take."""
    return HELD * sum(
        len(value)
        for column in columns
        if not isinstance(column, array)
        for value in map(column.__getitem__, rows)
        if isinstance(value, str | bytes)
    )


def _weight_of(key: GroupKey) -> int:
    return GROUP + HELD * sum(len(part) for part in key if isinstance(part, str | bytes))


def _by_group(block: Block, rows: Sequence[int]) -> Iterable[tuple[int, Sequence[int]]]:
    groups = block.groups
    first = groups[rows[0]]
    if len(rows) == 1:
        return ((first, rows),)
    out: dict[int, list[int]] = {}
    for row in rows:
        out.setdefault(groups[row], []).append(row)
    return out.items()


def _same(old: Row | None, new: Row | None) -> bool:
    if old is None or new is None:
        return old is new
    return old == new and all(map(_alike, old, new))


def _alike(a: Value, b: Value) -> bool:
    """Equal, and of one kind: 1, 1.0 and TRUE are not shown alike."""
    return a.__class__ is b.__class__


def body_of(view: View, row: Row) -> bytes:
    """A row as a JSON object."""
    return body(view.plan, row)


class Side:
    """Stands where a view of one source stands."""

    def __init__(self, join: Join, place: int) -> None:
        self._join = join
        self._place = place

    def read(self, elements: Elements) -> Given:
        return Given(elements.lsns, [elements.records], elements.states)

    def enter(self, given: Given) -> None:
        records: list[Table] = list(given.values[0])  # type: ignore[arg-type]  # what `read` put there
        self._join.enter(self._place, given.lsns, records, given.states)

    def move(self, pairs: Iterable[int], state: int) -> None:
        """As `View.move`: what was inactive was there and not available."""
        self._join.move(self._place, pairs, AVAILABLE if state == INACTIVE else state)

    def measure(self, low: int, high: int, most: int) -> tuple[int, int]:
        return self._join.measure(self._place, low, high, most)

    def clear(self) -> None:
        self._join.move(self._place, (0, LSN_LIMIT), GONE)

    def flush(self) -> list[Changed]:
        """It has no rows of its own."""
        return []


def bring(join: Join, view: View) -> None:
    """Bring what changed in the join to the view over it."""
    gone, ids, records, ranks = join.changes()
    view.move([end for one in sorted(gone) for end in (one, one + 1)], GONE)
    if ids:
        view.enter(view.read(Elements(ids, records, ranks=ranks)))
