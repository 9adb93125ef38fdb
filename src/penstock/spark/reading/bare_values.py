"""Values of bodies that are not texts: numbers, `null`, `true` and `false`, all of one place of a shape at once."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.compute import compute
from penstock.spark.reading.batch_text import ONE, Eights, Places, SecondLook, Text, bytes_before, hits
from penstock.spark.reading.json_types import FLOAT_ENDS

EIGHT, TEN, HUNDRED, MYRIAD = map(np.uint64, (8, 10, 100, 10_000))
DOT = bytes([ord(".") ^ ord("0")])  # where digits are 0 to 9
ZEROS, SIX, UPPER = np.uint64(0x3030303030303030), np.uint64(0x0606060606060606), np.uint64(0xF0F0F0F0F0F0F0F0)
POWERS = 10.0 ** np.arange(8)
PAIRS, FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
MINUS, ZERO = b"-0"
NULL, TRUE, FALS = (int.from_bytes(one, "little") for one in (b"null", b"true", b"fals"))


class BareValues:
    """Values that are not texts."""

    def __init__(self, text: Text, starts: Places, ends: Places, eights: Eights) -> None:
        self._text, self._starts, self._ends = text, starts, ends
        self._sizes = ends - starts
        self._eights = np.ascontiguousarray(eights)
        self._letters = self._eights.view(np.uint8).reshape(-1, 8)
        if not self._sizes.all():
            raise SecondLook

    def column(self, kind: Any) -> Any:
        """As a column of this type; None: they are looked at and no more.  Raises where one is something else."""
        first = self._letters[:, 0]
        digits = (first - ZERO < 10) | (first == MINUS)
        if digits.all():
            return self._numbers(kind)
        numbers: Any = None
        if digits.any():
            numbers = BareValues(self._text, self._starts[digits], self._ends[digits], self._eights[digits]).column(
                kind
            )
        nulls, flags = self._words(~digits)
        if kind is None:
            return None
        if pa.types.is_boolean(kind):
            if digits.any():
                raise SecondLook
            return pa.array(flags, mask=nulls)
        if not nulls[~digits].all():
            raise SecondLook
        if numbers is None:
            return cast("Any", pa.nulls(len(first), kind))
        return numbers.take(pa.array(np.cumsum(digits) - 1, mask=~digits))

    def _words(self, which: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which are null, and which are true.  SecondLook where one of these is no word at all."""
        there, sizes = self._eights & np.uint64((1 << 32) - 1), self._sizes
        nulls, flags = ((there == np.uint64(word)) & (sizes == 4) for word in (NULL, TRUE))
        wrong = (there == np.uint64(FALS)) & (sizes == 5) & (self._letters[:, 4] == ord("e"))
        if not (nulls | flags | wrong)[which].all():
            raise SecondLook
        return nulls, flags

    def _numbers(self, kind: Any) -> Any:
        """All are written as numbers are in JSON, as far as Arrow does not see to it."""
        types: Any = pa.types
        whole = kind is not None and types.is_integer(kind)
        if int(self._sizes.max()) <= 8 and (found := self._short(whole=whole)) is not None:
            if whole:
                shorts: Any = pa.array(found)
                return shorts.cast(kind)
            return None if kind is None else floats(pa.array(found), found, kind)
        self._refuse_odd(whole=whole)
        texts = self._text.slices(self._starts, self._ends)
        if whole:
            return texts.cast(kind)
        if compute.any(compute.match_substring(texts, ".e", ignore_case=True)).as_py():
            raise SecondLook
        doubles = texts.cast(pa.float64())
        values = doubles.to_numpy()
        if not np.isfinite(values).all():
            raise SecondLook
        return None if kind is None else floats(doubles, values, kind)

    def _short(self, *, whole: bool) -> npt.NDArray[Any] | None:
        """Numbers of up to eight letters, all at once; None where one has a sign or something else.

        whole: as they are, without a fraction; else as doubles, which are exact: a whole number through a power of ten.
        """
        sizes = self._sizes
        there = (self._eights ^ ZEROS) << ((8 - sizes) << 3).astype(np.uint64)  # zeros before, and digits are 0 to 9
        zeros = self._letters[:, 0] == ZERO
        fraction: Any = None
        if not whole:
            hit = hits(there, DOT)
            if hit.any():
                dots = bytes_before(hit)
                if ((dots == 7) | (dots == 8 - sizes)).any():
                    raise SecondLook  # nothing before it, or nothing behind
                zeros &= dots != 9 - sizes
                there, fraction = _without_dots(there, dots)
        if zeros.any() and (zeros & (sizes > 1)).any():
            raise SecondLook
        if ((there | (there + SIX)) & UPPER).any():
            return None
        there = (there * TEN + (there >> EIGHT)) & PAIRS
        there = (there * HUNDRED + (there >> np.uint64(16))) & FOURS
        there = (there * MYRIAD + (there >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        if whole:
            return cast("npt.NDArray[Any]", there.view(np.int64))
        return cast("npt.NDArray[Any]", there.astype(np.float64) if fraction is None else there / POWERS[fraction])

    def _refuse_odd(self, *, whole: bool) -> None:
        """SecondLook for what Arrow takes and JSON does not: 01, 1., 1.e5, 0x1."""
        first, second = self._letters[:, 0], self._letters[:, 1]
        sizes = self._sizes
        minus = first == MINUS
        if minus.any():
            first, second = np.where(minus, second, first), np.where(minus, self._letters[:, 2], second)
            sizes = sizes - minus
        zeros = (first == ZERO) & (sizes > 1)
        after = second[zeros]
        if (
            (first - ZERO > 9).any()
            or (self._text.letters[self._ends - 1] - ZERO > 9).any()
            or (len(after) and (whole or (after - ZERO < 10).any() or (after | 0x20 == ord("x")).any()))
        ):
            raise SecondLook


def _without_dots(there: Eights, dots: Places) -> tuple[Eights, Any]:
    """Numbers whose dots stand behind so many bytes, eight where there is none, without them; and how many digits
    stand behind each.
    """
    first = int(dots[0])
    if (dots == first).all():
        below = np.uint64((1 << 8 * first) - 1)
        return (there & ~(below << EIGHT | np.uint64(255))) | ((there & below) << EIGHT), 7 - first
    bits = (dots << 3).astype(np.uint64)
    above = bits + EIGHT
    moved = ((there >> above) << above) | ((there & ((ONE << bits) - ONE)) << EIGHT)
    has = dots < 8
    return np.where(has, moved, there), np.where(has, 7 - dots, 0)


def floats(column: Any, values: npt.NDArray[np.float64], kind: Any) -> Any:
    """Doubles as a column of this type.  Raises where one may not be what is written."""
    types: Any = pa.types
    if not types.is_floating(kind) or (np.signbit(values) & (values == 0)).any():
        raise SecondLook  # a minus before a zero is lost where it is read as a whole number
    if types.is_float64(kind):
        return column
    if (np.abs(values) >= FLOAT_ENDS).any():
        raise SecondLook
    return pa.array(values.astype(np.float32))
