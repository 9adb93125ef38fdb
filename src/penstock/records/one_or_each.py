"""A column of a batch in which one value may stand for all rows; else it is a list with one for each.

Rows that come together mostly agree in topic and header, and then nobody makes, counts or compares a list of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Where: TypeAlias = "slice | Sequence[int]"
"""Which rows of a column: neighbours (a slice with step 1), or those that stand there."""


def value_at(column: T | list[T], row: int) -> T:
    """The value of one row."""
    return column[row] if isinstance(column, list) else column  # pyright: ignore[reportReturnType, reportUnknownVariableType] - T is no list


def rows_at(column: T | list[T], where: Where) -> T | list[T]:
    """The column of some rows; one value stands for these as well."""
    return list_at(column, where) if isinstance(column, list) else column  # pyright: ignore[reportUnknownArgumentType] - T is no list


def list_at(column: list[T], where: Where) -> list[T]:
    """Those of a list."""
    return column[where] if isinstance(where, slice) else [column[row] for row in where]


def each(column: T | list[T], count: int) -> list[T]:
    """One for each of `count` rows; the same list where it is one."""
    return column if isinstance(column, list) else [column] * count  # pyright: ignore[reportUnknownVariableType] - T is no list


def one_or_each(column: list[T]) -> T | list[T]:
    """The value that all rows have; the same list where they differ, or where there are none."""
    if not column or column[0] != column[-1]:
        return column
    return column[0] if column.count(column[0]) == len(column) else column


def joined(parts: Sequence[tuple[T | list[T], int]]) -> T | list[T]:
    """Columns one behind the other, each with how many rows it has."""
    first = parts[0][0]
    if not isinstance(first, list) and all(one is first or one == first for one, _ in parts):
        return first
    out = list[T]()
    for one, count in parts:
        out += each(one, count)
    return out


def bytes_of(column: bytes | Iterable[bytes], count: int) -> int:
    """Bytes that the values of `count` rows have in all."""
    return len(column) * count if isinstance(column, bytes) else sum(map(len, column))


def tight(rows: Sequence[int]) -> Where:
    """Ascending rows, of which there is one; a slice when they are neighbours."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows
