"""What aggregates are gathered in: stores that values are added to and taken from, in whatever order.

A result depends on the values that are there and on nothing else: sums are exact until they are read, so that adding
and taking away leaves no trace of rounding, and the same messages in another order, or counted anew, give the same.
NULL is skipped everywhere.  Owns the arithmetic; refuses to know messages and groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, cast

from penstock.expr.values import NAN, TEXT_LIMIT, Value, fit, number, parse_number, text, to_bytes


class Store(Protocol):
    """What is gathered of one expression in one group."""

    def change(self, values: Iterable[Value], sign: int) -> None:
        """Add values (+1), or take values away that were added (-1)."""

    def merge(self, other: Any) -> None:
        """Add what another store of this kind has gathered; it may have taken away more than it was given."""


class Count:
    """How many values there are."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def change(self, values: Iterable[Value], sign: int) -> None:
        self.count += sign * sum(value is not None for value in values)

    def merge(self, other: Count) -> None:
        self.count += other.count


class Sum:
    """The exact sum of the values and their number.

    A text that spells no number counts as NaN, and one NaN makes the result NaN as long as it is there.
    """

    __slots__ = ("above", "below", "count", "doubles", "nans", "shift", "total")

    def __init__(self) -> None:
        self.count = 0  # of values
        self.doubles = 0  # how many of them make the sum a double
        self.nans = 0
        self.below = 0  # minus infinities
        self.above = 0  # infinities
        self.shift = 0
        self.total = 0  # the sum of the finite ones is total / 2**shift

    def change(self, values: Iterable[Value], sign: int) -> None:
        whole = 0
        for value in values:
            if type(value) is int:
                whole += value
                self.count += sign
                continue
            found = number(value)
            if found is None:
                continue
            self.count += sign
            if isinstance(found, int):
                whole += found
            else:
                self._double(found, sign)
        if whole:
            self._add(whole, 0, sign)

    def merge(self, other: Sum) -> None:
        self.count += other.count
        self.doubles += other.doubles
        self.nans += other.nans
        self.below += other.below
        self.above += other.above
        if other.total:
            self._add(other.total, other.shift, 1)

    def _double(self, value: float, sign: int) -> None:
        self.doubles += sign
        if value != value:
            self.nans += sign
        elif value == math.inf:
            self.above += sign
        elif value == -math.inf:
            self.below += sign
        else:
            top, bottom = value.as_integer_ratio()
            self._add(top, bottom.bit_length() - 1, sign)

    def _add(self, top: int, shift: int, sign: int) -> None:
        """Add top / 2**shift."""
        if shift > self.shift:
            self.total <<= shift - self.shift
            self.shift = shift
        self.total += sign * (top << self.shift - shift)
        if not self.total:
            self.shift = 0

    def beyond(self) -> float | None:
        """The result where it is no finite number: NaN or infinite; None where it is."""
        if self.nans or (self.above and self.below):
            return NAN
        return math.inf if self.above else -math.inf if self.below else None

    def sum(self) -> Value:
        """SUM: an integer of integers as long as 64 bits hold it, else the nearest double."""
        if not self.count:
            return None
        found = self.beyond()
        if found is not None:
            return found
        return ratio(self.total, 1 << self.shift) if self.doubles else fit(self.total >> self.shift)

    def mean(self) -> Value:
        """AVG: a double."""
        if not self.count:
            return None
        found = self.beyond()
        return ratio(self.total, self.count << self.shift) if found is None else found


class Squares(Sum):
    """The same, and the sum of the squares."""

    __slots__ = ("squares",)

    def __init__(self) -> None:
        super().__init__()
        self.squares = Sum()

    def change(self, values: Iterable[Value], sign: int) -> None:
        finite = list[Value]()
        for value in values:
            finite.append(value)
            found = number(value)
            if found is None or found != found or found in (math.inf, -math.inf):
                continue
            top, bottom = found.as_integer_ratio()
            self.squares._add(top * top, 2 * (bottom.bit_length() - 1), sign)
        super().change(finite, sign)

    def merge(self, other: Sum) -> None:
        super().merge(other)
        self.squares.merge(cast("Squares", other).squares)

    def deviation(self) -> Value:
        """STDDEV_POP: a double."""
        n = self.count
        if not n:
            return None
        if self.beyond() is not None:
            return NAN
        shift = max(self.shift, self.squares.shift + 1 >> 1)
        total = self.total << shift - self.shift
        squares = self.squares.total << 2 * shift - self.squares.shift
        return math.sqrt(ratio(n * squares - total * total, n * n << 2 * shift))


def ratio(top: int, bottom: int) -> float:
    """The nearest double of a quotient."""
    try:
        return top / bottom
    except OverflowError:
        return math.inf if top > 0 else -math.inf


Key = tuple[int, "int | float | str", "int | str"]
"""A value as it sorts, numbers below texts.  The last tells an integer, a double and a Boolean apart; of a text that is
not ASCII it is the text, which stands in the middle by its bytes.
"""

FEW = 16
"""Distinct values that are looked through for the lowest and the highest."""


def key_of(value: Value) -> Key:
    """Where a value stands among others: texts by their bytes."""
    if isinstance(value, str):
        return (1, value, 0) if value.isascii() else (1, to_bytes(value).decode("latin-1"), value)
    if isinstance(value, bool):
        return (0, int(value), 2)
    return (0, value, 1) if isinstance(value, float) else (0, cast("int", value), 0)


def value_of(key: Key) -> Value:
    """The value that has this key."""
    text, value, kind = key
    if text:
        return kind or value
    return bool(value) if kind == 2 else value


