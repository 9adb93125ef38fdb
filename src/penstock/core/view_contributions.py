"""What each message gave to a view, by position, for as long as the message lives; and joins of several sources.

A message is available, away (leased, delayed) or inactive (beyond the target depth): what it gave is kept meanwhile, so
that a return needs no body.  Positions ascend; they stand in blocks of at most `BLOCK`, with the values as tightly as
their kind allows.  A message costs some 20 bytes and 8 a number, more for texts.

    [orders]./customer = [customers]./id

Joins are equality only, of values as texts; LEFT OUTER: a row of the first source stands alone where nothing matches;
NULL and the empty text match nothing, unless `null_equivalency` says that they match one another.  Several joins of one
source are ANDed.  A change of a row costs the rows that it matches, or matched.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeAlias, cast

from penstock.expr.batches import Table
from penstock.expr.compiler import RunParsed
from penstock.expr.values import Value, text
from penstock.expr.view_definition import Condition, Joined
from penstock.records.properties import EMPTY

BLOCK = 4096
"""Messages in a block at most."""

SPARSE = 4
SQUEEZED = 64
"""A block of at least `SQUEEZED` is rewritten when less than one in `SPARSE` of its messages is left."""

GONE, AVAILABLE, AWAY, INACTIVE = 0, 1, 2, 3

Values: TypeAlias = Sequence[Value]


class Block:
    """Neighbours.  `columns` has one sequence of values for each input that is kept."""

    __slots__ = ("columns", "groups", "living", "lsns", "states")

    def __init__(self, width: int) -> None:
        self.lsns = array("q")
        self.groups = array("q")
        self.states = bytearray()
        self.columns: list[Values] = [[] for _ in range(width)]
        self.living = 0

    def seal(self) -> None:
        """No more come: numbers are packed."""
        self.columns = [packed(column) for column in self.columns]

    def squeeze(self) -> None:
        """Drop rows that are gone."""
        kept = [row for row, state in enumerate(self.states) if state]
        self.lsns = array("q", [self.lsns[row] for row in kept])
        self.groups = array("q", [self.groups[row] for row in kept])
        self.states = bytearray(self.states[row] for row in kept)
        self.columns = [_some(column, kept) for column in self.columns]


def _some(values: Values, rows: Sequence[int]) -> Values:
    found = [values[row] for row in rows]
    return packed(found) if isinstance(values, array) else found


def packed(values: Values) -> Values:
    """Integers or doubles as an array; anything else as it is."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return array("q", cast("list[int]", values))
        except OverflowError:
            return values
    if kinds == {float}:
        return array("d", cast("list[float]", values))
    return values


Change: TypeAlias = "Callable[[Block, Sequence[int], int], None]"
"""Told of rows of a block that became available (+1) or are no longer (-1)."""

Forget: TypeAlias = "Callable[[Block, Sequence[int]], None]"
"""Told of rows of a block that are gone for good, after `Change`."""


