"""Which tag a consumer's message has: an index of outstanding deliveries by message, for what is given again.

A client may have any number of deliveries outstanding, and let any of them come again, so nothing here goes over all of
them at each.  The index is made when it is first asked for, and has 16 bytes a delivery.  It may still name tags that
were settled since: whoever asks looks at the tag.  What was delivered since is taken in when that has become much.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer

CONSUMER_BITS = 40
"""How far the number of a consumer is shifted in a key.  Keys may meet, as the owner of the tag then shows."""


class TagIndex:
    """Tags below `until`, by consumer and message."""

    __slots__ = ("_keys", "_numbers", "_tags", "until")

    def __init__(self) -> None:
        self.until = 0
        self._numbers: dict[Consumer, int] = {}
        self._keys: NDArray[np.int64] = np.empty(0, np.int64)  # ascending
        self._tags: NDArray[np.int64] = np.empty(0, np.int64)  # of each key

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, consumer: Consumer, chunk: Chunk) -> list[int]:
        """The tags of earlier deliveries of these to the consumer, and perhaps some others."""
        number = self._numbers.get(consumer)
        if number is None:
            return []
        wanted = np.asarray(chunk, dtype=np.int64) + np.int64(number << CONSUMER_BITS)
        low, high = np.searchsorted(self._keys, wanted), np.searchsorted(self._keys, wanted, side="right")
        out: list[int] = []
        for place in np.flatnonzero(low < high).tolist():
            out += self._tags[low[place] : high[place]].tolist()
        return out

    def extend(self, pieces: Iterable[tuple[int, Consumer | list[Consumer], Chunk]], until: int) -> None:
        """Take in what was delivered since: first tags, owners and messages, up to before tag `until`."""
        firsts, sizes, owners, keys = array("q"), array("q"), array("q"), array("q")
        numbers = self._numbers
        for first, owner, chunk in pieces:
            keys.extend(chunk)
            if isinstance(owner, list):
                firsts.extend(range(first, first + len(chunk)))
                sizes.extend([1] * len(chunk))
                owners.extend([numbers.setdefault(one, len(numbers)) for one in owner])
            else:
                firsts.append(first)
                sizes.append(len(chunk))
                owners.append(numbers.setdefault(owner, len(numbers)))
        each = np.frombuffer(sizes, np.int64)
        before = np.cumsum(each) - each
        tags = np.repeat(np.frombuffer(firsts, np.int64) - before, each) + np.arange(len(keys))
        fresh = np.frombuffer(keys, np.int64) + np.repeat(np.frombuffer(owners, np.int64) << CONSUMER_BITS, each)
        every = np.concatenate([self._keys, fresh])
        order = np.argsort(every, kind="stable")  # two runs, of which one is sorted
        self._keys, self._tags = every[order], np.concatenate([self._tags, tags])[order]
        self.until = until


def places(held: Chunk, wanted: Chunk) -> list[int]:
    """Where some messages are among others; both ascend."""
    low, high = bisect_left(wanted, held[0]), bisect_right(wanted, held[-1])
    if high - low <= len(held):
        found = [(bisect_left(held, lsn), lsn) for lsn in wanted[low:high]]
        return [place for place, lsn in found if held[place] == lsn]
    return [place for place, lsn in enumerate(held) if (at := bisect_left(wanted, lsn)) < high and wanted[at] == lsn]
