"""The bodies of a batch as one text, in which the same is done at a place of each body at once.

Eight bytes are one number.  A byte is found in it by arithmetic, so values of up to eight letters take a few steps for
all rows together.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
