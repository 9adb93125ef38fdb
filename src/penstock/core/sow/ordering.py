"""The order of query results: `/total DESC, /id`, NULL first when ascending, numbers before text; ties by key.

Values come from the expression language; this page knows how they compare and how to keep the first so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from penstock.errors import InvalidArgument
from penstock.expr import Value, compile_value
from penstock.expr.tree import Scalar
from penstock.records.dataclass import dataclass

TERMS_MOST = 16
"""Expressions of one order."""


@dataclass(frozen=True, slots=True)
class Term:
    """One expression of an order."""

    value: Value
    descending: bool = False


def parse_order(order: str | Sequence[str] | None) -> tuple[Term, ...]:
    """An order as text with commas or as a list, each part an expression and perhaps ASC or DESC.

    Raises ExpressionError for an expression, InvalidArgument for an empty or too long list.
    """
    if order is None:
        return ()
    parts = _split(order) if isinstance(order, str) else [part for one in order for part in _split(one)]
    if not parts or not all(parts):
        raise InvalidArgument("order_by has an empty part: write '/total DESC, /id'")
    if len(parts) > TERMS_MOST:
        raise InvalidArgument(f"order_by has {len(parts)} parts, {TERMS_MOST} are allowed")
    terms: list[Term] = []
    for part in parts:
        text, _, last = part.rpartition(" ")
        word = last.upper()
        if text and word in ("ASC", "DESC"):
            terms.append(Term(compile_value(text.strip()), word == "DESC"))
        else:
            terms.append(Term(compile_value(part)))
    return tuple(terms)


def order_of(order_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """An order as a list of its parts, checked.  Errors as `parse_order`."""
    return tuple(f"{term.value.text} {'DESC' if term.descending else 'ASC'}" for term in parse_order(order_by))


def _split(text: str) -> list[str]:
    """Parts between commas that stand outside of quotes and parentheses."""
    parts: list[str] = []
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


Rank = tuple[int, object]


def rank(value: Scalar) -> Rank:
    """A value as something that compares with every other: NULL, truth, numbers, NaN, text."""
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, str):
        return 4, value.encode("utf-8", "surrogateescape")
    if isinstance(value, float) and isnan(value):
        return 3, 0
    return 2, value


class Ordered:
    """Rows in an order, of which the first so many are kept."""

    __slots__ = ("_most", "_rows", "_terms")

    def __init__(self, terms: Sequence[Term], most: int | None) -> None:
        """most: so many are kept, those that come first; None: all."""
        self._terms = terms
        self._most = most
        self._rows: list[tuple[int, int, tuple[Rank, ...]]] = []  # key's number, LSN, values

    def add(self, numbers: Sequence[int], lsns: Sequence[int], values: Sequence[Sequence[Scalar]]) -> None:
        """Rows; values: for each term one a row."""
        if values:
            ranks = zip(*([rank(value) for value in column] for column in values), strict=True)
            self._rows += zip(numbers, lsns, ranks, strict=True)
        else:
            self._rows += [(number, lsn, ()) for number, lsn in zip(numbers, lsns, strict=True)]
        if self._most is not None and len(self._rows) > 2 * self._most + 4096:
            self._sort()
            del self._rows[self._most :]

    def lsns(self) -> list[int]:
        """The LSNs of the rows kept, in order."""
        self._sort()
        if self._most is not None:
            del self._rows[self._most :]
        return [lsn for _, lsn, _ in self._rows]

    def _sort(self) -> None:
        self._rows.sort(key=_number)
        for place in range(len(self._terms) - 1, -1, -1):

            def value(row: tuple[int, int, tuple[Rank, ...]], place: int = place) -> Rank:
                return row[2][place]

            self._rows.sort(key=value, reverse=self._terms[place].descending)


def _number(row: tuple[int, int, tuple[Rank, ...]]) -> int:
    return row[0]
