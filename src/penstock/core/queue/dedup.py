"""Keys that keep messages out of a queue: those of its living messages, and those that it took of late.

Keys are 64 bits of a hash, as of last values.  A window knows when each key was taken last; what counts is the time in
the log.  Keys are packed, 16 bytes each: the newest in a dict, the others in sorted blocks, none of which ever changes.
What a window holds depends on what was taken and on nothing else, so the fold has the same: whoever looks leaves out
what was too old when the last key was taken, and all but the newest `KEYS_MOST`.  It knows no batch and no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.core.queue.order.ranks import outgrown
from penstock.core.state.lsns import Ints, flat, ints, to_array
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.whole import Whole


KEYS_MOST = 1_000_000
"""Keys that a window of a queue holds; of more the oldest are forgotten before their time."""

YOUNG = 1024
"""Keys in the dict, before they become a block."""

BLOCK = 65_536
"""Keys in a block at most."""

MANY = 32
"""So many keys are looked for in a block at once, fewer one by one."""

_YOUNG_BYTES = 160
"""About what a key in the dict takes."""

Block: TypeAlias = "tuple[array[int], array[int]]"
"""Keys, ascending, and a value of each."""

NONE: Ints = np.zeros(0, dtype=np.int64)


class Keys:
    """A value of each key; the one put last counts."""

    __slots__ = ("_blocks", "_young")

    def __init__(self) -> None:
        self._young: dict[int, int] = {}
        self._blocks: list[Block] = []  # oldest first

    def __len__(self) -> int:
        """Entries; a key may have an older one, too."""
        return len(self._young) + sum(len(keys) for keys, _ in self._blocks)

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes."""
        return _YOUNG_BYTES * len(self._young) + 16 * sum(len(keys) for keys, _ in self._blocks)

    def get(self, key: int) -> int:
        """Its value; 0: it has none."""
        value = self._young.get(key)
        if value is not None:
            return value
        for keys, values in reversed(self._blocks):
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                return values[at]
        return 0

    def has_any(self, keys: Sequence[int]) -> bool:
        """Whether one of these keys has a value."""
        if not self._young.keys().isdisjoint(keys):
            return True
        if len(keys) < MANY:
            return any(self.get(key) for key in keys)
        wanted = np.sort(np.array(keys, dtype=np.int64))
        for block, _ in self._blocks:
            here = ints(block)
            at = np.minimum(np.searchsorted(here, wanted), len(here) - 1)
            if (here[at] == wanted).any():
                return True
        return False

    def put(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """More keys; whether the dict became a block, which is the time to leave some out."""
        self._young.update(pairs)
        if len(self._young) < YOUNG:
            return False
        young, self._young = self._young, {}
        keys = np.fromiter(young, dtype=np.int64, count=len(young))
        values = np.fromiter(young.values(), dtype=np.int64, count=len(young))
        order = np.argsort(keys)
        for start in range(0, len(order), BLOCK):
            some = order[start : start + BLOCK]
            self._blocks.append((to_array(keys[some]), to_array(values[some])))
        blocks = self._blocks
        while len(blocks) > 1 and len(blocks[-2][0]) <= 2 * len(blocks[-1][0]):
            if len(blocks[-2][0]) + len(blocks[-1][0]) > BLOCK:
                break
            keys, values = _merged(blocks[-2:])
            blocks[-2:] = [(to_array(keys), to_array(values))]
        return True

    def leave_out(self, upto: int) -> None:
        """Forget values up to this one, where that costs nothing: blocks of no others."""
        self._blocks = [block for block in self._blocks if int(ints(block[1]).max()) > upto]

    def copy(self) -> Keys:
        """The same, of which one may go on without the other."""
        out = type(self)()
        out._young, out._blocks = dict(self._young), list(self._blocks)
        return out

    def all(self) -> tuple[Ints, Ints]:
        """All keys, ascending, and their values."""
        young = np.array(list(self._young.items()), dtype=np.int64).reshape(-1, 2)
        order = np.argsort(young[:, 0])
        last = to_array(young[order, 0]), to_array(young[order, 1])
        return _merged([*self._blocks, last])

    def load(self, keys: Ints, values: Ints) -> None:
        """These and no others; the keys ascending."""
        self._young = {}
        self._blocks = [
            (to_array(keys[start : start + BLOCK]), to_array(values[start : start + BLOCK]))
            for start in range(0, len(keys), BLOCK)
        ]


def _merged(blocks: Sequence[Block]) -> tuple[Ints, Ints]:
    """Blocks as one, oldest first: of equal keys the last one's value."""
    keys = np.concatenate([ints(keys) for keys, _ in blocks])
    values = np.concatenate([ints(values) for _, values in blocks])
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    if not len(keys):
        return keys, values
    last = np.concatenate((keys[1:] != keys[:-1], [True]))
    return keys[last], values[last]


class Window(Keys):
    """When each key was taken last, in microseconds of the log's time."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        super().__init__()
        self.last = 0  # when the last key was taken

    def copy(self) -> Window:
        out = Window()
        out._young, out._blocks, out.last = dict(self._young), list(self._blocks), self.last
        return out

    def has(self, key: int, time: int, window: int) -> bool:
        """Whether the key was taken so many microseconds before this time, or less."""
        taken = self.get(key)
        return taken > 0 and taken > time - window

    def take(self, keys: Iterable[int], time: int, window: int) -> None:
        """These keys are taken now."""
        self.last = time
        if self.put([(key, time) for key in keys]):
            self.leave_out(time - window)
            if len(self) > KEYS_MOST + BLOCK:
                self.load(*self._kept(window))

    def _kept(self, window: int) -> tuple[Ints, Ints]:
        keys, times = self.all()
        held = times > self.last - window
        keys, times = keys[held], times[held]
        if len(keys) > KEYS_MOST:
            newest = np.sort(np.lexsort((keys, times))[-KEYS_MOST:])
            keys, times = keys[newest], times[newest]
        return keys, times

    def dump(self, window: int) -> array[int]:
        """Flat pairs of key and time, by key: what equal histories share."""
        return to_array(np.stack(self._kept(window), axis=1).reshape(-1))

    @classmethod
    def loaded(cls, pairs: array[int]) -> Window:
        """A window out of what `dump` gave."""
        out = cls()
        if len(pairs):
            table = ints(pairs).reshape(-1, 2)
            out.load(table[:, 0], table[:, 1])
            out.last = int(table[:, 1].max())
        return out


def altered(window: Window | None, before: QueueSettings, after: QueueSettings) -> Window | None:
    """The window under other settings: keys by another expression, or of a queue without a window, are forgotten."""
    if not after.dedup_window:
        return None
    if window is None or before.dedup_key != after.dedup_key:
        return Window()
    if before.dedup_window == after.dedup_window:
        return window
    return Window.loaded(window.dump(before.dedup_window))


class Dedup:
    """What one queue knows of keys."""

    __slots__ = ("duplicates", "living", "window")

    def __init__(self, settings: QueueSettings) -> None:
        self.duplicates = 0  # messages that did not enter, since the start
        self.window = altered(None, settings, settings)
        self.living = Keys() if settings.unique else None  # LSNs of messages, of some that are gone, too

    def alter(self, before: QueueSettings, after: QueueSettings) -> None:
        """Other settings; whether keys are unique changes in an empty queue alone."""
        self.window = altered(self.window, before, after)
        if after.unique != (self.living is not None) or before.dedup_key != after.dedup_key:
            self.living = Keys() if after.unique else None

    @property
    def count(self) -> int:
        """Entries of both tables in memory."""
        return sum(len(keys) for keys in (self.window, self.living) if keys is not None)

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(keys.nbytes for keys in (self.window, self.living) if keys is not None)

    def knows(self, keys: Sequence[int]) -> bool:
        """Whether there is any word of one of these keys, also of one taken too long ago, or whose message is gone."""
        return any(table.has_any(keys) for table in (self.window, self.living) if table is not None)

    def in_window(self, key: int, time: int, settings: QueueSettings) -> bool:
        """Whether the queue took it of late."""
        return self.window is not None and self.window.has(key, time, settings.dedup_window)

    def has(self, queue: Whole, key: int) -> bool:
        """Whether a message with this key is in the queue, in any state, and no other may be."""
        if self.living is None:
            return False
        lsn = self.living.get(key)
        return lsn > 0 and queue.lives(lsn)

    def take(self, queue: Whole, told: Sequence[tuple[int, int]], time: int) -> None:
        """The queue took messages with keys: (LSN, key) of each."""
        if self.window is not None:
            self.window.take([key for _, key in told], time, queue.settings.dedup_window)
        living = self.living
        if living is not None and living.put([(key, lsn) for lsn, key in told]):
            living.leave_out(min(queue.floor(), told[0][0]) - 1)
            if outgrown(len(living), queue.total):
                keys, lsns = living.all()
                there = np.isin(lsns, flat(queue.living_pieces())) | (lsns >= told[0][0])
                living.load(keys[there], lsns[there])

    def load(self, lsns: Ints, keys: Ints) -> None:
        """The keys of waiting messages, from a durable state; 0: none."""
        if self.living is not None:
            held = keys != 0
            order = np.argsort(keys[held], kind="stable")
            self.living.load(keys[held][order], lsns[held][order])


def key_column(living: Keys, waiting: Ints) -> Ints:
    """The key of each waiting message, ascending; 0: none."""
    out = np.zeros(len(waiting), dtype=np.int64)
    keys, lsns = living.all()
    if len(keys) and len(waiting):
        at = np.minimum(np.searchsorted(waiting, lsns), len(waiting) - 1)
        here = waiting[at] == lsns
        out[at[here]] = keys[here]
    return out


def deduplicates(settings: QueueSettings) -> bool:
    """Whether a queue keeps messages out for their keys."""
    return settings.dedup_window > 0 or settings.unique


def told_of(dedup: Dedup | None) -> Mapping[str, int]:
    """What statistics say of a queue's keys."""
    if dedup is None:
        return {"duplicates": 0, "dedup_keys": 0, "dedup_bytes": 0}
    return {"duplicates": dedup.duplicates, "dedup_keys": dedup.count, "dedup_bytes": dedup.nbytes}
