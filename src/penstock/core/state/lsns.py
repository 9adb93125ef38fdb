"""Sets of LSNs and columns beside them as numpy arrays, and how they come out of Arrow tables.

chunks    a range or an `array('q')` of ascending LSNs
flat      one array of ascending LSNs
runs      a column as flat triples `a, b, value`: what waits in [a, b) has that value, everything else the rest value 0
pairs     ascending disjoint [a, b), shape (n, 2)

States and queues share the arithmetic.  Every place that touches an untyped Arrow value is here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.chunks import LSN_LIMIT, Chunk, Longs
from penstock.records.compute import distinct_numbers
from penstock.records.kinds import Kind

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


CHUNK = 65_536
"""LSNs in a chunk of a state at most, unless the chunk is a range."""

LONG_RUN = 4096
"""Adjacent LSNs from so many on are a range of their own in a chunked state."""

FEW = 16
"""A chunk of less is no array of its own where very many may be put together."""

_NONE = np.zeros((0, 2), dtype=np.int64)


def empty() -> array[int]:
    """A column in which every message has the rest value."""
    return array("q")


def ints(values: Longs) -> Ints:
    """A view of an `array('q')`, or of what was one, as numpy integers."""
    return np.frombuffer(values, dtype=np.int64)


def to_array(values: Ints) -> array[int]:
    """numpy integers as an `array('q')`."""
    out = array("q")
    out.frombytes(np.ascontiguousarray(values, dtype=np.int64).tobytes())
    return out


def flat(chunks: Iterable[Chunk]) -> Ints:
    """All LSNs of the chunks, ascending."""
    parts, few = list[Ints](), empty()
    for chunk in chunks:
        if len(chunk) < FEW:
            few.extend(chunk)
        else:
            parts.append(np.arange(chunk.start, chunk.stop) if isinstance(chunk, range) else ints(chunk))
    if few:
        parts.append(ints(few))
    if not parts:
        return np.zeros(0, dtype=np.int64)
    lsns = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(lsns) > 1 and bool((lsns[1:] < lsns[:-1]).any()):
        lsns = np.sort(lsns, kind="stable")
    return lsns


def least(chunks: Iterable[Chunk], above: int, most: int) -> Ints:
    """The `most` lowest LSNs of the chunks that are above this one, ascending; what lies far beyond is not unfolded."""
    some = [
        chunk if chunk[0] > above else chunk[bisect_right(chunk, above) :]
        for chunk in chunks
        if len(chunk) and chunk[-1] > above
    ]
    some.sort(key=itemgetter(0))
    taken, count, bound = list[Chunk](), 0, LSN_LIMIT
    for chunk in some:
        if chunk[0] > bound:
            break
        taken.append(chunk[:most])
        count += len(taken[-1])
        if count >= most and bound == LSN_LIMIT:
            bound = int(flat(taken)[most - 1])
    return flat(taken)[:most]


def chunked(lsns: Ints, long: int = LONG_RUN, most: int = CHUNK) -> list[Chunk]:
    """Ascending LSNs as chunks in the one form that equal sets share: long runs are ranges, the rest arrays."""
    n = len(lsns)
    if n == 0:
        return []
    if int(lsns[-1]) - int(lsns[0]) == n - 1:
        return [range(int(lsns[0]), int(lsns[0]) + n)]
    if n < long:
        return _arrays(lsns, most)
    breaks = np.flatnonzero(np.diff(lsns) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [n]))
    out: list[Chunk] = []
    done = 0
    for k in np.flatnonzero(ends - starts >= long).tolist():
        start, end = int(starts[k]), int(ends[k])
        out += _arrays(lsns[done:start], most)
        out.append(range(int(lsns[start]), int(lsns[start]) + end - start))
        done = end
    return out + _arrays(lsns[done:], most)


def same_chunked(chunks: Iterable[Chunk]) -> list[Chunk]:
    """`chunked` of the LSNs of these chunks, each of which is there once; long ranges are not unfolded for it."""
    whole = [chunk for chunk in chunks if len(chunk)]
    ranges = sorted((chunk for chunk in whole if isinstance(chunk, range)), key=attrgetter("start"))
    if len(ranges) < len(whole):
        return chunked(flat(whole))
    runs = list[range]()
    for one in ranges:
        if runs and runs[-1].stop == one.start:
            runs[-1] = range(runs[-1].start, one.stop)
        else:
            runs.append(one)
    if len(runs) == 1:
        return [runs[0]]
    out, short = list[Chunk](), list[range]()
    for run in runs:
        if len(run) < LONG_RUN:
            short.append(run)
            continue
        out += _arrays(flat(short))
        short.clear()
        out.append(run)
    return out + _arrays(flat(short))


def _arrays(lsns: Ints, most: int = CHUNK) -> list[Chunk]:
    return [to_array(lsns[i : i + most]) for i in range(0, len(lsns), most)]


def runs_of(lsns: Ints, values: Ints) -> array[int]:
    """A column as flat triples `a, b, value`: what waits in [a, b) has that value; rest values are left out."""
    if not len(values) or not values.any():
        return array("q")
    breaks = np.flatnonzero(np.diff(values) != 0) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(values)]))
    chosen = values[starts]
    keep = chosen != 0
    starts, ends, chosen = starts[keep], ends[keep], chosen[keep]
    return to_array(np.stack((lsns[starts], lsns[ends - 1] + 1, chosen), axis=1).reshape(-1))


def spread(lsns: Ints, runs: array[int] | Sequence[int] | Ints) -> Ints:
    """A column with one value per waiting message, from its runs (later ones win where they overlap)."""
    out = np.zeros(len(lsns), dtype=np.int64)
    if not len(runs):
        return out
    triples = _table(runs)
    if len(triples) == 1:
        a, b, value = triples[0].tolist()
        out[lsns.searchsorted(a) : lsns.searchsorted(b)] = value
        return out
    ordered, starts, ends = _placed(lsns, triples)
    if bool((starts[1:] >= ends[:-1]).all()):
        out[expand(starts, ends)] = np.repeat(ordered[:, 2], ends - starts)
        return out
    starts, ends = np.searchsorted(lsns, triples[:, 0]), np.searchsorted(lsns, triples[:, 1])
    for start, end, value in zip(starts.tolist(), ends.tolist(), triples[:, 2].tolist(), strict=True):
        out[start:end] = value
    return out


def runs_among(lsns: Ints, runs: array[int] | Sequence[int] | Ints) -> array[int]:
    """What `runs_of` gives of what `spread` does, without a value for each message where no runs overlap."""
    if not len(runs):
        return array("q")
    ordered, starts, ends = _placed(lsns, _table(runs))
    if bool((starts[1:] < ends[:-1]).any()):
        return runs_of(lsns, spread(lsns, runs))
    some = (starts < ends) & (ordered[:, 2] != 0)
    starts, ends, values = starts[some], ends[some], ordered[some, 2]
    if not len(values):
        return array("q")
    begins = np.concatenate(([True], (starts[1:] > ends[:-1]) | (values[1:] != values[:-1])))
    firsts, lasts = starts[begins], ends[np.concatenate((begins[1:], [True]))] - 1
    return to_array(np.stack((lsns[firsts], lsns[lasts] + 1, values[begins]), axis=1).reshape(-1))


def _table(runs: array[int] | Sequence[int] | Ints) -> Ints:
    return (ints(runs) if isinstance(runs, array) else np.asarray(runs, dtype=np.int64)).reshape(-1, 3)


def _placed(lsns: Ints, triples: Ints) -> tuple[Ints, Ints, Ints]:
    """Runs as they begin, and where each begins and ends among these messages."""
    ordered = triples[np.argsort(triples[:, 0], kind="stable")]
    return ordered, np.searchsorted(lsns, ordered[:, 0]), np.searchsorted(lsns, ordered[:, 1])


def stretches(lsns: Ints) -> Ints:
    """Each stretch of neighbours, in this order, as pairs."""
    if not len(lsns):
        return _NONE
    breaks = np.flatnonzero(np.diff(lsns) != 1)
    out = np.empty((len(breaks) + 1, 2), dtype=np.int64)
    out[0, 0], out[1:, 0] = lsns[0], lsns[breaks + 1]
    out[:-1, 1], out[-1, 1] = lsns[breaks] + 1, lsns[-1] + 1
    return out


def within(chunk: Chunk, a: int = 0, b: int = LSN_LIMIT) -> Ints:
    """The pairs of a chunk's LSNs in [a, b)."""
    if isinstance(chunk, range):
        return np.array([[max(chunk.start, a), min(chunk.stop, b)]], dtype=np.int64)
    lsns = ints(chunk)
    return stretches(lsns[np.searchsorted(lsns, a) : np.searchsorted(lsns, b)])