def _down(key: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """A key that sorts the other way round."""
    text, value, kind = key
    return (-1, _Down(value), key) if text else (0, -value, -kind)


def _up(down: tuple[int, Any, Any]) -> Key:
    """The key that was turned round."""
    text, value, kind = down
    return kind if text else (0, -value, -kind)


class Bag:
    """Values with how often each is there: some 150 bytes a distinct one.

    The lowest and highest of many are kept in heaps from the first time they are asked for; an entry is checked when it
    comes up, so that a change costs the logarithm of the number of distinct values.
    """

    __slots__ = ("_highest", "_lowest", "counts", "nans")

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}
        self.nans = 0  # NaN is neither below nor above anything
        self._lowest: list[Key] | None = None
        self._highest: list[tuple[int, Any, Any]] | None = None

    def change(self, values: Iterable[Value], sign: int) -> None:
        counts = self.counts
        for value in values:
            if value is None:
                continue
            if value != value:
                self.nans += sign
                continue
            key = key_of(value)
            held = counts.get(key, 0)
            if held + sign:
                counts[key] = held + sign
            else:
                del counts[key]
            if not held:
                if self._lowest is not None:
                    heappush(self._lowest, key)
                if self._highest is not None:
                    heappush(self._highest, _down(key))

    def merge(self, other: Bag) -> None:
        self.nans += other.nans
        for key, count in other.counts.items():
            held = self.counts.get(key, 0) + count
            if held:
                self.counts[key] = held
            else:
                del self.counts[key]
        self._lowest = self._highest = None

    def __getstate__(self) -> tuple[dict[Key, int], int]:
        """Without the heaps, which are made again when they are asked for."""
        return self.counts, self.nans

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """As `__getstate__` tells it, or told it when keys did not say all of their values."""
        self.counts, *values, self.nans = state
        if values:
            self.counts = {key_of(values[0][key]): count for key, count in self.counts.items()}
        self._lowest = self._highest = None

    def lowest(self) -> Value:
        """MIN: the lowest value that is not NULL."""
        counts, heap = self.counts, self._lowest
        if len(counts) <= FEW:
            self._lowest = None
            return value_of(min(counts)) if counts else self._without()
        if heap is None or len(heap) > 2 * len(counts) + 64:
            heap = self._lowest = list(counts)
            heapify(heap)
        while heap[0] not in counts:
            heappop(heap)
        return value_of(heap[0])

    def highest(self) -> Value:
        """MAX: the highest value that is not NULL."""
        counts, heap = self.counts, self._highest
        if len(counts) <= FEW:
            self._highest = None
            return value_of(max(counts)) if counts else self._without()
        if heap is None or len(heap) > 2 * len(counts) + 64:
            heap = self._highest = list(map(_down, counts))
            heapify(heap)
        while (key := _up(heap[0])) not in counts:
            heappop(heap)
        return value_of(key)

    def _without(self) -> Value:
        return NAN if self.nans else None

    def only(self) -> Value:
        """UNIQUE: the one value that all have, as COUNT_DISTINCT compares them; NULL when there are several."""
        kinds = set[Value]()
        if self.nans:
            kinds.add("NaN")
        for value in map(value_of, self.counts):
            kinds.add(converted(value))
            if len(kinds) > 1:
                return None
        return self.lowest()

    def joined(self, delimiter: str) -> Value:
        """GROUP_CONCAT: the distinct values as texts in their order; NULL beyond 1 MiB.  It looks at each of them."""
        parts = dict.fromkeys(cast("str", text(value_of(key))) for key in sorted(self.counts))
        if self.nans:
            parts["nan"] = None
        out = delimiter.join(parts)
        return out if out and len(out) <= TEXT_LIMIT else None


class _Down:
    """A text that sorts the other way round."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Down) -> bool:
        return other.text < self.text


class Distinct:
    """How often each value is there after conversion."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[Value, int] = {}

    def change(self, values: Iterable[Value], sign: int) -> None:
        counts = self.counts
        for value in values:
            if value is None:
                continue
            value = converted(value)
            held = counts.get(value, 0) + sign
            if held:
                counts[value] = held
            else:
                del counts[value]

    def merge(self, other: Distinct) -> None:
        for value, count in other.counts.items():
            held = self.counts.get(value, 0) + count
            if held:
                self.counts[value] = held
            else:
                del self.counts[value]


_NAN = ("NaN",)


def converted(value: Value) -> Value:
    """A value as COUNT_DISTINCT compares it: what spells a number is that number, a Boolean is 1 or 0."""
    if isinstance(value, str):
        spelled = parse_number(value)
        return value if spelled is None else spelled
    return _NAN if value != value else value


STORES: dict[str, tuple[Callable[[], Store], Callable[[Store, str | None], Value]]] = {
    "COUNT": (Count, lambda store, _: cast("Count", store).count),
    "SUM": (Sum, lambda store, _: cast("Sum", store).sum()),
    "AVG": (Sum, lambda store, _: cast("Sum", store).mean()),
    "STDDEV_POP": (Squares, lambda store, _: cast("Squares", store).deviation()),
    "MIN": (Bag, lambda store, _: cast("Bag", store).lowest()),
    "MAX": (Bag, lambda store, _: cast("Bag", store).highest()),
    "UNIQUE": (Bag, lambda store, _: cast("Bag", store).only()),
    "GROUP_CONCAT": (Bag, lambda store, extra: cast("Bag", store).joined(extra or "")),
    "COUNT_DISTINCT": (Distinct, lambda store, _: len(cast("Distinct", store).counts)),
}
"""An aggregate's name -> what it is gathered in, and how it is read.  LAST and ANY go by position: see `view`."""
