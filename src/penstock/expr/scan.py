"""Filters over Arrow batches of the log: a sieve first, the exact evaluation of what it lets through after.

A sieve is what a message must show from outside, before its body is parsed: texts in its bytes (`needles`); conditions
on the AMQP header and the topic alone, evaluated once for each distinct header and topic.  It never drops a match, and
whatever cannot be judged so lets everything through.

The answer equals `Filter.matches` row by row.  Arrow's own functions run without the interpreter's lock, and exact
evaluation goes in small slices with a call of `breathe` between them, so that a scan in a thread does not hold up the
loop beside it.

Each needle of a sieve is a pass over the bodies, while one evaluation answers for all filters: fifty sieves cost sixty
times what it saves to have them.  So a scan tries both on its first rows, and goes on with the better one.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.expr.check import check
from penstock.expr.compiler import compile_tree
from penstock.expr.filter import Filter
from penstock.expr.filter_set import FilterSet, Matcher
from penstock.expr.text_patterns import ODD_FRACTION, ODD_NUMBER, Contains, Joined, necessary, needles_of
from penstock.expr.tree import Node
from penstock.records.compute import compute, distinct_numbers, having_byte
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY


@dataclass(frozen=True, slots=True)
class Outside:
    """The condition holds; it asks for header and topic alone."""

    filter: Filter


Sieve: TypeAlias = Contains | Outside | Joined[Contains | Outside]


def sieve_of(tree: Node) -> Sieve | None:
    """The sieve of a checked tree; None: everything has to be evaluated."""
    return necessary(tree, _condition)


def _condition(tree: Node) -> Contains | Outside | None:
    compiled = compile_tree(tree, "filter", False)
    if compiled.needs <= {"properties", "topic"}:
        return Outside(Filter("", check(tree, ""), compiled))
    return needles_of(tree)


Mask: TypeAlias = "npt.NDArray[np.bool_]"
Places: TypeAlias = "npt.NDArray[np.int64]"
Clock: TypeAlias = "Callable[[], int]"
"""Nanoseconds of CPU that this thread has used."""
Topics: TypeAlias = "Callable[[list[int | None] | None, list[str]], list[Topic]]"
"""Via ids (None: all of the default exchange) and names to topics."""

SLICE_ROWS = 1_000
SLICE_BYTES = 256 * 1024
"""What is evaluated between two breaths: less than a millisecond."""

TRIAL_BYTES = 16 * 1024
"""Bodies on which each of the two ways is tried, where a batch has at least four times as much."""

UNTRIED = 8
"""More filters than this are evaluated until the two ways were tried; fewer are sieved."""

PARALLEL = 2
"""Sieves may cost so many times what evaluation does: they need no interpreter, which the loop then has."""


_ALL = frozenset({"body", "properties", "topic", "lsn", "time"})
_ANY_TOPIC = Topic("", "", "")  # for filters that do not look at it


_sieves: WeakKeyDictionary[Filter, Sieve | None] = WeakKeyDictionary()  # a scan of 100 ms follows another


def _sieve(filter: Filter) -> Sieve | None:
    if filter not in _sieves:
        _sieves[filter] = sieve_of(filter.tree)
    return _sieves[filter]


def _nothing() -> None:
    """No breath."""


class Scan:
    """Filters that look through batches together."""

    def __init__(
        self, filters: Sequence[Matcher], topics: Topics, clock: Clock, *, body_most: int | None = None,
        breathe: Callable[[], None] = _nothing,
    ) -> None:  # fmt: skip
        """`body_most`: bytes of a body beyond which it is not evaluated here but named in `large`."""
        self._topics = topics
        self._clock = clock
        self._breathe = breathe
        self._body_most = body_most
        self._all = FilterSet(filters)
        self._alone = [FilterSet([one]) for one in filters] if len(filters) <= 8 else []
        self._sieves = [_sieve(one) if isinstance(one, Filter) else None for one in filters]
        self._sieving: float | None = None  # what sieves cost a byte for what evaluation does; None: not yet tried
        needs = [one.needs if isinstance(one, Filter) else _ALL for one in filters]
        self._needs = frozenset[str]().union(*needs)

    def run(self, batch: pa.RecordBatch, rows: Places | None = None) -> tuple[list[list[int]], list[int]]:
        """For each filter the LSNs that it matches, ascending; and those whose bodies are too large to look at here.

        batch    rows of messages with the log's columns; `rows`: look at these places alone
        """
        places = np.arange(batch.num_rows) if rows is None else rows
        out: list[list[int]] = [[] for _ in self._sieves]
        large: list[int] = []
        if self._sieving is None and any(self._sieves):
            batch, places = self._try(batch, places, out, large)
        view = _View(batch)
        if self._sieving is None:
            sieve = len(self._sieves) <= UNTRIED
        else:
            sieve = self._sieving * int(view.sizes.sum()) <= PARALLEL * int(view.sizes[places].sum())
        self._look(view, places, sieve, out, large)
        return out, sorted(set(large))

    def _try(
        self, batch: pa.RecordBatch, places: Places, out: list[list[int]], large: list[int]
    ) -> tuple[pa.RecordBatch, Places]:
        """Look at a few rows in one way and at the next few in the other, if there are enough; what is left."""
        ends = np.cumsum(_View(batch).sizes[places])
        if not len(ends) or int(ends[-1]) < 4 * TRIAL_BYTES:
            return batch, places
        first = 1 + int(np.searchsorted(ends, TRIAL_BYTES))
        more = 1 + int(np.searchsorted(ends[first:], int(ends[first - 1]) + TRIAL_BYTES))
        if first + more >= len(places):
            return batch, places
        rates: list[float] = []
        for stop, sieve in ((first, False), (more, True)):
            row = int(places[stop])
            view = _View(batch.slice(0, row))
            began = self._clock()
            self._look(view, places[:stop], sieve, out, large)
            looked_at = view.sizes if sieve else view.sizes[places[:stop]]
            rates.append((self._clock() - began) / max(int(looked_at.sum()), 1))
            batch, places = batch.slice(row), places[stop:] - row
        self._sieving = rates[1] / max(rates[0], 1e-9)
        return batch, places

    def _look(self, view: _View, places: Places, sieve: bool, out: list[list[int]], large: list[int]) -> None:
        """Add what matches among some places of a batch, and what is too large to tell."""
        wanted: list[Places] = []
        for one in self._sieves:
            mask = self._mask(one, view) if sieve and one is not None else None
            wanted.append(places if mask is None else places[mask[places]])
        if self._alone and sum(map(len, wanted)) <= 2 * len(view):
            for slot, some in enumerate(wanted):
                for part in self._slices(view, some, large):
                    for found in self._evaluate(self._alone[slot], view, part).values():
                        out[slot] += found
        else:
            every = places if not sieve or not wanted else distinct_numbers(np.concatenate(wanted))
            for part in self._slices(view, every, large):
                for slot, found in self._evaluate(self._all, view, part).items():
                    out[slot] += found

    def _slices(self, view: _View, places: Places, large: list[int]) -> Iterator[Places]:
        """Places in portions that do not take long; LSNs of bodies that are too large go to `large`."""
        if not len(places):
            return
        sizes = view.sizes[places]
        most = self._body_most
        if most is not None and int(sizes.max()) > most:
            large += view.lsns[places[sizes > most]].tolist()
            places, sizes = places[sizes <= most], sizes[sizes <= most]
        ends = np.cumsum(sizes)
        start, n = 0, len(places)
        while start < n:
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + SLICE_BYTES, side="right")), start + 1)
            stop = min(stop, start + SLICE_ROWS)
            yield places[start:stop]
            self._breathe()
            start = stop

    def _evaluate(self, filters: FilterSet, view: _View, places: Places) -> dict[int, list[int]]:
        needs = self._needs
        lsns = cast("list[int]", view.lsns[places].tolist())
        found = filters.matches(
            view.values("body", places),
            view.values("properties", places) if "properties" in needs else EMPTY,
            self._topics(view.vias(places), view.values("name", places)) if "topic" in needs else _ANY_TOPIC,
            lsns=lsns if "lsn" in needs else None,
            times=cast("list[int]", view.times[places].tolist()) if "time" in needs else None,
        )
        return {slot: [lsns[row] for row in rows] for slot, rows in found.items()}

    def _mask(self, sieve: Sieve, view: _View) -> Mask:
        def mask(part: Contains | Outside) -> Mask:
            return view.contains(part) if isinstance(part, Contains) else view.outside(part, self._topics)

        return sieve.mask(mask) if isinstance(sieve, Joined) else mask(sieve)


class _View:
    """A batch, and what several filters ask of it, worked out once."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._body: Any = batch.column("body")
        self._masks: dict[object, Mask] = {}
        self._escaped: Mask | None = None
        self.lsns = cast("Places", cast("Any", batch.column("lsn")).to_numpy())
        self.times = cast("Places", cast("Any", batch.column("time")).cast(pa.int64()).to_numpy())
        self.sizes = cast("Places", compute.binary_length(self._body).to_numpy(zero_copy_only=False))

    def __len__(self) -> int:
        return self._batch.num_rows

    def values(self, name: str, places: Places) -> list[Any]:
        """Some cells of a column."""
        column: Any = self._batch.column(name)
        n = len(places)
        if n and int(places[-1]) - int(places[0]) == n - 1:
            return cast("list[Any]", column.slice(int(places[0]), n).to_pylist())
        return cast("list[Any]", column.take(pa.array(places)).to_pylist())

    def vias(self, places: Places) -> list[int | None] | None:
        """The via ids of some rows; None when all are of the default exchange."""
        return None if self._batch.column("via").null_count == len(self) else self.values("via", places)

    def contains(self, sieve: Contains) -> Mask:
        """Rows whose body contains one of the needles, or what makes it unreadable from outside."""
        if self._escaped is None:
            self._escaped = having_byte(self._body, ord("\\"))
        masks = [self._escaped, *map(self._substring, sieve.needles)]
        if sieve.odd:
            masks.append(self._matching(ODD_NUMBER))
        if sieve.fractions:
            masks.append(self._matching("|".join((*sieve.fractions, ODD_FRACTION))))
        return cast("Mask", np.logical_or.reduce(masks))

    def _substring(self, needle: bytes) -> Mask:
        mask = self._masks.get(needle)
        if mask is None:
            mask = self._masks[needle] = _flags(compute.match_substring(self._body, pattern=needle))
        return mask

    def _matching(self, pattern: str) -> Mask:
        mask = self._masks.get(pattern)
        if mask is None:
            mask = self._masks[pattern] = _flags(compute.match_substring_regex(self._body, pattern=pattern))
        return mask

    def outside(self, sieve: Outside, topics: Topics) -> Mask:
        """Rows whose header and topic meet a condition."""
        headers = compute.dictionary_encode(self._batch.column("properties"))
        names = compute.dictionary_encode(self._batch.column("name"))
        vias = compute.dictionary_encode(self._batch.column("via"), null_encoding="encode")
        codes = headers.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        for part in (names, vias):
            codes = codes * max(len(part.dictionary), 1) + part.indices.to_numpy(zero_copy_only=False)
        _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        places = firsts[order]
        asked = topics(self.vias(places), self.values("name", places))
        found = sieve.filter.matches([b""] * len(places), self.values("properties", places), asked)
        answers = np.zeros(len(places), np.bool_)
        answers[order] = found
        return answers[inverse]


def _flags(mask: Any) -> Mask:
    return cast("Mask", compute.fill_null(mask, True).to_numpy(zero_copy_only=False))
