"""The groups of a view: what each batch of changes does to them, by the server's own expressions and sums.

A batch says which messages came and which went, both with their bodies.  Tasks gather that by group into stores that
may hold less than nothing (`partial`); the state of a group is such stores merged, and its row is read from them as the
server reads it (`Merger`).  So a group costs what its aggregates need: a count or a sum a few bytes, MIN, MAX, UNIQUE
and GROUP_CONCAT each different value, a field alone and ANY a value for each message.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa

from penstock.expr.body_fields import parsed
from penstock.expr.gathering.aggregates import STORES, Store
from penstock.expr.gathering.group_rows import Elements, GroupKey, body, given_by, key_of, key_text, row_of, shown
from penstock.expr.gathering.view_definition import Definition, Plan, plan
from penstock.expr.values import Value
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY
from penstock.spark.arrow import values

COLUMNS = ("lsn", "topic", "exchange", "time", "properties", "body", "change")
"""What is read of each change."""

KEY_BYTES_MOST = 255
"""Of a key that a publisher gives."""

planned = lru_cache(maxsize=64)(plan)


@dataclass(slots=True)
class Group:
    """What is available in a group, or what a batch adds to it."""

    key: GroupKey
    stores: list[Store]
    available: int = 0
    newest: dict[int, tuple[Value, ...] | None] = field(default_factory=dict[int, "tuple[Value, ...] | None"])
    oldest: dict[int, tuple[Value, ...] | None] = field(default_factory=dict[int, "tuple[Value, ...] | None"])
    shown: bytes | None = None  # the row as it was told

    def merge(self, other: Group) -> None:
        """Add what a batch changes; of a message that went the values are None."""
        self.available += other.available
        for mine, theirs in zip(self.stores, other.stores, strict=True):
            mine.merge(theirs)
        for held, told in ((self.newest, other.newest), (self.oldest, other.oldest)):
            for lsn, given in told.items():
                if given is None:
                    del held[lsn]
                else:
                    held[lsn] = given

    def row(self, plan: Plan) -> bytes:
        """As JSON."""
        gathered: dict[str, Any] = {f"g{place}": shown(value) for place, value in enumerate(self.key)}
        for read in plan.reads:
            gathered[read.name] = STORES[read.aggregate][1](self.stores[read.store], read.extra)
        if plan.last:
            newest = cast("tuple[Value, ...]", self.newest[max(self.newest)])
            gathered |= {name: value for (name, _), value in zip(plan.last, newest, strict=True)}
        for place, (name, _) in enumerate(plan.any):
            having = (lsn for lsn, given in self.oldest.items() if given is not None and given[place] is not None)
            lsn = min(having, default=None)
            gathered[name] = None if lsn is None else cast("tuple[Value, ...]", self.oldest[lsn])[place]
        return body(plan, row_of(plan, gathered))


def new_group(plan: Plan, key: GroupKey) -> Group:
    """Nothing yet."""
    return Group(key, [STORES[name][0]() for name, _ in plan.stores])


def name_of(key: GroupKey) -> str:
    """What tells a group from others: the key of its row, as the server shows it if that says it all and is short."""
    text = key_text(key)
    if any(isinstance(value, tuple) for value in key):
        text = f"{text} {key!r}"  # NaN looks like NULL there
    if len(text.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MOST:
        return text
    return "sha256:" + hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Gatherer:
    """Runs in tasks: changes to what they do to each group, as rows (name, delta)."""

    definition: Definition

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One partition."""
        plan = planned(self.definition)
        groups: dict[GroupKey, Group] = {}
        for batch in batches:
            for change in (1, -1):
                rows = batch.filter(pa.array([one == change for one in values(batch, "change")]))
                if rows.num_rows:
                    gather(plan, rows, change, groups, self.definition.vhost)
        named = {name_of(key): group for key, group in groups.items()}
        yield pa.record_batch(
            {
                "name": pa.array(list(named), pa.string()),
                "delta": pa.array([pickle.dumps(group) for group in named.values()], pa.binary()),
            }
        )


def gather(plan: Plan, rows: pa.RecordBatch, change: int, groups: dict[GroupKey, Group], vhost: str) -> None:
    """Add rows that all came (+1), or all went (-1), to their groups."""
    given = given_by(plan, elements_of(rows, vhost))
    keyed: dict[GroupKey, list[int]] = {}
    columns = given.values[: plan.groups]
    for row in range(len(given.lsns)):
        keyed.setdefault(tuple(key_of(column[row]) for column in columns), []).append(row)
    for key, mine in keyed.items():
        group = groups.get(key)
        if group is None:
            group = groups[key] = new_group(plan, key)
        group.available += change * len(mine)
        for store, (_, place) in zip(group.stores, plan.stores, strict=True):
            column = given.values[place]
            store.change([column[row] for row in mine], change)
        for held, wanted in ((group.newest, plan.last), (group.oldest, plan.any)):
            if wanted:
                for row in mine:
                    there = tuple(given.values[place][row] for _, place in wanted)
                    held[given.lsns[row]] = there if change > 0 else None


def elements_of(rows: pa.RecordBatch, vhost: str) -> Elements:
    """Rows with `COLUMNS` as expressions read them."""
    bodies = [one or b"" for one in cast("Sequence[bytes | None]", values(rows, "body"))]
    times = rows.column("time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    topics: dict[tuple[str, str], Topic] = {}
    named = zip(values(rows, "exchange"), values(rows, "topic"), strict=True)
    return Elements(
        cast("Sequence[int]", values(rows, "lsn")),
        [parsed(one) for one in bodies],
        bodies,
        [one or EMPTY for one in cast("Sequence[bytes | None]", values(rows, "properties"))],
        [topics.setdefault((e or "", name), Topic(vhost, e or "", name)) for e, name in named],
        cast("Sequence[int]", times.to_pylist()),
    )


@dataclass(frozen=True, slots=True)
class Merger:
    """Runs in tasks, for each group that a batch touches: its state and its row."""

    definition: Definition

    def __call__(self, key: tuple[str], frames: Iterable[Any], state: Any) -> Iterator[Any]:
        """`key` and `state` as Spark has them; rows (name, body), body None where the group is empty now."""
        import pandas

        plan = planned(self.definition)
        group: Group | None = pickle.loads(state.get[0]) if state.exists else None
        for frame in frames:
            for delta in frame["delta"]:
                found = cast("Group", pickle.loads(bytes(delta)))
                if group is None:
                    group = new_group(plan, found.key)
                group.merge(found)
        if group is None:
            return
        before = group.shown
        group.shown = group.row(plan) if group.available else None
        if group.available:
            state.update((pickle.dumps(group),))
        elif state.exists:
            state.remove()
        if group.shown != before:
            yield pandas.DataFrame({"name": [key[0]], "body": [group.shown]})
