"""A `sow` query: records of one moment, those that match, in an order, some of them.

The loop gives references to the index; rows are read from the log in the caller's thread or in the bulk child.  Two
passes where an order is asked for: the first keeps values and places, the second reads what is shown.

The records of one moment for a subscriber come as events, portion after portion; a `sow_delete` says by a filter, by
keys, or by the data of a message which records it means.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.core.sow.holding import Sow, parse_number
from penstock.core.sow.index import Snapshot
from penstock.core.sow.select import Ordered, Term, parse_order
from penstock.errors import InvalidArgument
from penstock.history.history import Batches, History, Past
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.server.sow.record_events import Event, given_key

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.core.sow.index import Ints, Numbers
    from penstock.core.sow.select import Term, Window
    from penstock.history.history import History


SHOWN_AT_ONCE = 1000
"""Rows of an ordered answer that are read together."""


@dataclass(frozen=True, slots=True)
class Query:
    filter: str | None = None
    order_by: tuple[str, ...] = ()
    top_n: int | None = None
    skip_n: int = 0
    batch_size: int = 10_000

    def __post_init__(self) -> None:
        if self.skip_n and self.top_n is None:
            raise InvalidArgument("skip_n needs top_n: it says how many of the first so many are passed over")


@dataclass(slots=True)
class Counts:
    """What a query came to, complete once its rows are."""

    compared: int = 0  # records looked at
    matches: int = 0
    returned: int = 0

    def plain(self) -> dict[str, int]:
        return {"topic_matches": self.compared, "matches": self.matches, "records_returned": self.returned}

    def take(self, told: Mapping[str, int]) -> None:
        """Of an answer that was given elsewhere."""
        self.compared, self.matches, self.returned = (told[name] for name in self.plain())


def run(
    query: Query,
    numbers: Numbers,
    lsns: Ints,
    history: History,
    vhost: str,
    counts: Counts,
    shape: Callable[[Batches], Batches] | None = None,
    *,
    keyed: bool | None = None,
) -> Batches:
    """The rows of an answer, in the log's columns, no more than `batch_size` a batch.

    numbers, lsns: the key and the present record of each key, in any order.
    shape: what makes other rows of those that match (projection and grouping), before they are ordered and cut.
    keyed: the rows are records, whose keys the filter may ask for: True, publishers give them; None, they are messages.
    """
    by_lsn = np.argsort(lsns)
    numbers, lsns = numbers[by_lsn], lsns[by_lsn]
    rows = _counted(history.rows_at(lsns), counts)
    if query.filter is not None:
        keys = None if keyed is None else partial(keys_of, numbers=numbers, lsns=lsns, given=keyed)
        rows = history.matching(rows, query.filter, vhost, keys)
    if shape is not None:
        rows = shape(rows)
    terms = parse_order(query.order_by or None)
    if terms or query.top_n is not None:
        rows = _ordered(query, terms, rows, numbers, lsns, history, vhost, counts)
    else:
        rows = _matches(rows, counts)
    for batch in rows:
        counts.returned += batch.num_rows
        for start in range(0, batch.num_rows, query.batch_size):
            yield batch.slice(start, query.batch_size)


def _counted(rows: Batches, counts: Counts) -> Batches:
    for batch in rows:
        counts.compared += batch.num_rows
        yield batch


def _matches(rows: Batches, counts: Counts) -> Batches:
    for batch in rows:
        counts.matches += batch.num_rows
        yield batch


def _ordered(
    query: Query,
    terms: Sequence[Term],
    rows: Batches,
    numbers: Numbers,
    lsns: Ints,
    history: History,
    vhost: str,
    counts: Counts,
) -> Batches:
    most = None if query.top_n is None else query.top_n + query.skip_n
    ordered = Ordered(terms, most)
    for batch in rows:
        counts.matches += batch.num_rows
        own = cast("Ints", batch.column("lsn").to_numpy())
        ordered.add(numbers[np.searchsorted(lsns, own)].tolist(), own.tolist(), values_of(terms, batch, vhost))
    chosen = np.array(ordered.lsns()[query.skip_n :], dtype=np.int64)
    for start in range(0, len(chosen), SHOWN_AT_ONCE):
        some = chosen[start : start + SHOWN_AT_ONCE]
        held = list(history.rows_at(np.sort(some)))
        if not held:
            continue
        table: Any = pa.Table.from_batches(held).combine_chunks()
        there = cast("Ints", table.column("lsn").to_numpy())
        place = np.searchsorted(there, some)
        found = place < len(there)
        found[found] = there[place[found]] == some[found]
        yield from table.take(pa.array(place[found])).to_batches()


def values_of(terms: Sequence[Term], batch: pa.RecordBatch, vhost: str) -> list[list[Any]]:
    """For each term the value of each row."""
    if not terms:
        return []
    bodies = cast("list[bytes]", batch.column("body").to_pylist())
    headers = cast("list[bytes]", batch.column("properties").to_pylist())
    topics = [Topic(vhost, "", name) for name in cast("list[str]", batch.column("name").to_pylist())]
    own = cast("list[int]", batch.column("lsn").to_pylist())
    times = cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist())
    return [term.value.values(bodies, headers, topics, lsns=own, times=times) for term in terms]


def plain(batch: pa.RecordBatch) -> Iterator[tuple[int, str, int | None, bytes, bytes]]:
    """LSN, topic, id of the exchange (None: the default one), header and body of each row."""
    columns = (batch.column(name).to_pylist() for name in ("lsn", "name", "via", "properties", "body"))
    return cast("Iterator[tuple[int, str, int | None, bytes, bytes]]", zip(*columns, strict=True))


def keys_of(batch: pa.RecordBatch, numbers: Numbers, lsns: Ints, *, given: bool) -> list[str | None]:
    """The key of each row as people see it: the number, or what the publisher gave.

    numbers, lsns: as for `run`.
    """
    if given:
        return [given_key(data) for data in cast("list[bytes]", batch.column("properties").to_pylist())]
    order = np.argsort(lsns)
    own = cast("Ints", batch.column("lsn").to_numpy())
    found = numbers[order][np.searchsorted(lsns[order], own)]
    return [str(number) for number in found.tolist()]


def portions(
    taken: object,
    sow: Sow,
    filter: str | None,
    terms: Sequence[Term],
    window: Window | None,
    log: Past,
    gone: Callable[[], bool],
    size: int,
) -> Iterator[list[Event]]:
    """Records that match, or those on the page, which is filled then; in the order that `terms` say."""
    assert isinstance(taken, Snapshot)
    numbers, lsns = taken.arrays()
    history = History(log, gone)
    order = tuple(f"{term.value.text} {'DESC' if term.descending else 'ASC'}" for term in terms)
    if window is None:
        rows = run(Query(filter, order, batch_size=size), numbers, lsns, history, sow.vhost, Counts())
    else:
        rows = _of_page(window, filter, terms, numbers, lsns, history, sow.vhost)
    by_lsn = np.argsort(lsns)
    for batch in rows:
        own = cast("Ints", batch.column("lsn").to_numpy())
        found = numbers[by_lsn][np.searchsorted(lsns[by_lsn], own)].tolist()
        yield list(_events(batch, found, sow))


def _of_page(
    window: Window,
    filter: str | None,
    terms: Sequence[Term],
    numbers: Numbers,
    lsns: Ints,
    history: History,
    vhost: str,
) -> Batches:
    """All that match are given their place; the rows of the page."""
    by_lsn = np.argsort(lsns)
    rows: list[tuple[int, int, Sequence[object]]] = []
    for batch in run(Query(filter), numbers, lsns, history, vhost, Counts()):
        own = cast("Ints", batch.column("lsn").to_numpy())
        found = numbers[by_lsn][np.searchsorted(lsns[by_lsn], own)].tolist()
        columns = values_of(terms, batch, vhost)
        rows += zip(found, own.tolist(), zip(*columns, strict=True) if columns else [()] * len(found), strict=True)
    for lsn in window.fill(rows):  # type: ignore[arg-type]  # values of expressions
        yield from history.rows_at([lsn])


def _events(batch: pa.RecordBatch, numbers: Sequence[int], sow: Sow) -> Iterator[Event]:
    topic = Topic(sow.vhost, sow.exchange, sow.name)
    columns = (
        batch.column("lsn").to_pylist(),
        batch.column("time").cast(pa.int64()).to_pylist(),
        batch.column("properties").to_pylist(),
        batch.column("body").to_pylist(),
    )
    rows = cast("Iterator[tuple[int, int, int, bytes, bytes]]", zip(numbers, *columns, strict=True))
    for number, lsn, time, properties, body in rows:
        key = given_key(properties) or "" if sow.rule.given else str(number)
        yield Event("sow", number, key, topic, lsn, time, properties, body)


KEYS_MOST = 100_000
"""Keys of one command."""

STEP = 8192
"""Records that are removed in one step; then others have their turn."""


@dataclass(frozen=True, slots=True)
class Removal:
    filter: str | None = None
    keys: tuple[str, ...] | None = None
    data: bytes | None = None  # a message whose key it is

    def __post_init__(self) -> None:
        if (self.filter is not None) + (self.keys is not None) + (self.data is not None) != 1:
            raise InvalidArgument("sow_delete takes a filter, keys, or the data of a message, and one of them")
        if self.keys is not None and len(self.keys) > KEYS_MOST:
            raise InvalidArgument(f"sow_delete names {len(self.keys)} keys, {KEYS_MOST} are allowed")


def numbers_of(sow: Sow, removal: Removal) -> list[int]:
    """The keys that are named or given with data.  Raises InvalidArgument for what is no key of this topic."""
    if removal.data is not None:
        if sow.rule.given:
            raise InvalidArgument(f"topic '{sow.name}' has its keys from its publishers: name the keys, not data")
        return [_number(sow, sow.rule.of_body(removal.data))]
    return [number_of_key(sow, key) for key in removal.keys or ()]


def number_of_key(sow: Sow, key: str) -> int:
    """The number of a key as people see it.  Raises InvalidArgument."""
    if sow.rule.given:
        return _number(sow, sow.rule.of_text(key))
    number = parse_number(key)
    if number is None:
        raise InvalidArgument(f"{key[:60]!r} is no key of topic '{sow.name}': its keys are unsigned 64-bit decimals")
    return number


def _number(sow: Sow, found: int | str) -> int:
    if isinstance(found, str):
        raise InvalidArgument(f"topic '{sow.name}': {found}")
    return found


def steps(numbers: Sequence[int], lsns: Sequence[int]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Keys and their records in portions."""
    return [(numbers[at : at + STEP], lsns[at : at + STEP]) for at in range(0, len(numbers), STEP)]
