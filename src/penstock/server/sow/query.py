"""A `sow` query: records of one moment, those that match, in an order, some of them.

The loop gives references to the index; rows are read from the log in the caller's thread or in the bulk child.  Two
passes where an order is asked for: the first keeps values and places, the second reads what is shown.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.core.sow.ordering import Ordered, Term, parse_order
from penstock.errors import InvalidArgument
from penstock.history.history import Batches
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.server.sow.page_work import given_key

if TYPE_CHECKING:
    from penstock.core.sow.index import Ints, Numbers
    from penstock.history.history import History

SHOWN_AT_ONCE = 1000
"""Rows of an ordered answer that are read together."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked."""

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
        """For an answer."""
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
