"""Cold arrays in a file: what asks for room there, and what one look through the state moves.

Large arrays of a queue's state, or of the index of a topic, go to a file and are views of it from then on: equal in
every way, and never changed in place.  Who has to change one takes it back to the heap (`heap`).  The log is the truth;
the file is scratch and is never read by another process.  The file itself is `server.scratch_pages`'s; no disk here.
"""

from __future__ import annotations

from array import array
from typing import Protocol, TypeVar, cast

from penstock.records.chunks import Chunk, Longs

PART = 4
"""A view of less than this share of its block is copied: it would keep all of the block."""

T = TypeVar("T", bound="array[int] | memoryview[int] | bytes | bytearray")


class Arena(Protocol):
    """Room for arrays outside the heap."""

    @property
    def least(self) -> int:
        """Bytes; smaller arrays stay on the heap."""
        ...

    def keep(self, values: array[int] | memoryview[int] | bytes | bytearray) -> memoryview[int] | None:
        """A copy that lies in the arena, read only, with the same items; None: there is no room."""
        ...

    def block(self, view: memoryview[int]) -> int:
        """Bytes of the block that a view from `keep`, or a part of one, keeps from being used again."""
        ...


class Move:
    """One look through the state, which moves so many arrays at most."""

    __slots__ = ("_arena", "_before", "full", "room")

    def __init__(self, arena: Arena, before: int, room: int) -> None:
        """before: chunks that reach this LSN are too young.  room: arrays that may still be moved."""
        self._arena = arena
        self._before = before
        self.full = False  # the arena takes no more
        self.room = room

    def takes(self, values: Longs) -> bool:
        """Whether these are on the heap, and large enough to leave it."""
        return isinstance(values, array) and len(values) * values.itemsize >= self._arena.least

    def chunk(self, chunk: Chunk) -> Chunk:
        """The chunk, elsewhere if it is worth it.  Nobody may change it in place."""
        if isinstance(chunk, range) or not self.old(chunk):
            return chunk
        return self.longs(chunk)

    def old(self, chunk: Longs) -> bool:
        """Whether all of these LSNs, ascending, are old enough."""
        return len(chunk) > 0 and chunk[-1] < self._before

    def longs(self, values: Longs) -> Longs:
        """Move an array of integers, if it is worth it."""
        return self._moved(values)

    def marks(self, values: T) -> T | memoryview[int]:
        """Move an array of bytes, if it is worth it; the caller knows that it is old enough."""
        return self._moved(values)

    def _moved(self, values: T) -> T | memoryview[int]:
        if self.room <= 0:
            return values
        if isinstance(values, memoryview):
            size = values.nbytes
            if PART * size >= self._arena.block(values):
                return values
            if size < self._arena.least:
                return cast("T", heap(values))
        else:
            size = len(values) * (values.itemsize if isinstance(values, array) else 1)
            if size < self._arena.least:
                return values
        kept = None if self.full else self._arena.keep(values)
        if kept is None:
            self.full = True
            return values
        self.room -= 1
        return kept


def heap(values: Longs) -> array[int]:
    """The values as an array that may be changed: itself if it is one."""
    if isinstance(values, array):
        return values
    out: array[int] = array(values.format)
    out.frombytes(values.tobytes())
    return out
