"""Many filters over one batch of messages: each body is parsed once, equalities are looked up, the rest is evaluated.

The answers are those of `Filter.matches` one by one; only the work is shared.  A filter costs nothing for messages that
its equality rules out.  Owns the order of that work; knows neither queues nor consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.expr.equalities import Equalities, Equality, access_of
from penstock.expr.fields import NOTHING, Table, header_tables, parsed, walk
from penstock.expr.filter import Filter
from penstock.expr.tree import Field
from penstock.expr.values import Value
from penstock.records.entries import Topic


class Matcher(Protocol):
    """A compiled filter; `expr.Filter` is one."""

    @property
    def text(self) -> str:
        """What was compiled; equal texts match alike."""
        ...

    def matches(
        self,
        bodies: Sequence[bytes],
        properties: bytes | Sequence[bytes],
        topics: Topic | Sequence[Topic],
        *,
        lsns: Sequence[int] | None = None,
        times: Sequence[int] | None = None,
    ) -> list[bool]:
        """One answer for each message."""
        ...


READING_US = 2
"""Microseconds, about, that reading a body and looking up its fields take."""

EVALUATION_US = 0.2
"""Microseconds, about, of one evaluation after that."""

LOOP_US = 20_000
"""Longer than this the filters of one batch may not hold the loop."""


class FilterSet:
    """Filters that are asked together.  Each has a slot, a small number, while it is in the set."""

    __slots__ = ("_access", "_apart", "_fields", "_filters", "_free")

    def __init__(self, filters: Sequence[Matcher] = ()) -> None:
        """Slots are the places in `filters`."""
        self._filters: list[Matcher | None] = []
        self._free: list[int] = []
        self._apart: dict[int, Matcher] = {}  # evaluated for every message, by slot
        self._fields: dict[Field, Equalities] = {}
        self._access: dict[int, tuple[Equality, bool]] = {}  # of the others: what is looked up, and whether that is all
        for one in filters:
            self.add(one)

    def __len__(self) -> int:
        return len(self._apart) + len(self._access)

    def too_much(self, count: int) -> bool:
        """Whether so many ordinary messages would hold the loop for too long."""
        return count * (READING_US + EVALUATION_US * len(self._apart)) > LOOP_US

    def add(self, one: Matcher) -> int:
        """Take a filter in; its slot."""
        if self._free:
            slot = self._free.pop()
            self._filters[slot] = one
        else:
            slot = len(self._filters)
            self._filters.append(one)
        access = access_of(one.tree) if isinstance(one, Filter) else None
        if access is None:
            self._apart[slot] = one
        else:
            self._access[slot] = access
            self._fields.setdefault(access[0].field, Equalities()).add(access[0], slot)
        return slot

    def remove(self, slot: int) -> None:
        """Take a filter out."""
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
        properties: bytes | Sequence[bytes],
        topics: Topic | Sequence[Topic],
        *,
        lsns: Sequence[int] | None = None,
        times: Sequence[int] | None = None,
    ) -> dict[int, list[int]]:
        """By slot the places of the messages that match, ascending; filters that nothing matches are left out.

        Raises `meter.HandOver` inside `meter.bounded`, and nothing for what is in a message.
        """
        if len(self) == 1 and self._filters:
            for slot, one in enumerate(self._filters):
                if one is not None:
                    found = one.matches(bodies, properties, topics, lsns=lsns, times=times)
                    rows = [row for row, yes in enumerate(found) if yes]
                    return {slot: rows} if rows else {}
        out: dict[int, list[int]] = {}
        records = self._read(bodies)
        candidates: dict[int, list[int]] = {}
        for field, table in self._fields.items():
            self._look_up(field, table, records, bodies, properties, out, candidates)
        for slot, rows in candidates.items():
            one = self._filters[slot]
            assert isinstance(one, Filter)
            found = one.matches_parsed(
                [bodies[row] for row in rows],
                [records[row] for row in rows] if records else [NOTHING] * len(rows),
                properties if isinstance(properties, bytes) else [properties[row] for row in rows],
                topics if isinstance(topics, Topic) else [topics[row] for row in rows],
                lsns=None if lsns is None else [lsns[row] for row in rows],
                times=None if times is None else [times[row] for row in rows],
            )
            wanted = [row for row, yes in zip(rows, found, strict=True) if yes]
            if wanted:
                out[slot] = wanted
        for slot, one in self._apart.items():
            if records and isinstance(one, Filter) and "body" in one.needs:
                found = one.matches_parsed(bodies, records, properties, topics, lsns=lsns, times=times)
            else:
                found = one.matches(bodies, properties, topics, lsns=lsns, times=times)
            if True in found:
                out[slot] = [row for row, yes in enumerate(found) if yes]
        return out

    def _read(self, bodies: Sequence[bytes]) -> list[Table]:
        """The bodies' fields, if several look at them; else an empty list."""
        if any(field.source == "body" for field in self._fields):
            return list(map(parsed, bodies))
        if any(isinstance(one, Filter) and "body" in one.needs for one in self._apart.values()):
            return list(map(parsed, bodies))
        if any("body" in one.needs for slot in self._access if isinstance(one := self._filters[slot], Filter)):
            return list(map(parsed, bodies))
        return []

    def _look_up(
        self,
        field: Field,
        table: Equalities,
        records: list[Table],
        bodies: Sequence[bytes],
        properties: bytes | Sequence[bytes],
        out: dict[int, list[int]],
        candidates: dict[int, list[int]],
    ) -> None:
        access, find = self._access, table.find
        for row, value in enumerate(_values(field, records, len(bodies), properties)):
            if value is None:
                continue
            for slot in find(value):
                into = out if access[slot][1] else candidates
                rows = into.get(slot)
                if rows is None:
                    into[slot] = [row]
                else:
                    rows.append(row)


def _values(field: Field, records: list[Table], count: int, properties: bytes | Sequence[bytes]) -> list[Value]:
    """What the field holds in each message."""
    tables: Sequence[Table] = records
    if field.source != "body":
        at = 0 if field.source == "headers" else 1
        if isinstance(properties, bytes):
            tables = [header_tables(properties)[at]] * count
        else:
            tables = [header_tables(data)[at] for data in properties]
    if len(field.steps) == 1:
        name = field.steps[0]
        if isinstance(name, str):
            return [record.get(name) for record in tables]
    return [walk(record, field.steps) for record in tables]