def merged(pieces: Sequence[Ints]) -> Ints:
    """Pairs in any order, made ascending and disjoint."""
    if not pieces:
        return _NONE
    pairs = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    ordered = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    begins = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    starts = ordered[begins, 0]
    ends = reach[np.concatenate((np.flatnonzero(begins)[1:] - 1, [len(ordered) - 1]))]
    return np.stack((starts, ends), axis=1)


def count(pairs: Ints) -> int:
    """How many LSNs lie in disjoint pairs."""
    return int((pairs[:, 1] - pairs[:, 0]).sum())


def combined(one: Ints, other: Ints, keep: Callable[[Bools, Bools], Bools]) -> Ints:
    """The LSNs that `keep` says, of two sets of ascending disjoint pairs [a, b), shape (n, 2); as such pairs."""
    edges = distinct_numbers(np.concatenate((one.reshape(-1), other.reshape(-1))))
    if not len(edges):
        return edges.reshape(-1, 2)
    inside = [np.searchsorted(pairs.reshape(-1), edges[:-1], side="right") & 1 == 1 for pairs in (one, other)]
    kept = np.concatenate(([False], keep(inside[0], inside[1]), [False]))
    turns = edges[np.flatnonzero(kept[1:] != kept[:-1])]
    return turns.reshape(-1, 2)


