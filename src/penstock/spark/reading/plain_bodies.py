"""Batches of plain JSON bodies as columns, faster: only the fields that are wanted become objects.

The reader of all other batches (`bodies`) makes an object of each body; msgspec reads the wanted fields and passes the
others over, in less than half the time.  Bodies of like shapes need not even that (`like_bodies`).

All agree on what JSON is and what its values are where a batch is plain: no escapes, no letters below a blank, UTF-8
throughout, short bodies, no number that leaves the doubles.  Whatever is not so, and every batch in which some body or
value needs a second look, is left to the reader of each body, which alone decides what is bad: what comes of a batch
here is what would have come of it there.  Bodies that are odd by themselves (`odd_rows`) are few in most batches, and
go there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.compute import compute

if TYPE_CHECKING:
    from penstock.spark.record_batches import Column

BODY_MOST = 2_000
"""Bytes of a body: so short it is not nested as deeply as one of the readers minds."""

DIGITS_MOST = 200
BEYOND = rf"[0-9]{{{DIGITS_MOST}}}|[\[:, ]-?[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{{3}}"
"""What may be a number beyond a double, with so many digits or an exponent of three: one reader refuses it, and the
others do not look at what they pass over."""


class Field(Protocol):
    """A column of bodies."""

    name: str

    def at_once(self, values: list[Any]) -> Column:
        """The values of all rows.  Raises where one of them needs a second look."""
        ...


class PlainBodies:
    """The reader of one part."""

    def __init__(self, fields: Sequence[Field], decode: Callable[[bytes], object]) -> None:
        self._fields = fields
        self._decode = decode
        self._columns = [attrgetter(f"f{place}") for place in range(len(fields))]

    @classmethod
    def of(cls, fields: Sequence[Field]) -> PlainBodies | None:
        """None where its library is not there, or takes no field of such a name: one with quotes, or a line's end."""
        try:
            from msgspec import defstruct
            from msgspec.json import Decoder
        except ImportError:
            return None
        names = [(f"f{place}", Any, None) for place in range(len(fields))]
        renamed = {f"f{place}": field.name for place, field in enumerate(fields)}
        try:
            return cls(fields, Decoder(defstruct("Body", names, rename=renamed, gc=False)).decode)
        except ValueError:
            return None

    def columns(self, bodies: Column) -> dict[str, Column]:
        """The columns of a batch that is plain.  Raises where a body or a value needs a second look."""
        if _may_be_beyond(bodies):
            raise pa.ArrowInvalid("a number of a body may leave the doubles")
        rows = list(map(self._decode, cast("list[bytes]", bodies.to_pylist())))
        return {
            field.name: field.at_once(list(map(column, rows)))
            for field, column in zip(self._fields, self._columns, strict=True)
        }


def is_plain(bodies: Column, *, escapes: bool = False) -> bool:
    """Whether all readers agree on what the texts and the objects of a batch are.

    escapes: those that make an object of a body, all of which take the same escapes for the same letters.
    """
    given: Any = bodies
    if not len(given) or given.null_count:
        return False
    _, offsets, data = given.buffers()
    ends = np.frombuffer(offsets, np.int32, len(given) + 1, given.offset * 4)
    first, last = int(ends[0]), int(ends[-1])
    if data is None or first == last or int(np.diff(ends).max()) > BODY_MOST:
        return False
    letters = np.frombuffer(data, np.uint8, last - first, first)
    if int(letters.min()) < ord(" ") or (not escapes and (letters == ord("\\")).any()):
        return False
    return int(letters.max()) <= MOST_OF_ASCII or _is_text(given)


def odd_rows(bodies: Column) -> npt.NDArray[np.bool_]:
    """Which rows keep a batch from being plain, or do not look like an object: without them the others are plain."""
    given: Any = bodies
    count = len(given)
    _, offsets, data = given.buffers()
    if data is None:
        return np.ones(count, np.bool_)
    ends = np.frombuffer(offsets, np.int32, count + 1, given.offset * 4)
    sizes, letters = np.diff(ends), np.frombuffer(data, np.uint8)
    odd = (sizes < len("{}")) | (sizes > BODY_MOST)
    if given.null_count:
        odd |= given.is_null().to_numpy(zero_copy_only=False)
    there = np.flatnonzero(~odd)
    odd[there] = (letters[ends[there]] != ord("{")) | (letters[ends[there + 1] - 1] != ord("}"))
    written = letters[ends[0] : ends[-1]]
    strange = (written < ord(" ")) | (written == ord("\\"))
    if int(written.max(initial=0)) > MOST_OF_ASCII and not _is_text(given):
        strange |= written > MOST_OF_ASCII
    odd[np.searchsorted(ends, np.flatnonzero(strange) + ends[0], side="right") - 1] = True
    return odd


def _is_text(bodies: Any) -> bool:
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _may_be_beyond(bodies: Column) -> bool:
    """Whether some number may be one that not all readers take."""
    given: Any = bodies
    _, offsets, data = given.buffers()
    ends = np.frombuffer(offsets, np.int32, len(given) + 1, given.offset * 4)
    first, last = int(ends[0]), int(ends[-1])
    if int(np.diff(ends).max()) < DIGITS_MOST and not _has_exponent(np.frombuffer(data, np.uint8, last - first, first)):
        return False
    whole: Any = pa.array([data.slice(first, last - first).to_pybytes()], pa.binary())
    return bool(compute.match_substring_regex(whole, pattern=BEYOND)[0].as_py())


MOST_OF_ASCII = 0x7F
ZERO, EXPONENT, TO_LOWER = ord("0"), ord("e"), 0x20


def _has_exponent(letters: Any) -> bool:
    """Whether an `e` stands between a digit and, a letter on, two more, as in an exponent of three digits."""
    found = np.flatnonzero((letters[1:-3] | TO_LOWER) == EXPONENT)
    for step in (0, 3, 4):
        found = found[letters[found + step] - ZERO < 10]
    return bool(len(found))
