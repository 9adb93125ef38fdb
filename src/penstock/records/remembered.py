"""What is worked out again and again for the same few keys, remembered within a bound.

Who makes keys is often a stranger: beyond so many the oldest are forgotten, which costs one more working out of each
that comes again.  A look at a key that is known costs what it costs in a dict.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

_AT_ONCE = 8
"""One in so many is forgotten where there is no place: a dict finds its first key by a step for each that went."""


class Remembered(dict[K, V]):
    """Values that are put there by whoever has worked them out: always by `keep`."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        """most: keys."""
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        if key in self:
            self.pop(key, None)  # and so is the youngest from now on; another thread may have been quicker
        elif len(self) >= self._most:
            for old in list(islice(self, max(self._most // _AT_ONCE, 1))):
                self.pop(old, None)
        self[key] = value
        return value

    def alike(self, key: K, value: V) -> V:
        """What is remembered of a key, so that equal values are one object; this value where nothing is."""
        found = self.get(key)
        return self.keep(key, value) if found is None else found


class Memo(Remembered[K, V]):
    """The same with who works them out: a look at a key that is not known asks for its value."""

    __slots__ = ("_make",)

    def __init__(self, most: int, make: Callable[[K], V]) -> None:
        """make: no method of who has the memo, for that would be garbage in a cycle."""
        super().__init__(most)
        self._make = make

    def __missing__(self, key: K) -> V:
        return self.keep(key, self._make(key))