_NO_VALUES: Ints = np.zeros(0, dtype=np.int64)


def whole(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows as a table; nothing is copied."""
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def pick(table: pa.Table, mask: npt.NDArray[np.bool_], columns: list[str] | None = None) -> pa.Table:
    """The rows of a table that a mask names, and some of its columns.

    By `filter`, chunk by chunk: `take` joins the chunks of each column first, bodies included.
    """
    if columns is not None:
        table = table.select(columns)
    return table if mask.all() else table.filter(cast(Any, pa.array(mask)))


def is_empty(table: pa.Table, name: str) -> bool:
    """Whether a column holds nothing but nulls."""
    return table.column(name).null_count == table.num_rows


def numbers(table: pa.Table, name: str, null: int = 0) -> Ints:
    """A column as int64; timestamps as microseconds; nulls as `null`."""
    column: Any = table.column(name)
    if column.null_count == len(column):
        return np.full(len(column), null, dtype=np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(null)
    parts = [chunk.to_numpy(zero_copy_only=False).astype(np.int64, copy=False) for chunk in column.chunks]
    return cast(Ints, parts[0] if len(parts) == 1 else np.concatenate(parts))


def parts_beyond(known: int, lsns: Ints, kinds: Ints) -> Iterator[tuple[int, int]]:
    """Rows beyond an LSN, as [start, stop), cut where older messages came: what was before does not concern these."""
    first = int(np.searchsorted(lsns, known, side="right"))
    cuts = (first + np.flatnonzero(kinds[first:] == int(Kind.RECOVERED))).tolist()
    return ((start, stop) for start, stop in pairwise([first, *cuts, len(lsns)]) if stop > start)


def texts(table: pa.Table, name: str) -> list[str]:
    """A column of text; nulls as empty."""
    values: list[Any] = table.column(name).to_pylist()
    return [value or "" for value in values]


def blobs(table: pa.Table, name: str) -> list[bytes]:
    """A column of bytes; nulls as empty."""
    values: list[Any] = table.column(name).to_pylist()
    return [value or b"" for value in values]


def coded(table: pa.Table, name: str) -> tuple[list[bytes], Ints]:
    """A column of bytes as its distinct values and each row's number among them; nulls as empty."""
    column: Any = cast(Any, table.column(name)).fill_null(b"").combine_chunks()
    encoded: Any = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def lengths(table: pa.Table, name: str) -> Ints:
    """Bytes of each value of a column of bytes; nulls have none."""
    column: Any = table.column(name)
    parts = [_NO_VALUES]
    for chunk in column.chunks:
        if len(chunk):
            ends = np.frombuffer(chunk.buffers()[1], np.int32, len(chunk) + 1, 4 * chunk.offset)
            parts.append(np.diff(ends).astype(np.int64))
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def packed_integers(table: pa.Table) -> tuple[Ints, Ints]:
    """Bodies of packed int64, all rows end to end, and the offsets in bytes where each begins (and the last ends).

    Offsets count from the first row.  A row whose length is no multiple of 8 makes the values meaningless: check first.
    """
    column: Any = cast(Any, table.column("body")).fill_null(b"").combine_chunks()
    places, data = column.buffers()[1:]
    offsets = np.frombuffer(places, dtype=np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    start, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    if data is None or size < 8:
        return _NO_VALUES, offsets - start
    return np.frombuffer(data, dtype=np.int64, count=size // 8, offset=start), offsets - start


def groups(values: Ints) -> dict[int, Ints]:
    """The places of each distinct value, ascending."""
    if not len(values):
        return {}
    low, high = int(values.min()), int(values.max())
    # one value is the usual case, and needs no sorting
    if low == high:
        return {low: np.arange(len(values))}
    if high - low < 65_536:
        codes = (values - low).astype(np.uint16)  # 16 bits: numpy's stable sort is a radix sort
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes)
        present = np.flatnonzero(counts)
        ends = np.cumsum(counts[present])
        names = (present + low).tolist()
    else:
        order = np.argsort(values, kind="stable")
        distinct, counts = np.unique(values, return_counts=True)
        ends = np.cumsum(counts)
        names = distinct.tolist()
    return dict(zip(names, np.split(order, ends[:-1]), strict=True))


def alike(count: int, columns: Mapping[str, Ints]) -> list[tuple[dict[str, int], Ints]]:
    """What of so many rows have in these columns, and the places of all that have the same; what is not told is 0.

    Ascending by the first column, then by the next.
    """
    found: list[tuple[dict[str, int], Ints]] = [({}, np.arange(count))]
    for name, values in columns.items():
        if values.any():
            found = [
                ({**told, name: value}, rows[places])
                for told, rows in found
                for value, places in groups(values[rows]).items()
            ]
    return found


def expand(starts: Ints, ends: Ints) -> Ints:
    """All numbers of the half-open spans, one span after another."""
    lengths = ends - starts
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