class Contributions:
    """All blocks of a view, oldest first."""

    __slots__ = ("_blocks", "_firsts", "_width", "count")

    def __init__(self, width: int) -> None:
        self._width = width
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self.count = 0  # living messages

    def add(
        self, lsns: Sequence[int], groups: Sequence[int], columns: Sequence[Values], states: bytes, change: Change
    ) -> None:
        """Messages newer than all before, each in its state."""
        start, n = 0, len(lsns)
        self.count += n
        while start < n:
            block = self._blocks[-1] if self._blocks else None
            if block is None or len(block.lsns) >= BLOCK:
                if block is not None:
                    block.seal()
                block = Block(self._width)
                self._blocks.append(block)
                self._firsts.append(lsns[start])
            end = min(n, start + BLOCK - len(block.lsns))
            first = len(block.lsns)
            block.lsns.extend(lsns[start:end])
            block.groups.extend(groups[start:end])
            block.states.extend(states[start:end])
            block.living += end - start
            for held, column in zip(block.columns, columns, strict=True):
                held.extend(column[start:end])  # type: ignore[attr-defined]  # an open block has lists
            rows: Sequence[int] = range(first, first + end - start)
            if states.count(AVAILABLE, start, end) < end - start:
                rows = [row for row in rows if block.states[row] == AVAILABLE]
            if rows:
                change(block, rows, 1)
            start = end

    def move(self, pairs: Iterable[int], state: int, change: Change, forget: Forget) -> None:
        """Living messages in the half-open spans a, b, a, b ... are now in this state.

        AVAILABLE is told of those that were away; INACTIVE means that those that were inactive are available.
        """
        ends = iter(pairs)
        dead = False
        for low, high in zip(ends, ends, strict=True):
            at = max(bisect_right(self._firsts, low) - 1, 0)
            while at < len(self._blocks) and self._firsts[at] < high:
                dead |= self._move(self._blocks[at], low, high, state, change, forget)
                at += 1
        if dead:
            kept = [block for block in self._blocks if block.living]
            self._blocks = kept
            self._firsts = [block.lsns[0] for block in kept]

    def _move(self, block: Block, low: int, high: int, state: int, change: Change, forget: Forget) -> bool:
        """Whether nothing is left of the block."""
        states = block.states
        span = range(bisect_left(block.lsns, low), bisect_left(block.lsns, high))
        if state in (AVAILABLE, INACTIVE):
            before = AWAY if state == AVAILABLE else INACTIVE
            rows = _those(states, span, before)
            for row in rows:
                states[row] = AVAILABLE
            if rows:
                change(block, rows, 1)
            return False
        rows = _those(states, span, AVAILABLE)
        living = [row for row in span if states[row]]
        for row in living:
            states[row] = state
        if rows:
            change(block, rows, -1)
        if state == AWAY:
            return False
        if living:
            forget(block, living)
            self._end(block, len(living))
        return not block.living

    def _end(self, block: Block, count: int) -> None:
        """Count messages of a block that are gone for good."""
        block.living -= count
        self.count -= count
        if 0 < block.living * SPARSE < len(block.lsns) and len(block.lsns) >= SQUEEZED:
            block.squeeze()

    def measure(self, low: int, high: int, most: int) -> tuple[int, int]:
        """How far from `low` at most so many messages go, and how many: (`high`, all of them) where that is enough."""
        at = max(bisect_right(self._firsts, low) - 1, 0)
        rows = 0
        while at < len(self._blocks) and self._firsts[at] < high:
            lsns = self._blocks[at].lsns
            start, stop = bisect_left(lsns, low), bisect_left(lsns, high)
            if rows + stop - start > most:
                return lsns[start + most - rows], most
            rows += stop - start
            at += 1
        return high, rows

    def find(self, lsn: int) -> tuple[Block, int] | None:
        """Where an available message stands; None when it is not available."""
        at = bisect_right(self._firsts, lsn) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        row = bisect_left(block.lsns, lsn)
        there = row < len(block.lsns) and block.lsns[row] == lsn and block.states[row] == AVAILABLE
        return (block, row) if there else None


Key: TypeAlias = "tuple[str, ...] | None"


def _those(states: bytearray, span: Iterable[int], state: int) -> list[int]:
    """Rows of the span that are in this state."""
    return [row for row in span if states[row] == state]


