"""Many filters over one batch of messages: each body is parsed once, equalities are looked up, the rest is evaluated.

A thousand consumers that want a customer each are a thousand filters `/customer = '...'`.  Their literals stand in one
table per field, and a message's value is looked up once.  What a lookup says equals the evaluation, kind for kind:
numbers also equal the texts that spell them, an array equals whatever one of its elements does.  The answers
are those of `Filter.matches` one by one; only the work is shared, and a filter costs nothing for messages that its
equality rules out.  It knows neither queues nor consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from penstock.expr.batches import NOTHING, Properties, Table, header_tables, walk
from penstock.expr.bodies import body_type
from penstock.expr.context import LOOP_US, meter
from penstock.expr.filter import Filter, Topics
from penstock.expr.readings import Readings
from penstock.expr.text_patterns import Equality, equality_of
from penstock.expr.tree import And, Field, Node
from penstock.expr.values import Value, flatten, parse_number
from penstock.records.entries import Messages
from penstock.records.one_or_each import list_at


def access_of(tree: Node) -> tuple[Equality, bool] | None:
    """An equality that must hold wherever the tree is TRUE, and whether it is all that the tree asks; or None."""
    whole = equality_of(tree)
    if whole is not None:
        return whole, True
    if isinstance(tree, And):
        for item in tree.items:
            part = equality_of(item)
            if part is not None:
                return part, False
    return None


class Equalities:
    """The literals that one field is compared with, and the numbers (slots) of the filters that do."""

    __slots__ = ("_numbers", "_spelled", "_words")

    def __init__(self) -> None:
        self._words: dict[str, list[int]] = {}  # texts
        self._numbers: dict[int | float, list[int]] = {}
        self._spelled: dict[int | float, list[int]] = {}  # texts that spell numbers, by those

    def __bool__(self) -> bool:
        return bool(self._words or self._numbers)

    def add(self, equality: Equality, slot: int) -> None:
        """A filter wants these values."""
        for table, value in self._places(equality):
            slots = table.setdefault(value, [])
            if slot not in slots:
                slots.append(slot)

    def remove(self, equality: Equality, slot: int) -> None:
        for table, value in self._places(equality):
            slots = table.get(value)
            if slots is not None and slot in slots:
                slots.remove(slot)
                if not slots:
                    del table[value]

    def _places(self, equality: Equality) -> Iterator[tuple[dict[str | int | float, list[int]], str | int | float]]:
        for value in equality.values:
            if isinstance(value, str):
                yield self._words, value  # type: ignore[misc]
                spelled = parse_number(value)
                if spelled is not None:
                    yield self._spelled, spelled  # type: ignore[misc]
            else:
                yield self._numbers, value  # type: ignore[misc]

    def find(self, value: Value) -> Iterable[int]:
        """The filters that want this value, each once."""
        if isinstance(value, str):
            hits = self._words.get(value, ())
            if self._numbers and value:
                spelled = parse_number(value)
                if spelled is not None and spelled in self._numbers:
                    return {*hits, *self._numbers[spelled]}
            return hits
        if isinstance(value, int | float):
            hits = self._numbers.get(value, ())
            return {*hits, *self._spelled[value]} if self._spelled and value in self._spelled else hits
        if value.__class__ is list:
            items = flatten(value)
            meter.take_time(len(items) // LOOKUPS_A_VISIT)
            return {slot for item in items for slot in self.find(item)}
        return ()


class Matcher(Protocol):
    """A compiled filter; `expr.Filter` is one."""

    @property
    def text(self) -> str:
        """What was compiled; equal texts match alike."""
        ...

    def matches(
        self,
        bodies: Sequence[bytes],
        properties: Properties,
        topics: Topics,
        lsns: Sequence[int] | None = None,
        times: Sequence[int] | int | None = None,
    ) -> list[bool]:
        """One answer for each message."""
        ...


READING_US = 2
"""Microseconds, about, that reading a body and looking up its fields take."""

EVALUATION_US = 0.2
"""Microseconds, about, of one evaluation after that."""

LOOKUPS_A_VISIT = 4
"""Elements of an array that are looked up in the time in which one is compared."""


class FilterSet:
    """Filters that are asked together.  Each has a slot, a small number, while it is in the set."""

    __slots__ = ("_access", "_apart", "_fields", "_filters", "_free", "slowness", "us_a_byte")

    def __init__(self, filters: Sequence[Matcher] = ()) -> None:
        """Slots are the places in `filters`."""
        self.slowness = 1  # of the slowest message type that was ever asked for, beside JSON
        self.us_a_byte = 0.0  # of the type whose dense bodies take the longest, of the same
        self._filters: list[Matcher | None] = []
        self._free: list[int] = []
        self._apart: dict[int, Matcher] = {}  # evaluated for every message, by slot
        self._fields: dict[Field, Equalities] = {}
        self._access: dict[int, tuple[Equality, bool]] = {}  # of the others: what is looked up, and whether that is all
        for one in filters:
            self.add(one)

    def __len__(self) -> int:
        return len(self._apart) + len(self._access)

    def too_much(self, count: int, size: int) -> bool:
        """Whether so many messages, whose bodies have so many bytes, would hold the loop for too long."""
        each = READING_US * self.slowness + EVALUATION_US * len(self._apart)
        return count * each + size * self.us_a_byte > LOOP_US

    def add(self, one: Matcher) -> int:
        """Take a filter in; its slot."""
        if self._free:
            slot = self._free.pop()
            self._filters[slot] = one
        else:
            slot = len(self._filters)
            self._filters.append(one)
        if isinstance(one, Filter):
            kind = body_type(one.message_type)
            self.slowness, self.us_a_byte = max(self.slowness, kind.slowness), max(self.us_a_byte, kind.us_a_byte)
        access = access_of(one.tree) if isinstance(one, Filter) else None
        if access is None:
            self._apart[slot] = one
        else:
            self._access[slot] = access
            self._fields.setdefault(access[0].field, Equalities()).add(access[0], slot)
        return slot

    def remove(self, slot: int) -> None:
        self._filters[slot] = None
        self._free.append(slot)
        if self._apart.pop(slot, None) is None:
            equality, _ = self._access.pop(slot)
            table = self._fields[equality.field]
            table.remove(equality, slot)
            if not table:
                del self._fields[equality.field]

    def matches(
        self,
        bodies: Sequence[bytes],
        properties: Properties,
        topics: Topics,
        lsns: Sequence[int] | None = None,
        times: Sequence[int] | int | None = None,
        readings: Readings | None = None,
    ) -> dict[int, list[int]]:
        """By slot the places of the messages that match, ascending; filters that nothing matches are left out.

        readings: of these bodies and headers, where others read them too.
        Raises `meter.HandOver` inside `meter.bounded`, and nothing for what is in a message.
        """
        if len(self) == 1 and readings is None:
            for slot, only in enumerate(self._filters):
                if only is not None:
                    rows = _true(only.matches(bodies, properties, topics, lsns, times))
                    return {slot: rows} if rows else {}
        readings = Readings(bodies, properties) if readings is None else readings
        out: dict[int, list[int]] = {}
        messages = Messages(bodies, properties, topics, lsns, times)
        candidates: dict[int, list[int]] = {}
        for field, table in self._fields.items():
            self._look_up(field, table, readings, out, candidates)
        if candidates:
            self._judge(candidates, readings, messages, out)
        for slot, one in self._apart.items():
            if isinstance(one, Filter) and "body" in one.needs:
                found = one.matches_parsed(readings.tables(one.message_type), messages)
            else:
                found = one.matches(*messages)
            if True in found:
                out[slot] = _true(found)
        return out

    def _judge(
        self, candidates: dict[int, list[int]], readings: Readings, messages: Messages, out: dict[int, list[int]]
    ) -> None:
        """Evaluate by slot the rows whose equality holds."""
        for slot, rows in candidates.items():
            one = self._filters[slot]
            assert isinstance(one, Filter)
            read = [NOTHING] * len(rows)
            if "body" in one.needs:
                read = list_at(readings.tables(one.message_type), rows)
            found = one.matches_parsed(read, messages.some(rows))
            wanted = [row for row, yes in zip(rows, found, strict=True) if yes]
            if wanted:
                out[slot] = wanted

    def _look_up(
        self,
        field: Field,
        table: Equalities,
        readings: Readings,
        out: dict[int, list[int]],
        candidates: dict[int, list[int]],
    ) -> None:
        access, find = self._access, table.find
        for row, value in enumerate(_values(field, readings)):
            if value is None:
                continue
            for slot in find(value):
                into = out if access[slot][1] else candidates
                rows = into.get(slot)
                if rows is None:
                    into[slot] = [row]
                else:
                    rows.append(row)


def _true(found: Sequence[bool]) -> list[int]:
    return [row for row, yes in enumerate(found) if yes]


def _values(field: Field, readings: Readings) -> list[Value]:
    """What the field holds in each message."""
    tables: Sequence[Table]
    if field.source == "body":
        tables = readings.tables(field.message_type)
    else:
        at, properties = 0 if field.source == "headers" else 1, readings.properties
        if isinstance(properties, bytes):
            tables = [header_tables(properties)[at]] * len(readings.bodies)
        else:
            tables = [header_tables(data)[at] for data in properties]
    if len(field.steps) == 1:
        name = field.steps[0]
        if isinstance(name, str):
            return [record.get(name) for record in tables]
    return [walk(record, field.steps) for record in tables]
