"""Batches of plain JSON bodies: which are, as one text, and as columns, where only the fields that are wanted become
objects.

The reader of all other batches (`bodies`) makes an object of each body; msgspec reads the wanted fields and passes the
others over, in less than half the time.  Bodies of like shapes need not even that (`like_bodies`): in the bodies of a
batch as one text the same is done at a place of each body at once.  Eight bytes are one number there.  A byte is found
in it by arithmetic, so values of up to eight letters take a few steps for all rows together.

All agree on what JSON is and what its values are where a batch is plain: no escapes, no letters below a blank, UTF-8
throughout, short bodies, no number that leaves the doubles.  Whatever is not so, and every batch in which some body or
value needs a second look, is left to the reader of each body, which alone decides what is bad: what comes of a batch
here is what would have come of it there.  Bodies that are odd by themselves (`odd_rows`) are few in most batches, and
go there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.compute import compute

if TYPE_CHECKING:
    from penstock.spark.record_batches import Column


Places: TypeAlias = "npt.NDArray[np.int64]"
"""Of bytes in the bodies of a batch, one for each of its rows or of some."""

Eights: TypeAlias = "npt.NDArray[np.uint64]"
"""Eight bytes each."""

LONG = 400
"""Bytes of a body on average from which on looking at each of them costs more than it gains."""

BLOCK = 64
"""Bytes that are got at once: what is written before a value, or its end, and the first eight of the value."""

WORDS = BLOCK // 8
"""Of eight bytes each; as many as a byte has bits."""

_FIRST_BIT = np.array([(bits & -bits).bit_length() - 1 if bits else WORDS for bits in range(256)])

EVERY = np.uint64(0x0101010101010101)
HIGH = np.uint64(0x8080808080808080)
ONE = np.uint64(1)


class SecondLook(pa.ArrowInvalid):
    """This batch is for another reader."""


class Text:
    """The bodies of a batch, one behind the other."""

    def __init__(self, bodies: Column) -> None:
        """SecondLook where they are too long."""
        given: Any = bodies
        _, offsets, data = given.buffers()
        ends = np.frombuffer(offsets, np.int32, len(given) + 1, given.offset * 4)
        first, size = int(ends[0]), int(ends[-1] - ends[0])
        if size > LONG * len(given):
            raise SecondLook
        if first + size + BLOCK <= data.size:  # what is read behind the last body is there: the next one, mostly
            self.letters, self.buffer, first = np.frombuffer(data, np.uint8), data, 0
        else:
            self.letters = np.zeros(size + BLOCK, np.uint8)
            self.letters[:size] = np.frombuffer(data, np.uint8, size, first)
            self.buffer = pa.py_buffer(cast("Any", self.letters))
        self.starts, self.stops = ends[:-1].astype(np.int64) - first, ends[1:].astype(np.int64) - first
        self.eights = self._each(8).view("<u8")
        self.blocks = self._each(BLOCK)

    def _each(self, size: int) -> npt.NDArray[Any]:
        """So many bytes from each place on, as one thing: to get many at once costs no more than to get one."""
        return np.ndarray((len(self.letters) - size + 1,), f"V{size}", self.letters.data, 0, (1,))

    def body(self, row: int) -> bytes:
        """The body of a row, as it came."""
        return self.letters[self.starts[row] : self.stops[row]].tobytes()

    def slices(self, starts: Places, ends: Places) -> Any:
        """What stands between these places, which rise, as texts."""
        count = len(starts)
        edges = np.empty(2 * count + 1, np.int32)
        edges[:-1:2], edges[1::2], edges[-1] = starts, ends, ends[-1]
        parts = cast("Any", [None, pa.py_buffer(cast("Any", edges)), self.buffer])
        whole: Any = pa.Array.from_buffers(pa.string(), 2 * count, parts)
        return whole.take(_every_other(count))

    def words(self, places: Places, count: int) -> list[Eights]:
        """So many numbers of eight bytes from each of these places on, the lowest byte of each the first."""
        if count == 1:
            return [self.eights[places]]
        there = self._each(8 * count)[places].view("<u8").reshape(-1, count)
        return [there[:, word] for word in range(count)]

    def next(self, places: Places, wanted: bytes, stops: Places, there: Eights) -> Places:
        """The first places of one of these bytes, from here on; `stops` where none comes before.

        there: the eight bytes that stand at the places.
        """
        hit = hits(there, wanted)
        found = places + bytes_before(hit)
        if not hit.all():
            rest = np.flatnonzero(hit == 0)
            for _ in range(2):  # numbers have up to 24 letters, and a block costs five times as much
                rest = rest[found[rest] < stops[rest]]
                hit = hits(self.eights[found[rest]], wanted)
                found[rest] += bytes_before(hit)
                rest = rest[hit == 0]
            while len(rest := rest[found[rest] < stops[rest]]):
                found[rest], there_is_one = self._within_block(found[rest], wanted)
                rest = rest[~there_is_one]
        return cast("Places", np.minimum(found, stops, out=found))

    def _within_block(self, places: Places, wanted: bytes) -> tuple[Places, npt.NDArray[np.bool_]]:
        """The first of these bytes within a block from each place on, and where there is one; else the block's end."""
        found = hits(self.blocks[places].view("<u8"), wanted)
        some = np.packbits(found != 0, bitorder="little")  # a bit for each word of eight bytes
        words = _FIRST_BIT[some]
        before = bytes_before(found[np.arange(0, len(found), WORDS) + np.minimum(words, WORDS - 1)])
        there = some != 0
        return places + np.where(there, 8 * words + before, BLOCK), there


@lru_cache(maxsize=4)
def _every_other(count: int) -> Any:
    """So many places."""
    return pa.array(np.arange(0, 2 * count, 2))


def hits(there: Eights, wanted: bytes) -> Eights:
    """In each of these numbers one bit, the highest of its byte, for the first of these bytes; zero: none is there."""
    found: Any = None
    for byte in wanted:
        zero = there ^ (EVERY * np.uint64(byte))
        hit = zero - EVERY
        hit &= ~zero
        hit &= HIGH  # its lowest bit is the highest one of the first byte that is zero
        found = hit if found is None else np.bitwise_or(found, hit, out=found)
    return cast("Eights", found)


def bytes_before(hit: Eights) -> Places:
    """How many bytes stand before the first hit; eight where there is none."""
    before = hit - ONE
    before &= ~hit
    return cast("Places", np.bitwise_count(before).astype(np.int64) >> 3)


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