def _digest(record: Table) -> int:
    """Stands for the contents of a row; not 0."""
    return int.from_bytes(blake2b(repr(record).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") + 1


class _Source:
    """The rows of one source."""

    def __init__(self) -> None:
        self.order = array("q")  # ids of all rows, those that are gone among them until there are many
        self.rows: dict[int, Table] = {}
        self.available = set[int]()
        self.keys: dict[int, Key] = {}  # of available rows: what later sources are matched by
        self.index: dict[tuple[str, ...], dict[int, None]] = {}  # available rows by key
        self.probes: list[dict[str, dict[int, None]]] = []  # for each later source that looks here first: by its value
        self.probed: dict[int, list[str | None]] = {}
        self.bases: dict[int, dict[int, None]] = {}  # rows of the first source that a row stands beside


class Join:
    """The rows that stand side by side.  A combination has an id of its own, and rows of the same have it anew."""

    def __init__(self, joined: Joined, null_equivalency: bool) -> None:
        self._joined = joined
        self._nulls = null_equivalency
        self.ageless = set[int]()  # sources whose ids say when a row changed here: rows of views
        self.empty()

    def empty(self) -> None:
        """No source has rows, and nothing is to be looked at."""
        joined = self._joined
        self._sources = [_Source() for _ in joined.sources]
        self._looking: list[list[tuple[int, RunParsed]]] = [[] for _ in joined.sources]
        for place, conditions in enumerate(joined.conditions):
            if conditions:
                self._looking[conditions[0].earlier].append((place, conditions[0].theirs))
                self._sources[conditions[0].earlier].probes.append({})
        self._combined: dict[int, list[int]] = {}  # by row of the first source: ids of its combinations
        self._held: dict[int, list[tuple[int, int]]] = {}  # and the rows beside it: source, id
        self._next = 1
        self._touched: dict[int, None] = {}  # rows of the first source to look at anew

    @property
    def count(self) -> int:
        return sum(len(source.rows) for source in self._sources)

    # -- what happens in a source

    def enter(self, place: int, ids: Sequence[int], records: Sequence[Table], states: bytes) -> None:
        """Rows newer than all before of the source."""
        source = self._sources[place]
        source.order.extend(ids)
        for at, (number, record) in enumerate(zip(ids, records, strict=True)):
            source.rows[number] = record
            if not states or states[at] == AVAILABLE:
                self._show(place, number)

    def move(self, place: int, pairs: Iterable[int], state: int) -> None:
        """Rows are AVAILABLE, still there and no longer so (AWAY), or have left the source (GONE)."""
        source, shown = self._sources[place], state == AVAILABLE
        for number in self._within(source, pairs):
            if (number in source.available) != shown:
                (self._show if shown else self._hide)(place, number)
            if state == GONE:
                del source.rows[number]
        if state == GONE and len(source.order) > 2 * len(source.rows) + 64:
            source.order = array("q", sorted(source.rows))

    def measure(self, place: int, low: int, high: int, most: int) -> tuple[int, int]:
        """As `View.measure`, of rows of a source."""
        order = self._sources[place].order
        start, stop = bisect_left(order, low), bisect_left(order, high)
        return (order[start + most], most) if stop - start > most else (high, stop - start)

    @staticmethod
    def _within(source: _Source, pairs: Iterable[int]) -> list[int]:
        ends = iter(pairs)
        order, rows = source.order, source.rows
        return [
            number
            for low, high in zip(ends, ends, strict=True)
            for number in order[bisect_left(order, low) : bisect_left(order, high)]
            if number in rows
        ]

    # -- what stands side by side

    def changes(self) -> tuple[list[int], list[int], list[Table], list[tuple[int, ...]]]:
        """Ids of combinations that are no more; ids of new ones, ascending, their rows by number of the source, ranks.

        A rank says how new a combination is, whenever it was made: its newest row, then its rows in order; rows of
        no age come before all others, in an order of their contents.
        """
        gone: list[int] = []
        ranks: list[tuple[int, ...]] = []
        ids: list[int] = []
        records: list[Table] = []
        first = self._sources[0]
        touched, self._touched = self._touched, {}
        for base in touched:
            gone += self._combined.pop(base, ())
            for place, number in self._held.pop(base, ()):
                bases = self._sources[place].bases.get(number)
                if bases is not None:
                    bases.pop(base, None)
                    if not bases:
                        del self._sources[place].bases[number]
            if base not in first.available:
                continue
            mine: list[int] = []
            held: list[tuple[int, int]] = []
            for chosen in self._expand(base):
                mine.append(self._next)
                ids.append(self._next)
                self._next += 1
                records.append(
                    {str(i): self._sources[i].rows[number] for i, number in enumerate(chosen) if number is not None}
                )
                ranks.append(self._rank(chosen))
                held += [(i, number) for i, number in enumerate(chosen) if i and number is not None]
            self._combined[base] = mine
            self._held[base] = held
            for place, number in held:
                self._sources[place].bases.setdefault(number, {})[base] = None
        return gone, ids, records, ranks

    def _rank(self, chosen: Sequence[int | None]) -> tuple[int, ...]:
        places = [0 if number is None or at in self.ageless else number for at, number in enumerate(chosen)]
        contents = [
            _digest(self._sources[at].rows[number]) if (number := chosen[at]) is not None else 0
            for at in sorted(self.ageless)
        ]
        return (max(places), *places, *contents)

    def _expand(self, base: int) -> list[list[int | None]]:
        rows: list[list[int | None]] = [[base]]
        for place, conditions in enumerate(self._joined.conditions):
            if not place:
                continue
            out: list[list[int | None]] = []
            for row in rows:
                wanted = self._wanted(row, conditions)
                matches = self._sources[place].index.get(wanted) if wanted is not None else None
                out += [[*row, number] for number in matches] if matches else [[*row, None]]
            rows = out
        return rows

    def _wanted(self, row: Sequence[int | None], conditions: Sequence[Condition]) -> Key:
        values: list[str] = []
        for condition in conditions:
            number = row[condition.earlier]
            value = None
            if number is not None:
                value = self._value(condition.theirs, self._sources[condition.earlier].rows[number])
            elif self._nulls:
                value = ""
            if value is None:
                return None
            values.append(value)
        return tuple(values)

    def _value(self, run: RunParsed, record: Table) -> str | None:
        found = run([b""], [record], (EMPTY,), (None,), (0,), (None,), None, None, None)[0]
        value = text(found)
        return "" if value is None and self._nulls else value

    def _show(self, place: int, number: int) -> None:
        source = self._sources[place]
        record = source.rows[number]
        source.available.add(number)
        if place:
            values = [self._value(one.mine, record) for one in self._joined.conditions[place]]
            known = [value for value in values if value is not None]
            key = tuple(known) if len(known) == len(values) else None
            source.keys[number] = key
            if key is not None:
                source.index.setdefault(key, {})[number] = None
                self._touch_matching(place, key[0])
        else:
            self._touched[number] = None
        probed = [self._value(run, record) for _, run in self._looking[place]]
        source.probed[number] = probed
        for probe, value in zip(source.probes, probed, strict=True):
            if value is not None:
                probe.setdefault(value, {})[number] = None

    def _hide(self, place: int, number: int) -> None:
        source = self._sources[place]
        source.available.remove(number)
        for probe, value in zip(source.probes, source.probed.pop(number), strict=True):
            if value is not None:
                del probe[value][number]
                if not probe[value]:
                    del probe[value]
        if place:
            key = source.keys.pop(number)
            if key is not None:
                del source.index[key][number]
                if not source.index[key]:
                    del source.index[key]
            self._touched.update(source.bases.get(number, {}))
        else:
            self._touched[number] = None

    def _touch_matching(self, place: int, value: str) -> None:
        """Rows of the first source that a new row of a later one may stand beside."""
        earlier = self._joined.conditions[place][0].earlier
        source = self._sources[earlier]
        at = next(at for at, (later, _) in enumerate(self._looking[earlier]) if later == place)
        for number in source.probes[at].get(value, ()):
            self._touched.update(((number, None),) if not earlier else source.bases.get(number, {}).items())
        if self._nulls and value == "" and earlier:  # where the earlier one is missing, its value is, too
            self._touched.update(dict.fromkeys(self._sources[0].available))
